/* Collective operations between ranks: one interface, several libraries.
 *
 *   library  transport                                   algorithms
 *   shm      memory that ranks of one machine share      ring, two-shot
 *   nccl     NCCL, on GPU memory                         NCCL's choice, ring
 *   mpi      Open MPI's MPI_Iallreduce and the like      Open MPI's choice, ring
 *   plan     none; a call is done when it is posted      any
 *   sim      virtual devices; a call moves no tensors    ring, tree, two-shot, hierarchical, NCCL's choice
 *            and takes time on a profile's links         of ring and tree by size
 *
 * There are two ways to make a call. On host transports the caller posts a call, calls collective_progress(),
 * and checks whether the call is done. These functions do not block. NCCL runs calls in stream order: a call
 * is enqueued on a stream. Work that needs the result of the call is enqueued later on the same stream, or
 * waits for a mark of this stream.
 *
 * Results are bit-identical in every run: the order of a sum depends only on library, algorithm, ranks and
 * count. The ring sums in ring order (ring/all_reduce/ring.c), two-shot in rank order
 * (ring/all_reduce/two_shot.c). `mean` is the sum, then a true division by the number of ranks.
 *
 * A world belongs to one rank, and one thread calls all of its functions except collective_wake(). Ranks may
 * be processes or threads of one process. Calls allocate no memory.
 *
 * A buffer is a base and a list of pieces, so that padding is skipped. An implementation without real memory
 * never reads a buffer. Peers read and write memory inside a window (collective_config.windows) in place. All
 * other memory is copied through slots of the implementation. */
#ifndef COMMON_COLLECTIVES_COLLECTIVE_H
#define COMMON_COLLECTIVES_COLLECTIVE_H

#include "common/base/status.h"
#include "common/memory/piece.h"
#include "common/net/link.h"
#include "common/ops/tensor.h"
#include "common/reduce/reduce.h"

#include <stdbool.h>
#include <stdint.h>

/* Columns: name in the enum, name in messages and reports, elements that `in` and `out` hold on a rank (enum
 * holding in collective.c), and whether the kind reduces. */
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
/* Returns true for a send and for a receive. */
bool collective_is_pair(collective_kind kind);
/* Returns true if a call of this kind divides its elements into one part per rank. */
bool collective_is_cut(collective_kind kind);

/* An operand of a call. Element i of the buffer is element i of the list of pieces, whose offsets count
 * elements from `base`. Without pieces the elements are contiguous from `base`. The array of pieces is
 * borrowed until the call is done. */
typedef struct collective_buffer {
    void *base;
    piece_list pieces;
} collective_buffer;

/* Largest number of ranks on one machine that can share memory. */
enum { COLLECTIVE_MOST_SHARED_RANKS = 64 };

/* Parameters of a call. Every member of the group makes the call with the same kind, op, type, root, tag and
 * count.
 *
 *                   in holds                   out holds
 *   all_reduce      count                      count
 *   reduce          count                      count, at the root
 *   broadcast       count, at the root         count (at the root too)
 *   all_gather      this rank's part           count: the parts in rank order
 *   reduce_scatter  count                      this rank's part
 *   gather          this rank's part           count, at the root
 *   scatter         count, at the root         this rank's part
 *   all_to_all      count: a part for each     n parts of this rank's size, in the order of the senders
 *   send            count                      -                 (root: the rank sent to)
 *   receive         -                          count             (root: the rank received from)
 *   barrier         -                          -
 *
 * collective_part_begin() cuts the parts; the count may be any number, also zero. `in` and `out` do not
 * overlap, or they are the same buffer. If they are the same, a part begins at collective_part_begin().
 * all_to_all is never in place. Sends and receives between two ranks match in the order in which they are
 * posted; no other call affects this order. Reductions accept the types of reduce_has_type(), other kinds
 * accept any type. */
