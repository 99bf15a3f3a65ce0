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
    int64_t bytes; /* Without padding. */
} dp_chunk;

typedef struct dp_chunks {
    dp_chunk *list;
    int count;
    int most_pieces; /* Most parameters of a chunk. */
    int64_t largest_bytes;
} dp_chunks;

/* Makes chunks as torch coalesces tensors, in the order of registration. A chunk ends when it has `limit`
 * bytes or more (broadcast_coalesced) or, if `within`, before it would have more (reduce_add_coalesced).
 * Sources: torch/csrc/cuda/comm.cpp and torch/csrc/utils/tensor_flatten.h. */
status dp_chunks_make(const param_set *set, bool within, int64_t limit, dp_chunks *out);
void dp_chunks_free(dp_chunks *chunks);

/* Staging buffers of the tensors that ranks exchange under `dp`.
 *
 * If the host can access the device's memory, or in virtual time, tensors are exchanged in place. Tensors of
 * a GPU pass through pinned host memory. A tensor is copied down before an exchange sends the tensor, and
 * copied up after an exchange has received the tensor. Under `--payload nccl` only tensors that the host
 * reads are staged. The ledger does not count staging buffers, because they belong to the transport. */
typedef enum dp_tensor {
    /* Ranks map the first five tensors, in the order of the PS_SEGMENT_ constants. */
    DP_TENSOR_PARAMS,
    DP_TENSOR_GRADS,
    DP_TENSOR_INPUT,
    DP_TENSOR_TARGET,
    DP_TENSOR_OUTPUTS, /* Rank 0 only: the outputs of all ranks, later replaced by their gradients. */
    DP_TENSOR_PART,    /* Other ranks only: the outputs of this rank, later replaced by their gradients. */
    DP_TENSOR_BUFFERS,
    DP_TENSOR_SUMS, /* Values that a layer sums over the ranks. */
    DP_TENSORS
} dp_tensor;

typedef struct dp_staging {
    sync_staging copies; /* On the compute stream. */
    bool nccl;
    device *host;
    device_memory buffers[DP_TENSORS];
} dp_staging;

void dp_staging_close(dp_staging *p);

bool dp_is_staged(const dp_staging *p, dp_tensor tensor);

/* Returns the address that an exchange uses for the tensor at `data`. */
char *dp_staged_address(const dp_staging *p, dp_tensor tensor, void *data);

/* Copy bytes [offset, offset + bytes) between `data` and its staging buffer, if there is one. dp_stage_down()
 * returns when the copy has ended. dp_stage_up() copies in the order of the compute stream. */
status dp_stage_down(dp_staging *p, dp_tensor tensor, const void *data, int64_t offset, int64_t bytes);
status dp_stage_up(dp_staging *p, dp_tensor tensor, void *data, int64_t offset, int64_t bytes);

/* Copies from device memory to another rank's mapped memory, without a staging buffer. Returns when the copy
 * has ended. */
status dp_copy_down(dp_staging *p, void *host, const void *data, int64_t bytes);

enum { DP_PIECE_INPUTS, DP_PIECE_TARGETS, DP_PIECE_OUTPUTS, DP_PIECE_SUMS, DP_PIECES };

typedef struct dp_part {
    int64_t first, samples, targets;
} dp_part;

typedef struct dp_nccl dp_nccl;
typedef struct dp_nccl_sim dp_nccl_sim;

typedef struct dp_engine {
    sync_engine base;
    ps_options resolved;
    const ps_options *options;
    ps_policy policy;
    ps_member member;
    dp_hub *hub;
    dp_staging staging;
    dp_chunks replicate, reduce;
    int64_t returned; /* Bytes per sample that replicas return in addition to their loss. */
    int largest_sum;  /* ps_largest_sum() */
    size_t element;   /* Bytes of an element. */

    /* Used on rank 0. */
    device_memory outputs; /* Outputs of all ranks, which the loss replaces by their gradients. */
    /* GPU memory in which a chunk of gradients lands before it is added. */
    device_memory landing;
    double *shares; /* [world][largest_sum] */

    /* The current step. */
    dp_part *parts;     /* [world] Only rank 0 knows the parts of other ranks. */
    int64_t loaded;     /* Samples of all ranks. */
    int present;        /* Ranks 0 .. present - 1 have samples. */
    int contributors;   /* Number of ranks that had samples in a micro-batch of the step. */
    bool accumulates;   /* The gradients already include earlier micro-batches of the step. */
    int64_t step, sums; /* `sums` counts the layers' sums of the step. */
    int64_t settles;    /* Number of flushes. */
    /* [world][DP_PIECES] Pieces of the tensors that are exchanged with each rank. */
    piece *pieces;

    /* Bytes that the ledger counts, by account. */
    int64_t replica, gradients, results_held, kept_held, outputs_held, chunk_held;

    dp_nccl *nccl; /* NULL if tensors go through the hub. */
} dp_engine;

