/* The layer between memory of a device and memory of the host, for engines and their transports.
 *
 * A GPU's memory is separate: the host cannot access it, and work that was launched ends later. Elsewhere
 * there is one memory: copies are memcpy (in virtual time they take time), a tensor needs no staging buffer,
 * and what was launched has ended. Code that calls this layer is the same for both. */
#ifndef COMMON_SYNC_STAGING_H
#define COMMON_SYNC_STAGING_H

#include "common/device/device.h"

bool sync_memory_is_separate(const device *d);

/* A device and the stream that orders the copies. */
typedef struct sync_staging {
    device *device;
    device_stream *stream;
    bool separate;
} sync_staging;

sync_staging sync_staging_on(device *d, device_stream *s);

/* Copies: from the device to the host, from the host to the device, within the device's memory (or a peer's).
 * They may still run when the call returns; the host's memory is pinned or not used before
 * sync_staging_end(). */
status sync_copy_down(const sync_staging *s, void *host, const void *data, int64_t bytes);
status sync_copy_up(const sync_staging *s, void *data, const void *host, int64_t bytes);
status sync_copy_within(const sync_staging *s, void *to, const void *from, int64_t bytes);
/* memcpy in memory of the host, which in virtual time takes time. */
void sync_copy(device *d, void *to, const void *from, size_t bytes);

/* Returns when copies and everything else that was launched on the stream has ended. */
status sync_staging_end(const sync_staging *s);

/* The stream waits until the fence has reached `value`; for separate memory the host does: a GPU has few
 * queues, and work after a wait in one of them may be what the wait is for. A failed fence ends the wait
 * with its error. */
status sync_staging_wait(const sync_staging *s, device_fence *fence, uint64_t value);

/* The sum of `count` contributions in their order, on a separate device: out[i] = (c[0][i] + c[1][i] + ...),
 * each divided by `before` first, the sum by `after`. A contribution in memory of the host is copied to
 * `landing` first; `out` may be contribution 0. */
typedef struct sync_contribution {
    const void *data;
    bool on_device;
} sync_contribution;
status sync_staging_sum(const sync_staging *s, dtype type, void *out, const sync_contribution *c, int count,
                        int64_t elements, double before, double after, void *landing);
/* One contribution, divided, to device memory. */
status sync_staging_bring(const sync_staging *s, dtype type, void *to, sync_contribution c, int64_t elements,
                          double divisor);

/* What a device will have done, handed over when it has: a thread launches work on a stream, adds a number of
 * its own after it, and receives the numbers in their order as the stream reaches them. One thread uses a
 * handover. */
typedef struct sync_handover {
    device_stream *stream;
    device_fence *fence; /* numbers that the stream has reached; NULL: one memory, they are when added */
    uint64_t added, taken;
    int *items; /* [capacity], a ring */
    int capacity;
    status (*take)(void *context, int item);
    void *context;
} sync_handover;

/* At most `capacity` items are on their way; `take` receives them. */
status sync_handover_open(const sync_staging *s, int capacity, status (*take)(void *context, int item),
                          void *context, sync_handover *out);
void sync_handover_close(sync_handover *h);

/* `item` is due when the stream has done what was launched on it so far. Hands over what it has reached by
 * now. */
status sync_handover_add(sync_handover *h, int item);

/* Waits for all items and hands them over. Synchronizes with the stream from time to time, to notice a device
 * that has failed. */
status sync_handover_end(sync_handover *h);

/* Blocks the host until the fence has reached `value`; a failed one ends the wait with its error. */
status sync_host_wait(device_stream *s, device_fence *fence, uint64_t value);

#endif
