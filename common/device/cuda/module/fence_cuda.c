/* Fences. A GPU that waits cannot be handed an error, so a failure releases every wait and is kept at the
 * device: the next wait and the next synchronization of a stream return it. */
#include "common/device/cuda/module/cuda_impl.h"
#include "common/device/cuda/module/libraries.h"

#include <stdlib.h>

enum { LINE_BYTES = 64 };

status cuda_fence_open(device *base, device_fence **out)
{
    cuda_device *d = (cuda_device *)base;
    void *host = NULL;
    TRY(cuda_use(d));
    cuda_fence *f = calloc(1, sizeof *f);
    if (!f) return fail(STATUS_SYSTEM, "no memory for a fence");
    f->base.device = base;
    status rc = cuda_check(d, cudaHostAlloc(&host, LINE_BYTES, cudaHostAllocMapped), "cudaHostAlloc");
    if (rc == STATUS_OK)
        rc = cuda_check(d, cudaHostGetDevicePointer(&f->address, host, 0), "cudaHostGetDevicePointer");
    if (rc != STATUS_OK) {
        if (host) cudaFreeHost(host);
        free(f);
        return rc;
    }
    f->value = host;
    *f->value = 0;
    *out = &f->base;
    return STATUS_OK;
}

/* Whatever still waits is let go: a stream that waits for ever could not be ended. */
void cuda_fence_close(device_fence *base)
{
    cuda_fence *f = (cuda_fence *)base;
    cuda_fence_reach(base, INT64_MAX);
    cudaSetDevice(((cuda_device *)base->device)->gpu);
    cudaFreeHost(f->value);
    free(f);
}

static status driver_check(const cuda_device *d, CUresult code, const char *what)
{
    if (code == CUDA_SUCCESS) return STATUS_OK;
    return fail(STATUS_SYSTEM, "rank %d, GPU %d: %s: driver error %d%s", d->base.config.rank, d->gpu, what,
                (int)code, code == CUDA_ERROR_NOT_SUPPORTED ? ": this driver has no stream memory operations" : "");
}

status cuda_stream_signal(device_stream *s, device_fence *base, uint64_t value)
{
    cuda_device *d = (cuda_device *)s->device;
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)((cuda_fence *)base)->address;
    TRY(cuda_use(d));
    return driver_check(d,
                        d->libraries->driver.write_value((CUstream)((cuda_stream *)s)->stream, address, value,
                                                        CU_STREAM_WRITE_VALUE_DEFAULT),
                        "cuStreamWriteValue64");
}

status cuda_stream_wait(device_stream *s, device_fence *base, uint64_t value)
{
    cuda_device *d = (cuda_device *)s->device;
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)((cuda_fence *)base)->address;
    if (__atomic_load_n(&d->failed, __ATOMIC_ACQUIRE)) return error_adopt(&d->failure);
    if (cuda_fence_reached(base, value)) return STATUS_OK;
    TRY(cuda_use(d));
    return driver_check(d,
                        d->libraries->driver.wait_value((CUstream)((cuda_stream *)s)->stream, address, value,
                                                       CU_STREAM_WAIT_VALUE_GEQ),
                        "cuStreamWaitValue64");
}

void cuda_fence_reach(device_fence *base, uint64_t value)
{
    uint64_t *at = ((cuda_fence *)base)->value, now = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (now < value &&
           !__atomic_compare_exchange_n(at, &now, value, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
    }
}

bool cuda_fence_reached(device_fence *base, uint64_t value)
{
    return __atomic_load_n(((cuda_fence *)base)->value, __ATOMIC_ACQUIRE) >= value;
}

/* The comparison of the GPU is a signed difference, so a failed fence is half the range ahead. */
void cuda_fence_fail(device_fence *base, const error_record *error)
{
    cuda_device *d = (cuda_device *)base->device;
    if (!__atomic_exchange_n(&d->failing, true, __ATOMIC_RELAXED)) {
        d->failure = *error;
        __atomic_store_n(&d->failed, true, __ATOMIC_RELEASE);
    }
    cuda_fence_reach(base, INT64_MAX);
}
