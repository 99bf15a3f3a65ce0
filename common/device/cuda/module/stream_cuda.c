/* Streams, and the time at which their work is done.
 *
 * The GPU's clock is tied to the host's by an anchor: an event whose host time is known. Differences of
 * events are floats in milliseconds, so the anchor is renewed now and then to keep them short. */
#include "common/base/clock.h"
#include "common/device/cuda/module/cuda_impl.h"

#include <math.h>
#include <stdlib.h>

static const int64_t ANCHOR_LIFE_NS = 2000000000;

static status set_anchor(cuda_stream *s)
{
    const cuda_device *d = (const cuda_device *)s->base.device;
    TRY(cuda_check(d, cudaEventRecord(s->anchor, d->anchor_stream), "cudaEventRecord"));
    TRY(cuda_check(d, cudaEventSynchronize(s->anchor), "cudaEventSynchronize"));
    s->anchor_ns = clock_now_ns();
    return STATUS_OK;
}

status cuda_stream_open(device *base, device_stream_role role, device_stream **out)
{
    cuda_device *d = (cuda_device *)base;
    int lowest = 0, highest = 0;
    TRY(cuda_use(d));
    TRY(cuda_check(d, cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange"));
    cuda_stream *s = calloc(1, sizeof *s);
    if (!s) return fail(STATUS_SYSTEM, "no memory for a stream");
    s->base = (device_stream){base, role};
    int priority = role == DEVICE_STREAM_COMMUNICATION ? highest : lowest;
    status rc = cuda_check(d, cudaStreamCreateWithPriority(&s->stream, cudaStreamNonBlocking, priority),
                           "cudaStreamCreateWithPriority");
    if (rc == STATUS_OK) rc = cuda_check(d, cudaEventCreate(&s->anchor), "cudaEventCreate");
    if (rc == STATUS_OK) rc = set_anchor(s);
    if (rc != STATUS_OK) {
        cuda_stream_close(&s->base);
        return rc;
    }
    *out = &s->base;
    return STATUS_OK;
}

void cuda_stream_close(device_stream *base)
{
    cuda_stream *s = (cuda_stream *)base;
    cudaSetDevice(((cuda_device *)base->device)->gpu);
    for (int i = 0; i < DEVICE_MARKS; i++)
        if (s->marks[i]) cudaEventDestroy(s->marks[i]);
    if (s->anchor) cudaEventDestroy(s->anchor);
    if (s->stream) cudaStreamDestroy(s->stream);
    free(s);
}

static status failure_of(cuda_device *d)
{
    if (!__atomic_load_n(&d->failed, __ATOMIC_ACQUIRE)) return STATUS_OK;
    return error_adopt(&d->failure);
}

status cuda_stream_synchronize(device_stream *base)
{
    cuda_device *d = (cuda_device *)base->device;
    TRY(cuda_use(d));
    TRY(cuda_check(d, cudaStreamSynchronize(((cuda_stream *)base)->stream), "cudaStreamSynchronize"));
    return failure_of(d);
}

/* The anchor moves with slot 0, which stands at the beginning of a step. */
status cuda_mark(device_stream *base, int slot)
{
    cuda_stream *s = (cuda_stream *)base;
    cuda_device *d = (cuda_device *)base->device;
    TRY(cuda_use(d));
    if (slot == 0 && clock_now_ns() - s->anchor_ns > ANCHOR_LIFE_NS) TRY(set_anchor(s));
    if (!s->marks[slot]) TRY(cuda_check(d, cudaEventCreate(&s->marks[slot]), "cudaEventCreate"));
    return cuda_check(d, cudaEventRecord(s->marks[slot], s->stream), "cudaEventRecord");
}

int64_t cuda_mark_ns(device_stream *base, int slot)
{
    const cuda_stream *s = (const cuda_stream *)base;
    float ms = 0;
    if (!s->marks[slot] || cudaEventSynchronize(s->marks[slot]) != cudaSuccess ||
        cudaEventElapsedTime(&ms, s->anchor, s->marks[slot]) != cudaSuccess)
        return s->anchor_ns;
    return s->anchor_ns + llround((double)ms * 1e6);
}

int64_t cuda_now_ns(device *d)
{
    return clock_now_ns();
}
