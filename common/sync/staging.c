#include "common/sync/staging.h"

#include "common/base/clock.h"
#include "common/device/sim/device_sim.h"
#include "common/sim/price.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

bool sync_memory_is_separate(const device *d)
{
    const device_info *info = device_get_info(d);
    return info->real && !info->host_addressable;
}

sync_staging sync_staging_on(device *d, device_stream *s)
{
    const device_info *info = device_get_info(d);
    return (sync_staging){.device = d,
                          .stream = s,
                          .separate = info->real && !info->host_addressable,
                          .on_host = info->real && info->host_addressable};
}

/* ---- copies ----------------------------------------------------------------------------------- */

void sync_copy(device *d, void *to, const void *from, size_t bytes)
{
    simulation *s = sim_device_simulation(d);
    if (device_get_info(d)->real)
        memcpy(to, from, bytes);
    else if (s)
        sim_actor_spend(sim_device_actor(d), sim_price_copy(s->profile, (double)bytes));
}

status sync_copy_down(const sync_staging *s, void *host, const void *data, int64_t bytes)
{
    if (host == data) return STATUS_OK;
    if (s->separate) return device_download(s->stream, host, data, DTYPE_U8, DTYPE_U8, bytes);
    sync_copy(s->device, host, data, (size_t)bytes);
    return STATUS_OK;
}

status sync_copy_up(const sync_staging *s, void *data, const void *host, int64_t bytes)
{
    if (s->separate) return device_upload(s->stream, data, host, DTYPE_U8, DTYPE_U8, bytes);
    sync_copy(s->device, data, host, (size_t)bytes);
    return STATUS_OK;
}

status sync_copy_within(const sync_staging *s, void *to, const void *from, int64_t bytes)
{
    if (s->separate) return device_convert(s->stream, to, DTYPE_U8, from, DTYPE_U8, bytes, 1);
    sync_copy(s->device, to, from, (size_t)bytes);
    return STATUS_OK;
}

status sync_staging_end(const sync_staging *s)
{
    return s->separate ? device_stream_synchronize(s->stream) : STATUS_OK;
}

status sync_staging_wait(const sync_staging *s, device_fence *fence, uint64_t value)
{
    enum { LOOKS = 1000, NAP_NS = 20000 };
    for (int looks = 0; s->separate && !device_fence_reached(fence, value); looks++) {
        if (looks < LOOKS)
            sched_yield();
        else
            clock_sleep_ns(NAP_NS);
    }
    /* The fence has been reached or has failed. This call returns the error of a failed fence. */
    return device_stream_wait(s->stream, fence, value);
}

/* ---- handovers --------------------------------------------------------------------------------- */

status sync_handover_open(const sync_staging *s, int capacity, status (*take)(void *context, int item),
                          void *context, sync_handover *out)
{
    *out = (sync_handover){.stream = s->stream, .capacity = capacity, .take = take, .context = context};
    out->items = calloc((size_t)capacity, sizeof *out->items);
    if (!out->items) return fail(STATUS_SYSTEM, "no memory for a handover of %d items", capacity);
    return s->separate ? device_fence_open(s->device, &out->fence) : STATUS_OK;
}

void sync_handover_close(sync_handover *h)
{
    device_fence_close(&h->fence);
    free(h->items);
    h->items = NULL;
}

/* Calls take() for the items whose work the stream has completed. */
static status take_items(sync_handover *h)
{
    while (h->taken < h->added && (!h->fence || device_fence_reached(h->fence, h->taken + 1)))
        TRY(h->take(h->context, h->items[h->taken++ % (uint64_t)h->capacity]));
    return STATUS_OK;
}

status sync_handover_add(sync_handover *h, int item)
{
    if (h->added - h->taken == (uint64_t)h->capacity)
        return fail(STATUS_INTERNAL, "more than %d items are to be handed over", h->capacity);
    h->items[h->added++ % (uint64_t)h->capacity] = item;
    if (h->fence) TRY(device_stream_signal(h->stream, h->fence, h->added));
    return take_items(h);
}

status sync_handover_end(sync_handover *h)
{
    enum { PATIENCE_NS = 1000000000 };
    int64_t since = clock_now_ns();
    for (uint64_t taken = h->taken; h->taken < h->added; taken = h->taken) {
        TRY(take_items(h));
        if (h->taken > taken)
            since = clock_now_ns();
        else if (clock_now_ns() - since > PATIENCE_NS)
            TRY(device_stream_synchronize(h->stream));
        else
            sched_yield();
    }
    return STATUS_OK;
}
