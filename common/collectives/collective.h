/* Collective operations between ranks, in two forms. Transports of the host do not block: post a call,
 * progress the world, check whether it is done. A library of GPUs (NCCL) runs calls in the order of a stream:
 * a call is enqueued, and whatever needs its result is in that stream's order or waits for a mark of it. One
 * interface, several libraries:
 *
 *   shm       one machine, shared memory, ours; algorithms: ring (shm/ring_all_reduce.c; sums in ring order),
 * two-shot (shm/shm_two_shot.c; each rank reduces its n-th of all buffers and writes it to all; sums in rank
 * order) nccl      NCCL, on the memory of GPUs; the algorithm is the library's choice, or its ring mpi Open
 * MPI's MPI_Iallreduce and the like; the same plan      devices that plan: a call is done when it is posted
 *   sim       virtual devices: no bytes, and the time that an algorithm takes over a profile's links;
 * algorithms: ring (NCCL's), tree (NCCL's), two-shot, hierarchical, library (NCCL's choice of its two by
 * size)
 *
 * The same calls with the same counts give bit-identical results in every run: the order of a sum depends
 * only on library, algorithm, ranks and count. `mean` is the sum, then a true division by the number of
 * ranks.
 *
 * A world belongs to one rank and one thread: all functions but collective_wake() are called by the one
 * that drives it. Ranks may be processes or threads of one process. Nothing is allocated after open.
 *
 * Buffers are a base and a list of pieces, so that padding is skipped; an implementation that has no real
 * memory never reads them. Memory inside a window (collective_config.windows) is read and written by the
 * peers in place; other memory passes through the implementation's own slots. */
#ifndef COMMON_COLLECTIVES_COLLECTIVE_H
#define COMMON_COLLECTIVES_COLLECTIVE_H

#include "common/base/status.h"
#include "common/memory/piece.h"
#include "common/net/link.h"
#include "common/ops/tensor.h"
#include "common/reduce/reduce.h"

#include <stdbool.h>
#include <stdint.h>

/* name, name in messages and reports, what `in` and `out` hold on a rank (COLLECTIVE_HOLDS_...), whether it
 * reduces */
#define COLLECTIVE_KIND_LIST(X)                                                                              \
    X(ALL_REDUCE, "all_reduce", WHOLE, WHOLE, true)                                                          \
    X(REDUCE, "reduce", WHOLE, WHOLE_AT_ROOT, true)                                                          \
    X(BROADCAST, "broadcast", WHOLE_AT_ROOT, WHOLE, false)                                                   \
    X(ALL_GATHER, "all_gather", PART, WHOLE, false)                                                          \
    X(REDUCE_SCATTER, "reduce_scatter", WHOLE, PART, true)                                                   \
    X(GATHER, "gather", PART, WHOLE_AT_ROOT, false)                                                          \
    X(SCATTER, "scatter", WHOLE_AT_ROOT, PART, false)                                                        \
    X(ALL_TO_ALL, "all_to_all", WHOLE, PART_OF_EACH, false)                                                  \
    X(SEND, "send", WHOLE, NOTHING, false)                                                                   \
    X(RECEIVE, "receive", NOTHING, WHOLE, false)                                                             \
    X(BARRIER, "barrier", NOTHING, NOTHING, false)

#define COLLECTIVE_KIND_ENUM(name, ...) COLLECTIVE_##name,
typedef enum collective_kind {
    COLLECTIVE_KIND_LIST(COLLECTIVE_KIND_ENUM) COLLECTIVE_KIND_COUNT
} collective_kind;
#undef COLLECTIVE_KIND_ENUM

const char *collective_kind_name(collective_kind kind);
bool collective_reduces(collective_kind kind);
bool collective_has_root(collective_kind kind);
/* One rank sends, another receives. */
bool collective_is_pair(collective_kind kind);
/* Every rank has a part of the elements of such a call. */
bool collective_is_cut(collective_kind kind);

