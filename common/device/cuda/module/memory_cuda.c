/* Memory of the GPU and pinned memory of the host, and copies between them.
 *
 * Arenas are allocated once and freed at the end, so freed memory is not kept for reuse. An upload from
 * ordinary memory alternates between two pinned buffers. The caller may overwrite the source as soon as the
 * upload returns. The host waits only if the next buffer is still being copied. */
#include "common/base/text.h"
#include "common/device/cuda/module/cuda_impl.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 8 << 20, CHUNKS = 2 };
enum { UNIT_BYTES = 256 }; /* sizes of allocations are rounded up to multiples of this unit */

struct cuda_staging {
    char *chunks[CHUNKS];
    cudaEvent_t passed[CHUNKS]; /* recorded after the last copy from the chunk */
    int next;
    pthread_mutex_t lock; /* needed because the rank's compute thread and its agents upload */
};

status cuda_staging_open(cuda_device *d)
{
    cuda_staging *s = calloc(1, sizeof *s);
    if (!s) return fail(STATUS_SYSTEM, "no memory for the cuda device");
    d->staging = s;
    pthread_mutex_init(&s->lock, NULL);
    for (int i = 0; i < CHUNKS; i++) {
        TRY(cuda_check(d, cudaHostAlloc((void **)&s->chunks[i], CHUNK_BYTES, cudaHostAllocDefault),
                       "cudaHostAlloc"));
        TRY(cuda_check(d, cudaEventCreateWithFlags(&s->passed[i], cudaEventDisableTiming),
                       "cudaEventCreate"));
    }
    return STATUS_OK;
}

void cuda_staging_close(cuda_device *d)
{
    cuda_staging *s = d->staging;
    for (int i = 0; s && i < CHUNKS; i++) {
        if (s->passed[i]) cudaEventSynchronize(s->passed[i]);
        if (s->passed[i]) cudaEventDestroy(s->passed[i]);
        if (s->chunks[i]) cudaFreeHost(s->chunks[i]);
    }
    if (s) pthread_mutex_destroy(&s->lock);
    free(s);
    d->staging = NULL;
}

/* ---- allocation ------------------------------------------------------------------------------- */

status cuda_usage(device *base, int64_t *used_bytes, int64_t *total_bytes)
{
    cuda_device *d = (cuda_device *)base;
    size_t available = 0, total = 0;
    TRY(cuda_use(d));
    TRY(cuda_check(d, cudaMemGetInfo(&available, &total), "cudaMemGetInfo"));
    *used_bytes = (int64_t)(total - available);
    *total_bytes = (int64_t)total;
    return STATUS_OK;
}

static status no_memory(cuda_device *d, size_t bytes)
{
    char wanted[32], ours[32], used[32], whole[32];
    size_t available = 0, total = 0;
    cudaGetLastError();
    cudaMemGetInfo(&available, &total);
    return fail(STATUS_SYSTEM,
                "rank %d, GPU %d: no memory for %s: %s of %s are in use, %s of them by this rank's arenas",
                d->base.config.rank, d->gpu, text_format_bytes(wanted, sizeof wanted, (double)bytes),
                text_format_bytes(used, sizeof used, (double)(total - available)),
                text_format_bytes(whole, sizeof whole, (double)total),
                text_format_bytes(ours, sizeof ours, (double)d->allocated_bytes));
}

/* Uses a separate stream and waits only for this stream. Waiting for the whole GPU could deadlock, because
 * streams of another rank on the GPU may wait for this rank. */
status cuda_zero(const cuda_device *d, void *data, size_t bytes)
{
    TRY(cuda_check(d, cudaMemsetAsync(data, 0, bytes, d->anchor_stream), "cudaMemsetAsync"));
    return cuda_check(d, cudaStreamSynchronize(d->anchor_stream), "cudaMemsetAsync");
}

