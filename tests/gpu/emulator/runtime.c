/* Emulates the CUDA run-time: the device, streams, events, and the driver. */
#include "common/base/clock.h"
#include "common/device/cuda/module/libraries.h"
#include "tests/gpu/emulator/control.h"
#include "tests/gpu/emulator/memory.h"
#include "tests/gpu/emulator/stream.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An event is freed by its last user: the program, or work that a stream keeps. The numbers count how often
 * the event was recorded. */
struct emulated_event {
    int64_t at_ns;
    cudaStream_t of;
    uint64_t recorded, reached;
    /* Number of pieces of work that the stream had been given when the event was last recorded. */
    uint64_t given;
    int references;
};

void emulator_fill_cudnn(cudnn_table *out);       /* cudnn.c */
void emulator_fill_cublaslt(cublaslt_table *out); /* cublaslt.c */

/* ---- the device ------------------------------------------------------------------------------- */

/* All GPUs use the same memory and the same processor. EMULATED_GPUS says how many GPUs a program finds. */
static int count_gpus(void)
{
    const char *count = getenv("EMULATED_GPUS");
    return count ? atoi(count) : 1;
}

/* EMULATED_DRIVER emulates a driver that is too old for the run-time library, or a driver whose two parts
 * have different versions. */
static cudaError_t state_of_driver(void)
{
    const char *driver = getenv("EMULATED_DRIVER");
    if (!driver) return cudaSuccess;
    return strcmp(driver, "old") == 0 ? cudaErrorInsufficientDriver : cudaErrorSystemDriverMismatch;
}

/* If EMULATED_LOST=N is set, the process loses its GPU after N waits for streams. As in CUDA, every later
 * call fails, too. The variable is read before there are ranks, as in order.c. */
static int most_waits = -1; /* -1 if the GPU is never lost. */

__attribute__((constructor)) static void read_most_waits(void)
{
    const char *text = getenv("EMULATED_LOST");
    if (text) most_waits = atoi(text);
}

static cudaError_t state_of_gpu(bool wait)
{
    static int waits;
    if (most_waits < 0) return cudaSuccess;
    int so_far =
        wait ? __atomic_add_fetch(&waits, 1, __ATOMIC_RELAXED) : __atomic_load_n(&waits, __ATOMIC_RELAXED);
    return so_far > most_waits ? cudaErrorLaunchFailure : cudaSuccess;
}

cudaError_t cudaSetDevice(int number)
{
    return number >= 0 && number < count_gpus() ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t code)
{
    switch (code) {
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorSystemDriverMismatch:
        return "system has unsupported display driver / cuda driver combination";
    case cudaErrorLaunchFailure:
        return "unspecified launch failure";
    default:
        return "error of the emulator";
    }
}

const char *cudaGetErrorName(cudaError_t code)
{
    switch (code) {
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
        return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver:
        return "cudaErrorInsufficientDriver";
    case cudaErrorSystemDriverMismatch:
        return "cudaErrorSystemDriverMismatch";
    case cudaErrorLaunchFailure:
        return "cudaErrorLaunchFailure";
    default:
        return "cudaErrorInvalidValue";
    }
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = state_of_driver() == cudaSuccess ? count_gpus() : 0;
    return state_of_driver();
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int number)
{
    const char *text = getenv("EMULATED_ARCHITECTURE");
    int architecture = text ? atoi(text) : 90;
    size_t available;
    (void)number;
    *out =
        (struct cudaDeviceProp){.name = "emulator", .major = architecture / 10, .minor = architecture % 10};
    return cudaMemGetInfo(&available, &out->totalGlobalMem);
}

cudaError_t cudaDeviceCanAccessPeer(int *possible, int gpu, int peer)
{
    *possible = gpu != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    (void)peer;
    return flags == 0 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest)
{
    *lowest = 0;
    *highest = -1;
    return cudaSuccess;
}

/* ---- streams and events ----------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    *out = calloc(1, sizeof **out);
    if (!*out) return cudaErrorMemoryAllocation;
    emulator_stream_open(*out);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    emulator_drain(s);
    emulator_stream_close(s);
    free(s);
    return cudaSuccess;
}

/* As in CUDA, it is an error to wait for a captured stream, or to give it memory operations of the driver.
 * The emulator also refuses events with timing, since they would measure the recording. */
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (s->capture) return cudaErrorInvalidValue;
    emulator_drain(s);
    return state_of_gpu(true);
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    *out = calloc(1, sizeof **out);
    if (*out) (*out)->references = 1;
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    return cudaEventCreate(out);
}

static void release(cudaEvent_t e)
{
    if (__atomic_sub_fetch(&e->references, 1, __ATOMIC_ACQ_REL) == 0) free(e);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    release(e);
    return cudaSuccess;
}

typedef struct event_number {
    cudaEvent_t event;
    uint64_t number;
} event_number;

static bool has_reached(cudaEvent_t e, uint64_t number)
{
    return __atomic_load_n(&e->reached, __ATOMIC_ACQUIRE) >= number;
}

