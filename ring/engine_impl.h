/* The inside of the ring engine, for this folder only.
 *
 * The compute thread calls the functions of a step, packs gradients into buckets, and posts jobs to the
 * process group (common/process_group/process_group.h). All ranks post the same jobs in the same order:
 * ddp/schedule.c fixes the order of the buckets, and all other jobs have fixed places in a step. A run with
 * --group has two queues, so that all-reduces between groups do not delay all-gathers within a group. */
#ifndef RING_ENGINE_IMPL_H
#define RING_ENGINE_IMPL_H

#include "common/collectives/collective.h"
#include "common/collectives/nccl/collective_nccl.h"
#include "common/collectives/tuning.h"
#include "common/net/status_table.h"
#include "common/process_group/process_group.h"
#include "common/trace/trace.h"
#include "ring/hooks/powersgd_module.h"
#include "ring/ring.h"

enum { RING_RECORDS = 4096, RING_BUCKET_ALIGNMENT = 64 };

/* A row holds the name of a job, the operation in the status table, and the tag of the collective. The tag 0
 * stands for the index of the bucket. */
#define RING_JOB_LIST(X)                                                                                     \
    X(BUCKET, ALL_REDUCE, 0)                                                                                 \
    X(PARAMETERS, BROADCAST, -1) /* broadcast by rank 0 before the first step */                             \
    X(BUFFERS, BROADCAST, -2)                                                                                \
    X(ORDER, BROADCAST, -3)     /* order of readiness on rank 0 */                                           \
    X(ACTIVITY, ALL_GATHER, -4) /* which ranks have data */                                                  \
    X(GROUP_SUM, ALL_REDUCE, -5)                                                                             \
    X(SCATTER, REDUCE_SCATTER, 0) /* gradients of a unit, if state is sharded */                             \
    X(NORM, ALL_REDUCE, -5)       /* sum of the squared norms of shards */                                   \
    X(GATHER, ALL_GATHER, -6)     /* a unit's parameters */                                                  \
    X(REPLICAS, ALL_REDUCE, 0)    /* all-reduce between groups, after SCATTER has reduced the shard */

#define RING_JOB_ENUM(name, operation, tag) RING_JOB_##name,
typedef enum ring_job_kind { RING_JOB_LIST(RING_JOB_ENUM) RING_JOB_COUNT } ring_job_kind;
#undef RING_JOB_ENUM

typedef struct ring_bucket {
    int64_t offset;       /* Offset in bytes into the bucket memory. */
    piece_list gradients; /* Pieces of the arena that hold the gradients of the bucket. */
    int64_t reserved;     /* Size in bytes, rounded up to the alignment. */
    /* The following fields describe the current step, and are used by the compute thread. */
    process_work work; /* The job of the bucket that was posted last. */
    int64_t ready_ns;
} ring_bucket;

typedef struct ring_param {
    int64_t offset; /* Offset of the gradient in its bucket, in elements. */
    /* `ready` is true if the gradient is ready in this backward pass, `seen` if it was computed in this step,
     * and `unused` if it is never computed in a static graph. Used by the compute thread. */
    bool ready, seen, unused;
} ring_param;

/* Memory of the engine in addition to the arenas. `shared` is one allocation for all data that collectives
 * read and write. `control` is host memory for values that the host reads and writes. */
typedef struct ring_memory {
    device_memory shared;
    char *buckets;
    double *group; /* [group_capacity] Values that are summed over the ranks. */
    /* Host copy of group[0]. The same address as `group` unless the values are on a GPU. */
    double *norm;
    int32_t *order;         /* [params] Rank 0's order of readiness, in host memory. */
    int32_t *sent_order;    /* [params] The same order in memory that collectives access. */
    bool reaches_gradients; /* True if collectives can write to the gradients. */
    int32_t *activity;      /* [world] 1 for each rank that has data, in host memory. */
    void *control;          /* Allocation that holds the host copies. */
    float *factors;         /* Values that PowerSGD all-reduces, bucket by bucket. */
    int64_t bucket_bytes, factor_count;
    int group_capacity;
} ring_memory;

/* Values that PowerSGD all-reduces for a bucket in phases 0 and 1. The values of phase 0 are P of each matrix
 * and the uncompressed tensors. The values of phase 1 are Q of each matrix. */
typedef struct ring_factors {
    float *values[2];
    int64_t counts[2];
} ring_factors;

typedef struct ring_engine ring_engine;

/* PowerSGD's operations on one kind of memory. The compute thread calls start(). The thread that runs the
 * jobs calls the other functions. */
typedef struct ring_powersgd_backend {
    status (*start)(ring_engine *e, int param);
    /* Computes P in phase 0, Q in phase 1. */
    status (*project)(ring_engine *e, const powersgd_matrix *x, int phase);
    status (*restore)(ring_engine *e, const powersgd_matrix *x);
    status (*copy)(ring_engine *e, float *to, const float *from, int64_t count);
} ring_powersgd_backend;

