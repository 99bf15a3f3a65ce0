/* The policy `dp`: the iteration of torch.nn.DataParallel, with rank r in place of device r. `dp` implements
 * these calls of sync_engine_type:
 *
 *   plan                    rank 0 loads the batches of all ranks
 *   inputs                  rank 0 sends ceil(batch / n) samples to each rank; the last ranks may get fewer
 *   begin_forward           rank 0 replicates parameters and buffers
 *   gather_outputs          rank 0 gathers the outputs; with --dp-loss replica, ranks gather only in virtual
 *                           time, and --dp-gather says which tensors
 *   loss                    rank 0 computes one loss over the whole batch; with --dp-loss replica every rank
 *                           computes a loss over its part
 *   output_gradient         rank 0 sends the gradient of the outputs
 *   reduce                  rank 0 sums the gradients after the whole backward pass, then updates
 *
 * Rank 0 is the hub: every tensor goes through it. docs/ps.md describes the memory of each phase. The files,
 * in the order of a step:
 *
 *   engine.c         open, connect and close; the table of functions
 *   batch.c          plans, splits and scatters the batch; moves other tensors that are split like the batch
 *   step.c           replicate, gather outputs, loss, scatter the output gradient, reduce
 *   exchange.c       exchanges of tensors with rank 0, and the sum of gradients
 *   exchange_open.c  opens and closes the hub
 *   nccl.c           exchanges with NCCL's calls in GPU memory (--payload nccl)
 *   nccl_sim.c       the calls of nccl.c in virtual time
 *   memory.c         chunks, arenas, staging buffers of a GPU, the ledger, the formula for each phase */
#ifndef PS_DATAPARALLEL_DATAPARALLEL_H
#define PS_DATAPARALLEL_DATAPARALLEL_H

#include "common/process_group/process_group.h"
#include "ps/dataparallel/exchange.h"
#include "ps/dataparallel/memory.h"
#include "ps/handshake.h"

/* The parameters from `first` to first + count - 1, which are sent in one message. */
typedef struct dp_chunk {
    int first, count;
    int64_t bytes; /* Size of the parameters, without padding. */
} dp_chunk;

typedef struct dp_chunks {
    dp_chunk *list;
    int count;
    int most_pieces; /* Largest number of parameters in a chunk. */
    int64_t largest_bytes;
} dp_chunks;

/* Makes chunks as torch coalesces tensors, in the order of registration. If `within` is false, a chunk ends
 * when it has `limit` bytes or more (broadcast_coalesced). If `within` is true, a chunk ends before it would
 * exceed `limit` (reduce_add_coalesced). Sources: torch/csrc/cuda/comm.cpp and
 * torch/csrc/utils/tensor_flatten.h. */
status dp_chunks_make(const param_set *set, bool within, int64_t limit, ps_memory *memory, dp_chunks *out);

/* The tensors that ranks exchange. If the host can access the device's memory, or in virtual time, tensors
 * are exchanged in place. Tensors of a GPU pass through staging buffers in pinned host memory: a tensor is
 * copied to the host before an exchange sends it, and to the GPU after an exchange has received it. Under
 * `--payload nccl` only tensors that the host reads have a staging buffer. The ledger does not count staging
 * buffers, because they belong to the transport. */
typedef enum dp_tensor {
    /* Ranks map the first five tensors, in the order of the PS_SEGMENT_ constants. */
    DP_TENSOR_PARAMS,
    DP_TENSOR_GRADS,
    DP_TENSOR_INPUT,
    DP_TENSOR_TARGET,
    DP_TENSOR_OUTPUTS, /* On rank 0, outputs of all ranks, later replaced by the gradients of the outputs. */
    /* On other ranks, outputs of this rank, later replaced by the gradients of the outputs. */
    DP_TENSOR_PART,
    DP_TENSOR_BUFFERS,
    DP_TENSOR_SUMS, /* Values that a layer sums over the ranks. */
    DP_TENSORS
} dp_tensor;

typedef struct dp_part {
    int64_t first, samples, targets;
} dp_part;

/* A tensor that is split into one part for each rank. Rank 0 has all parts in rank order. Every other rank
 * has one part, which the rank receives from rank 0 or sends to rank 0. */
