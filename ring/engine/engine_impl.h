/* The ring engine from inside. For this folder only.
 *
 * The compute thread calls the stages: it packs gradients into buckets and posts jobs to the process group
 * (common/process_group/process_group.h), in the same order on all ranks because all run the same program.
 * Jobs have two queues: in one queue, all-reduces between groups of ranks that have shards would hold up
 * gathers within a group. */
#ifndef RING_ENGINE_ENGINE_IMPL_H
#define RING_ENGINE_ENGINE_IMPL_H

#include "common/collectives/collective.h"
#include "common/collectives/nccl/collective_nccl.h"
#include "common/collectives/tuning.h"
#include "common/net/status_table.h"
#include "common/process_group/process_group.h"
#include "common/trace/trace.h"
#include "ring/hooks/powersgd_module.h"
#include "ring/ring.h"

enum { RING_RECORDS = 4096, RING_BUCKET_ALIGNMENT = 64 };

/* name, operation in the status table, tag of the collective (buckets: their index) */
#define RING_JOB_LIST(X)                                                                                     \
    X(BUCKET, ALL_REDUCE, 0)                                                                                 \
    X(PARAMETERS, BROADCAST, -1) /* rank 0's, before the first step */                                       \
    X(BUFFERS, BROADCAST, -2)                                                                                \
    X(ORDER, BROADCAST, -3)     /* in which gradients became ready on rank 0 */                              \
    X(ACTIVITY, ALL_GATHER, -4) /* which ranks have data */                                                  \
    X(GROUP_SUM, ALL_REDUCE, -5)                                                                             \
    X(SCATTER, REDUCE_SCATTER, 0) /* a bucket, where state is cut among the ranks: a unit's gradients */     \
    X(NORM, ALL_REDUCE, -5)    /* the squared norm of gradients, over the ranks that have shards of them */  \
    X(GATHER, ALL_GATHER, -6)  /* a unit's parameters */                                                     \
    X(REPLICAS, ALL_REDUCE, 0) /* follows a SCATTER: its shard, over the ranks that have the same one */

#define RING_JOB_ENUM(name, operation, tag) RING_JOB_##name,
typedef enum ring_job_kind { RING_JOB_LIST(RING_JOB_ENUM) RING_JOB_COUNT } ring_job_kind;
#undef RING_JOB_ENUM

/* A bucket's memory, and the pieces of the gradients' arena that belong to it. */
typedef struct ring_bucket {
    int64_t offset; /* bytes into the bucket memory */
    piece_list gradients;
    int64_t reserved; /* bytes, with alignment */
} ring_bucket;

/* A bucket in the present step. */
typedef struct ring_bucket_step {
    process_work work; /* its job */
    int64_t ready_ns;
} ring_bucket_step;

/* What collectives touch besides arenas, in one shared allocation. If the host cannot reach that, what it
 * reads and writes is in `control`. */
typedef struct ring_memory {
    device_memory shared;
    char *buckets;
    double *group;          /* [group_capacity] in the device's memory */
    int32_t *order;         /* [params] in the host's */
    int32_t *sent_order;    /* the same where the collectives find it */
    bool reaches_gradients; /* collectives may write to them */
    int32_t *activity;      /* [world] in the host's */
    void *control;          /* what the host reads on devices whose memory it cannot reach; else NULL */
    float *factors;         /* PowerSGD: what is all-reduced of every bucket */
    int64_t bucket_bytes, factor_count;
    int group_capacity;
} ring_memory;

/* What PowerSGD all-reduces of a bucket: P of its matrices with the tensors that are sent uncompressed; then
 * Q. */
typedef struct ring_factors {
    float *p, *q;
    int64_t p_count, q_count;
} ring_factors;

typedef struct ring_engine ring_engine;

/* Where PowerSGD computes. All but `open`, `close` and `start` are called by whoever runs the jobs. */
typedef struct ring_powersgd_backend {
    /* Allocates `errors` and `scratch`, which close() frees. `largest`: elements of the largest tensor. */
    status (*open)(ring_engine *e, int64_t largest);
    void (*close)(ring_engine *e);
    status (*start)(ring_engine *e, int param);
    status (*project)(ring_engine *e, const powersgd_matrix *x, int phase); /* 0: P, 1: Q */
    status (*restore)(ring_engine *e, const powersgd_matrix *x);
    status (*copy)(ring_engine *e, float *to, const float *from, int64_t count);
} ring_powersgd_backend;

