#include "ps/dp/dp_staging.h"

#include "ps/compute.h"

static bool needs_mirrors(const device *d)
{
    const device_info *info = device_get_info(d);
    return info->real && !info->host_addressable;
}

/* Frames carry it whatever the payload. */
static bool always_in_frames(dp_tensor place)
{
    return place == DP_TENSOR_BUFFERS || place == DP_TENSOR_SUMS;
}

static status open_mirror(dp_staging *p, dp_tensor place, bool shared, size_t bytes)
{
    device_memory_kind kind = shared && place <= DP_TENSOR_OUTPUTS ? DEVICE_MEMORY_SHARED : DEVICE_MEMORY_PRIVATE;
    TRY(device_allocate(p->host, kind, bytes, &p->mirror[place]));
    return device_pin(p->device, p->mirror[place].data, p->mirror[place].bytes);
}

status dp_staging_open(dp_staging *p, const sync_context *c, bool peers, bool shared, const size_t bytes[DP_TENSORS])
{
    for (int i = 0; i < DP_TENSORS; i++) p->mirror[i].fd = -1;
    if (!needs_mirrors(c->device)) return STATUS_OK;
    device_config host = {.name = "cpu", .rank = c->rank, .world = c->world, .threads = 1};
    TRY(device_open(&host, &p->host));
    p->device = c->device;
    p->compute = c->compute;
    p->peers = peers;
    for (int i = 0; i < DP_TENSORS; i++)
        if (bytes[i] > 0) TRY(open_mirror(p, (dp_tensor)i, shared, bytes[i]));
    return STATUS_OK;
}

void dp_staging_close(dp_staging *p)
{
    for (int i = 0; i < DP_TENSORS; i++) {
        if (!p->mirror[i].data) continue;
        device_unpin(p->device, p->mirror[i].data);
        device_free(p->host, &p->mirror[i]);
    }
    device_close(&p->host);
}

bool dp_is_staged(const dp_staging *p, dp_tensor place)
{
    return p->device && (!p->peers || always_in_frames(place));
}

char *dp_staged_address(const dp_staging *p, dp_tensor place, void *data)
{
    return dp_is_staged(p, place) ? p->mirror[place].data : data;
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

status dp_stage_down(dp_staging *p, dp_tensor place, const void *data, int64_t offset, int64_t bytes)
{
    if (!dp_is_staged(p, place) || bytes == 0) return STATUS_OK;
    return dp_copy_down(p, (char *)p->mirror[place].data + offset, (const char *)data + offset, bytes);
}

status dp_stage_up(dp_staging *p, dp_tensor place, void *data, int64_t offset, int64_t bytes)
{
    if (!dp_is_staged(p, place) || bytes == 0) return STATUS_OK;
    return dp_copy_up(p, (char *)data + offset, (const char *)p->mirror[place].data + offset, bytes);
}

status dp_copy(const dp_staging *p, device *d, void *to, const void *from, int64_t bytes)
{
    if (p->device) return device_convert(p->compute, to, DTYPE_U8, from, DTYPE_U8, bytes, 1);
    ps_copy(d, to, from, (size_t)bytes);
    return STATUS_OK;
}
