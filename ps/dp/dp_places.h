/* Where the tensors lie that ranks exchange under `dp`.
 *
 * Where the host can reach the device's memory, and on devices without bytes, that is where they are. A GPU's
 * pass through mirrors in pinned host memory: fetched into them before a round sends them, stored from them
 * behind a round that has brought them. With `--payload p2p` tensors go from device memory to device memory, and
 * only what always travels in frames has a mirror. Mirrors are in no ledger: they are what a transport's buffers
 * are. */
#ifndef PS_DP_DP_PLACES_H
#define PS_DP_DP_PLACES_H

#include "common/device/device.h"
#include "common/sync/engine.h"

typedef enum dp_place {
    DP_AT_PARAMS,  /* the first five are what ranks show each other, in the order of PS_SEGMENT_... */
    DP_AT_GRADS,
    DP_AT_INPUT,
    DP_AT_TARGET,
    DP_AT_OUTPUTS, /* rank 0: of all ranks, and behind them their gradients */
    DP_AT_PART,    /* other ranks: outputs of the own part, or their gradient */
    DP_AT_BUFFERS,
    DP_AT_SUMS,    /* numbers that a layer adds up over the ranks */
    DP_PLACES
} dp_place;

typedef struct dp_places {
    device *device;         /* NULL: no mirrors, everything is used where it is */
    device_stream *compute; /* the copies are its work */
    bool peers;             /* p2p */
    device *host;
    device_memory mirror[DP_PLACES];
} dp_places;

/* What must be mirrored: bytes of each place, 0 where this rank has nothing there. `shared`: in memory that other
 * processes can map. Does nothing for devices that need no mirrors. */
status dp_places_open(dp_places *p, const sync_context *c, bool peers, bool shared, const size_t bytes[DP_PLACES]);
void dp_places_close(dp_places *p);

/* Whether what is at `place` travels by way of a mirror. */
bool dp_is_mirrored(const dp_places *p, dp_place place);

/* Where a round finds what lies at `data`. */
char *dp_place_of(const dp_places *p, dp_place place, void *data);

/* Copy bytes [offset, offset + bytes) between `data` and its mirror, if it has one. A fetch has ended when it
 * returns. A store may be under way, before whatever the compute stream does next. */
status dp_fetch(dp_places *p, dp_place place, const void *data, int64_t offset, int64_t bytes);
status dp_store(dp_places *p, dp_place place, void *data, int64_t offset, int64_t bytes);

/* The same with host memory of another rank, in sight, in place of the mirror. */
status dp_fetch_to(dp_places *p, void *host, const void *data, int64_t bytes);
status dp_store_from(dp_places *p, void *data, const void *host, int64_t bytes);

/* Within the device, where the compute stream has come to; `d` is the device also where there are no mirrors. */
status dp_copy(const dp_places *p, device *d, void *to, const void *from, int64_t bytes);

#endif
