/* The ring engine from inside. For this folder only.
 *
 * The compute thread calls the stages: it packs gradients into buckets and posts jobs, in the same order on
 * all ranks because all run the same program. Jobs run in one of two ways.
 *
 * Transports of the host: an agent, a thread (or the compute thread itself, where progress is inline), drives
 * the collectives, from two queues: in one, all-reduces between groups of ranks that have shards would hold
 * up what is gathered within a group. Jobs of a queue end one after another. Job t is done when the fence
 * `done` of its queue has reached t; the compute thread may then read what the agent wrote before
 * (ring_jobs.c).
 *
 * NCCL: there is no other thread in a step. The compute thread enqueues the job on the communication stream,
 * after a mark of the compute stream; what needs the result waits, in the compute stream, for a mark after
 * the job (ring_enqueue.c). */
#ifndef RING_ENGINE_ENGINE_IMPL_H
#define RING_ENGINE_ENGINE_IMPL_H

#include "common/collectives/collective.h"
#include "common/collectives/nccl/collective_nccl.h"
#include "common/collectives/tuning.h"
#include "common/net/status_table.h"
#include "common/sync/agent.h"
#include "common/sync/queue.h"
#include "common/trace/trace.h"
#include "ring/hooks/powersgd_module.h"
#include "ring/ring.h"

#include <stdatomic.h>

enum {
    RING_RECORDS = 4096,
    RING_BUCKET_ALIGNMENT = 64,
    RING_IN_FLIGHT = COLLECTIVE_QUEUE, /* jobs of a queue */
    RING_WAITS = 2048,                 /* of the steps under way, two at most */
    RING_AHEAD =
        COLLECTIVE_ENQUEUED / 2, /* NCCL: jobs that may be in flight; PowerSGD makes two calls for one */
    RING_READY_MARK = SYNC_MARK_ENGINE, /* of the compute stream, and the following: of each job in flight */
    RING_END_MARK = COLLECTIVE_MARKS,   /* of the communication stream, and the following: the same */
};
_Static_assert(RING_READY_MARK + RING_AHEAD <= DEVICE_MARKS, "a mark for each job in flight");

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
    uint64_t ticket; /* of its job */
    int64_t ready_ns;
    int64_t record; /* its id */
} ring_bucket_step;

/* What collectives touch besides arenas, in one shared allocation. If the host cannot reach that, what it
 * reads and writes is in `control`. */
typedef struct ring_memory {
    device_memory shared;
    char *buckets;
    double *group;         /* [group_capacity] in the device's memory */
    int32_t *order;        /* [params] in the host's */
    int32_t *device_order; /* the same for NCCL */
    int32_t *activity;     /* [world] in the host's */
    void *control;         /* what the host reads on devices whose memory it cannot reach; else NULL */
    float *factors;        /* PowerSGD: what is all-reduced of every bucket */
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
    void *scratch; /* on the host: the largest gradient in the device's type; with a GPU three of them */
} ring_powersgd;

typedef struct ring_job_times {
    uint64_t ticket;
    int64_t launched_ns, started_ns, finished_ns;
    int last_rank;     /* as in collective_times */
    int64_t began_ns;  /* likewise */
    int64_t traced_ns; /* from when on the time line shows it: what runs side by side, in several groups, is
                        * one after another there */
    collective_algorithm algorithm; /* likewise */
} ring_job_times;

/* The lane has waited for a job. */
typedef struct ring_wait {
    int number; /* anatomy.h */
    uint64_t ticket;
    int64_t record; /* of the bucket, or 0 */
} ring_wait;

typedef struct ring_job {
    ring_job_kind kind;
    int index;    /* bucket, root, or count of a group sum */
    int64_t step; /* of a bucket */
    int phase;    /* PowerSGD: of a bucket */
    uint64_t ticket;
    ring_job_times times;
    collective_ticket call;
} ring_job;

/* A unit of sharded state in the present pass; the compute thread's. */
typedef struct ring_unit {
    uint64_t gather;      /* the all-gather that was posted and not waited for; 0: none */
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
    uint64_t posted;             /* jobs */
    uint64_t accounted;          /* jobs whose times have been read */
    uint64_t awaited;            /* of RING_QUEUE_RANKS: the last job that the compute stream waits for */
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
    ring_wait waits[RING_WAITS]; /* of the steps under way */
    int wait_count;
    bool warm; /* NCCL has made calls of all sizes */
    struct {
        ring_job_kind kind;
        collective_ticket first; /* of its calls */
    } enqueued[RING_AHEAD];      /* NCCL: jobs in flight, by ticket */
    ring_bucket_record *records; /* [RING_RECORDS] */
    int64_t record_count;        /* made so far */
    int64_t *record_of;          /* [times_mask + 1] by ticket; 0: not a bucket */
} ring_compute;