static bool record(void *context)
{
    const event_number *n = context;
    int64_t slow_ns = __atomic_load_n(&emulator_control.slow_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&n->event->at_ns, clock_now_ns() + slow_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&n->event->reached, n->number, __ATOMIC_RELEASE);
    release(n->event);
    return true;
}

static event_number take(cudaEvent_t e, uint64_t number)
{
    __atomic_add_fetch(&e->references, 1, __ATOMIC_RELAXED);
    return (event_number){e, number};
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    if (s && s->capture) return cudaErrorInvalidValue;
    e->of = s;
    event_number n = take(e, __atomic_add_fetch(&e->recorded, 1, __ATOMIC_ACQ_REL));
    if (!emulator_keep(s, record, &n, sizeof n)) record(&n);
    if (s) __atomic_store_n(&e->given, emulator_queue_given(s), __ATOMIC_RELAXED);
    return state_of_gpu(false);
}

static bool awaited(void *context)
{
    const event_number *n = context;
    if (!has_reached(n->event, n->number)) return false;
    release(n->event);
    return true;
}

/* Lets the stream wait for the event's last record before this call. Later records do not matter. */
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    uint64_t number = __atomic_load_n(&e->recorded, __ATOMIC_ACQUIRE);
    if (s->capture || flags) return cudaErrorInvalidValue;
    event_number n = take(e, number);
    if (emulator_keep(s, awaited, &n, sizeof n)) return state_of_gpu(false);
    if (!awaited(&n)) emulator_keep_always(s, awaited, &n, sizeof n);
    return state_of_gpu(false);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    bool reached = has_reached(e, __atomic_load_n(&e->recorded, __ATOMIC_ACQUIRE));
    return reached ? state_of_gpu(false) : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    enum { NAP_US = 50 };
    uint64_t number = __atomic_load_n(&e->recorded, __ATOMIC_ACQUIRE);
    if (!emulator_has_threads() && !has_reached(e, number)) emulator_drain(e->of);
    if (!has_reached(e, number) &&
        __atomic_load_n(&e->given, __ATOMIC_RELAXED) == emulator_queue_given(e->of))
        emulator_count(&emulator_control.idle_waits);
    while (!has_reached(e, number)) usleep(NAP_US);
    return state_of_gpu(true);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    int64_t from = __atomic_load_n(&begin->at_ns, __ATOMIC_RELAXED),
            to = __atomic_load_n(&end->at_ns, __ATOMIC_RELAXED);
    if (cudaEventQuery(begin) == cudaErrorNotReady || cudaEventQuery(end) == cudaErrorNotReady)
        return cudaErrorNotReady;
    *ms = (float)(to - from) * 1e-6f;
    return cudaSuccess;
}

/* ---- the driver ------------------------------------------------------------------------------- */

typedef struct value_at {
    uint64_t *at;
    uint64_t value;
} value_at;

static bool has_value(void *context)
{
    const value_at *v = context;
    return (int64_t)(__atomic_load_n(v->at, __ATOMIC_ACQUIRE) - v->value) >= 0;
}

static bool write_value(void *context)
{
    const value_at *v = context;
    __atomic_store_n(v->at, v->value, __ATOMIC_RELEASE);
    return true;
}

CUresult cuStreamWaitValue64_v2(CUstream s, CUdeviceptr address, uint64_t value, unsigned flags)
{
    (void)flags;
    value_at v = {(uint64_t *)(uintptr_t)address, value};
    if (s->capture) return CUDA_ERROR_NOT_SUPPORTED;
    if (emulator_keep(s, has_value, &v, sizeof v)) return CUDA_SUCCESS;
    if (!has_value(&v)) emulator_keep_always(s, has_value, &v, sizeof v);
    return CUDA_SUCCESS;
}

CUresult cuStreamWriteValue64_v2(CUstream s, CUdeviceptr address, uint64_t value, unsigned flags)
{
    (void)flags;
    value_at v = {(uint64_t *)(uintptr_t)address, value};
    if (s->capture) return CUDA_ERROR_NOT_SUPPORTED;
    if (!emulator_keep(s, write_value, &v, sizeof v)) write_value(&v);
    return CUDA_SUCCESS;
}

/* The functions of NCCL are in this module itself. */
bool cuda_library_open(const char *const *names, const char *const *symbols, void *table, char *why,
                       size_t size)
{
    (void)names, (void)size;
    Dl_info info;
    void *self = dladdr(symbols, &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
    why[0] = '\0';
    for (int i = 0; symbols[i]; i++) ((void **)table)[i] = dlsym(self, symbols[i]);
    return true;
}

void cuda_libraries_open(cuda_libraries *out)
{
    static const char why[] = "left out of the emulator";
    *out = (cuda_libraries){.driver = {cuStreamWaitValue64_v2, cuStreamWriteValue64_v2}};
    if (getenv("EMULATED_CUBLASLT"))
        emulator_fill_cublaslt(&out->cublaslt);
    else
        memcpy(out->cublaslt_found.why, why, sizeof why);
    if (getenv("EMULATED_CUDNN"))
        emulator_fill_cudnn(&out->cudnn);
    else
        memcpy(out->cudnn_found.why, why, sizeof why);
}
