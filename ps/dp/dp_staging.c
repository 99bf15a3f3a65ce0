#include "ps/dp/dp_staging.h"

/* Frames carry it whatever the payload. */
static bool always_in_frames(dp_tensor tensor)
{
    return tensor == DP_TENSOR_BUFFERS || tensor == DP_TENSOR_SUMS;
}

static status open_buffer(dp_staging *p, dp_tensor tensor, bool shared, size_t bytes)
{
    device_memory_kind kind = shared && tensor <= DP_TENSOR_OUTPUTS ? DEVICE_MEMORY_SHARED : DEVICE_MEMORY_PRIVATE;
    TRY(device_allocate(p->host, kind, bytes, &p->buffers[tensor]));
    return device_pin(p->copies.device, p->buffers[tensor].data, p->buffers[tensor].bytes);
}

status dp_staging_open(dp_staging *p, const sync_context *c, bool peers, bool shared, const size_t bytes[DP_TENSORS])
{
    for (int i = 0; i < DP_TENSORS; i++) p->buffers[i].fd = -1;
    p->copies = sync_staging_on(c->device, c->compute);
    if (!p->copies.separate) return STATUS_OK;
    device_config host = {.name = "cpu", .rank = c->rank, .world = c->world, .threads = 1};
    TRY(device_open(&host, &p->host));
    p->peers = peers;
    for (int i = 0; i < DP_TENSORS; i++)
        if (bytes[i] > 0) TRY(open_buffer(p, (dp_tensor)i, shared, bytes[i]));
    return STATUS_OK;
}

void dp_staging_close(dp_staging *p)
{
    for (int i = 0; i < DP_TENSORS; i++) {
        if (!p->buffers[i].data) continue;
        device_unpin(p->copies.device, p->buffers[i].data);
        device_free(p->host, &p->buffers[i]);
    }
    device_close(&p->host);
}

bool dp_is_staged(const dp_staging *p, dp_tensor tensor)
{
    return p->copies.separate && (!p->peers || always_in_frames(tensor));
}

char *dp_staged_address(const dp_staging *p, dp_tensor tensor, void *data)
{
    return dp_is_staged(p, tensor) ? p->buffers[tensor].data : data;
}

status dp_copy_down(dp_staging *p, void *host, const void *data, int64_t bytes)
{
    TRY(sync_copy_down(&p->copies, host, data, bytes));
    return sync_staging_end(&p->copies);
}

status dp_stage_down(dp_staging *p, dp_tensor tensor, const void *data, int64_t offset, int64_t bytes)
{
    if (!dp_is_staged(p, tensor) || bytes == 0) return STATUS_OK;
    return dp_copy_down(p, (char *)p->buffers[tensor].data + offset, (const char *)data + offset, bytes);
}

status dp_stage_up(dp_staging *p, dp_tensor tensor, void *data, int64_t offset, int64_t bytes)
{
    if (!dp_is_staged(p, tensor) || bytes == 0) return STATUS_OK;
    return sync_copy_up(&p->copies, (char *)data + offset, (const char *)p->buffers[tensor].data + offset, bytes);
}