typedef struct collective_call {
    collective_kind kind;
    reduce_op op;
    dtype type;
    int root; /* Rank in the group. */
    /* Number chosen by the caller, compared between ranks and shown in messages. */
    int tag;
    int64_t count;
    collective_buffer in, out;
    /* Whether the call is small or rare. Small and rare calls run two-shot in shared memory and ring in
     * virtual time, whatever the world's algorithm is. */
    bool control;
} collective_call;

/* Describes a call whose input and output are `count` elements at `base`. */
static inline collective_call collective_in_place(collective_kind kind, dtype type, int64_t count, void *base)
{
    collective_buffer b = {.base = base};
    return (collective_call){.kind = kind, .type = type, .count = count, .in = b, .out = b};
}

/* Returns the first element of part `rank` if `count` elements are divided into n parts. The first count % n
 * parts have one element more than the others. */
static inline int64_t collective_part_begin(int64_t count, int n, int rank)
{
    int64_t each = count / n, more = count % n;
    return rank * each + (rank < more ? rank : more);
}

static inline int64_t collective_part_count(int64_t count, int n, int rank)
{
    return count / n + (rank < count % n ? 1 : 0);
}

/* The range of the call's elements that `in` or `out` holds on one of n ranks. For the output of all_to_all,
 * which has a different order, `begin` is 0. */
typedef struct collective_extent {
    int64_t begin, count;
} collective_extent;
collective_extent collective_in_extent(const collective_call *call, int n, int rank);
collective_extent collective_out_extent(const collective_call *call, int n, int rank);

/* Formats a call, for example "all_reduce (sum) of 1024 float32, tag 3". Returns `buffer`, which should have
 * 128 bytes. */
char *collective_call_format(const collective_call *call, char *buffer, size_t size);

/* ---- libraries and algorithms ----------------------------------------------------------------- */

/* The libraries. Columns: part of the C name (collective_NAME), name. Libraries `sim` and `plan` are chosen
 * by the device and not listed here. */
#define COLLECTIVE_LIST(X) X(shm, "shm") X(nccl, "nccl") X(mpi, "mpi")

/* The algorithms in shared memory, the default first. Columns: name in the enum below, part of the C name
 * (shm_algorithm_NAME), name. A new algorithm is a file in ring/all_reduce/ and an entry here. */
#define COLLECTIVE_SHM_LIST(X) X(RING, ring, "ring") X(TWO_SHOT, two_shot, "two-shot")

#define COLLECTIVE_ALGORITHM_ENUM(upper, lower, name) COLLECTIVE_ALGORITHM_##upper,
typedef enum collective_algorithm {
    /* The default of the library: ring in shared memory, and LIBRARY in all other libraries. */
    COLLECTIVE_ALGORITHM_AUTO,
    COLLECTIVE_SHM_LIST(COLLECTIVE_ALGORITHM_ENUM)
    /* Only in shared memory: a table chooses by ranks and bytes (tuning.h). */
    COLLECTIVE_ALGORITHM_TUNED,
    /* The library chooses an algorithm for each call. In virtual time NCCL's model chooses ring or tree. */
    COLLECTIVE_ALGORITHM_LIBRARY,
    COLLECTIVE_ALGORITHM_TREE, /* Only in virtual time, like HIERARCHICAL. */
    COLLECTIVE_ALGORITHM_HIERARCHICAL,
    COLLECTIVE_ALGORITHM_COUNT
} collective_algorithm;
#undef COLLECTIVE_ALGORITHM_ENUM

/* Names of the algorithms, indexed by collective_algorithm and terminated by NULL. */
extern const char *const collective_algorithm_names[];

bool collective_has_algorithm(const char *library, collective_algorithm a);

/* Sets *out to the algorithm that `library` runs if `wanted` is requested. For AUTO this is the default.
 * Returns STATUS_USAGE if the library does not have the algorithm. */
status collective_choose_algorithm(const char *library, collective_algorithm wanted,
                                   collective_algorithm *out);

/* Former values of --collective and their replacements, in the form that an option's choices expect
 * (options.h). */
