/* Copies between memory of a device and memory of the host, for engines and their transports.
 *
 * On a GPU the memory is separate: the host cannot access GPU memory, and launched work ends later. Other
 * devices compute in host memory: a copy is a memcpy (which takes time in virtual time), a tensor needs no
 * staging buffer, and work ends before the launch returns. The functions below work on both kinds of
 * devices. */
#ifndef COMMON_SYNC_STAGING_H
#define COMMON_SYNC_STAGING_H

#include "common/device/device.h"

bool sync_memory_is_separate(const device *d);

/* A device, and the stream that orders its copies. */
typedef struct sync_staging {
    device *device;
    device_stream *stream;
    bool separate; /* A GPU: the host cannot access the memory. */
    bool on_host;  /* A CPU: the memory is the host's. Both are false if the device has no bytes. */
} sync_staging;

sync_staging sync_staging_on(device *d, device_stream *s);

/* Copy from the device to the host, from the host to the device, and within the memory of the device or a
 * peer. A copy may still run when the call returns. The host memory must be pinned, or must not be used
 * before sync_staging_end(). */
status sync_copy_down(const sync_staging *s, void *host, const void *data, int64_t bytes);
status sync_copy_up(const sync_staging *s, void *data, const void *host, int64_t bytes);
status sync_copy_within(const sync_staging *s, void *to, const void *from, int64_t bytes);
/* Copies in host memory. On a virtual device the copy takes time, and no bytes are copied. */
void sync_copy(device *d, void *to, const void *from, size_t bytes);

/* Waits until all work that was launched on the stream has ended. */
status sync_staging_end(const sync_staging *s);

/* Makes the stream wait until the fence has reached `value`. If the memory is separate, the host waits
 * instead of the stream: a GPU has few hardware queues, and the awaited work could be queued behind the wait.
 * A failed fence ends the wait with the fence's error. */
status sync_staging_wait(const sync_staging *s, device_fence *fence, uint64_t value);

/* A handover passes numbers through a stream. A thread launches work on the stream and then adds a number.
 * When the stream has completed the work, the thread receives the number. Numbers arrive in the order in
 * which they were added. Only one thread uses a handover. */
typedef struct sync_handover {
    device_stream *stream;
    /* Count of the items whose work is complete. NULL if the memory is not separate, because every item is
     * due when it is added. */
    device_fence *fence;
    uint64_t added, taken;
    int *items; /* ring of [capacity] */
    int capacity;
    status (*take)(void *context, int item);
    void *context;
} sync_handover;

/* Opens a handover for at most `capacity` items at a time, which `take` receives. */
status sync_handover_open(const sync_staging *s, int capacity, status (*take)(void *context, int item),
                          void *context, sync_handover *out);
void sync_handover_close(sync_handover *h);

/* Adds an item that is due when the stream has completed the work launched so far. Hands over all items that
 * are due now. */
status sync_handover_add(sync_handover *h, int item);

/* Waits for all items and hands them over. If none arrives for a second, synchronizes with the stream, which
 * reports a failed GPU. */
status sync_handover_end(sync_handover *h);

#endif
