/* The internals of a process group. process_group.c contains the functions for the compute thread. agent.c
 * and stream.c implement the two ways to run calls. */
#ifndef COMMON_PROCESS_GROUP_PROCESS_GROUP_IMPL_H
#define COMMON_PROCESS_GROUP_PROCESS_GROUP_IMPL_H

#include "common/process_group/process_group.h"
#include "common/sync/agent.h"

#include <stdatomic.h>

/* Largest number of calls of a queue that the agent runs at the same time. */
enum { PROCESS_GROUP_IN_FLIGHT = COLLECTIVE_QUEUE };

/* The record of a posted call. It is valid until a later call of the queue overwrites it. */
typedef struct call_record {
    process_call p;
    uint64_t sequence; /* Number of the post, from 1, counted over all queues. */
    /* If an agent runs the call, `phase` is the running phase and `ticket` its ticket. In stream order,
     * `phase` is the number of collective calls and `ticket` is the ticket of the first collective call. */
    int phase;
    collective_ticket ticket;
    process_times times; /* Complete when the call has ended. */
} call_record;

/* A queue of calls. The compute thread writes the record of a call before it posts the call. Afterwards only
 * the agent uses the record until the call has ended. */
typedef struct call_queue {
    call_record *calls; /* [mask + 1] Records, by the number of the call. */
    uint64_t mask;
    _Atomic uint64_t posted; /* Number of the last posted call. Only the compute thread writes it. */
    device_fence *done;      /* NULL in stream order. */
    /* `accounted` is the number of the last accounted call, and `awaited` is the number of the last call that
     * has been waited for. Only the compute thread uses these numbers. */
    uint64_t accounted, awaited;
    /* The numbers of the last call that the agent has taken, of the last call that has begun, and of the last
     * call that has ended. Only the agent uses these numbers. */
    uint64_t taken, begun, ended;
} call_queue;

typedef struct call_wait {
    int number; /* Number of the wait in the anatomy. */
    process_work work;
    int64_t tag;
} call_wait;

struct process_group {
    process_group_config config;
    collective_world *world;
    sync_agent *agent;     /* NULL in stream order. */
    device_stream *stream; /* Communication stream, or NULL if an agent runs the calls. */
    /* Sequence number of the last post that the compute stream has reached. NULL unless follows_compute. */
    device_fence *passed;
    uint64_t sequence;       /* Number of posts to all queues. */
    int64_t traced_until_ns; /* Time at which the last call in the trace ends. Only the agent uses it. */
    call_queue *queues;      /* [config.queues] In stream order, all calls are in queue 0. */
    call_wait *waits;        /* [PROCESS_GROUP_WAITS] */
    int wait_count;
    error_record failure; /* Written before given_up is set. */
    atomic_bool given_up;
};

static inline call_queue *queue_of(const process_group *g, process_work w)
{
    return &g->queues[w % PROCESS_GROUP_QUEUES];
}

static inline call_record *record_at(const call_queue *q, uint64_t number)
{
    return &q->calls[number & q->mask];
}

/* process_group.c. Fills the record of the next call of the queue. The caller then posts the call. */
call_record *process_group_enter(process_group *g, call_queue *q, const process_call *p);
/* Called by the thread that runs the calls, after the last phase. */
status process_group_finish(const process_group *g, const process_call *p);
void process_group_ended(const process_group *g, const call_record *c);

/* stream.c */
status process_group_post_in_order(process_group *g, const process_call *p, process_work *out);
status process_group_wait_in_order(process_group *g, process_work w);
/* If the communication stream has passed the call, reads the times of the call and returns true. Else returns
 * false. */
bool process_group_read_times(process_group *g, uint64_t number);

#endif
