/* What an implementation provides. For implementers of collectives only: everyone else includes
 * collective.h, whose functions check their arguments and call these.
 *
 * An implementation is one const struct, every slot set. Its worlds, groups and queues begin with the structs
 * below, which collective.c allocates, fills in and frees: a queue holds the calls, and the implementation
 * advances them. */
#ifndef COMMON_COLLECTIVES_COLLECTIVE_IMPL_H
#define COMMON_COLLECTIVES_COLLECTIVE_IMPL_H

#include "common/base/clock.h"
#include "common/base/doorbell.h"
#include "common/collectives/collective.h"

enum {
    COLLECTIVE_NAME_MAX = 32,
    COLLECTIVE_PAIR_QUEUE = 8 /* sends to a rank, or receives from it, not done yet */
};

#define COLLECTIVE_HAS(name) (1U << COLLECTIVE_ALGORITHM_##name)

typedef struct collective_queued {
    collective_call call;
    collective_times times;
} collective_queued;

/* Calls that run one after another. Numbers of calls begin with 1. */
typedef struct collective_queue {
    collective_group *group;
    collective_queued *calls; /* [capacity], by number */
    int capacity;
    uint64_t posted, completed;
    int64_t since_ns; /* of the last progress of the call completed + 1 */
} collective_queue;

typedef struct collective_type {
    const char *name;
    uint32_t algorithms;                          /* COLLECTIVE_HAS() of each */
    collective_algorithm algorithm;               /* the default */
    size_t world_bytes, group_bytes, queue_bytes; /* of the implementation's structs */
    bool pairs; /* a queue for each rank that is sent to, and received from, besides that of all; else one
                   queue */
    bool pairs_on_request; /* only where collective_config.pairs is set */
    /* After a failure close() is called, too. The windows of world->config are only for open(). */
    status (*open)(collective_world *world);
    void (*close)(collective_world *world);
    status (*group_open)(collective_group *group, const int *ranks);
    void (*group_close)(collective_group *group);
    /* A call has been queued. STATUS_INTERNAL where calls run in stream order. */
    status (*post)(collective_queue *queue);
    /* NULL where they do not. Adds the call to world->enqueued. */
    status (*enqueue)(collective_group *group, const collective_call *call, struct device_stream *stream);
    status (*progress)(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked);
    void (*wait)(collective_world *world, int64_t deadline_ns);
    void (*wake)(collective_world *world);
    void (*abort)(collective_world *world, const error_record *why);
} collective_type;

struct collective_world {
    const collective_type *type;
    collective_config config; /* name is `name`; the algorithm is not AUTO */
    char name[COLLECTIVE_NAME_MAX];
    collective_group *groups;
    collective_traffic traffic;
    collective_queue enqueued; /* in stream order, of all groups; the implementation's */
    error_record failure;      /* code STATUS_OK: none */
    /* Where collective_poll() serves a library. */
    doorbell bell;
    unsigned seen;
    int fruitless; /* waits since something was done */
};

struct collective_group {
    collective_world *world;
    collective_group *next; /* of the world */
    char name[COLLECTIVE_NAME_MAX];
    int rank, size; /* of this rank in the group */
    int *ranks;     /* [size] of the members in the world */
    char *queues;   /* [queue_count][type->queue_bytes]: of all; to each rank; from each rank */
    int queue_count;
};

static inline collective_queue *collective_queue_at(const collective_group *g, int index)
{
    return (collective_queue *)(g->queues + (size_t)index * g->world->type->queue_bytes);
}

static inline collective_queued *collective_queued_at(const collective_queue *q, uint64_t number)
{
    return &q->calls[number % (uint64_t)q->capacity];
}

static inline int64_t collective_deadline(int64_t since_ns, int64_t timeout_ns)
{
    return timeout_ns < CLOCK_NEVER - since_ns ? since_ns + timeout_ns : CLOCK_NEVER;
}

/* Where part `part` of the whole begins in a buffer that holds `held`; -1: the buffer does not hold it. */
static inline int64_t collective_part_at(const collective_call *call, collective_extent held, int n, int part)
{
    int64_t begin = collective_part_begin(call->count, n, part),
            end = begin + collective_part_count(call->count, n, part);
    return begin >= held.begin && end <= held.begin + held.count ? begin - held.begin : -1;
}

/* Whether neither the call in progress nor another rank has moved within the stall limit. */
bool collective_is_late(collective_queue *q, int64_t now_ns);
/* STATUS_PEER: the call in progress is late; `detail` is what is known of the reason. */
status collective_stalled(const collective_queue *q, const char *detail);

/* For libraries that cannot wait for their work and for a wake-up at the same time: progress(), wait() and
 * wake() of a world that is polled, first without and later with short sleeps. `advance` does what can be
 * done for a queue that has calls; `library` is for messages. */
status collective_poll(collective_world *world, const char *library,
                       status (*advance)(collective_queue *q, int64_t now_ns, bool *worked), int64_t now_ns,
                       int64_t *deadline_ns, bool *worked);
void collective_poll_wait(collective_world *world, int64_t deadline_ns);
void collective_poll_wake(collective_world *world);

/* Slots of implementations for which there is nothing to do. */
status collective_default_open(collective_world *world);
void collective_default_close(collective_world *world);
status collective_default_group_open(collective_group *group, const int *ranks);
void collective_default_group_close(collective_group *group);
status collective_default_post(collective_queue *queue);
void collective_default_wait(collective_world *world, int64_t deadline_ns);
void collective_default_wake(collective_world *world);
void collective_default_abort(collective_world *world, const error_record *why);

/* collective_open() of an implementation that is not in COLLECTIVE_LIST. */
status collective_open_type(const collective_type *type, const collective_config *config,
                            collective_world **out);

#endif
