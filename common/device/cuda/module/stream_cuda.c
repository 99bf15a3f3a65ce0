/* Streams, marks, fences, and recorded work.
 *
 * An anchor relates the GPU's clock to the host's. An anchor is an event recorded between two readings of the
 * host's clock. The midpoint of the two readings is the anchor's time on the host's clock. CUDA returns the
 * time between two events as a float in milliseconds, so the anchor is renewed from time to time to keep
 * these times short and precise. Marks of the previous step still refer to the anchor with which they were
 * made. */
#include "common/base/clock.h"
#include "common/device/cuda/module/cuda_impl.h"
#include "common/device/cuda/module/libraries.h"

#include <math.h>
#include <stdlib.h>

static const int64_t ANCHOR_LIFE_NS = 2000000000;

static status set_anchor(cuda_stream *s)
{
    cuda_device *d = (cuda_device *)s->base.device;
    int next = !s->anchored;
    int64_t before = clock_now_ns();
    TRY(cuda_check(d, cudaEventRecord(s->anchors[next], d->anchor_stream), "cudaEventRecord"));
    TRY(cuda_check(d, cudaEventSynchronize(s->anchors[next]), "cudaEventSynchronize"));
    int64_t error = (clock_now_ns() - before) / 2;
    s->anchor_ns[next] = before + error;
    s->anchored = next;
    if (error > d->base.info.mark_error_ns) d->base.info.mark_error_ns = error;
    return STATUS_OK;
}

status cuda_stream_open(device_stream *base)
{
    cuda_stream *s = (cuda_stream *)base;
    cuda_device *d = (cuda_device *)base->device;
    int lowest = 0, highest = 0;
    TRY(cuda_use(d));
    TRY(cuda_check(d, cudaDeviceGetStreamPriorityRange(&lowest, &highest),
                   "cudaDeviceGetStreamPriorityRange"));
    int priority = base->role == DEVICE_STREAM_COMMUNICATION ? highest : lowest;
    TRY(cuda_check(d, cudaStreamCreateWithPriority(&s->stream, cudaStreamNonBlocking, priority),
                   "cudaStreamCreateWithPriority"));
    for (int i = 0; i < 2; i++) TRY(cuda_check(d, cudaEventCreate(&s->anchors[i]), "cudaEventCreate"));
    return set_anchor(s);
}

void cuda_stream_close(device_stream *base)
{
    cuda_stream *s = (cuda_stream *)base;
    cudaSetDevice(((cuda_device *)base->device)->gpu);
    for (int i = 0; i < DEVICE_MARKS; i++)
        if (s->marks[i]) cudaEventDestroy(s->marks[i]);
    for (int i = 0; i < 2; i++)
        if (s->anchors[i]) cudaEventDestroy(s->anchors[i]);
    if (s->stream) cudaStreamDestroy(s->stream);
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

/* Records a mark. Slot 0, the beginning of a step, renews the anchor if it is old. */
status cuda_mark(device_stream *base, int slot)
{
    cuda_stream *s = (cuda_stream *)base;
    cuda_device *d = (cuda_device *)base->device;
    TRY(cuda_use(d));
    if (slot == 0 && clock_now_ns() - s->anchor_ns[s->anchored] > ANCHOR_LIFE_NS) TRY(set_anchor(s));
    if (!s->marks[slot]) TRY(cuda_check(d, cudaEventCreate(&s->marks[slot]), "cudaEventCreate"));
    s->anchor_of[slot] = (uint8_t)s->anchored;
    return cuda_check(d, cudaEventRecord(s->marks[slot], s->stream), "cudaEventRecord");
}

int64_t cuda_mark_ns(device_stream *base, int slot)
{
    const cuda_stream *s = (const cuda_stream *)base;
    int of = s->anchor_of[slot];
    float ms = 0;
    if (!s->marks[slot] || cudaEventSynchronize(s->marks[slot]) != cudaSuccess ||
        cudaEventElapsedTime(&ms, s->anchors[of], s->marks[slot]) != cudaSuccess)
        return s->anchor_ns[of];
    return s->anchor_ns[of] + llround((double)ms * 1e6);
}

int64_t cuda_now_ns(device *d)
{
    return clock_now_ns();
}

status cuda_stream_wait_mark(device_stream *s, device_stream *of, int slot)
{
    cuda_device *d = (cuda_device *)s->device;
    TRY(failure_of(d));
    TRY(cuda_use(d));
    return cuda_check(d, cudaStreamWaitEvent(((cuda_stream *)s)->stream, ((cuda_stream *)of)->marks[slot], 0),
                      "cudaStreamWaitEvent");
}

/* Returns true if the GPU has passed the mark or has failed. After a failure, the next call of a function
 * that returns a status returns the error. */
bool cuda_mark_passed(device_stream *base, int slot)
{
    const cuda_stream *s = (const cuda_stream *)base;
    cudaSetDevice(((const cuda_device *)base->device)->gpu);
    return cudaEventQuery(s->marks[slot]) != cudaErrorNotReady;
}

status cuda_mark_wait(device_stream *base, int slot)
{
    cuda_device *d = (cuda_device *)base->device;
    TRY(cuda_use(d));
    TRY(cuda_check(d, cudaEventSynchronize(((cuda_stream *)base)->marks[slot]), "cudaEventSynchronize"));
    return failure_of(d);
}

void cuda_fail(device *base, const error_record *error)
{
    cuda_device *d = (cuda_device *)base;
    if (__atomic_exchange_n(&d->failing, true, __ATOMIC_RELAXED)) return;
    d->failure = *error;
    __atomic_store_n(&d->failed, true, __ATOMIC_RELEASE);
}

/* ---- fences -----------------------------------------------------------------------------------
 *
 * A waiting GPU cannot receive an error. A failure therefore releases every wait and is stored in the
 * device. The next wait and the next synchronization of a stream return the failure. */

enum { LINE_BYTES = 64 };

status cuda_fence_open(device_fence *base)
{
    cuda_fence *f = (cuda_fence *)base;
    cuda_device *d = (cuda_device *)base->device;
    TRY(cuda_use(d));
    TRY(cuda_check(d, cudaHostAlloc((void **)&f->value, LINE_BYTES, cudaHostAllocMapped), "cudaHostAlloc"));
    *f->value = 0;
    return cuda_check(d, cudaHostGetDevicePointer(&f->address, f->value, 0), "cudaHostGetDevicePointer");
}

/* Releases streams that still wait, because a waiting stream cannot be destroyed. */
void cuda_fence_close(device_fence *base)
{
    cuda_fence *f = (cuda_fence *)base;
    if (!f->value) return;
    cuda_fence_reach(base, INT64_MAX);
    cudaSetDevice(((cuda_device *)base->device)->gpu);
    cudaFreeHost(f->value);
}

static status driver_check(const cuda_device *d, CUresult code, const char *what)
{
    if (code == CUDA_SUCCESS) return STATUS_OK;
    return fail(STATUS_SYSTEM, "rank %d, GPU %d: %s: driver error %d%s", d->base.config.rank, d->gpu, what,
                (int)code,
                code == CUDA_ERROR_NOT_SUPPORTED ? ": this driver has no stream memory operations" : "");
}

status cuda_stream_signal(device_stream *s, device_fence *base, uint64_t value)
{
    cuda_device *d = (cuda_device *)s->device;
    CUstream stream = (CUstream)((cuda_stream *)s)->stream;
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)((cuda_fence *)base)->address;
    TRY(cuda_use(d));
    return driver_check(
        d, d->libraries->driver.write_value(stream, address, value, CU_STREAM_WRITE_VALUE_DEFAULT),
        "cuStreamWriteValue64");
}