typedef enum ring_queue { RING_QUEUE_RANKS, RING_QUEUE_REPLICAS, RING_QUEUES } ring_queue;

/* Jobs of a queue, in the order of their tickets. */
typedef struct ring_job_queue {
    ring_job jobs[RING_IN_FLIGHT];
    uint64_t head, begun, tail; /* the calls of those before `begun` have been posted */
} ring_job_queue;

/* Only the agent reads and writes these. */
typedef struct ring_agent_state {
    ring_job_queue queues[RING_QUEUES];
    uint64_t taken;              /* jobs */
    uint64_t ended[RING_QUEUES]; /* the last ticket */
    int64_t traced_until_ns;
} ring_agent_state;

/* How the two threads hand work to each other. */
typedef struct ring_shared {
    sync_queue jobs;                 /* from the compute thread to the agent */
    device_fence *posted;            /* virtual devices: the compute stream has passed job N; else NULL */
    device_fence *done[RING_QUEUES]; /* job N is done: the agent will not touch its memory and its times
                                        again; NCCL: NULL */
    ring_job_times *times;           /* [times_mask + 1] by ticket */
    uint64_t times_mask;
    error_record failure; /* written before given_up is set */
    atomic_bool given_up; /* by the compute thread, once */
    _Atomic int64_t bytes_sent, bytes_received, messages_sent, messages_received; /* by the agent */
} ring_shared;

struct ring_engine {
    sync_engine base;

    /* Set before the agent starts. */
    ring_settings settings;
    collective_tuning tuning; /* of --collective-table */
    text_buffer handshake;
    size_t handshake_common; /* bytes of it that must be equal on all ranks */
    char bootstrap[COLLECTIVE_BOOTSTRAP_BYTES];
    dtype wire;                    /* the type in which gradients are all-reduced */
    device_stream *stream;         /* GPUs: of the collectives, which are NCCL's; else NULL */
    sync_agent *agent;             /* NULL with NCCL */
    collective_world *world;       /* the agent's; with NCCL the compute thread's */
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
    ring_agent_state agent_state;
    ring_shared shared;
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

/* ring_enqueue.c: jobs with NCCL. */
/* Makes calls of all sizes that steps make once, and waits for them: where NCCL connects for one, it does so
 * now. */
status ring_warm_up(ring_engine *e);
status ring_enqueue(ring_engine *e, const ring_job *job);
/* The compute stream waits for a job. */
status ring_await_in_stream(ring_engine *e, uint64_t ticket);
/* Whether the job is done; then it has read its times. */
bool ring_enqueued_done(ring_engine *e, uint64_t ticket);

/* ring_times.c */
void ring_end_step(sync_engine *base);
void ring_counters(sync_engine *base, sync_counters *out);
/* Reads the times of the jobs that are done into the records. */
void ring_account(ring_engine *e);

/* ring_jobs.c */
extern const sync_agent_ops ring_agent_ops;
bool ring_is_done(ring_engine *e, uint64_t ticket);
/* For ring_counters(), by the thread that drives the collectives. */
void ring_publish_traffic(ring_engine *e);
int64_t ring_now(const ring_engine *e);
/* Reports to the peers, through the agent, that this rank ends; returns `code`, that of the present error. */
status ring_give_up(ring_engine *e, status code);
/* Hands a job to the agent. */
status ring_post(ring_engine *e, ring_job_kind kind, int index, int64_t record, uint64_t *ticket);
/* What the compute stream does from now on waits for a job; `record`: of its bucket, 0 for other jobs. */
status ring_await(ring_engine *e, uint64_t ticket, int64_t record);
/* The anatomy receives the time in which a job was in progress. */
void ring_add_span(const ring_engine *e, const ring_job_times *t);
ring_bucket_record *ring_record(ring_engine *e, int64_t id);
/* Posts a job and waits for it. */
status ring_run_job(ring_engine *e, ring_job_kind kind, int index);
/* There are buffers, and other ranks. */
bool ring_has_buffers(const ring_engine *e);
/* A job as a call of the collectives. */
rank_operation ring_operation_of(ring_job_kind kind); /* in the status table and the trace */
bool ring_is_compressed(const ring_engine *e, const ring_job *job);
/* Calls that the job makes, one after another. */
int ring_phases(const ring_engine *e, const ring_job *job);
/* The ranks that take part in such a job. */
collective_group *ring_group_of(const ring_engine *e, ring_job_kind kind);
collective_call ring_bucket_call(const ring_engine *e, int bucket);
/* Between groups of ranks that have shards, the reduced shard of a bucket is averaged. */
collective_call ring_replicas_call(const ring_engine *e, int bucket);
status ring_call_of(ring_engine *e, const ring_job *job, collective_call *out);

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