typedef struct ring_powersgd {
    const ring_powersgd_backend *backend; /* NULL: another hook */
    const powersgd_module *gpu;
    device_memory gpu_errors;
    float *errors;             /* like the bucket memory; virtual: NULL */
    powersgd_matrix *matrices; /* [params] by parameter; m NULL: sent uncompressed */
    float **plain;             /* [params] where a tensor is sent uncompressed from */
    ring_factors *factors;     /* [buckets] */
    bool plain_layout;         /* matrices have PyTorch's layout, whatever the device's is */
    void *scratch; /* on the host: the largest gradient in the device's type; with a GPU three of them */
} ring_powersgd;

/* A unit of sharded state in the present pass; the compute thread's. */
typedef struct ring_unit {
    process_work gather;  /* the all-gather that was posted and not waited for; 0: none */
    bool begun;           /* the pass has used it */
    bool present;         /* its parameters are gathered, where they are cut */
    bool reducing;        /* the reduction of its gradients was posted and not waited for */
    int left;             /* of its parameters that the pass has yet to release */
    device_kernel *adder; /* of shards of gradients, where they are cut */
} ring_unit;

/* The compute thread's. */
typedef struct ring_shards {
    ring_unit *units;
    int pass;
    bool accumulates;      /* an earlier micro-batch of the step has gradients */
    bool holds;            /* whole parameters, or memory for them */
    int held;              /* units of them */
    device_memory reduced; /* for verification */
    device_memory
        update; /* mixed precision: the gradients of the shard that is updated, as the masters' type */
} ring_shards;

/* Only the compute thread reads and writes these. */
typedef struct ring_compute {
    sync_step step;
    bool started;                /* parameters are alike on all ranks */
    bool period_begins;          /* the next micro-batch is the first of its step */
    bool has_data;               /* a micro-batch of this step had samples */
    bool recording, rebuild;     /* the order of readiness; rebuild before the next forward pass */
    bool first_done;             /* a synchronized step has ended */
    int active;                  /* number of ranks that have data */
    int root;                    /* the lowest of them */
    ring_bucket_step *buckets;   /* [params] */
    device_range *ranges;        /* [params] of a bucket that is packed or unpacked */
    bool *ready, *seen, *unused; /* [params] in this backward pass; in this step; never (static graph) */
    int *order;                  /* [params] in which gradients become ready */
    int order_count;
    bool warm;                   /* NCCL has made calls of all sizes */
    ring_bucket_record *records; /* [RING_RECORDS] */
    int64_t record_count;        /* made so far */
} ring_compute;

typedef enum ring_queue { RING_QUEUE_RANKS, RING_QUEUE_REPLICAS, RING_QUEUES } ring_queue;

struct ring_engine {
    sync_engine base;

    /* Set before the agent starts. */
    ring_settings settings;
    collective_tuning tuning; /* of --collective-table */
    text_buffer handshake;
    size_t handshake_common; /* bytes of it that must be equal on all ranks */
    char bootstrap[COLLECTIVE_BOOTSTRAP_BYTES];
    dtype wire;                    /* the type in which gradients are all-reduced */
    ring_hook_function *compress;  /* of every bucket before it is sent; NULL: none */
    process_group *calls;          /* runs the jobs */
    device_stream *stream;         /* GPUs: of the collectives, which are NCCL's; else NULL */
    bool packs_whole_buckets;      /* by one launch; else a gradient is packed while it is in the cache */
    collective_world *world;       /* the process group's */
    collective_group *group;       /* all ranks */
    collective_group *shard_group; /* those among whom state is cut: `group`, or its neighbors in it */
    collective_group *replicas;    /* those with the same shards; NULL: none */
    collective_world *host_world;  /* NCCL with --join: between the hosts */
    collective_group *host_group;
    ring_memory memory;
    ring_powersgd powersgd;
    ring_shards shards;