#define COLLECTIVE_RENAMED                                                                                   \
    "ring=shm --algorithm ring", "two-shot=shm --algorithm two-shot", "direct=shm --algorithm two-shot"

/* ---- worlds ----------------------------------------------------------------------------------- */

struct device_stream;
typedef struct collective_world collective_world;
typedef struct collective_group collective_group;

/* Memory of this rank that may contain buffers. `fd` is the sealed memfd that holds this memory. */
typedef struct collective_window {
    void *data;
    int64_t bytes;
    int fd;
} collective_window;

/* COLLECTIVE_QUEUE limits the unfinished calls of a group. COLLECTIVE_PAIR_QUEUE limits sends and receives if
 * they have a queue for each peer. */
enum { COLLECTIVE_MAX_WINDOWS = 6, COLLECTIVE_QUEUE = 64 };

typedef struct collective_config {
    int rank, world;
    uint64_t job_token;
    /* Name of the world, which is unique in the job while the world is open. */
    const char *name;
    const collective_window *windows; /* Every rank has the same number of windows. */
    int window_count;
    /* Whether ranks send to each other. Only sim reads `pairs`; in all other libraries ranks may always send
     * to each other. */
    bool pairs;
    /* Device whose memory contains the buffers. Only sim and nccl read `device`. In sim the device belongs to
     * this rank. If the world is a part of the simulation's ranks, the ranks of the world are consecutive. */
    struct device *device;
    const char *bootstrap; /* Id that rank 0 made for NCCL (nccl/collective_nccl.h). */
    bool share_gpu;        /* Whether ranks of nccl may use the same GPU. */
    /* The status slot of this rank, or NULL. NCCL's watchdog writes the calls in flight to the slot. */
    struct rank_slot *slot;
    /* Status table with the progress of other ranks, or NULL if there is none. */
    const struct status_table *table;
    /* nccl calls this function once, from any thread, if this rank cannot go on. At this time other threads
     * of the rank may hang in NCCL or CUDA. The function publishes the error. After it has returned, NCCL is
     * aborted, and the process ends with the error's exit code. NULL if ranks are threads. If it is NULL, the
     * next call of the world returns the error, and so do waits for the GPU. */
    void (*lost)(void *context, const error_record *why);
    void *lost_context;
    /* Time after which a call fails with STATUS_PEER if neither the call nor any other rank has made
     * progress. */
    int64_t stall_timeout_ns;
    int64_t connect_timeout_ns;
    bool (*canceled)(void *context); /* Called several times per second while connecting. May be NULL. */
    void *canceled_context;
    /* Algorithm of all calls except `control` calls. AUTO is the library's default. */
    collective_algorithm algorithm;
    const struct collective_tuning *tuning; /* The table for TUNED, which is borrowed. */
    /* Link that is emulated between the ranks. mpi does not support it. */
    net_link link;
    /* Bytes of the slots that are used, or 0 to use all bytes. Operands up to inline_bytes are exchanged in
     * one step. Larger buffers outside windows pass through a staging area in rounds of staging_bytes, which
     * is at least 1 KiB. */
    int64_t inline_bytes, staging_bytes;
} collective_config;

/* Opens a library by name. All ranks of the world call this function at about the same time, and every call
 * waits for all ranks. Returns STATUS_USAGE if the name is unknown or the library does not have the
 * algorithm, STATUS_UNAVAILABLE if the library cannot run here, and STATUS_PEER if ranks do not come in time.
 * The message names the missing ranks if the library reports them. */
status collective_open(const char *library, const collective_config *config, collective_world **out);
void collective_close(collective_world **world);

/* Opens a group of `ranks`, which are ranks of the world in ascending order. NULL stands for the first
 * `count` ranks. Only the members call this function, and members open their common groups in the same order.
 * `name` is unique among the groups. The ranks in calls are ranks of the group. */
status collective_group_open(collective_world *world, const char *name, const int *ranks, int count,
                             collective_group **out);
