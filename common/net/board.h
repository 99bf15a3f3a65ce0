/* The board of a job: what every rank of a host is doing, in anonymous shared memory.
 *
 * One cache line a rank, the cell, is written by that rank with relaxed atomics and read by whoever
 * draws a progress line, looks for a rank that hangs, or has to say where one died. Beside the cells
 * stand the control words: stop, turn, first failure.
 *
 * The board is a memfd and an eventfd, inherited by the ranks or made locally where there is no
 * launcher; neither has a name in a file system. */
#ifndef COMMON_NET_BOARD_H
#define COMMON_NET_BOARD_H

#include "common/base/clock.h"
#include "common/base/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* name, name in messages, whether a rank in it waits for others rather than works */
#define BOARD_OPERATION_LIST(X)                                                                      \
    X(START, "start", 0)                                                                             \
    X(SETUP, "setup", 0)                                                                             \
    X(RENDEZVOUS, "rendezvous", 1)                                                                   \
    X(LOAD_BATCH, "load_batch", 0)                                                                   \
    X(FORWARD, "forward", 0)                                                                         \
    X(LOSS, "loss", 0)                                                                               \
    X(BACKWARD, "backward", 0)                                                                       \
    X(WAIT, "wait", 1)                                                                               \
    X(ALL_REDUCE, "all_reduce", 1)                                                                   \
    X(REDUCE_SCATTER, "reduce_scatter", 1)                                                           \
    X(ALL_GATHER, "all_gather", 1)                                                                   \
    X(BROADCAST, "broadcast", 1)                                                                     \
    X(PUSH, "push", 1)                                                                               \
    X(PULL, "pull", 1)                                                                               \
    X(SERVE, "serve", 1)                                                                             \
    X(OPTIMIZER, "optimizer", 0)                                                                     \
    X(EVALUATE, "evaluate", 0)                                                                       \
    X(CHECKPOINT, "checkpoint", 0)                                                                   \
    X(PARKED, "parked", 1)                                                                           \
    X(DONE, "done", 1)

#define BOARD_OPERATION_ENUM(name, text, waits) BOARD_##name,
typedef enum board_operation {
    BOARD_OPERATION_LIST(BOARD_OPERATION_ENUM) BOARD_OPERATION_COUNT
} board_operation;
#undef BOARD_OPERATION_ENUM

const char *board_operation_name(board_operation operation);
bool board_operation_waits(board_operation operation);

typedef enum board_state {
    BOARD_ABSENT, /* the process has not attached yet */
    BOARD_RUNNING,
    BOARD_SLEEPING, /* parked: another job has the turn; it owes no progress */
    BOARD_FINISHED, /* its work is done: it may exit with 0 */
    BOARD_FAILED,
} board_state;

enum { BOARD_NO_BUCKET = -1 };

/* A rank's status cell: one cache line. `operation` is what the compute thread does, `agent` what its
 * communication agent has in flight (BOARD_START: nothing), `bucket` which bucket that is. */
typedef struct board_cell {
    _Alignas(64) atomic_int pid;
    atomic_int rank, state, operation, agent, bucket;
    atomic_uint blocks_done; /* of the turn */
    _Atomic int64_t step;
    _Atomic int64_t time_ns;   /* clock_now_ns() at the last change: one origin for all processes */
    _Atomic uint64_t progress; /* changes */
} board_cell;

/* `now_ns` is handed in, so that a caller who knows the time does not read the clock again. Each counts
 * as progress. */
static inline void board_cell_touch(board_cell *cell, int64_t now_ns)
{
    atomic_store_explicit(&cell->time_ns, now_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&cell->progress, 1, memory_order_relaxed);
}

/* The compute thread begins `operation`. */
static inline void board_cell_enter(board_cell *cell, board_operation operation, int64_t now_ns)
{
    atomic_store_explicit(&cell->operation, (int)operation, memory_order_relaxed);
    board_cell_touch(cell, now_ns);
}

/* The agent begins `operation` on `bucket`; BOARD_START and BOARD_NO_BUCKET where nothing is left. */
static inline void board_cell_agent(board_cell *cell, board_operation operation, int bucket, int64_t now_ns)
{
    atomic_store_explicit(&cell->agent, (int)operation, memory_order_relaxed);
    atomic_store_explicit(&cell->bucket, bucket, memory_order_relaxed);
    board_cell_touch(cell, now_ns);
}