typedef struct ring_powersgd {
    const ring_powersgd_backend *backend; /* NULL if the hook is not PowerSGD. */
    const powersgd_module *gpu;
    int rank; /* Number of columns of the factors. */
    /* Errors of the previous step, in the same layout as the bucket memory. Empty in virtual time. */
    device_memory errors;
    powersgd_matrix *matrices; /* [params] `m` is NULL if the tensor is not compressed. */
    float **plain;             /* [params] Address of each uncompressed tensor in memory.factors. */
    ring_factors *factors;     /* [buckets] */
    bool plain_layout;         /* True if buckets have PyTorch's layout instead of the device's. */
    void *scratch;             /* Host memory for three gradients of the largest size. */
} ring_powersgd;

/* A unit of sharded state in the current pass. Used by the compute thread. */
typedef struct ring_unit {
    /* The unit's all-gather if one has been posted and has not been waited for, else 0. */
    process_work gather;
    bool begun;
    bool present;         /* True if parameters have been gathered and, with mixed precision, converted. */
    bool reducing;        /* True if a reduction of gradients has been posted and has not been waited for. */
    int left;             /* Number of parameters that the pass has not yet released. */
    device_kernel *adder; /* Adds up the shards of micro-batches. NULL if no shards are added up. */
} ring_unit;

/* Used by the compute thread. */
typedef struct ring_shards {
    ring_unit *units;
    int pass;
    bool accumulates;      /* True if an earlier micro-batch of the step has computed gradients. */
    bool holds;            /* True if memory for unsharded parameters is allocated. */
    int held;              /* Number of units that have been gathered into this memory. */
    device_memory reduced; /* Copy of the reduced shards, for verification. */
    /* Gradients of one shard in the type of the master weights. Used with mixed precision. */
    device_memory update;
} ring_shards;

/* Fields that only the compute thread reads and writes. */
typedef struct ring_compute {
    sync_step step;
    bool started;       /* True when parameters are equal on all ranks. */
    bool period_begins; /* True if the next micro-batch is the first of its step. */
    bool has_data;      /* True if a micro-batch of this step had samples. */
    /* `recording` is true if this pass records the order of readiness. `rebuild` is true if the buckets are
     * rebuilt before the next pass. */
    bool recording, rebuild;
    bool first_done;      /* True when the first step that reduces gradients has ended. */
    int active;           /* Number of ranks over which the mean is taken. */
    int root;             /* Lowest rank that has data, which broadcasts buffers. */
    device_range *ranges; /* [params] Scratch memory for the ranges to pack or unpack. */
    int *order;           /* [params] Order in which gradients become ready. */
    int order_count;
    bool warm; /* True if ring_warm_up() has run for the current buckets. */
    ring_bucket_record records[RING_RECORDS];
    int64_t record_count;
} ring_compute;

struct ring_engine {
    sync_engine base;

    /* Set before the agent starts. */
    ring_settings settings;
    collective_tuning tuning;
    text_buffer handshake;
    size_t handshake_common; /* Length of the part of `handshake` that must be equal on all ranks. */
    char bootstrap[COLLECTIVE_BOOTSTRAP_BYTES];
    dtype wire;                   /* Type in which gradients are all-reduced. */
    ring_hook_function *compress; /* Function that compresses each bucket before it is sent, or NULL. */
    process_group *calls;
    device_stream *stream; /* Communication stream on real GPUs, else NULL. */
    /* True if one kernel launch packs a whole bucket, false if each gradient is packed when it is ready. */
    bool packs_whole_buckets;
    collective_world *world;
    collective_group *group;
    /* Ranks over which the state is sharded. The same as `group` without --group. */
    collective_group *shard_group;
    collective_group *replicas;   /* Ranks that have the same shards, or NULL. */
    collective_world *host_world; /* Collectives in host memory. Used only with NCCL and --join. */
    collective_group *host_group;
    ring_memory memory;
    ring_powersgd powersgd;
    ring_shards shards;

    /* The bucket table. The compute thread changes the table while no job is in flight. Only the compute
     * thread uses the counters in `schedule`. */
    const ring_step_plan *plan;
    bucket_tensor *tensors; /* [params] */
    ring_param *params;     /* [params] */
    bucket_schedule schedule;
    ring_bucket *buckets; /* [params] */
    piece *pieces;        /* [params] Pieces of all buckets. */

    ring_compute compute;
};

static inline char *ring_bucket_data(const ring_engine *e, int bucket)
{
    return e->memory.buckets + e->buckets[bucket].offset;
}

static inline ring_engine *ring_of(const sync_engine *e)
{
    return (ring_engine *)e;
}

static inline int ring_params(const ring_engine *e)
{
    return e->base.context.params->model->param_count;
}

static inline ring_bucket_record *ring_record(ring_engine *e, int64_t id)
{
    return &e->compute.records[(id - 1) % RING_RECORDS];
}

static inline bool ring_is_bucket(ring_job_kind kind)
{
    return kind == RING_JOB_BUCKET || kind == RING_JOB_SCATTER || kind == RING_JOB_REPLICAS;
}