typedef struct dp_flow {
    message_kind kind;
    int key; /* Value of header.key in the messages of the flow. */
    bool to_root;
    dp_tensor tensor; /* Names this rank's staging buffer. */
    int segment;      /* Names the shared memory of rank 0. */
    char *data;       /* Address of the tensor on this rank. */
    int64_t each;     /* Size of the tensor in bytes per sample. */
} dp_flow;

typedef struct dp_nccl_sim dp_nccl_sim;

typedef struct dp_engine {
    sync_engine base;
    ps_options options; /* `payload` is PS_PAYLOAD_NCCL if --payload auto has chosen NCCL. */
    int threads;        /* Number of host threads that sum gradients, or 0 if the GPU sums. */
    ps_policy policy;
    ps_member member;
    dp_hub *hub;
    sync_staging copies;               /* Copies tensors on the compute stream. */
    device *host;                      /* Device of the staging buffers, or NULL. */
    device_memory buffers[DP_TENSORS]; /* Staging buffers. `data` is NULL if a tensor has none. */
    dp_chunks replicate, reduce;
    ps_memory memory;
    int64_t returned; /* Bytes per sample that replicas return in addition to their loss. */
    int largest_sum;  /* Result of nn_program_largest_sum(). */
    int64_t element;  /* Bytes of an element. */

    /* Used on rank 0. */
    /* Outputs of all ranks. The loss replaces the outputs by the gradients of the outputs. */
    device_memory outputs;
    /* GPU memory that receives a chunk of another rank's gradients before the chunk is added. */
    device_memory landing;
    double *shares; /* [world][largest_sum] */

    /* The current step. */
    dp_part *parts;     /* [world] Parts of the batch. Only rank 0 sets the parts of other ranks. */
    int64_t loaded;     /* Number of samples of all ranks. */
    int present;        /* Number of ranks that have samples: ranks 0 to present - 1. */
    int contributors;   /* Number of ranks that had samples in a micro-batch of the step. */
    bool accumulates;   /* True if the gradients include earlier micro-batches of the step. */
    int64_t step, sums; /* `sums` is the number of sums that layers have requested in the step. */
    int64_t settles;    /* Number of flushes. */

    /* Bytes that the ledger counts now for each kind of memory. */
    int64_t replica, gradients, results_held, kept_held, outputs_held, chunk_held;

    /* True with --payload nccl if there are several ranks. NCCL then broadcasts parameters and reduces
     * gradients. */
    bool by_nccl;
    process_group *calls; /* Calls of NCCL. NULL in virtual time, or if NCCL is not used. */
    collective_world *library;
    collective_group *ranks;
    bool warm;
    dp_nccl_sim *virtual_calls; /* Calls of NCCL in virtual time, else NULL. */
} dp_engine;

/* nccl.c: moves tensors through NCCL. All ranks call these functions, which enqueue work in the order of the
 * compute stream. In virtual time these functions run only broadcasts and reductions, and the hub moves the
 * parts of the batch and of the outputs. */
/* Calls of the process group. */
typedef enum dp_call {
    DP_CALL_REPLICATE,
    DP_CALL_REDUCE,
    DP_CALL_INPUTS,
    DP_CALL_OUTPUTS,
    DP_CALL_GRADIENT,
    DP_CALL_START
} dp_call;
/* Copies the options to `e`. Chooses the payload and the number of threads. Fails with STATUS_CONFIG if the
 * device cannot use the payload. */
status dp_choose_payload(dp_engine *e, const ps_options *options);
/* Returns when all ranks have joined, or fails after the connect time-out. */
status dp_nccl_open(dp_engine *e);
void dp_nccl_close(dp_engine *e);
status dp_nccl_warm_up(dp_engine *e);
status dp_nccl_replicate(dp_engine *e);
/* Sums gradients on rank 0. */
status dp_nccl_reduce(dp_engine *e, const dp_sum *sum);
void dp_nccl_collect(const dp_engine *e, sync_counters *out);
void dp_nccl_end_step(sync_engine *e);
/* Begin and end a call. In virtual time, these functions do nothing. */
status dp_nccl_begin(dp_engine *e, dp_call call);
status dp_nccl_end(dp_engine *e);
/* Adds a send or a receive of `bytes` bytes at `data` to the call. The other side is rank `peer`. */
status dp_nccl_add(dp_engine *e, bool sends, int peer, void *data, int64_t bytes);