/* dp_nccl.c: tensors through NCCL, if e->nccl is set. All ranks call these functions, which enqueue work in
 * the order of the compute stream. */
/* Copies the options, and chooses the payload. Fails with STATUS_CONFIG if the device cannot use the
 * payload. */
status dp_choose_payload(dp_engine *e, const ps_options *options);
/* Returns when all ranks have joined, or fails after the connect time-out. */
status dp_nccl_open(dp_engine *e);
void dp_nccl_close(dp_engine *e);
status dp_nccl_warm_up(dp_engine *e);
status dp_nccl_replicate(dp_engine *e);
/* Sums gradients on rank 0. Each gradient is divided by `before`, the sum by `after`. */
status dp_nccl_reduce(dp_engine *e, double before, double after);
void dp_nccl_collect(const dp_engine *e, sync_counters *out);
void dp_nccl_end_step(sync_engine *e);
/* Returns true if NCCL also carries parts of the batch and of the outputs. In virtual time the hub carries
 * these parts. */
bool dp_nccl_sends(const dp_engine *e);
status dp_nccl_scatter_batch(dp_engine *e);
status dp_nccl_gather_outputs(dp_engine *e);
status dp_nccl_scatter_gradient(dp_engine *e);

/* dp_nccl_sim.c: calls in virtual time. dp_nccl_sim_run() returns when the call has ended. */
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

/* Returns true if the device only plans memory. No message is sent then, and this rank computes the values
 * that messages would bring. */
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

/* Returns true if tensors pass through shared memory. */
static inline bool dp_shares(const dp_engine *e)
{
    return ps_shares_memory(&e->member);
}

static inline char *dp_segment(const dp_engine *e, int peer, int segment)
{
    return ps_segment(&e->member, peer, segment);
}

/* Returns rank 0's shared memory if this rank's GPU copies to and from it without a staging buffer, else
 * NULL. */
static inline char *dp_mapped(const dp_engine *e, int segment)
{
    return e->staging.copies.separate && e->member.group.segments ? dp_segment(e, 0, segment) : NULL;
}

/* Returns the address of a tensor in a peer's memory if an exchange copies to or from it, else NULL. */
static inline char *dp_remote(const dp_engine *e, int peer, int segment)
{
    return dp_shares(e) && !dp_mapped(e, segment) ? dp_segment(e, peer, segment) : NULL;
}

/* Describes a tensor of `bytes` at offset `offset`, to or from `peer`. `kind` is a DP_PIECE_ constant. */
static inline dp_region dp_plain_region(dp_engine *e, int peer, int kind, void *base, int64_t offset,
                                        int64_t bytes)
{
    piece *p = &e->pieces[peer * DP_PIECES + kind];
    *p = (piece){offset, bytes};
    return (dp_region){base, {p, 1}, 1};
}

/* dp_memory.c: allocates all memory, which the engine's close() frees. */
status dp_open_memory(dp_engine *e);

/* dp_batch.c, dp_stages.c */
status dp_plan_batch(sync_engine *e, const sync_step *step, int64_t batch, sync_batch *out);
status dp_scatter_inputs(sync_engine *e, const sync_step *step);
status dp_begin_forward(sync_engine *e, const sync_step *step);
status dp_gather_outputs(sync_engine *e, const sync_step *step);
void dp_loss(sync_engine *e, const sync_step *step, int64_t *targets, bool *here);
status dp_scatter_output_gradient(sync_engine *e, const sync_step *step);
status dp_ready(sync_engine *e, int param);
status dp_reduce(sync_engine *e, const sync_step *step);
status dp_flush(sync_engine *e);
status dp_group_sum(sync_engine *e, double *values, int count);
void dp_counters(sync_engine *e, sync_counters *out);

/* dp_memory.c: count the allocations and frees of a step in the ledger. */
void dp_account_begin_batch(dp_engine *e); /* frees gradients before the first micro-batch of a step */
void dp_account_replicate(dp_engine *e);
void dp_account_gather(dp_engine *e);
void dp_account_log_softmax(dp_engine *e);
void dp_account_loss_gradients(dp_engine *e);
void dp_account_end_loss(dp_engine *e);      /* frees everything that only the loss needs */
void dp_account_take_gradient(dp_engine *e); /* counts the gradient of this rank's part (not on rank 0) */
void dp_account_gradient_ready(dp_engine *e, int param);
void dp_account_begin_reduce(dp_engine *e);
void dp_account_reduced(dp_engine *e);
void dp_account_end_reduce(dp_engine *e); /* keeps only gradients that the optimizer reads */

#endif
