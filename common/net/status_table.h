/* The status table of a job shows what every rank of a host is doing. The table is in shared memory.
 *
 * Every rank has a slot of one cache line. The rank writes its slot with relaxed atomics. Readers draw a
 * progress line, look for a hanging rank, or report in which operation a rank died. The table also contains
 * the variables that control the job: stop request, turn and first failure.
 *
 * The table is a memfd and an eventfd. Ranks inherit the memfd and the eventfd from the launcher, or create
 * them if there is no launcher. The memfd and the eventfd have no name in a file system. */
#ifndef COMMON_NET_STATUS_TABLE_H
#define COMMON_NET_STATUS_TABLE_H

#include "common/base/clock.h"
#include "common/base/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The columns are the name, the name in messages, and 1 if a rank in this operation waits for other ranks. */
#define RANK_OPERATION_LIST(X)                                                                               \
    X(START, "start", 0)                                                                                     \
    X(SETUP, "setup", 0)                                                                                     \
    X(RENDEZVOUS, "rendezvous", 1)                                                                           \
    X(LOAD_BATCH, "load_batch", 0)                                                                           \
    X(FORWARD, "forward", 0)                                                                                 \
    X(LOSS, "loss", 0)                                                                                       \
    X(BACKWARD, "backward", 0)                                                                               \
    X(WAIT, "wait", 1)                                                                                       \
    X(ALL_REDUCE, "all_reduce", 1)                                                                           \
    X(REDUCE_SCATTER, "reduce_scatter", 1)                                                                   \
    X(ALL_GATHER, "all_gather", 1)                                                                           \
    X(BROADCAST, "broadcast", 1)                                                                             \
    X(REDUCE, "reduce", 1)                                                                                   \
    X(PUSH, "push", 1)                                                                                       \
    X(PULL, "pull", 1)                                                                                       \
    X(SERVE, "serve", 1)                                                                                     \
    X(OPTIMIZER, "optimizer", 0)                                                                             \
    X(EVALUATE, "evaluate", 0)                                                                               \
    X(CHECKPOINT, "checkpoint", 0)                                                                           \
    X(PARKED, "parked", 1)                                                                                   \
    X(DONE, "done", 1)

#define RANK_OPERATION_ENUM(name, text, waits) RANK_##name,
typedef enum rank_operation { RANK_OPERATION_LIST(RANK_OPERATION_ENUM) RANK_OPERATION_COUNT } rank_operation;
#undef RANK_OPERATION_ENUM

const char *rank_operation_name(rank_operation operation);
bool rank_operation_waits(rank_operation operation);

typedef enum rank_slot_state {
    RANK_ABSENT, /* the process has not attached to the table yet */
    RANK_RUNNING,
    RANK_SLEEPING, /* the rank sleeps while another job has the turn, so it makes no progress */
    RANK_FINISHED, /* the work is done, so the process may exit with 0 */
    RANK_FAILED,
} rank_slot_state;

enum { RANK_NO_BUCKET = -1 };

/* The status slot of a rank, which fills one cache line. `operation` is the operation of the compute thread.
 * `agent` is the operation that the communication agent or the GPU has in flight, or RANK_START if there is
 * none. `bucket` is the bucket of the agent's operation. `enqueued`, `started` and `completed` count
 * collectives in stream order (NCCL), modulo 2^32. The host enqueues a collective, and the GPU starts and
 * completes it. */
typedef struct rank_slot {
    _Alignas(64) atomic_int pid;
    atomic_int rank, state, operation, agent, bucket;
    atomic_uint blocks_done; /* number of finished blocks of steps (see "Turns" below) */
    atomic_uint enqueued, started, completed;
    _Atomic int64_t step;
    _Atomic int64_t time_ns;   /* clock_now_ns() at the last change */
    _Atomic uint64_t progress; /* number of changes */
} rank_slot;

/* Records progress at `now_ns`. */
static inline void rank_slot_touch(rank_slot *slot, int64_t now_ns)
{
    atomic_store_explicit(&slot->time_ns, now_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&slot->progress, 1, memory_order_relaxed);
}

/* Records that the compute thread begins `operation`. Counts as progress. */
static inline void rank_slot_enter(rank_slot *slot, rank_operation operation, int64_t now_ns)
{
    atomic_store_explicit(&slot->operation, (int)operation, memory_order_relaxed);
    rank_slot_touch(slot, now_ns);
}

static inline rank_operation rank_slot_operation(const rank_slot *slot)
{
    return (rank_operation)atomic_load_explicit(&slot->operation, memory_order_relaxed);
}

/* Records that the agent begins `operation` on `bucket`. An agent that becomes idle passes RANK_START and
 * RANK_NO_BUCKET. Counts as progress. */
static inline void rank_slot_agent(rank_slot *slot, rank_operation operation, int bucket, int64_t now_ns)
{
    atomic_store_explicit(&slot->agent, (int)operation, memory_order_relaxed);
    atomic_store_explicit(&slot->bucket, bucket, memory_order_relaxed);
    rank_slot_touch(slot, now_ns);
}

static inline void rank_slot_collectives(rank_slot *slot, uint32_t enqueued, uint32_t started,
                                         uint32_t completed)
{
    atomic_store_explicit(&slot->enqueued, enqueued, memory_order_relaxed);
    atomic_store_explicit(&slot->started, started, memory_order_relaxed);
    atomic_store_explicit(&slot->completed, completed, memory_order_relaxed);
}

static inline void rank_slot_step(rank_slot *slot, int64_t step, int64_t now_ns)
{
    atomic_store_explicit(&slot->step, step, memory_order_relaxed);
    rank_slot_touch(slot, now_ns);
}