/* Element i of the buffer is element i of the pieces, whose offsets count from `base`. Without pieces it
 * lies at base[i]. The array of pieces is borrowed until the call is done. */
typedef struct collective_buffer {
    void *base;
    piece_list pieces;
} collective_buffer;

/* The ranks of one machine whose tensors shared memory can carry. */
enum { COLLECTIVE_MOST_SHARED_RANKS = 64 };

/* A call; every member of the group makes it with the same kind, op, type, root, tag and count.
 *
 *                   in holds                   out holds
 *   all_reduce      count                      count
 *   reduce          count                      count, at the root
 *   broadcast       count, at the root         count (at the root too)
 *   all_gather      this rank's part           count: the parts in rank order
 *   reduce_scatter  count                      this rank's part
 *   gather          this rank's part           count, at the root
 *   scatter         count, at the root         this rank's part
 *   all_to_all      count: a part for each     n times this rank's part, in the order of their senders
 *   send            count                      -                 (root: the rank sent to)
 *   receive         -                          count             (root: the rank received from)
 *   barrier         -                          -
 *
 * Parts are cut by collective_part_begin(): any count can be shared out, zero too. `in` and `out` are the
 * same buffer (for parts: the part lies where it belongs in the whole) or do not overlap; all_to_all is never
 * in place. Sends and receives between two ranks match in the order in which they are posted and are
 * independent of everything else. Reductions take the types of reduce_has_type(), the rest any. */
typedef struct collective_call {
    collective_kind kind;
    reduce_op op;
    dtype type;
    int root; /* a rank of the group */
    int tag;  /* the caller's; compared between ranks and shown in messages */
    int64_t count;
    collective_buffer in, out;
    bool control; /* small or rare: two-shot in shared memory, whatever the world's algorithm is */
} collective_call;

/* Part `rank` of `count` elements over n ranks: the first count % n ranks have one element more. */
static inline int64_t collective_part_begin(int64_t count, int n, int rank)
{
    int64_t each = count / n, more = count % n;
    return rank * each + (rank < more ? rank : more);
}

static inline int64_t collective_part_count(int64_t count, int n, int rank)
{
    return count / n + (rank < count % n ? 1 : 0);
}

/* The elements of the whole that `in` and `out` hold on a rank of n. What all_to_all receives has an order of
 * its own and begins at 0. */
typedef struct collective_extent {
    int64_t begin, count;
} collective_extent;
collective_extent collective_in_extent(const collective_call *call, int n, int rank);
collective_extent collective_out_extent(const collective_call *call, int n, int rank);

/* "all_reduce (sum) of 1024 float32, tag 3". Returns `buffer`; 128 bytes are enough. */
char *collective_call_format(const collective_call *call, char *buffer, size_t size);

/* ---- libraries and algorithms ----------------------------------------------------------------- */

/* Part of the C name (collective_NAME), name: the libraries. Devices in virtual time and devices that plan
 * have their own: sim, plan. */
#define COLLECTIVE_LIST(X) X(shm, "shm") X(nccl, "nccl") X(mpi, "mpi")

/* The algorithms in shared memory, the default first: in the enum below, part of the C name
 * (shm_algorithm_NAME), name. A new one is a file in shm/ and an entry here. */
#define COLLECTIVE_SHM_LIST(X) X(RING, ring, "ring") X(TWO_SHOT, two_shot, "two-shot")

#define COLLECTIVE_ALGORITHM_ENUM(upper, lower, name) COLLECTIVE_ALGORITHM_##upper,
typedef enum collective_algorithm {
    COLLECTIVE_ALGORITHM_AUTO, /* the library's first: ring in shared memory, elsewhere `library` */
    COLLECTIVE_SHM_LIST(COLLECTIVE_ALGORITHM_ENUM)
        COLLECTIVE_ALGORITHM_TUNED, /* in shared memory: one of these by ranks and bytes (tuning.h) */
    COLLECTIVE_ALGORITHM_LIBRARY, /* what the library chooses, call by call; in virtual time ring or tree, as
                                     NCCL's model says */
    COLLECTIVE_ALGORITHM_TREE,    /* this and the next only in virtual time */
    COLLECTIVE_ALGORITHM_HIERARCHICAL,
    COLLECTIVE_ALGORITHM_COUNT
} collective_algorithm;
#undef COLLECTIVE_ALGORITHM_ENUM

