/* The collective calls of a rank behind one interface, like ProcessGroup and Work of PyTorch's c10d. The
 * compute thread posts calls and waits for them.
 *
 * Calls run in one of two ways. The compute thread uses the same functions for both ways:
 *
 *   agent          for shared memory, MPI and virtual time. The agent takes a call and posts it to the
 *                  collective library. When the call has ended, the agent advances the fence of the
 *                  call's queue.
 *   stream order   for NCCL. The compute thread enqueues the call on a communication stream, after a mark
 *                  of the compute stream. A wait makes the compute stream wait for a mark after the call.
 *                  No other thread takes part.
 *
 * The calls of one queue end one after another, in the order in which they were posted. Calls of different
 * queues run at the same time. All ranks post the same calls in the same order, so a call has the same number
 * on all ranks. */
#ifndef COMMON_PROCESS_GROUP_PROCESS_GROUP_H
#define COMMON_PROCESS_GROUP_PROCESS_GROUP_H

#include "common/collectives/collective.h"
#include "common/net/status_table.h"
#include "common/sync/engine.h"

typedef struct process_group process_group;

/* Identifies a posted call. 0 if there is no call. */
typedef uint64_t process_work;

enum {
    PROCESS_GROUP_QUEUES = 6,
    PROCESS_GROUP_AHEAD = COLLECTIVE_ENQUEUED / 2, /* Largest number of calls in flight in stream order. */
    /* Largest number of waits in all steps in flight. At most two steps are in flight. */
    PROCESS_GROUP_WAITS = 2048,
    /* A post records a mark on the compute stream. The end of a call records a mark on the communication
     * stream. The constants are the numbers of the first marks of both kinds. */
    PROCESS_GROUP_READY_MARK = SYNC_MARK_ENGINE,
    PROCESS_GROUP_END_MARK = COLLECTIVE_MARKS,
};
_Static_assert(PROCESS_GROUP_READY_MARK + PROCESS_GROUP_AHEAD <= DEVICE_MARKS,
               "a mark for each call in flight");
_Static_assert(PROCESS_GROUP_END_MARK + PROCESS_GROUP_AHEAD <= DEVICE_MARKS,
               "a mark for each call in flight");

typedef struct process_call {
    collective_group *group;
    /* Call of another queue that must end before this call begins. 0 if there is none. */
    process_work after;
    int64_t tag; /* Defined by the owner. 0 if the owner does not need the times of waits for the call. */
    int64_t ready_ns; /* Time at which the data of the call were ready. Used if an agent runs the call. */
    int queue;
    /* Number of collective calls that follow the first one. The collective calls run one after another, and
     * the next call of the queue begins after the last of them. */
    int later_phases;
    int kind, index;          /* Defined by the owner. */
    rank_operation operation; /* Operation that the status table shows. */
    int bucket;               /* Bucket that the status table shows, or RANK_NO_BUCKET. */
} process_call;

/* The times of a call, in ns of the device's clock. */
typedef struct process_times {
    process_work work;
    int64_t tag;
    /* process_call.ready_ns, or in stream order the time at which the compute stream reached the post. */
    int64_t ready_ns;
    int64_t posted_ns; /* Time at which the agent took the call, or in stream order the same as ready_ns. */
    /* `started_ns` is the time at which the last rank posted the call. `finished_ns` is the time at which the
     * call ended. */
    int64_t started_ns, finished_ns;
    int64_t traced_ns; /* Begin of the call in the trace. The trace shows parallel calls one after another. */
    int64_t began_ns;  /* Time at which this rank began the call. Used if last_rank is not known. */
    /* World rank of the last rank to post the call, or -1 if the library does not report this rank. */
    int last_rank;
    bool empty; /* True if this rank took no part in the call. */
    collective_algorithm algorithm;
} process_times;

/* Functions of the owner. All functions except call() may be NULL. The thread that runs the calls invokes
 * call(), finish() and ended(). */