static inline void board_cell_step(board_cell *cell, int64_t step, int64_t now_ns)
{
    atomic_store_explicit(&cell->step, step, memory_order_relaxed);
    board_cell_touch(cell, now_ns);
}

/* The calling process becomes the one that the cell speaks of, in operation "start", running. */
void board_cell_begin(board_cell *cell, int rank);
/* The rank's work is done; a process that exits with 0 before this counts as lost. */
void board_cell_finish(board_cell *cell);

/* A cell read once, as plain numbers. Fields may stem from neighboring moments. */
typedef struct board_status {
    int pid, rank;
    board_state state;
    board_operation operation, agent;
    int bucket; /* BOARD_NO_BUCKET: none */
    uint32_t blocks_done;
    int64_t step; /* -1: before the first */
    int64_t time_ns;
    uint64_t progress;
} board_status;
void board_cell_read(const board_cell *cell, board_status *out);

/* "at step 12 in backward, all_reduce of bucket 3 in flight". Returns `buffer`; 128 bytes are enough. */
char *board_status_format(const board_status *s, char *buffer, size_t size);

/* ---- The board ---- */

/* The ranks of a job on real devices, and with servers in processes of their own. A number from outside is checked
 * against these before memory is taken for it. */
enum { JOB_MOST_RANKS = 1024, JOB_MOST_MEMBERS = 2 * JOB_MOST_RANKS };

typedef struct board board;

/* Makes a board for `world` ranks. Its descriptors are closed at exec unless their flag is cleared. */
status board_create(uint64_t token, int world, board **out);
/* Maps an inherited board; takes over both descriptors, also when it fails. STATUS_PROTOCOL where it is
 * not a board of this version, job and size. */
status board_attach(int memory_fd, int notify_fd, uint64_t token, int world, board **out);
void board_close(board **b);

int board_world(const board *b);
int board_memory_fd(const board *b);
/* An eventfd that the ranks write to when they park or end a block, for the launcher's poll. */
int board_notify_fd(const board *b);
board_cell *board_cell_of(board *b, int rank);
void board_read(const board *b, int rank, board_status *out);

/* ---- Stop ----
 *
 * The launcher asks, rank 0 decides which step is the last, all end behind the same one:
 * board_stop_here() is called by every rank before each step. Rank 0, before it begins step s, sees the
 * request and writes down s + 1 + slack as the first step not to be run. No rank can have begun that
 * step: to end step s + slack a rank needs rank 0's contribution to step s, and rank 0 writes before it
 * contributes. Receiving the contribution orders the write before the rank's next look. `slack` is how
 * many steps a rank may be ahead of rank 0: 0 where every step is synchronous, the bound where staleness
 * is bounded, BOARD_UNBOUNDED where nobody waits for anybody: then each rank stops at its own boundary. */
enum { BOARD_UNBOUNDED = -1 };
typedef enum board_stop { BOARD_GO, BOARD_STOP_AFTER_STEP, BOARD_STOP_NOW } board_stop;

void board_request_stop(board *b, board_stop stop);
board_stop board_stop_requested(const board *b);
/* Whether `step` is not to be run any more. */
bool board_stop_here(board *b, int rank, int64_t step, int64_t slack);

/* ---- Turns ----
 *
 * Jobs that run side by side alternate in blocks of steps. A rank calls board_turn_wait() before a
 * block and board_turn_done() behind it; while the block is not granted it sleeps in the kernel (futex)
 * and its cell says so. Without board_turns_enable() every block is granted. */
void board_turns_enable(board *b);
void board_turn_wait(board *b, int rank, uint32_t block);
void board_turn_done(board *b, int rank, uint32_t block);
/* The launcher lets blocks [0, blocks) run. */
void board_turn_grant(board *b, uint32_t blocks);
void board_turn_grant_all(board *b);
uint32_t board_turn_granted(const board *b);

/* ---- First failure ---- */

typedef struct board_failure {
    status code;
    board_status where; /* the rank's cell as it failed */
    char text[512];     /* one line */
} board_failure;

/* Records the failure unless one is recorded; returns whether it was the first. Marks the cell failed. */
bool board_fail(board *b, int rank, status code, const char *text);
bool board_first_failure(const board *b, board_failure *out);

#endif
