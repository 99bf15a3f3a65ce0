/* Collective calls of a rank behind one interface, as c10d's ProcessGroup and Work: the compute thread posts
 * calls and waits for them.
 *
 * Calls run in one of two ways, which the compute thread cannot tell apart:
 *
 *   agent         Shared memory, MPI and virtual time. The agent pops a call, posts it to the collective
 * library, and advances the fence of the call's queue when the call has ended. stream order  NCCL. The
 * compute thread enqueues the call on a communication stream, after a mark of the compute stream. A wait
 * makes the compute stream wait for a mark after the call. No other thread takes part.
 *
 * Calls of a queue end one after another, in the order in which they were posted. Calls of different queues
 * run side by side. All ranks post the same calls in the same order, so a call has the same number on all of
 * them. */
#ifndef COMMON_PROCESS_GROUP_PROCESS_GROUP_H
#define COMMON_PROCESS_GROUP_PROCESS_GROUP_H

#include "common/collectives/collective.h"
#include "common/net/status_table.h"
#include "common/sync/engine.h"

typedef struct process_group process_group;

/* Names a call that was posted. 0 is no call. */
typedef uint64_t process_work;

enum {
    PROCESS_GROUP_QUEUES = 6,
    PROCESS_GROUP_AHEAD = COLLECTIVE_ENQUEUED / 2, /* Calls in stream order that may be in flight. */
    PROCESS_GROUP_WAITS = 2048,                    /* Waits of the steps under way, two at most. */
    /* First mark of a posted call on the compute stream, and of a finished one on the communication stream.
     */
    PROCESS_GROUP_READY_MARK = SYNC_MARK_ENGINE,
    PROCESS_GROUP_END_MARK = COLLECTIVE_MARKS,
};
_Static_assert(PROCESS_GROUP_READY_MARK + PROCESS_GROUP_AHEAD <= DEVICE_MARKS,
               "a mark for each call in flight");
_Static_assert(PROCESS_GROUP_END_MARK + PROCESS_GROUP_AHEAD <= DEVICE_MARKS,
               "a mark for each call in flight");

typedef struct process_call {
    collective_group *group;
    process_work after; /* The call begins when this one of another queue has ended, or at once if 0. */
    int64_t tag;        /* The owner's; 0 if nobody needs the times of its waits. */
    int64_t ready_ns;   /* When its data were there, if an agent runs the call. */
    int queue;
    int phases; /* Collective calls, one after another; 0 counts as 1. Later calls of the queue begin after
                   the last phase. */
    int kind, index;          /* The owner's. */
    rank_operation operation; /* That the status table shows. */
    int bucket;               /* That the status table shows, or RANK_NO_BUCKET. */
} process_call;

/* Times in ns of the device's clock. */
typedef struct process_times {
    process_work work;
    int64_t tag;
    int64_t ready_ns;  /* process_call.ready_ns, or when the compute stream had passed the post. */
    int64_t posted_ns; /* When the agent took the call, or the compute stream had passed the post. */
    int64_t started_ns, finished_ns; /* When all ranks had posted it; when it had ended. */
    int64_t traced_ns; /* Begin on the time line, which shows parallel calls one after another. */
    int64_t began_ns;  /* When this rank began, if last_rank is unknown. */
    int last_rank; /* The last rank of the world that posted it, or -1 if the library does not report it. */
    bool empty;    /* The rank took no part. */
    collective_algorithm algorithm;
} process_times;

/* The owner's functions; all but call() may be NULL. call(), finish() and ended() are called by the thread
 * that runs the calls. */
typedef struct process_group_ops {
    /* Describes a phase of `p` when it begins. */
    status (*call)(void *context, const process_call *p, int phase, collective_call *out);
    /* After the last phase. */
    status (*finish)(void *context, const process_call *p);
    /* Before the compute thread can see that the call has ended. */
    void (*ended)(void *context, const process_call *p, const process_times *t);
    /* By the compute thread in process_group_poll(), once per call, in the order of its queue. */
    void (*accounted)(void *context, const process_times *t);
    /* By the compute thread in process_group_end_step(), for each wait for a call with a tag. `times` may be
     * NULL. */
    void (*waited)(void *context, int64_t tag, anatomy_span wait, const process_times *times);
} process_group_ops;

/* Everything is borrowed. */
typedef struct process_group_config {
    const process_group_ops *ops;
    void *context;
    const char *name; /* Of the agent's thread, at most 15 characters. */
    const char *who;  /* In front of the message of a failure, or NULL. */
    device *device;
    device_stream *compute;
    rank_slot *slot;              /* Shows the oldest call that has not ended, or NULL. */
    const sync_context *recorded; /* Passes that may be recorded while calls are posted, or NULL. */
    int first_rank;               /* Rank of the job that is rank 0 of the world. */
    int rank;                     /* Of the world. */
    bool stream_order;            /* The library enqueues calls. */
    bool follows_compute; /* A call begins when the compute stream has passed its post: virtual GPUs. */
    bool waits_for_each;  /* A wait for a call of queue 0 first waits for each call before it, one by one. */
    bool inline_progress;
    int queues;
    int most[PROCESS_GROUP_QUEUES]; /* Calls of a queue that are posted at a time and have not begun. */
} process_group_config;

/* Opens queues, fences and the communication stream. process_group_start() follows when all ranks are
 * connected: from then on the calls of `world`, which outlives the process group, are run. */
status process_group_open(const process_group_config *config, process_group **out);
status process_group_start(process_group *g, collective_world *world);
/* Ends the agent, so that groups and world may be closed. Then close() frees fences and streams. */
void process_group_stop(process_group *g);
void process_group_close(process_group **g);

status process_group_post(process_group *g, const process_call *p, process_work *out);
/* Call `number` of a queue, from 1, and back. */
static inline process_work process_work_of(int queue, uint64_t number)
{
    return number * PROCESS_GROUP_QUEUES + (uint64_t)queue;
}
static inline uint64_t process_work_number(process_work w)
{
    return w / PROCESS_GROUP_QUEUES;
}
/* Number of the last call that was posted to a queue. */
uint64_t process_group_posted(const process_group *g, int queue);
/* What is launched on the compute stream from now on begins when the call has ended. Blocks the caller if
 * launches are function calls. `a` receives the wait, or is NULL. */
status process_group_wait(process_group *g, process_work w, anatomy *a);
bool process_group_done(process_group *g, process_work w);
/* Posts a call and waits for it. */
status process_group_run(process_group *g, const process_call *p, anatomy *a);

/* Only in stream order: a call that consists of any number of collective calls. Between begin and end. */
status process_group_begin(process_group *g, const process_call *p);
status process_group_add(process_group *g, const collective_call *call);
status process_group_end(process_group *g, process_work *out);
/* The communication stream, or NULL if an agent runs the calls. */
device_stream *process_group_stream(const process_group *g);
/* The communication stream continues after everything that was launched on the compute stream. */
status process_group_join_compute(process_group *g);

/* Accounts calls that have ended. */
void process_group_poll(process_group *g);
/* The compute stream has passed the end of the oldest step: accounts calls, and names the causes of the
 * step's waits. */
void process_group_end_step(process_group *g, anatomy *a);
/* The calls posted so far are not accounted. */
void process_group_skip(process_group *g);
/* Adds the traffic and the processor time of the agent. */
void process_group_counters(const process_group *g, sync_counters *out);

/* Gives up: the peers receive the present error, and every later call fails with it. Returns `code`. */
status process_group_give_up(process_group *g, status code);

#endif