    /* The bucket table: the compute thread changes it while no job is in flight. (Of the schedule, how far a
     * step has come is the compute thread's.) */
    const ring_step_plan *plan;
    bucket_tensor *tensors; /* [params] */
    bucket_schedule schedule;
    ring_bucket *buckets; /* [params] */
    int64_t *offsets;     /* [params] elements from the start of the gradient's bucket */
    piece *pieces;        /* [params] of all buckets */

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

/* The job after which a bucket has been reduced. */
static inline bool ring_ends_bucket(const ring_engine *e, ring_job_kind kind)
{
    return ring_is_bucket(kind) && !(kind == RING_JOB_SCATTER && e->replicas);
}

static inline bool ring_powersgd_active(const ring_engine *e, int64_t step)
{
    return e->settings.hook == RING_HOOK_POWERSGD && step >= e->settings.powersgd_start;
}

/* ring_memory.c */
status ring_memory_open(ring_engine *e);
void ring_memory_close(ring_engine *e);
/* Takes the buckets of `plan` (order: compute.order where it wants one) into use. */
status ring_use_plan(ring_engine *e, const ring_step_plan *plan);

/* ring_handshake.c */
status ring_make_handshake(ring_engine *e);
status ring_compare_handshakes(const ring_engine *e, const sync_blob *handshakes);
/* From rank 0's handshake, where the collectives are NCCL's. */
status ring_take_bootstrap(ring_engine *e, const sync_blob *first);

/* ring_times.c */
void ring_end_step(sync_engine *base);
void ring_counters(sync_engine *base, sync_counters *out);
/* For the process group. */
void ring_job_accounted(void *engine, const process_times *t);
void ring_job_waited(void *engine, int64_t record, anatomy_span wait, const process_times *t);

/* ring_jobs.c */
status ring_open_process_group(ring_engine *e);
int64_t ring_now(const ring_engine *e);
/* Reports to the peers, through the agent, that this rank ends; returns `code`, that of the present error. */
status ring_give_up(ring_engine *e, status code);
/* `record`: of its bucket, 0 for other jobs. */
status ring_post(ring_engine *e, ring_job_kind kind, int index, int64_t record, process_work *out);
/* What the compute stream does from now on waits for a job. */
status ring_await(ring_engine *e, process_work job);
/* Posts a job and waits for it. */
status ring_run_job(ring_engine *e, ring_job_kind kind, int index);
/* Who has data in this step, to memory.activity. */
status ring_gather_activity(ring_engine *e);
/* With NCCL: makes calls of all sizes that steps make once, and waits for them. NCCL may connect for them. */
status ring_warm_up(ring_engine *e);
/* There are buffers, and other ranks. */
bool ring_has_buffers(const ring_engine *e);
rank_operation ring_operation_of(ring_job_kind kind); /* in the status table and the trace */
collective_call ring_bucket_call(const ring_engine *e, int bucket);
/* Between groups of ranks that have shards, the reduced shard of a bucket is averaged. */
collective_call ring_replicas_call(const ring_engine *e, int bucket);
/* A job of one phase as a call of the collectives. */
collective_call ring_call_of(const ring_engine *e, ring_job_kind kind, int index);

/* ring_memory.c. A few values from the host to where the collectives find them, and back. */
status ring_send_values(ring_engine *e, void *to, const void *values, dtype type, int64_t count);
status ring_receive_values(ring_engine *e, void *values, const void *from, dtype type, int64_t count);

/* ring_stages.c */
/* The collective computes the mean. */
bool ring_means_in_flight(const ring_engine *e);
/* The collective writes its results to the gradients: there is nothing to copy back. */
bool ring_copies_back_in_flight(const ring_engine *e);
status ring_begin_forward(sync_engine *base, const sync_step *step);
status ring_ready(sync_engine *base, int param);
status ring_reduce(sync_engine *base, const sync_step *step);
status ring_norm(sync_engine *base);
status ring_update(sync_engine *base, const sync_step *step, double scale, bool skipped);
status ring_flush(sync_engine *base);
status ring_group_sum(sync_engine *base, double *values, int count);

/* Waits for the bucket that is to be waited for next. */
status ring_await_bucket(ring_engine *e);

/* ring_shards.c, ring_units.c, ring_shard_update.c: nothing unless state is cut among the ranks. */
status ring_shards_open(ring_engine *e);
void ring_shards_close(ring_engine *e);
collective_call ring_scatter_call(const ring_engine *e, int bucket);
collective_call ring_gather_call(const ring_engine *e, int index);
status ring_shards_begin_forward(ring_engine *e);
status ring_need(sync_engine *base, int param);
status ring_release(sync_engine *base, int param);
status ring_place_outputs(sync_engine *base, const sync_step *step);
/* A bucket was posted; it is done. */
void ring_scatter_posted(ring_engine *e, int bucket);
status ring_scatter_done(ring_engine *e, int bucket);
status ring_norm_of_shards(ring_engine *e);
status ring_update_shards(ring_engine *e, const sync_step *step, double scale, bool skipped);
status ring_flush_shards(ring_engine *e);
status ring_gather_parameters(sync_engine *base);
void ring_drop_whole(ring_engine *e);
const void *ring_reduced_shards(ring_engine *e, piece_list *owned);

/* ring_powersgd.c */
status ring_powersgd_open(ring_engine *e);
void ring_powersgd_close(ring_engine *e);
status ring_powersgd_use_buckets(ring_engine *e);
/* Computes what is all-reduced in a phase of a bucket (0: P, 1: Q). */
status ring_powersgd_call(ring_engine *e, int bucket, int phase, collective_call *out);
status ring_powersgd_finish(ring_engine *e, int bucket);

#endif
