/* The internals of a process group. process_group.c has the functions of the compute thread. agent.c and
 * stream.c are the two ways to run calls. */
#ifndef COMMON_PROCESS_GROUP_PROCESS_GROUP_IMPL_H
#define COMMON_PROCESS_GROUP_PROCESS_GROUP_IMPL_H

#include "common/process_group/process_group.h"
#include "common/sync/agent.h"
#include "common/sync/queue.h"

#include <stdatomic.h>

/* Most calls of a queue that the agent runs at a time. */
enum { PROCESS_GROUP_IN_FLIGHT = COLLECTIVE_QUEUE };

/* A message from the compute thread to the agent. `sequence` numbers the posts of all queues from 1. */
typedef struct posted_call {
    process_call p;
    uint64_t sequence;
} posted_call;

typedef struct running_call {
    process_call p;
    process_times times;
    int phase;
    collective_ticket ticket;
} running_call;

/* The properties of a posted call that its waits need. */
typedef struct call_record {
    process_work after;
    int64_t tag;
} call_record;

typedef struct call_queue {
    sync_queue posts;
    device_fence *done;   /* NULL in stream order. */
    process_times *times; /* [mask + 1] By number; written before `done` reaches it. */
    uint64_t mask;
    struct {
        uint64_t posted, accounted, awaited; /* Numbers of the last calls. */
        call_record *records;                /* [mask + 1] By number. */
    } compute;                               /* Used only by the compute thread. */
    struct {
        running_call calls[PROCESS_GROUP_IN_FLIGHT];
        uint64_t head, begun, tail; /* Counts of calls that have ended, begun, and been taken. */
        posted_call next;           /* Popped, but not taken. */
        bool has_next;
    } agent; /* Used only by the agent. */
} call_queue;

/* A call in flight in stream order. */
typedef struct enqueued_call {
    process_call p;
    collective_ticket first;
    int calls;
} enqueued_call;

typedef struct call_wait {
    int number; /* Number of the wait in the anatomy. */
    process_work work;
    int64_t tag;
} call_wait;

struct process_group {
    process_group_config config;
    collective_world *world;
    sync_agent *agent;       /* NULL in stream order. */
    device_stream *stream;   /* NULL with an agent. */
    device_fence *passed;    /* Last post that the compute stream has passed. NULL unless follows_compute. */
    uint64_t sequence;       /* Number of posts over all queues. */
    int64_t traced_until_ns; /* Last end in the trace; written by the agent. */
    call_queue *queues;      /* [config.queues] */
    enqueued_call *enqueued; /* [PROCESS_GROUP_AHEAD] By number. */
    call_wait *waits;        /* [PROCESS_GROUP_WAITS] */
    int wait_count;
    error_record failure; /* Written before given_up is set. */
    atomic_bool given_up;
    _Atomic int64_t bytes_sent, bytes_received, messages_sent, messages_received; /* Written by the agent. */
};

static inline call_queue *queue_of(const process_group *g, process_work w)
{
    return &g->queues[w % PROCESS_GROUP_QUEUES];
}

/* Returns queue 0, which is the only queue in stream order. */
static inline call_queue *first_queue(const process_group *g)
{
    return &g->queues[0];
}

static inline int phases_of(const process_call *p)
{
    return p->phases > 1 ? p->phases : 1;
}

static inline status call_of(const process_group *g, const process_call *p, int phase, collective_call *out)
{
    return g->config.ops->call(g->config.context, p, phase, out);
}

/* process_group.c. Assigns the next number of the queue to a call. */
uint64_t process_group_number(call_queue *q, const process_call *p);
/* Called by the thread that runs the calls, when all phases have ended. process_group_ended() publishes the
 * times. */
status process_group_finish(const process_group *g, const process_call *p);
void process_group_ended(const process_group *g, call_queue *q, const process_call *p,
                         const process_times *t);
void process_group_publish_traffic(process_group *g);

/* agent.c */
status process_group_start_agent(process_group *g);

/* stream.c */
status process_group_post_in_order(process_group *g, const process_call *p, process_work *out);
status process_group_wait_in_order(process_group *g, process_work w);
/* Reads the times of the call and returns true, if the communication stream has passed the call. */
bool process_group_read_times(process_group *g, uint64_t number);

#endif