/* By the enum; NULL after the last. */
extern const char *const collective_algorithm_names[];

bool collective_has_algorithm(const char *library, collective_algorithm a);

/* The algorithm that `library` runs: `wanted`, or its default for AUTO. STATUS_USAGE if it does not have that
 * one. */
status collective_choose_algorithm(const char *library, collective_algorithm wanted,
                                   collective_algorithm *out);

/* What --collective was before --algorithm, for an option's list of choices (options.h). */
#define COLLECTIVE_RENAMED                                                                                   \
    "ring=shm --algorithm ring", "two-shot=shm --algorithm two-shot", "direct=shm --algorithm two-shot"

/* ---- worlds ----------------------------------------------------------------------------------- */

struct device_stream;
typedef struct collective_world collective_world;
typedef struct collective_group collective_group;

/* Memory of this rank in which buffers may lie; `fd` is the sealed memfd that it is mapped from. */
typedef struct collective_window {
    void *data;
    int64_t bytes;
    int fd;
} collective_window;

enum { COLLECTIVE_MAX_WINDOWS = 6, COLLECTIVE_QUEUE = 64 }; /* calls of a group that are not done yet */

typedef struct collective_config {
    int rank, world;
    uint64_t job_token;
    const char *name;                 /* of this world, unique in the job at a time */
    const collective_window *windows; /* the same number on every rank */
    int window_count;
    bool pairs;            /* sim: ranks send to each other; elsewhere they always may */
    struct device *device; /* sim, nccl: whose memory the buffers lie in. sim: of its rank; where the world is
                            * some of the simulation's ranks, they follow each other */
    const char *bootstrap; /* nccl: what rank 0 made (nccl/collective_nccl.h) */
    bool share_gpu;        /* nccl: ranks may be on the same GPU */
    struct rank_slot *slot; /* This rank's slot. The watchdog of nccl writes what is in flight to it. NULL if
                               there is none. */
    const struct status_table *table; /* Shows the progress of other ranks. NULL if there is none. */
    /* nccl: this rank cannot go on, and its threads may be stuck in NCCL or CUDA. The function, called once
     * and by any thread, publishes the error; then the library is aborted, and the process ends with the
     * error's exit code. NULL, where ranks are threads: the world has failed, and the error comes from its
     * next call and from waits for the GPU. */
    void (*lost)(void *context, const error_record *why);
    void *lost_context;
    int64_t stall_timeout_ns; /* without progress of the call or of another rank it fails with STATUS_PEER */
    int64_t connect_timeout_ns;
    bool (*canceled)(void *context); /* called several times per second while connecting; NULL: never */
    void *canceled_context;
    collective_algorithm algorithm;         /* of calls that are not `control`; AUTO: the library's default */
    const struct collective_tuning *tuning; /* of TUNED. Borrowed */
    net_link link;                          /* between the ranks, emulated; mpi has none */
    /* How much of the slots is used; 0: all. Operands up to inline_bytes are exchanged in one step;
     * buffers outside windows pass through a staging area in rounds of staging_bytes, at least 1 KiB. */
    int64_t inline_bytes, staging_bytes;
} collective_config;

/* Opens a library by name; all ranks of the world call it at about the same time, and it returns when they
 * have. STATUS_USAGE for an unknown name, or an algorithm that the library does not have; STATUS_UNAVAILABLE
 * where the library cannot run here; STATUS_PEER names the ranks that did not come. */
status collective_open(const char *library, const collective_config *config, collective_world **out);
void collective_close(collective_world **world);