void collective_group_close(collective_group **group);
int collective_group_rank(const collective_group *group);
int collective_group_size(const collective_group *group);
/* Converts the rank of a member in the group to its rank in the world. Returns -1 if `member` is -1. */
int collective_group_world_rank(const collective_group *group, int member);

/* ---- calls ------------------------------------------------------------------------------------ */

/* Handle of a call. It is valid until COLLECTIVE_QUEUE more calls are posted, or COLLECTIVE_ENQUEUED more
 * calls are enqueued. */
typedef struct collective_ticket {
    int32_t queue; /* Index of the queue in the group, or -1 if the call was enqueued. */
    uint64_t sequence;
} collective_ticket;

/* Queues a call. A group runs its calls in the order in which they are posted. Calls of different groups run
 * concurrently, as do sends and receives of different pairs of ranks. Returns STATUS_AGAIN while the queue is
 * full, and STATUS_INTERNAL for an invalid call. */
status collective_post(collective_group *group, const collective_call *call, collective_ticket *out);

/* Returns true if the results are in `out` and no peer uses this rank's buffers any more. */
bool collective_done(const collective_group *group, collective_ticket ticket);

/* Times of a call in ns. started_ns is the time at which all members have joined and data begin to move.
 * finished_ns is the time at which the call ends. A time is 0 until it has been reached. */
typedef struct collective_times {
    int64_t started_ns, finished_ns;
    /* Rank in the group of the member that posted the call last, or -1 if it is not known, as with NCCL and
     * MPI. */
    int last_rank;
    /* If last_rank is -1, the time at which this rank began its part of the call. It equals started_ns
     * with NCCL. */
    int64_t began_ns;
    /* The algorithm that ran, or LIBRARY if the library does not report its algorithm. */
    collective_algorithm algorithm;
} collective_times;
collective_times collective_get_times(const collective_group *group, collective_ticket ticket);

/* Does all work that is possible now. Sets *deadline_ns to the time by which the caller must call this
 * function again even if nothing happens. An error ends the world, and all further calls return the first
 * error. It is STATUS_PROTOCOL if ranks make different calls, and the message names both calls. It is
 * STATUS_PEER if a peer has died, has given up or is late, and the message names the peer if the library
 * reports it. */
status collective_progress(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked);

/* Sleeps until there may be new work for collective_progress(), at most until the deadline. */
void collective_wait(collective_world *world, int64_t deadline_ns);

/* Ends a collective_wait() in progress. If none is in progress, the next one returns at once. May be called
 * from any thread. */
void collective_wake(collective_world *world);

/* Reports to the peers that this rank gives up, and why. */
void collective_abort(collective_world *world, const error_record *why);

/* ---- calls in stream order ---------------------------------------------------------------------- */

/* Limits of a world. collective_enqueue() waits while COLLECTIVE_ENQUEUED calls are unfinished. The world
 * owns marks [0, COLLECTIVE_MARKS) of the stream on which its calls are enqueued. */
enum { COLLECTIVE_ENQUEUED = 512, COLLECTIVE_MARKS = 2 + 2 * COLLECTIVE_ENQUEUED };

/* Enqueues a call on `stream`, for libraries that run calls in stream order. All calls of a world use the
 * same stream. The call begins after all work that was enqueued earlier on the stream, and before all work
 * that is enqueued later. Returns at once, except that the first call of a size may wait for the other ranks
 * while the library connects. Must not be called while the stream is recorded. Returns an error that has
 * occurred since the previous call. collective_progress() updates the results of collective_done() and
 * collective_get_times() for the ticket. */
status collective_enqueue(collective_group *group, const collective_call *call, struct device_stream *stream,
                          collective_ticket *out);

/* Posts a call and blocks until the call is done. Set-up, tests and benchmarks use this function. */
status collective_run(collective_group *group, const collective_call *call);

/* Bytes and messages exchanged between this rank and its peers since the world was opened. */
typedef struct collective_traffic {
    int64_t bytes_sent, bytes_received, messages_sent, messages_received;
} collective_traffic;
collective_traffic collective_get_traffic(const collective_world *world);

#endif