typedef struct process_group_ops {
    /* Called when a phase of `p` begins. Sets *out to the collective call of the phase. */
    status (*call)(void *context, const process_call *p, int phase, collective_call *out);
    /* Runs after the last phase. */
    status (*finish)(void *context, const process_call *p);
    /* Runs when the call has ended, before the compute thread can see that it has ended. */
    void (*ended)(void *context, const process_call *p, const process_times *t);
    /* Runs once per call that has ended, on the compute thread in process_group_poll(). The calls of a queue
     * are in order. */
    void (*accounted)(void *context, const process_times *t);
    /* Runs on the compute thread in process_group_end_step(), for each wait for a call that has a tag.
     * `times` is NULL if the times of a later call have replaced the times of this call. */
    void (*waited)(void *context, int64_t tag, anatomy_span wait, const process_times *times);
} process_group_ops;

/* All pointers are borrowed. */
typedef struct process_group_config {
    const process_group_ops *ops;
    void *context;
    const char *name; /* Name of the agent's thread, at most 15 characters. */
    const char *who;  /* Prefix of error messages, or NULL. */
    device *device;
    device_stream *compute;
    rank_slot *slot;   /* Status slot that shows the oldest running call, or NULL. */
    int first_rank;    /* The job's rank number of rank 0 of the world. */
    int rank;          /* Rank in the world. */
    bool stream_order; /* Whether the library runs calls in stream order (NCCL). */
    /* True if a call begins only after the compute stream has reached the point at which the call was posted,
     * as on virtual GPUs. */
    bool follows_compute;
    /* Whether a wait for a call of queue 0 first waits for all earlier calls of this queue, one by one. */
    bool waits_for_each;
    bool inline_progress;
    int queues;
    int most[PROCESS_GROUP_QUEUES]; /* Largest number of calls that are posted and have not begun. */
} process_group_config;

/* Returns the configuration of the collectives between the ranks of an engine. `name` names the world. */
collective_config process_group_collectives(const sync_context *context, const char *name);

/* Opens queues, fences and the communication stream. */
status process_group_open(const process_group_config *config, process_group **out);
status process_group_start(process_group *g, collective_world *world);
/* Ends the agent. Afterwards the caller may close the groups and the world, and then process_group_close()
 * frees fences and streams. */
void process_group_stop(process_group *g);
void process_group_close(process_group **g);

status process_group_post(process_group *g, const process_call *p, process_work *out);
/* Convert between a process_work and the number of the call in its queue. Calls are numbered from 1. */
static inline process_work process_work_of(int queue, uint64_t number)
{
    return number * PROCESS_GROUP_QUEUES + (uint64_t)queue;
}
static inline uint64_t process_work_number(process_work w)
{
    return w / PROCESS_GROUP_QUEUES;
}
/* Returns the number of the last call that was posted to a queue. */
uint64_t process_group_posted(const process_group *g, int queue);
/* Makes all later work of the compute stream wait for the call. On a device that runs operations during the
 * launch, such as a CPU, the function blocks. Records the wait in `a`, which may be NULL. */
status process_group_wait(process_group *g, process_work w, anatomy *a);
bool process_group_done(process_group *g, process_work w);

/* These functions post a call that consists of any number of collective calls. Each process_group_add()
 * between process_group_begin() and process_group_end() adds a collective call. The process group must run
 * calls in stream order. */
status process_group_begin(process_group *g, const process_call *p);
status process_group_add(process_group *g, const collective_call *call);
status process_group_end(process_group *g, process_work *out);
/* Returns the communication stream, or NULL if an agent runs the calls. */
device_stream *process_group_stream(const process_group *g);
/* Makes the communication stream wait for all work that has been launched on the compute stream. */
status process_group_join_compute(process_group *g);

/* Calls the owner's accounted() for each call that has ended. */
void process_group_poll(process_group *g);
/* Does the work of process_group_poll(). Then records the causes of the waits of the oldest step. Called when
 * the compute stream has passed the end of this step. */
void process_group_end_step(process_group *g, anatomy *a);
/* Skips the calls that have been posted so far, so that accounted() is not called for them. */
void process_group_skip(process_group *g);
/* Adds the traffic and the processor time of the agent to the counters. */
void process_group_counters(const process_group *g, sync_counters *out);

/* Gives up after an error. The peers receive the error of the calling thread, and every later call fails with
 * this error. Returns `code`. */
status process_group_give_up(process_group *g, status code);

#endif
