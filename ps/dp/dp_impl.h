/* The inside of the engine, for dp_*.c. */
#ifndef PS_DP_DP_IMPL_H
#define PS_DP_DP_IMPL_H

#include "common/collectives/collective.h"
#include "ps/dp/dp.h"
#include "ps/dp/dp_memory.h"
#include "ps/dp/hub.h"
#include "ps/handshake.h"

/* Parameters first .. first + count - 1. */
typedef struct dp_chunk {
    int first, count;
    int64_t bytes; /* without padding */
} dp_chunk;

typedef struct dp_chunks {
    dp_chunk *list;
    int count;
    int most_pieces;       /* of a chunk */
    int64_t largest_bytes; /* of a chunk */
} dp_chunks;

/* torch's coalescing: parameters in the order of registration, in chunks that end when they have `limit`
 * bytes or more (broadcast_coalesced) or, `within`, before they would have more (reduce_add_coalesced):
 * torch/csrc/cuda/comm.cpp and torch/csrc/utils/tensor_flatten.h. */
status dp_chunks_make(const param_set *set, bool within, int64_t limit, dp_chunks *out);
void dp_chunks_free(dp_chunks *chunks);

/* Staging buffers of tensors that ranks exchange under `dp`.
 *
 * Where the host can access the device's memory, and on devices without bytes, tensors are exchanged where
 * they are. A GPU's pass through staging buffers in pinned host memory: copied down before an exchange sends
 * them, copied up after an exchange has received them. With `--payload nccl` only what the host reads is
 * staged. Staging buffers are in no ledger: they are buffers of the transport. */
typedef enum dp_tensor {
    DP_TENSOR_PARAMS, /* the first five are those that ranks map, in the order of PS_SEGMENT_... */
    DP_TENSOR_GRADS,
    DP_TENSOR_INPUT,
    DP_TENSOR_TARGET,
    DP_TENSOR_OUTPUTS, /* rank 0: of all ranks, then their gradients */
    DP_TENSOR_PART,    /* other ranks: outputs of the own part, or their gradient */
    DP_TENSOR_BUFFERS,
    DP_TENSOR_SUMS, /* numbers that a layer sums over the ranks */
    DP_TENSORS
} dp_tensor;

typedef struct dp_staging {
    sync_staging copies; /* on the compute stream */
    bool nccl;           /* --payload */
    device *host;
    device_memory buffers[DP_TENSORS];
} dp_staging;

void dp_staging_close(dp_staging *p);

/* Whether the tensor passes through a staging buffer. */
bool dp_is_staged(const dp_staging *p, dp_tensor tensor);

/* The address that an exchange uses for the tensor at `data`. */
char *dp_staged_address(const dp_staging *p, dp_tensor tensor, void *data);

/* Copies bytes [offset, offset + bytes) between `data` and its staging buffer, if it has one. Down: has ended
 * when it returns. Up: in the order of the compute stream. */
status dp_stage_down(dp_staging *p, dp_tensor tensor, const void *data, int64_t offset, int64_t bytes);
status dp_stage_up(dp_staging *p, dp_tensor tensor, void *data, int64_t offset, int64_t bytes);

/* To mapped host memory of another rank instead of the staging buffer. */
status dp_copy_down(dp_staging *p, void *host, const void *data, int64_t bytes);

enum { DP_PIECE_INPUTS, DP_PIECE_TARGETS, DP_PIECE_OUTPUTS, DP_PIECE_SUMS, DP_PIECES };

/* A rank's part of the batch. */
typedef struct dp_part {
    int64_t first, samples, targets;
} dp_part;

typedef struct dp_nccl dp_nccl;
typedef struct dp_nccl_sim dp_nccl_sim;

typedef struct dp_engine {
    sync_engine base;
    ps_options resolved;
    const ps_options *options; /* `resolved` */
    ps_policy policy;
    ps_member member;
    dp_hub *hub;
    dp_staging staging;
    dp_chunks replicate, reduce;
    int64_t returned; /* bytes per sample that replicas return besides their loss */
    int largest_sum;  /* numbers that a layer adds up over the ranks at once */
    size_t element;   /* bytes */

    /* Rank 0's. */
    device_memory outputs; /* of all ranks; where the loss writes: their gradients */
    device_memory landing; /* on a GPU: where a chunk of gradients lands before it is added */
    double *shares;        /* [world][largest_sum] */

    /* The step. */
    dp_part *parts;     /* [world]; on other ranks than 0 the own one alone is known */
    int64_t loaded;     /* samples of all ranks */
    int present;        /* ranks with samples: 0 .. present - 1 */
    int contributors;   /* with samples in some micro-batch of the step */
    bool accumulates;   /* gradients of an earlier micro-batch of the step are there */
    int64_t step, sums; /* sums of the step so far */
    int64_t settles;    /* so far */
    piece *pieces;      /* [world][DP_PIECES] of the batch, the outputs and sums that go to a rank or come */

    /* What the ledger holds, in bytes. */
    int64_t replica, gradients, results_held, kept_held, outputs_held, chunk_held;

    dp_nccl *nccl; /* NULL: rank 0 sends to each rank in turn */
} dp_engine;

/* dp_nccl.c: tensors through NCCL, where e->nccl is set. Called by all ranks; what they enqueue is in the
 * order of the compute stream. */