/* Returns true if the job is the last of its bucket. */
static inline bool ring_ends_bucket(const ring_engine *e, ring_job_kind kind)
{
    return ring_is_bucket(kind) && !(kind == RING_JOB_SCATTER && e->replicas);
}

static inline bool ring_powersgd_active(const ring_engine *e, int64_t step)
{
    return e->settings.options.hook == RING_HOOK_POWERSGD && step >= e->settings.options.powersgd_start;
}

/* Function type of ledger_acquire() and ledger_release(). */
typedef void ring_ledger_change(ledger *l, ledger_class c, int64_t logical, int64_t reserved);

/* ddp/memory.c */
status ring_memory_open(ring_engine *e);
void ring_memory_close(ring_engine *e);
/* Assigns gradients to buckets as `plan` says. compute.order is the order of readiness. */
status ring_use_plan(ring_engine *e, const ring_step_plan *plan);

/* handshake.c */
status ring_make_handshake(ring_engine *e);
status ring_compare_handshakes(const ring_engine *e, const sync_blob *handshakes);
/* Reads NCCL's id from rank 0's handshake. */
status ring_take_bootstrap(ring_engine *e, const sync_blob *first);

/* ddp/calls.c */
void ring_end_step(sync_engine *base);
void ring_counters(sync_engine *base, sync_counters *out);
status ring_open_process_group(ring_engine *e);
/* Posts a job. `record` is the id of the bucket's record, or 0 for other jobs. */
status ring_post(ring_engine *e, ring_job_kind kind, int index, int64_t record, process_work *out);
status ring_run_job(ring_engine *e, ring_job_kind kind, int index);
/* Gathers from all ranks whether they have data in this step, and writes the result to memory.activity. */
status ring_gather_activity(ring_engine *e);
/* Makes one call of each size that a step uses, and waits for the calls. Without this warm-up, NCCL might
 * open connections during the first steps, because it may connect at the first call of a size. Does nothing
 * without NCCL. */
status ring_warm_up(ring_engine *e);
/* Returns true if the model has buffers and there are other ranks. */
bool ring_has_buffers(const ring_engine *e);
/* The reduce-scatter of a bucket leaves one shard on each rank. Describes the all-reduce of this shard
 * between groups. */
collective_call ring_replicas_call(const ring_engine *e, int bucket);

/* ddp/memory.c. ring_send_values() copies a few values from the host to memory that collectives access.
 * ring_receive_values() copies values from this memory to the host, and returns when the copy has ended. The
 * functions do nothing if source and destination have the same address. */
status ring_send_values(ring_engine *e, void *to, const void *values, dtype type, int64_t count);
status ring_receive_values(ring_engine *e, void *values, const void *from, dtype type, int64_t count);

/* ddp/reducer.c */
/* Returns true if the collective computes the mean. */
bool ring_means_in_flight(const ring_engine *e);
/* Returns true if the collective writes its results directly to the arena of gradients, so that nothing is
 * copied back. */
bool ring_copies_back_in_flight(const ring_engine *e);
status ring_begin_forward(sync_engine *base, const sync_step *step);
status ring_ready(sync_engine *base, int param);
status ring_update(sync_engine *base, const sync_step *step, double scale, bool skipped);
status ring_reduce(sync_engine *base, const sync_step *step);
status ring_flush(sync_engine *base);
status ring_group_sum(sync_engine *base, double *values, int count);

/* Waits until the next bucket has been reduced. Then copies the result to the gradients, or adds it to their
 * shards. */
status ring_await_bucket(ring_engine *e);

/* zero/: sharded state */
status ring_shards_open(ring_engine *e);
void ring_shards_close(ring_engine *e);
collective_call ring_scatter_call(const ring_engine *e, int bucket);
collective_call ring_gather_call(const ring_engine *e, int index);
int ring_unit_of_bucket(const ring_engine *e, int bucket);
status ring_shards_begin_forward(ring_engine *e);
status ring_need(sync_engine *base, int param);
status ring_release(sync_engine *base, int param);
status ring_end_forward(sync_engine *base, const sync_step *step);
status ring_scatter_done(ring_engine *e, int bucket);
status ring_norm(sync_engine *base);
status ring_update_shards(sync_engine *base, const sync_step *step, double scale, bool skipped);
/* Waits for all-gathers that are in flight. */
status ring_await_gathers(ring_engine *e);
status ring_gather_parameters(sync_engine *base);
void ring_drop_whole(ring_engine *e);
const void *ring_reduced_gradients(sync_engine *base, piece_list *owned);

/* ddp/compress.c */
status ring_powersgd_open(ring_engine *e);
void ring_powersgd_close(ring_engine *e);
status ring_powersgd_use_buckets(ring_engine *e);
/* Computes the values of a bucket that are all-reduced in `phase`, and describes the all-reduce. The values
 * are P in phase 0 and Q in phase 1. */
status ring_powersgd_call(ring_engine *e, int bucket, int phase, collective_call *out);
status ring_powersgd_finish(ring_engine *e, int bucket);

#endif
