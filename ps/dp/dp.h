/* The policy `dp`: torch.nn.DataParallel's iteration, rank r in the place of device r.
 *
 *   plan      rank 0 loads the batches of all ranks
 *   scatter   in chunks of ceil(batch / n) samples, the last smaller or absent (torch.chunk)
 *   begin     parameters and buffers are replicated from rank 0
 *   place     outputs are gathered on rank 0 (with the loss in the replicas only what --dp-gather says, in
 * virtual time) loss      one, over the whole batch, on rank 0 scatter   of its gradient finish    gradients
 * are reduced onto rank 0, after the whole backward pass; rank 0 updates
 *
 * Rank 0 is the hub: every tensor goes through it. docs/ps.md has the memory of each phase. In the order of a
 * step:
 *
 *   dp_engine.c      open, connect and close; the table of stages
 *   dp_batch.c       the batch: planned, cut, scattered
 *   dp_stages.c      replicate, gather outputs, loss, scatter its gradient, reduce
 *   hub.c            exchanges of tensors with rank 0, and the sum of gradients
 *   dp_nccl.c        the same by NCCL's calls on memory of GPUs (--payload nccl); dp_nccl_sim.c: in virtual
 * time dp_memory.c      chunks, arenas, staging buffers of a GPU, the ledger, the formula for its phases */
#ifndef PS_DP_DP_H
#define PS_DP_DP_H

#include "common/sync/engine.h"

/* As sync_engine_type's; the engine's type is another than sync_ps, with the same name. */
status ps_dp_requirements(const void *options, const char *policy, int world, sync_requirements *out);
status ps_dp_open(const sync_context *context, sync_engine **out);

const struct ps_member *ps_dp_member(const sync_engine *e);
void ps_dp_write_settings(const sync_engine *e, text_buffer *out);

extern const sync_engine_type sync_ps_dp;

#endif