/* The engine's options, with the payload that it uses. STATUS_CONFIG where it cannot be used. */
status dp_choose_payload(dp_engine *e, const ps_options *options);
status dp_nccl_open(dp_engine *e); /* blocks, at most for the connect time-out: all ranks come */
void dp_nccl_close(dp_engine *e);
/* Before the first step: NCCL connects. */
status dp_nccl_warm_up(dp_engine *e);
status dp_nccl_replicate(dp_engine *e);
/* As in dp_sum. */
status dp_nccl_reduce(dp_engine *e, double before, double after);
void dp_nccl_collect(const dp_engine *e, sync_counters *out);
void dp_nccl_end_step(sync_engine *e);
/* Parts of the batch and of the outputs go through NCCL, too: not in virtual time, where they are copied. */
bool dp_nccl_sends(const dp_engine *e);
status dp_nccl_scatter_batch(dp_engine *e);
status dp_nccl_gather_outputs(dp_engine *e);
status dp_nccl_scatter_gradient(dp_engine *e);

/* dp_nccl_sim.c: a call in virtual time, at whose end it returns. */
status dp_nccl_sim_open(const dp_engine *e, dp_nccl_sim **out);
void dp_nccl_sim_close(dp_nccl_sim **n);
status dp_nccl_sim_run(const dp_engine *e, dp_nccl_sim *n, collective_kind kind, int64_t bytes);
void dp_nccl_sim_collect(const dp_nccl_sim *n, sync_counters *out);

static inline dp_engine *dp_engine_of(sync_engine *e)
{
    return (dp_engine *)e;
}

static inline const sync_context *context_of(const dp_engine *e)
{
    return &e->base.context;
}

static inline bool dp_is_root(const dp_engine *e)
{
    return e->base.context.rank == 0;
}

static inline bool dp_one_loss(const dp_engine *e)
{
    return e->policy.loss == PS_DP_LOSS_DEVICE0;
}

static inline bool dp_lean(const dp_engine *e)
{
    return e->policy.lifetimes == PS_DP_LIFETIMES_LEAN;
}

/* Memory is only planned: nothing is sent, and what would be received is computed. */
static inline bool dp_plans(const dp_engine *e)
{
    return device_get_info(e->base.context.device)->plans;
}

static inline const dp_part *dp_mine(const dp_engine *e)
{
    return &e->parts[e->base.context.rank];
}

static inline bool dp_takes_part(const dp_engine *e)
{
    return dp_mine(e)->samples > 0;
}

/* Tensors pass through shared memory. */
static inline bool dp_shares(const dp_engine *e)
{
    return ps_shares_memory(&e->member);
}

static inline char *dp_segment(const dp_engine *e, int peer, int segment)
{
    return ps_segment(&e->member, peer, segment);
}

/* Shared memory of rank 0 that this rank's GPU copies from or to itself, instead of its staging buffer; else
 * NULL. */
static inline char *dp_mapped(const dp_engine *e, int segment)
{
    return e->staging.copies.separate && e->member.group.segments ? dp_segment(e, 0, segment) : NULL;
}

/* The base of a tensor in a peer's memory from which an exchange copies, or NULL. */
static inline char *dp_remote(const dp_engine *e, int peer, int segment)
{
    return dp_shares(e) && !dp_mapped(e, segment) ? dp_segment(e, peer, segment) : NULL;
}

/* A tensor of `bytes` at `offset` bytes, to or from `peer`; `kind` is one of DP_PIECE_... */
static inline dp_region dp_plain_region(dp_engine *e, int peer, int kind, void *base, int64_t offset,
                                        int64_t bytes)
{
    piece *p = &e->pieces[peer * DP_PIECES + kind];
    *p = (piece){offset, bytes};
    return (dp_region){base, {p, 1}, 1};
}

/* dp_memory.c: allocates; the engine's close() frees. */
status dp_open_memory(dp_engine *e);

/* dp_batch.c, dp_stages.c */
status dp_plan_batch(sync_engine *e, const sync_step *step, int64_t batch, sync_batch *out);
status dp_scatter_inputs(sync_engine *e, const sync_step *step);
status dp_begin_forward(sync_engine *e, const sync_step *step);
status dp_place_outputs(sync_engine *e, const sync_step *step);
status dp_loss(sync_engine *e, const sync_step *step, double *normalizer, bool *here);
status dp_scatter_output_gradient(sync_engine *e, const sync_step *step);
status dp_ready(sync_engine *e, int param);
status dp_reduce(sync_engine *e, const sync_step *step);
status dp_flush(sync_engine *e);
status dp_group_sum(sync_engine *e, double *values, int count);
void dp_counters(sync_engine *e, sync_counters *out);

/* dp_memory.c: allocations and frees of a step, as the ledger counts them. */
void dp_account_begin_batch(dp_engine *e); /* zero_grad(), before a step's first */
void dp_account_replicate(dp_engine *e);   /* a replica of all parameters and buffers */
void dp_account_gather(dp_engine *e);      /* the outputs of all ranks */
void dp_account_log_softmax(dp_engine *e);
void dp_account_loss_gradients(dp_engine *e);
void dp_account_end_loss(dp_engine *e);      /* what only the loss needs is freed */
void dp_account_take_gradient(dp_engine *e); /* of the own part, on other ranks than 0 */
void dp_account_gradient_ready(dp_engine *e, int param);
void dp_account_begin_reduce(dp_engine *e);
void dp_account_reduced(dp_engine *e);    /* chunks are freed */
void dp_account_end_reduce(dp_engine *e); /* only what the optimizer reads remains */

#endif