/* nccl_sim.c: calls in virtual time. dp_nccl_sim_run() returns when the call has ended. */
status dp_nccl_sim_open(const dp_engine *e, const int *ranks, dp_nccl_sim **out);
void dp_nccl_sim_close(dp_nccl_sim **n);
status dp_nccl_sim_run(const dp_engine *e, collective_kind kind, int64_t bytes);
void dp_nccl_sim_collect(const dp_nccl_sim *n, sync_counters *out);

/* Type of the engine that ps_dp_open() opens. The `name` of this type is "ps", as in sync_ps. The fields that
 * are used before open() are set only in sync_ps. */
extern const sync_engine_type sync_ps_dp;
sync_requirements ps_dp_requirements(const ps_options *o, const ps_policy *p);
status ps_dp_open(const sync_context *context, sync_engine **out);

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

static inline const dp_part *dp_mine(const dp_engine *e)
{
    return &e->parts[e->base.context.rank];
}

static inline bool dp_takes_part(const dp_engine *e)
{
    return dp_mine(e)->samples > 0;
}

/* Returns rank 0's shared memory if this rank's GPU copies to and from it without a staging buffer, else
 * NULL. */
static inline char *dp_mapped(const dp_engine *e, int segment)
{
    return e->copies.separate ? ps_segment(&e->member, 0, segment) : NULL;
}

/* Returns rank 0's shared memory if the hub copies to and from it, else NULL. */
static inline char *dp_remote(const dp_engine *e, int segment)
{
    return e->copies.separate ? NULL : ps_segment(&e->member, 0, segment);
}

/* memory.c: allocates all memory, and frees it. */
status dp_open_memory(dp_engine *e);
void dp_close_memory(dp_engine *e);
/* Returns the address that an exchange uses for the tensor at `data`. This is the address of the tensor's
 * staging buffer if the tensor has one, else `data`. */
char *dp_address(const dp_engine *e, dp_tensor tensor, void *data);
/* Copy bytes [offset, offset + bytes) between `data` and the tensor's staging buffer. Do nothing if there is
 * no staging buffer. dp_stage_down() copies to the buffer, and returns when the copy has ended. dp_stage_up()
 * copies from the buffer in the order of the compute stream. */
status dp_stage_down(dp_engine *e, dp_tensor tensor, const void *data, int64_t offset, int64_t bytes);
status dp_stage_up(dp_engine *e, dp_tensor tensor, void *data, int64_t offset, int64_t bytes);
/* Copies from device memory to host memory. Returns when the copy has ended. */
status dp_copy_down(dp_engine *e, void *host, const void *data, int64_t bytes);

/* batch.c */
int64_t dp_plan_batch(sync_engine *e, const sync_step *step, int64_t batch);
status dp_scatter_inputs(sync_engine *e, const sync_step *step);
/* Adds the parts of all ranks to the current exchange, or to the current call of NCCL. */
status dp_add_parts(dp_engine *e, const dp_flow *f);
/* Moves the parts of all ranks in one exchange, or in one call of NCCL. */
status dp_exchange(dp_engine *e, const dp_flow *f, dp_call call);

/* step.c */
status dp_begin_forward(sync_engine *e, const sync_step *step);
status dp_gather_outputs(sync_engine *e, const sync_step *step);
void dp_loss(sync_engine *e, const sync_step *step, int64_t *targets, bool *here);
status dp_scatter_output_gradient(sync_engine *e, const sync_step *step);
status dp_ready(sync_engine *e, int param);
status dp_reduce(sync_engine *e, const sync_step *step);
status dp_flush(sync_engine *e);
status dp_group_sum(sync_engine *e, double *values, int count);

/* memory.c: record the allocations and frees of a step in the ledger. */
void dp_account_begin_batch(dp_engine *e); /* frees gradients before the first micro-batch of a step */
void dp_account_replicate(dp_engine *e);
/* If rank 0 computes one loss, counts the outputs of all ranks. If the lifetimes are PyTorch's, also counts
 * `more` tensors with as many elements, which PyTorch's loss keeps. */
void dp_account_outputs(dp_engine *e, int more);
/* Removes from the ledger the memory that is needed because rank 0 computes one loss. Counts the gradient of
 * this rank's part. */
void dp_account_end_loss(dp_engine *e);
void dp_account_gradient_ready(dp_engine *e, int param);
void dp_account_begin_reduce(dp_engine *e);
void dp_account_reduced(dp_engine *e);
void dp_account_end_reduce(dp_engine *e); /* keeps only gradients that the optimizer reads */

#endif
