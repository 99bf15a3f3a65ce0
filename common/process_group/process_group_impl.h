/* The internals of a process group. process_group.c has the functions of the compute thread. agent.c and
 * stream.c are the two ways to run calls. */
#ifndef COMMON_PROCESS_GROUP_PROCESS_GROUP_IMPL_H
#define COMMON_PROCESS_GROUP_PROCESS_GROUP_IMPL_H

#include "common/process_group/process_group.h"
#include "common/sync/agent.h"

#include <stdatomic.h>

/* Most calls of a queue that the agent runs at a time. */
enum { PROCESS_GROUP_IN_FLIGHT = COLLECTIVE_QUEUE };

/* A call, from its post until a later call of the queue overwrites the record. */
typedef struct call_record {
    process_call p;
    uint64_t sequence; /* Number of the post over all queues, from 1. */
    /* The phase that runs on the agent, and its ticket. In stream order, the number of collective calls, and
     * the ticket of the first. */
    int phase;
    collective_ticket ticket;
    process_times times; /* Complete when the call has ended. */
} call_record;

/* The compute thread writes a record before it posts the call. Then the record belongs to the agent until the
 * call has ended. */
typedef struct call_queue {
    call_record *calls; /* [mask + 1] By number. */
    uint64_t mask;
    _Atomic uint64_t posted;      /* Number of the last call; written by the compute thread. */
    device_fence *done;           /* NULL in stream order. */
    uint64_t accounted, awaited;  /* Numbers of the last calls; used only by the compute thread. */
    uint64_t taken, begun, ended; /* Numbers of the last calls; used only by the agent. */
} call_queue;

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

/* process_group.c. Fills the record of the next call of the queue, which the caller then posts. */
call_record *process_group_enter(process_group *g, call_queue *q, const process_call *p);
/* Called by the thread that runs the calls, after the last phase. */
status process_group_finish(const process_group *g, const process_call *p);
void process_group_ended(const process_group *g, const call_record *c);

/* agent.c */
status process_group_start_agent(process_group *g);

/* stream.c */
status process_group_post_in_order(process_group *g, const process_call *p, process_work *out);
status process_group_wait_in_order(process_group *g, process_work w);
/* Reads the times of the call and returns true, if the communication stream has passed the call. */
bool process_group_read_times(process_group *g, uint64_t number);

#endif