status cuda_stream_wait(device_stream *s, device_fence *base, uint64_t value)
{
    cuda_device *d = (cuda_device *)s->device;
    CUstream stream = (CUstream)((cuda_stream *)s)->stream;
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)((cuda_fence *)base)->address;
    TRY(failure_of(d));
    if (cuda_fence_reached(base, value)) return STATUS_OK;
    TRY(cuda_use(d));
    return driver_check(d, d->libraries->driver.wait_value(stream, address, value, CU_STREAM_WAIT_VALUE_GEQ),
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

/* Sets the fence to INT64_MAX, the largest value that ends every wait: the GPU compares values by the sign
 * of their difference. */
void cuda_fence_fail(device_fence *base, const error_record *error)
{
    cuda_fail(base->device, error);
    cuda_fence_reach(base, INT64_MAX);
}

/* ---- recorded work ----------------------------------------------------------------------------
 *
 * Work that is launched on a stream during capture becomes a CUDA graph. One call launches the graph again
 * with the recorded operands and scalars. Capture is per thread, so other threads of the process continue
 * (CUDA Runtime API, cudaThreadExchangeStreamCaptureMode). */

typedef struct cuda_graph {
    device_graph base;
    cudaGraphExec_t executable; /* NULL if nothing was recorded */
} cuda_graph;

status cuda_capture_begin(device_stream *base)
{
    cuda_device *d = (cuda_device *)base->device;
    TRY(cuda_use(d));
    return cuda_check(d,
                      cudaStreamBeginCapture(((cuda_stream *)base)->stream, cudaStreamCaptureModeThreadLocal),
                      "cudaStreamBeginCapture");
}

status cuda_capture_end(device_stream *base, device_graph **out)
{
    cuda_device *d = (cuda_device *)base->device;
    cudaGraph_t recorded = NULL;
    cuda_graph *g = calloc(1, sizeof *g);
    TRY(cuda_use(d));
    status rc =
        cuda_check(d, cudaStreamEndCapture(((cuda_stream *)base)->stream, &recorded), "cudaStreamEndCapture");
    if (rc == STATUS_OK && !g) rc = fail(STATUS_SYSTEM, "no memory for a graph");
    if (rc == STATUS_OK) {
        size_t count = 0;
        g->base.device = base->device;
        rc = cuda_check(d, cudaGraphGetNodes(recorded, NULL, &count), "cudaGraphGetNodes");
        log_debug("recorded a CUDA graph of %zu nodes", count);
        if (rc == STATUS_OK && count > 0)
            rc = cuda_check(d, cudaGraphInstantiate(&g->executable, recorded, 0), "cudaGraphInstantiate");
    }
    if (recorded) cudaGraphDestroy(recorded);
    if (rc != STATUS_OK)
        free(g);
    else
        *out = &g->base;
    return rc;
}

status cuda_graph_launch(device_stream *base, device_graph *graph)
{
    cuda_device *d = (cuda_device *)base->device;
    cudaGraphExec_t executable = ((cuda_graph *)graph)->executable;
    if (!executable) return STATUS_OK;
    TRY(cuda_use(d));
    return cuda_check(d, cudaGraphLaunch(executable, ((cuda_stream *)base)->stream), "cudaGraphLaunch");
}

void cuda_graph_close(device_graph *graph)
{
    cudaGraphExec_t executable = ((cuda_graph *)graph)->executable;
    cudaSetDevice(((cuda_device *)graph->device)->gpu);
    if (executable) cudaGraphExecDestroy(executable);
    free(graph);
}