status cuda_allocate(device *base, device_memory_kind kind, size_t bytes, device_memory *out)
{
    cuda_device *d = (cuda_device *)base;
    size_t rounded = bytes ? (bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES : UNIT_BYTES;
    void *data = NULL;
    TRY(cuda_use(d));
    cudaError_t code = kind == DEVICE_MEMORY_STAGING ? cudaHostAlloc(&data, rounded, cudaHostAllocPortable)
                                                     : cudaMalloc(&data, rounded);
    if (code == cudaErrorMemoryAllocation) return no_memory(d, bytes);
    TRY(cuda_check(d, code, "allocation"));
    out->data = data;
    out->bytes = rounded;
    if (kind == DEVICE_MEMORY_STAGING) {
        memset(data, 0, rounded);
        return STATUS_OK;
    }
    d->allocated_bytes += (int64_t)rounded;
    return cuda_zero(d, data, rounded);
}

void cuda_free(device *base, device_memory *memory)
{
    cuda_device *d = (cuda_device *)base;
    cudaSetDevice(d->gpu);
    if (memory->kind == DEVICE_MEMORY_STAGING) {
        cudaFreeHost(memory->data);
        return;
    }
    d->allocated_bytes -= (int64_t)memory->bytes;
    cudaFree(memory->data);
}

status cuda_pin(device *base, void *data, size_t bytes)
{
    cuda_device *d = (cuda_device *)base;
    TRY(cuda_use(d));
    return cuda_check(d, cudaHostRegister(data, bytes, cudaHostRegisterPortable), "cudaHostRegister");
}

void cuda_unpin(device *base, void *data)
{
    cudaSetDevice(((cuda_device *)base)->gpu);
    cudaHostUnregister(data);
}

/* ---- copies ----------------------------------------------------------------------------------- */

static status check_types(dtype a, dtype b)
{
    if (a == b) return STATUS_OK;
    return fail(STATUS_INTERNAL, "no copy from %s to %s", dtype_name(a), dtype_name(b));
}

static bool is_pinned(const void *host)
{
    struct cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, host) == cudaSuccess)
        return attributes.type == cudaMemoryTypeHost;
    cudaGetLastError();
    return false;
}

static status upload_chunk(cuda_device *d, cudaStream_t stream, char *to, const char *from, size_t bytes)
{
    cuda_staging *s = d->staging;
    int i = s->next;
    s->next = (i + 1) % CHUNKS;
    TRY(cuda_check(d, cudaEventSynchronize(s->passed[i]), "upload"));
    memcpy(s->chunks[i], from, bytes);
    TRY(cuda_check(d, cudaMemcpyAsync(to, s->chunks[i], bytes, cudaMemcpyHostToDevice, stream), "upload"));
    return cuda_check(d, cudaEventRecord(s->passed[i], stream), "upload");
}

status cuda_upload(device_stream *base, void *to, const void *host, dtype host_type, dtype type,
                   int64_t count)
{
    cuda_device *d = (cuda_device *)base->device;
    cudaStream_t stream = ((cuda_stream *)base)->stream;
    size_t bytes = (size_t)(count * dtype_size(type));
    TRY(check_types(host_type, type));
    TRY(cuda_use(d));
    if (is_pinned(host))
        return cuda_check(d, cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream), "upload");
    status rc = STATUS_OK;
    pthread_mutex_lock(&d->staging->lock);
    for (size_t at = 0; at < bytes && rc == STATUS_OK; at += CHUNK_BYTES) {
        size_t part = bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES;
        rc = upload_chunk(d, stream, (char *)to + at, (const char *)host + at, part);
    }
    pthread_mutex_unlock(&d->staging->lock);
    return rc;
}

status cuda_download(device_stream *base, void *host, const void *from, dtype type, dtype host_type,
                     int64_t count)
{
    cuda_device *d = (cuda_device *)base->device;
    cudaStream_t stream = ((cuda_stream *)base)->stream;
    TRY(check_types(type, host_type));
    TRY(cuda_use(d));
    /* A copy to ordinary memory ends before the call returns (CUDA Runtime API, "API synchronization
     * behavior"). Earlier work on the stream may wait for another thread. Therefore the stream is
     * synchronized first. The synchronization does not block the other thread. */
    if (!is_pinned(host)) TRY(cuda_check(d, cudaStreamSynchronize(stream), "download"));
    return cuda_check(
        d, cudaMemcpyAsync(host, from, (size_t)(count * dtype_size(type)), cudaMemcpyDefault, stream),
        "download");
}

/* ---- memory of other ranks ---------------------------------------------------------------------
 *
 * A pointer to device memory is valid on every GPU of the process (unified addressing). Copies between GPUs
 * are direct if peer access is enabled ("cudaDeviceEnablePeerAccess"); otherwise they go through the host. */

status cuda_enable_peer(device *base, const device *owner)
{
    const cuda_device *d = (const cuda_device *)base;
    int gpu = ((const cuda_device *)owner)->gpu, possible = 0;
    if (gpu == d->gpu) return STATUS_OK;
    TRY(cuda_use(d));
    if (cudaDeviceCanAccessPeer(&possible, d->gpu, gpu) == cudaSuccess && possible)
        cudaDeviceEnablePeerAccess(gpu, 0);
    cudaGetLastError(); /* clears the error that CUDA reports if access has been enabled before */
    return STATUS_OK;
}
