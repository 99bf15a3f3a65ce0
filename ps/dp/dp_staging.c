#include "ps/dp/dp_staging.h"

#include "ps/compute.h"

static bool needs_staging(const device *d)
{
    const device_info *info = device_get_info(d);
    return info->real && !info->host_addressable;
}

/* Frames carry it whatever the payload. */
static bool always_in_frames(dp_tensor tensor)
{
    return tensor == DP_TENSOR_BUFFERS || tensor == DP_TENSOR_SUMS;
}

static status open_buffer(dp_staging *p, dp_tensor tensor, bool shared, size_t bytes)
{
    device_memory_kind kind = shared && tensor <= DP_TENSOR_OUTPUTS ? DEVICE_MEMORY_SHARED : DEVICE_MEMORY_PRIVATE;
    TRY(device_allocate(p->host, kind, bytes, &p->buffers[tensor]));
    return device_pin(p->device, p->buffers[tensor].data, p->buffers[tensor].bytes);
}

status dp_staging_open(dp_staging *p, const sync_context *c, bool peers, bool shared, const size_t bytes[DP_TENSORS])
{
    for (int i = 0; i < DP_TENSORS; i++) p->buffers[i].fd = -1;
    if (!needs_staging(c->device)) return STATUS_OK;
    device_config host = {.name = "cpu", .rank = c->rank, .world = c->world, .threads = 1};
    TRY(device_open(&host, &p->host));
    p->device = c->device;
    p->compute = c->compute;
    p->peers = peers;
    for (int i = 0; i < DP_TENSORS; i++)
        if (bytes[i] > 0) TRY(open_buffer(p, (dp_tensor)i, shared, bytes[i]));
    return STATUS_OK;
}

void dp_staging_close(dp_staging *p)
{
    for (int i = 0; i < DP_TENSORS; i++) {
        if (!p->buffers[i].data) continue;
        device_unpin(p->device, p->buffers[i].data);
        device_free(p->host, &p->buffers[i]);
    }
    device_close(&p->host);
}

bool dp_is_staged(const dp_staging *p, dp_tensor tensor)
{
    return p->device && (!p->peers || always_in_frames(tensor));
}

char *dp_staged_address(const dp_staging *p, dp_tensor tensor, void *data)
{
    return dp_is_staged(p, tensor) ? p->buffers[tensor].data : data;
}

status dp_copy_down(dp_staging *p, void *host, const void *data, int64_t bytes)
{
    TRY(device_download(p->compute, host, data, DTYPE_U8, DTYPE_U8, bytes));
    return device_stream_synchronize(p->compute);
}

status dp_copy_up(dp_staging *p, void *data, const void *host, int64_t bytes)
{
    return device_upload(p->compute, data, host, DTYPE_U8, DTYPE_U8, bytes);
}

status dp_stage_down(dp_staging *p, dp_tensor tensor, const void *data, int64_t offset, int64_t bytes)
{
    if (!dp_is_staged(p, tensor) || bytes == 0) return STATUS_OK;
    return dp_copy_down(p, (char *)p->buffers[tensor].data + offset, (const char *)data + offset, bytes);
}

status dp_stage_up(dp_staging *p, dp_tensor tensor, void *data, int64_t offset, int64_t bytes)
{
    if (!dp_is_staged(p, tensor) || bytes == 0) return STATUS_OK;
    return dp_copy_up(p, (char *)data + offset, (const char *)p->buffers[tensor].data + offset, bytes);
}

status dp_copy(const dp_staging *p, device *d, void *to, const void *from, int64_t bytes)
{
    if (p->device) return device_convert(p->compute, to, DTYPE_U8, from, DTYPE_U8, bytes, 1);
    ps_copy(d, to, from, (size_t)bytes);
    return STATUS_OK;
}
