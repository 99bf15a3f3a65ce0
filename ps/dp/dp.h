/* The policy `dp`: the iteration of torch.nn.DataParallel, with rank r in place of device r. The stages of
 * sync_engine_type:
 *
 *   plan                    rank 0 loads the batches of all ranks
 *   inputs                  rank 0 sends ceil(batch / n) samples per rank, the last part smaller or absent
 *   begin_forward           rank 0 replicates parameters and buffers
 *   gather_outputs          rank 0 gathers the outputs; with --dp-loss replica only in virtual time, as
 *                           --dp-gather says
 *   loss                    rank 0 computes one loss over the whole batch; with --dp-loss replica every rank
 *                           computes a loss over its part
 *   output_gradient         rank 0 sends the gradient of the outputs
 *   reduce                  rank 0 sums the gradients after the whole backward pass, then updates
 *
 * Rank 0 is the hub: every tensor goes through it. docs/ps.md describes the memory of each phase. The files,
 * in the order of a step:
 *
 *   dp_engine.c      open, connect and close; the table of stages
 *   dp_batch.c       the batch: planned, cut, scattered
 *   dp_stages.c      replicate, gather outputs, loss, scatter the output gradient, reduce
 *   hub.c            exchanges of tensors with rank 0, and the sum of gradients
 *   dp_nccl.c        the same with NCCL's calls on memory of GPUs (--payload nccl)
 *   dp_nccl_sim.c    the calls of dp_nccl.c in virtual time
 *   dp_memory.c      chunks, arenas, staging buffers of a GPU, the ledger, the formula for its phases */
#ifndef PS_DP_DP_H
#define PS_DP_DP_H

#include "common/sync/engine.h"

/* Implements sync_engine_type.requirements(). */
status ps_dp_requirements(const void *options, const char *policy, int world, sync_requirements *out);
status ps_dp_open(const sync_context *context, sync_engine **out);

const struct ps_member *ps_dp_member(const sync_engine *e);
void ps_dp_write_settings(const sync_engine *e, text_buffer *out);

/* Type of the engine that ps_dp_open() opens. The `name` of this type is "ps", as in sync_ps. */
extern const sync_engine_type sync_ps_dp;

#endif