/* Makes a group of `ranks` (of the world, ascending); called only by its members, and for several groups in
 * the same order on all of them. `name` distinguishes it from other groups. Ranks in calls count within the
 * group. */
status collective_group_open(collective_world *world, const char *name, const int *ranks, int count,
                             collective_group **out);
void collective_group_close(collective_group **group);
collective_world *collective_group_world(const collective_group *group);
int collective_group_rank(const collective_group *group);
int collective_group_size(const collective_group *group);
/* The member's rank in the world; -1, which is no member, stays. */
int collective_group_world_rank(const collective_group *group, int member);

/* ---- calls ------------------------------------------------------------------------------------ */

/* Names a call of a group until COLLECTIVE_QUEUE further ones are posted, or COLLECTIVE_ENQUEUED are
 * enqueued. */
typedef struct collective_ticket {
    int32_t queue; /* the implementation's; -1: enqueued */
    uint64_t sequence;
} collective_ticket;

/* Queues the call. Calls of a group run one after another in the order of posting (sends and receives
 * each in theirs), those of different groups side by side. STATUS_AGAIN while the queue is full.
 * STATUS_INTERNAL for a call that makes no sense. */
status collective_post(collective_group *group, const collective_call *call, collective_ticket *out);

/* Done: results are in `out`, and no peer uses this rank's buffers any more. */
bool collective_done(const collective_group *group, collective_ticket ticket);

/* When all members had arrived and data began to move, and when the call was done; ns, 0: not yet. Which
 * algorithm ran it. */
typedef struct collective_times {
    int64_t started_ns, finished_ns;
    int last_rank;    /* of the group: the last to post the call; -1: not known, as with NCCL and MPI */
    int64_t began_ns; /* then: when this rank began its part. With NCCL it is also started_ns */
    collective_algorithm algorithm; /* that ran the call; LIBRARY: the library does not say */
} collective_times;
collective_times collective_get_times(const collective_group *group, collective_ticket ticket);

/* Does what can be done now. *deadline_ns: when it must be called again even if nothing happens. Errors
 * end the world, and further calls return the first one: STATUS_PROTOCOL where ranks make different
 * calls (both are named), STATUS_PEER where a peer has died, given up or is late (it is named). */
status collective_progress(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked);

/* Sleeps until something may have happened since the last progress, or the deadline has come. */
void collective_wait(collective_world *world, int64_t deadline_ns);

/* Ends a wait, present or next. Any thread. */
void collective_wake(collective_world *world);

/* Reports to the peers that this rank gives up, and why. */
void collective_abort(collective_world *world, const error_record *why);

/* ---- calls in stream order ---------------------------------------------------------------------- */

/* Calls of a world that are not known to be done: more make collective_enqueue() wait. Marks [0,
 * COLLECTIVE_MARKS) of a stream that calls are enqueued on are the world's. */
enum { COLLECTIVE_ENQUEUED = 512, COLLECTIVE_MARKS = 2 + 2 * COLLECTIVE_ENQUEUED };

/* Only for implementations that run calls in stream order. Enqueues the call on `stream`, the same for all
 * calls of a world: it begins when what was launched there before is done, and what is launched there
 * afterwards begins when it is done. It returns at once, except that the first call of a size may wait for
 * the other ranks, while the library connects. Never while the stream is recorded. An error that came up
 * since the last call is returned here. The ticket is for collective_done() and collective_get_times(), which
 * are up to date after a collective_progress(). */
status collective_enqueue(collective_group *group, const collective_call *call, struct device_stream *stream,
                          collective_ticket *out);

/* Posts, and progresses until done: for set-up, tests and benchmarks. Blocks. */
status collective_run(collective_group *group, const collective_call *call);

/* Bytes and steps that have crossed between this rank's memory and its peers' since the open. */
typedef struct collective_traffic {
    int64_t bytes_sent, bytes_received, messages_sent, messages_received;
} collective_traffic;
collective_traffic collective_get_traffic(const collective_world *world);

#endif