/* Assigns the slot to the calling process. Sets the operation to RANK_START and the state to RANK_RUNNING. */
void rank_slot_begin(rank_slot *slot, int rank);
/* Records that the work of the rank is done. A process that exits with 0 before this call counts as lost. */
void rank_slot_finish(rank_slot *slot);

/* A copy of a slot. The fields are read one after another, so they may show slightly different times. */
typedef struct rank_status {
    int pid, rank;
    rank_slot_state state;
    rank_operation operation, agent;
    int bucket; /* bucket of the agent's operation, or RANK_NO_BUCKET */
    uint32_t blocks_done;
    uint32_t enqueued, started, completed;
    int64_t step; /* step that has begun, or -1 before the first step */
    int64_t time_ns;
    uint64_t progress;
} rank_status;
void rank_slot_read(const rank_slot *slot, rank_status *out);

/* Formats "at step 12 in backward, all_reduce of bucket 3 in flight (collectives: 41 enqueued, 41 started, 40
 * completed)". Returns `buffer`. */
enum { RANK_STATUS_TEXT = 192 };
char *rank_status_format(const rank_status *s, char *buffer, size_t size);
/* Returns true if `a` has enqueued fewer collectives than `b`. If the numbers are equal, compares the started
 * collectives, then the completed collectives. Returns false if collectives are not counted. */
bool rank_status_is_behind(const rank_status *a, const rank_status *b);

/* ---- The table ---- */

/* JOB_MOST_RANKS is the largest number of ranks of a job on real devices. JOB_MOST_MEMBERS is the largest
 * number of ranks and separate server processes together. Numbers from files and messages are checked against
 * these limits before memory is allocated. */
enum { JOB_MOST_RANKS = 1024, JOB_MOST_MEMBERS = 2 * JOB_MOST_RANKS };

typedef struct status_table status_table;

/* Creates a table for `world` ranks. The descriptors have the flag FD_CLOEXEC. A launcher clears it for the
 * processes that inherit the table. */
status status_table_create(uint64_t token, int world, status_table **out);
/* Maps an inherited table. Takes ownership of both descriptors, also after a failure. Fails with
 * STATUS_PROTOCOL if the memory is not a table of this version and this job, and with STATUS_CONFIG if the
 * world size in the table differs. */
status status_table_attach(int memory_fd, int notify_fd, uint64_t token, int world, status_table **out);
void status_table_close(status_table **t);

int status_table_memory_fd(const status_table *t);
/* Returns the eventfd to which a rank writes when it begins to wait for a block, has finished a block, or
 * fails. The launcher polls this eventfd. */
int status_table_notify_fd(const status_table *t);
rank_slot *status_table_slot(status_table *t, int rank);
void status_table_read(const status_table *t, int rank, rank_status *out);

/* Records the progress and the step that another process has reported for `rank`. If `progress` has changed,
 * the rank has made progress now. */
void status_table_mirror(status_table *t, int rank, uint64_t progress, int64_t step);
/* Returns the last time at which any member except the owner of `own` made progress, or 0 if `t` is NULL. A
 * rank that waits for other ranks times out only if none of them has made progress within the time limit. */
int64_t status_table_others_ns(const status_table *t, const rank_slot *own);

/* ---- Stop ----
 *
 * All ranks end after the same step, even if some of them are waiting for other ranks. Every rank calls
 * job_stop_here() before each step, which records that the step is about to begin. To stop the job, every
 * process that has a status table of the job calls job_stop_hold(). From then on, every rank waits before it
 * begins another step. The last step is the highest step that any rank has begun. job_stop_decide() lets the
 * ranks run up to this step. Under async, ranks do not wait for each other, so every rank stops before its
 * next step. */
enum { JOB_UNBOUNDED = -1 };

/* Requests a stop because of `signal`, which is not 0. Only the first request counts. Returns the highest
 * step that a rank of this table has begun, or -1. */
int64_t job_stop_hold(status_table *t, int signal);
/* Sets the last step to run. Only the first decision counts. */
void job_stop_decide(status_table *t, int64_t last);
/* Returns the signal of the request, or 0 if there is none. */
int job_stop_requested(const status_table *t);
/* Returns true if `step` must not run. If a stop is requested and `async` is false, first waits until the
 * last step is decided. */
bool job_stop_here(status_table *t, int rank, int64_t step, bool async);

/* ---- Turns ----
 *
 * Jobs that run at the same time alternate in blocks of steps. A rank calls job_turn_wait() before a block
 * and job_turn_done() after the block. Until the block is granted, the rank sleeps in the kernel (futex), and
 * its slot has the state RANK_SLEEPING. Until the first call of job_turn_grant(), every block is granted. */
void job_turn_wait(status_table *t, int rank, uint32_t block);
void job_turn_done(status_table *t, int rank, uint32_t block);
/* Grants blocks [0, blocks), or all blocks if `blocks` is UINT32_MAX. Called by the launcher. */
void job_turn_grant(status_table *t, uint32_t blocks);
uint32_t job_turn_granted(const status_table *t);

/* ---- Loss ---- */

/* Write and read the loss that rank 0 has computed in its latest step. The loss is NaN before the first
 * step. */
void job_report_loss(status_table *t, double loss);
double job_loss(const status_table *t);

/* ---- First failure ---- */

typedef struct job_failure {
    status code;
    rank_status where; /* contents of the rank's slot at the time of the failure */
    char text[512];    /* the error message, in one line */
} job_failure;

/* Records the failure if it is the first of the job, and sets the state of the rank's slot to RANK_FAILED.
 * Returns true if the failure is the first. */
bool job_fail(status_table *t, int rank, status code, const char *text);
bool job_first_failure(const status_table *t, job_failure *out);

#endif
