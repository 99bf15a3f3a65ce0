/* The interface that an implementation of collectives provides. All other code includes collective.h,
 * whose functions check their arguments and then call the implementation.
 *
 * An implementation is one const struct. A function that has nothing to do may be NULL. The implementation's
 * structs for a world, a group and a queue begin with a struct below. collective.c allocates, initializes and
 * frees them. A queue stores the calls, and the implementation advances them. */
#ifndef COMMON_COLLECTIVES_COLLECTIVE_IMPL_H
#define COMMON_COLLECTIVES_COLLECTIVE_IMPL_H

#include "common/base/clock.h"
#include "common/base/doorbell.h"
#include "common/collectives/collective.h"

#include <stdatomic.h>

enum {
    COLLECTIVE_NAME_MAX = 32,
    /* Largest number of unfinished sends to one rank, and of unfinished receives from one rank. */
    COLLECTIVE_PAIR_QUEUE = 8
};

#define COLLECTIVE_HAS(name) (1U << COLLECTIVE_ALGORITHM_##name)

typedef struct collective_queued {
    collective_call call;
    collective_times times;
} collective_queued;

/* Calls that run one after another. The first call has number 1. */
typedef struct collective_queue {
    collective_group *group;
    collective_queued *calls; /* [capacity] Call n is at index n % capacity. */
    int capacity;
    uint64_t posted, completed;
    int64_t since_ns; /* Time at which call number completed + 1 last made progress. */
} collective_queue;

typedef struct collective_type {
    const char *name;
    uint32_t algorithms; /* Algorithms that the library has, as a set of bits COLLECTIVE_HAS(). */
    collective_algorithm algorithm;
    size_t world_bytes, group_bytes, queue_bytes; /* Sizes of the implementation's structs. */
    /* True if a group also has a send queue and a receive queue for each peer. If false, one queue holds all
     * calls of a group. */
    bool pairs;
    /* True if groups have these queues only if the library's user also sets collective_config.pairs. */
    bool pairs_on_request;
    /* If open() fails, close() is called too. The windows of world->config are valid only during open(). */
    status (*open)(collective_world *world);
    void (*close)(collective_world *world);
    status (*group_open)(collective_group *group);
    void (*group_close)(collective_group *group);
    /* Called when a call has been queued. NULL if calls run in stream order. */
    status (*post)(collective_queue *queue);
    /* Runs a call in stream order and adds it to world->enqueued. NULL if calls are posted. */
    status (*enqueue)(collective_group *group, const collective_call *call, struct device_stream *stream);
    status (*progress)(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked);
    void (*wait)(collective_world *world, int64_t deadline_ns);
    void (*wake)(collective_world *world);
    void (*abort)(collective_world *world, const error_record *why);
} collective_type;

struct collective_world {
    const collective_type *type;
    collective_config config; /* config.name points to `name`. config.algorithm is never AUTO. */
    char name[COLLECTIVE_NAME_MAX];
    collective_group *groups;
    struct {
        _Atomic int64_t bytes_sent, bytes_received, messages_sent, messages_received;
    } traffic;                 /* Any thread may read `traffic`. */
    collective_queue enqueued; /* Calls of all groups, in stream order. */
    error_record failure;      /* The first error. The code is STATUS_OK if there is none. */
    /* State of the functions that poll (collective_poll()). */
    doorbell bell;
    unsigned seen;
    int fruitless; /* Number of waits since the last progress. */
};

struct collective_group {
    collective_world *world;
    collective_group *next;
    char name[COLLECTIVE_NAME_MAX];
    int rank, size;
    int *ranks; /* [size] Rank in the world of each member. */
    /* [queue_count][type->queue_bytes] The queue of collectives, then the send queues by rank, then the
     * receive queues by rank. */
    char *queues;
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

static inline int64_t collective_bytes(const collective_call *call)
{
    return call->count * dtype_size(call->type);
}

static inline int64_t collective_deadline(int64_t since_ns, int64_t timeout_ns)
{
    return timeout_ns < CLOCK_NEVER - since_ns ? since_ns + timeout_ns : CLOCK_NEVER;
}

/* Returns the index of the first element of part `part` in a buffer that holds `held`, or -1 if the buffer
 * does not contain the part. */
static inline int64_t collective_part_at(const collective_call *call, collective_extent held, int n, int part)
{
    int64_t begin = collective_part_begin(call->count, n, part),
            end = begin + collective_part_count(call->count, n, part);
    return begin >= held.begin && end <= held.begin + held.count ? begin - held.begin : -1;
}

/* library.c */
status collective_find_library(const char *name, const collective_type **out);

/* Returns true if neither the call in progress nor another rank has progressed within the stall limit. */
bool collective_is_late(collective_queue *q, int64_t now_ns);
/* Returns STATUS_PEER for a late call. `detail` is appended to the message. */
status collective_stalled(const collective_queue *q, const char *detail);

/* Progress, wait and wake functions of a world whose library can only be polled: the library cannot wait for
 * its work and for a wake-up at the same time. A wait first yields the processor, and later sleeps briefly.
 * `advance` does the work that is possible now for a queue that has calls. */
status collective_poll(collective_world *world,
                       status (*advance)(collective_queue *q, int64_t now_ns, bool *worked), int64_t now_ns,
                       int64_t *deadline_ns, bool *worked);
void collective_poll_wait(collective_world *world, int64_t deadline_ns);
void collective_poll_wake(collective_world *world);

/* Adds the traffic of a call. collective_count_call() counts `bytes` and `messages` in each direction in
 * which the kind moves data. */
void collective_count(collective_world *world, collective_traffic more);
void collective_count_call(collective_world *world, collective_kind kind, int64_t bytes, int64_t messages);

#endif
