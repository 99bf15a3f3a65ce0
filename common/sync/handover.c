#include "common/sync/handover.h"

#include "common/base/clock.h"

#include <sched.h>
#include <stdlib.h>

status sync_handover_open(device *d, int capacity, sync_handover *out)
{
    *out = (sync_handover){.capacity = capacity};
    out->items = calloc((size_t)capacity, sizeof *out->items);
    if (!out->items) return fail(STATUS_SYSTEM, "no memory for what a device hands over");
    return device_fence_open(d, &out->fence);
}

void sync_handover_close(sync_handover *h)
{
    device_fence_close(&h->fence);
    free(h->items);
    h->items = NULL;
}

status sync_handover_add(sync_handover *h, device_stream *s, int item)
{
    if (h->added - h->taken == (uint64_t)h->capacity)
        return fail(STATUS_INTERNAL, "more than %d items are to be handed over", h->capacity);
    h->items[h->added % (uint64_t)h->capacity] = item;
    return device_stream_signal(s, h->fence, ++h->added);
}

bool sync_handover_take(sync_handover *h, int *item)
{
    if (h->taken == h->added || !device_fence_reached(h->fence, h->taken + 1)) return false;
    *item = h->items[h->taken++ % (uint64_t)h->capacity];
    return true;
}

status sync_handover_await(sync_handover *h, device_stream *s, int *item, bool *found)
{
    enum { PATIENCE_NS = 1000000000 };
    int64_t since = clock_now_ns();
    *found = h->taken < h->added;
    while (*found && !sync_handover_take(h, item)) {
        if (clock_now_ns() - since > PATIENCE_NS) TRY(device_stream_synchronize(s));
        else sched_yield();
    }
    return STATUS_OK;
}

status sync_host_wait(device_stream *s, device_fence *fence, uint64_t value)
{
    while (!device_fence_reached(fence, value)) sched_yield();
    return device_stream_wait(s, fence, value); /* it is there, or has failed */
}
