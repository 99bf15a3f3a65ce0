/* Where the tensors lie that ranks exchange under `dp`.
 *
 * Where the host can reach the device's memory, and on devices without bytes, that is where they are. A GPU's
 * pass through mirrors in pinned host memory: fetched into them before a round sends them, stored from them
 * behind a round that has brought them. With `--payload p2p` tensors go from device memory to device memory, and
 * only what always travels in frames has a mirror. Mirrors are in no ledger: they are what a transport's buffers
 * are. */
#ifndef PS_DP_DP_STAGING_H
#define PS_DP_DP_STAGING_H

#include "common/device/device.h"
#include "common/sync/engine.h"

typedef enum dp_tensor {
    DP_TENSOR_PARAMS,  /* the first five are what ranks show each other, in the order of PS_SEGMENT_... */
    DP_TENSOR_GRADS,
    DP_TENSOR_INPUT,
    DP_TENSOR_TARGET,
    DP_TENSOR_OUTPUTS, /* rank 0: of all ranks, and behind them their gradients */
    DP_TENSOR_PART,    /* other ranks: outputs of the own part, or their gradient */
    DP_TENSOR_BUFFERS,
    DP_TENSOR_SUMS,    /* numbers that a layer adds up over the ranks */
    DP_TENSORS
} dp_tensor;

typedef struct dp_staging {
    device *device;         /* NULL: no mirrors, everything is used where it is */
    device_stream *compute; /* the copies are its work */
    bool peers;             /* p2p */
    device *host;
    device_memory mirror[DP_TENSORS];
} dp_staging;

/* What must be mirrored: bytes of each place, 0 where this rank has nothing there. `shared`: in memory that other
 * processes can map. Does nothing for devices that need no mirrors. */
status dp_staging_open(dp_staging *p, const sync_context *c, bool peers, bool shared, const size_t bytes[DP_TENSORS]);
void dp_staging_close(dp_staging *p);

/* Whether what is at `place` travels by way of a mirror. */
bool dp_is_staged(const dp_staging *p, dp_tensor place);

/* Where a round finds what lies at `data`. */
char *dp_staged_address(const dp_staging *p, dp_tensor place, void *data);

/* Copy bytes [offset, offset + bytes) between `data` and its mirror, if it has one. A fetch has ended when it
 * returns. A store may be under way, before whatever the compute stream does next. */
status dp_stage_down(dp_staging *p, dp_tensor place, const void *data, int64_t offset, int64_t bytes);
status dp_stage_up(dp_staging *p, dp_tensor place, void *data, int64_t offset, int64_t bytes);

/* The same with host memory of another rank, in sight, in place of the mirror. */
status dp_copy_down(dp_staging *p, void *host, const void *data, int64_t bytes);
status dp_copy_up(dp_staging *p, void *data, const void *host, int64_t bytes);

/* Within the device, where the compute stream has come to; `d` is the device also where there are no mirrors. */
status dp_copy(const dp_staging *p, device *d, void *to, const void *from, int64_t bytes);

#endif
