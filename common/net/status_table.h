/* The status table of a job: what every rank of a host is doing, in anonymous shared memory.
 *
 * One cache line per rank, the slot, is written by that rank with relaxed atomics and read by whoever
 * draws a progress line, looks for a rank that hangs, or has to say where one died. The control
 * words follow: stop, turn, first failure.
 *
 * The table is a memfd and an eventfd, inherited by the ranks or made locally where there is no
 * launcher; neither has a name in a file system. */
#ifndef COMMON_NET_STATUS_TABLE_H
#define COMMON_NET_STATUS_TABLE_H

#include "common/base/clock.h"
#include "common/base/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* name, name in messages, whether a rank in it waits for others rather than works */
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
    RANK_ABSENT, /* the process has not attached yet */
    RANK_RUNNING,
    RANK_SLEEPING, /* parked: another job has the turn; it owes no progress */
    RANK_FINISHED, /* its work is done: it may exit with 0 */
    RANK_FAILED,
} rank_slot_state;

enum { RANK_NO_BUCKET = -1 };

/* A rank's status slot: one cache line. `operation` is what the compute thread does, `agent` what its
 * communication agent or GPU has in flight (RANK_START: nothing), `bucket` which bucket that is. Collectives
 * that run in a stream's order (NCCL) are counted, modulo 2^32: what the host has enqueued, and what the GPU
 * has started and completed. */
typedef struct rank_slot {
    _Alignas(64) atomic_int pid;
    atomic_int rank, state, operation, agent, bucket;
    atomic_uint blocks_done; /* of the turn */
    atomic_uint enqueued, started, completed;
    _Atomic int64_t step;
    _Atomic int64_t time_ns;   /* clock_now_ns() at the last change: one origin for all processes */
    _Atomic uint64_t progress; /* changes */
} rank_slot;

/* `now_ns` is handed in, so that a caller who knows the time does not read the clock again. Each counts
 * as progress. */
static inline void rank_slot_touch(rank_slot *slot, int64_t now_ns)
{
    atomic_store_explicit(&slot->time_ns, now_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&slot->progress, 1, memory_order_relaxed);
}

/* The compute thread begins `operation`. */
static inline void rank_slot_enter(rank_slot *slot, rank_operation operation, int64_t now_ns)
{
    atomic_store_explicit(&slot->operation, (int)operation, memory_order_relaxed);
    rank_slot_touch(slot, now_ns);
}

static inline rank_operation rank_slot_operation(const rank_slot *slot)
{
    return (rank_operation)atomic_load_explicit(&slot->operation, memory_order_relaxed);
}

/* The agent begins `operation` on `bucket`; RANK_START and RANK_NO_BUCKET where nothing is left. */
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

/* The calling process becomes the one that the slot speaks of, in operation "start", running. */
void rank_slot_begin(rank_slot *slot, int rank);
/* The rank's work is done; a process that exits with 0 before this counts as lost. */
void rank_slot_finish(rank_slot *slot);

/* A slot read once, as plain numbers. Fields may stem from neighboring moments. */
typedef struct rank_status {
    int pid, rank;
    rank_slot_state state;
    rank_operation operation, agent;
    int bucket; /* RANK_NO_BUCKET: none */
    uint32_t blocks_done;
    uint32_t enqueued, started, completed;
    int64_t step; /* -1: before the first */
    int64_t time_ns;
    uint64_t progress;
} rank_status;
void rank_slot_read(const rank_slot *slot, rank_status *out);

/* "at step 12 in backward, all_reduce of bucket 3 in flight (collectives: 41 enqueued, 41 started, 40
 * completed)". Returns `buffer`. */
enum { RANK_STATUS_TEXT = 192 };
char *rank_status_format(const rank_status *s, char *buffer, size_t size);
/* Whether `a` has come less far in the collectives of its job than `b`; never where they are not counted. */
bool rank_status_is_behind(const rank_status *a, const rank_status *b);

/* ---- The table ---- */

/* The ranks of a job on real devices, and with servers in processes of their own. A number from outside is
 * checked against these before memory is taken for it. */
enum { JOB_MOST_RANKS = 1024, JOB_MOST_MEMBERS = 2 * JOB_MOST_RANKS };

typedef struct status_table status_table;

/* Makes a table for `world` ranks. Its descriptors are closed at exec unless their flag is cleared. */
status status_table_create(uint64_t token, int world, status_table **out);
/* Maps an inherited table; takes over both descriptors, also when it fails. STATUS_PROTOCOL where it is
 * not a table of this version, job and size. */
status status_table_attach(int memory_fd, int notify_fd, uint64_t token, int world, status_table **out);
void status_table_close(status_table **t);

int status_table_memory_fd(const status_table *t);
/* An eventfd that the ranks write to when they park or end a block, for the launcher's poll. */
int status_table_notify_fd(const status_table *t);
rank_slot *status_table_slot(status_table *t, int rank);
void status_table_read(const status_table *t, int rank, rank_status *out);

/* Records what another process reported for `rank`. The slot counts as touched if `progress` differs from the
 * value recorded before. */
void status_table_mirror(status_table *t, int rank, uint64_t progress, int64_t step);
/* Returns when a member other than the owner of `own` last made progress, 0 without a table. A wait for
 * others is late only if none of them has made progress within its limit. */
int64_t status_table_others_ns(const status_table *t, const rank_slot *own);

/* ---- Stop ----
 *
 * All ranks end after the same step, whatever they wait for. Every rank calls job_stop_here() before each
 * step, which records that the step is about to begin. Who stops the job calls job_stop_hold() in every
 * process that has a table of the job: from then on a rank that comes to another step waits. The highest step
 * that was begun is the last one: job_stop_decide() lets the ranks go on up to it. Ranks under async wait for
 * nobody, so each of them stops before its next step. */
enum { JOB_UNBOUNDED = -1 };

/* Requests a stop because of `signal`, which is not 0; the first request counts. Returns the highest step
 * that a rank of this table has begun, or -1. */
int64_t job_stop_hold(status_table *t, int signal);
/* Makes `last` the last step to be run; the first decision counts. */
void job_stop_decide(status_table *t, int64_t last);
/* Returns the signal of the request, 0 if there is none. */
int job_stop_requested(const status_table *t);
/* Whether `step` is not to be run any more. Waits while that is undecided, unless `async`. */
bool job_stop_here(status_table *t, int rank, int64_t step, bool async);

/* ---- Turns ----
 *
 * Jobs that run side by side alternate in blocks of steps. A rank calls job_turn_wait() before a
 * block and job_turn_done() after it; while the block is not granted it sleeps in the kernel (futex)
 * and its slot says so. Without job_turns_enable() every block is granted. */
void job_turns_enable(status_table *t);
void job_turn_wait(status_table *t, int rank, uint32_t block);
void job_turn_done(status_table *t, int rank, uint32_t block);
/* The launcher lets blocks [0, blocks) run. */
void job_turn_grant(status_table *t, uint32_t blocks);
void job_turn_grant_all(status_table *t);
uint32_t job_turn_granted(const status_table *t);

/* ---- Loss ---- */

/* That of the job's last step, as far as rank 0 computes it; NaN before. */
void job_report_loss(status_table *t, double loss);
double job_loss(const status_table *t);

/* ---- First failure ---- */

typedef struct job_failure {
    status code;
    rank_status where; /* the rank's slot as it failed */
    char text[512];    /* one line */
} job_failure;

/* Records the failure unless one is recorded; returns whether it was the first. Marks the slot failed. */
bool job_fail(status_table *t, int rank, status code, const char *text);
bool job_first_failure(const status_table *t, job_failure *out);

#endif
