/* Copies between memory of a device and memory of the host, for engines and their transports.
 *
 * On a GPU the memory is separate: the host cannot access GPU memory, and work may end after the launch has
 * returned. Other devices compute in host memory: a copy is a memcpy (on a virtual device it takes virtual
 * time), a tensor needs no staging buffer, and work ends before the launch returns. The following functions
 * work on both kinds of devices. */
#ifndef COMMON_SYNC_STAGING_H
#define COMMON_SYNC_STAGING_H

#include "common/device/device.h"

bool sync_memory_is_separate(const device *d);

/* A device, and the stream that orders its copies. */
typedef struct sync_staging {
    device *device;
    device_stream *stream;
    bool separate; /* True for a GPU, whose memory the host cannot access. */
    /* True for a CPU, which works in host memory. Both are false on a virtual device and on a device that
     * plans. */
    bool on_host;
} sync_staging;

sync_staging sync_staging_on(device *d, device_stream *s);

/* sync_copy_down() copies from the device to the host, and sync_copy_up() from the host to the device.
 * sync_copy_within() copies between two addresses in the memory of the device or of a peer GPU. A copy may
 * still be running when the call returns. The host memory must be pinned, or must not be used before
 * sync_staging_end(). sync_copy_down() does nothing if both addresses are equal. */
status sync_copy_down(const sync_staging *s, void *host, const void *data, int64_t bytes);
status sync_copy_up(const sync_staging *s, void *data, const void *host, int64_t bytes);
status sync_copy_within(const sync_staging *s, void *to, const void *from, int64_t bytes);
/* Copies in host memory. On a virtual device the copy takes time, and no bytes are copied. */
void sync_copy(device *d, void *to, const void *from, size_t bytes);

/* Waits until all work that was launched on the stream has ended. */
status sync_staging_end(const sync_staging *s);

/* Makes the stream wait until the fence has reached `value`. If the memory is separate, the host waits
 * instead of the stream. The reason is that a GPU has few hardware queues, so the awaited work could be
 * queued behind the wait. If the fence fails, returns the error of the fence. */
status sync_staging_wait(const sync_staging *s, device_fence *fence, uint64_t value);

/* A handover passes numbers, called items, through a stream. A thread launches work on the stream and then
 * adds an item. When the stream has completed the work, the handover calls take() with the item. Items are
 * taken in the order in which they were added. Only one thread uses a handover. */
typedef struct sync_handover {
    device_stream *stream;
    /* Fence whose value is the number of items whose work is complete. NULL if the memory is not separate,
     * because then every item is due when it is added. */
    device_fence *fence;
    uint64_t added, taken;
    int *items; /* circular queue of [capacity] items */
    int capacity;
    status (*take)(void *context, int item);
    void *context;
} sync_handover;

/* Opens a handover with room for `capacity` items that have not been taken. `take` is called for each
 * item. */
status sync_handover_open(const sync_staging *s, int capacity, status (*take)(void *context, int item),
                          void *context, sync_handover *out);
void sync_handover_close(sync_handover *h);

/* Adds an item, which is due when the stream has completed the work that has been launched so far. Calls
 * take() for all items that are due now. */
status sync_handover_add(sync_handover *h, int item);

/* Waits until all items are due, and calls take() for them. If no item becomes due within a second,
 * synchronizes with the stream, which returns an error if the GPU has failed. */
status sync_handover_end(sync_handover *h);

#endif
