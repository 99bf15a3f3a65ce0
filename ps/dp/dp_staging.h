/* Staging buffers of tensors that ranks exchange under `dp`.
 *
 * Where the host can access the device's memory, and on devices without bytes, tensors are exchanged where they are.
 * A GPU's pass through staging buffers in pinned host memory: copied down before an exchange sends them, copied up after
 * an exchange has received them. With `--payload p2p` tensors go from device memory to device memory, and only what
 * always travels in frames is staged. Staging buffers are in no ledger: they are buffers of the transport. */
#ifndef PS_DP_DP_STAGING_H
#define PS_DP_DP_STAGING_H

#include "common/device/device.h"
#include "common/sync/engine.h"
#include "common/sync/staging.h"

typedef enum dp_tensor {
    DP_TENSOR_PARAMS,  /* the first five are those that ranks map, in the order of PS_SEGMENT_... */
    DP_TENSOR_GRADS,
    DP_TENSOR_INPUT,
    DP_TENSOR_TARGET,
    DP_TENSOR_OUTPUTS, /* rank 0: of all ranks, then their gradients */
    DP_TENSOR_PART,    /* other ranks: outputs of the own part, or their gradient */
    DP_TENSOR_BUFFERS,
    DP_TENSOR_SUMS,    /* numbers that a layer sums over the ranks */
    DP_TENSORS
} dp_tensor;

typedef struct dp_staging {
    sync_staging copies;    /* on the compute stream */
    bool peers;             /* p2p */
    device *host;
    device_memory buffers[DP_TENSORS];
} dp_staging;

/* `bytes` of each tensor, 0 where this rank has none. `shared`: in memory that other processes can map. Does nothing
 * for devices that need no staging. */
status dp_staging_open(dp_staging *p, const sync_context *c, bool peers, bool shared, const size_t bytes[DP_TENSORS]);
void dp_staging_close(dp_staging *p);

/* Whether the tensor passes through a staging buffer. */
bool dp_is_staged(const dp_staging *p, dp_tensor tensor);

/* The address that an exchange uses for the tensor at `data`. */
char *dp_staged_address(const dp_staging *p, dp_tensor tensor, void *data);

/* Copies bytes [offset, offset + bytes) between `data` and its staging buffer, if it has one. Down: has ended when it
 * returns. Up: in the order of the compute stream. */
status dp_stage_down(dp_staging *p, dp_tensor tensor, const void *data, int64_t offset, int64_t bytes);
status dp_stage_up(dp_staging *p, dp_tensor tensor, void *data, int64_t offset, int64_t bytes);

/* To mapped host memory of another rank instead of the staging buffer. */
status dp_copy_down(dp_staging *p, void *host, const void *data, int64_t bytes);

#endif
