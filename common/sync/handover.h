/* What a device will have done, handed over when it has: a thread launches work on a stream, adds a number of its own
 * behind it, and takes the numbers in their order as the stream comes to them. One thread uses a handover. */
#ifndef COMMON_SYNC_HANDOVER_H
#define COMMON_SYNC_HANDOVER_H

#include "common/device/device.h"

typedef struct sync_handover {
    device_fence *fence;    /* has come to so many */
    uint64_t added, taken;
    int *items;             /* [capacity], a ring */
    int capacity;
} sync_handover;

/* At most `capacity` items are on their way. */
status sync_handover_open(device *d, int capacity, sync_handover *out);
void sync_handover_close(sync_handover *h);

/* `item` is there when `s` has done what was launched on it so far. */
status sync_handover_add(sync_handover *h, device_stream *s, int item);

/* Whether the oldest item is there; it is taken. */
bool sync_handover_take(sync_handover *h, int *item);

/* The same, but waits for it; false: none is on its way. A device that has failed is found out by asking `s`. */
status sync_handover_await(sync_handover *h, device_stream *s, int *item, bool *found);

/* Blocks the host until the fence is there; a failed one ends it with its error. For fences that no stream is to wait
 * for: a GPU has few queues, and work behind a wait in one of them may be what the wait is for. */
status sync_host_wait(device_stream *s, device_fence *fence, uint64_t value);

#endif
