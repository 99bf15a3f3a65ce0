/* The emulated run-time: device memory in one reserved range that is closed to the host, except while a
 * kernel or a copy runs, so that a program that touches device memory from the host dies here as it would
 * fail with a GPU. */
#include "common/base/clock.h"
#include "common/device/cuda/module/libraries.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const size_t SPACE_BYTES = (size_t)8 << 30;
enum { PAGE = 4096, MOST_BLOCKS = 65536 };

struct emulated_stream {
    struct emulated_graph *capture; /* NULL: work runs at once */
};

struct emulated_event {
    int64_t at_ns;
};

typedef struct memory_block {
    size_t offset, bytes;
    int used;
} memory_block;

/* The GPU is the process's. */
static struct {
    pthread_mutex_t lock;
    char *space;
    size_t end; /* of what was ever used */
    memory_block blocks[MOST_BLOCKS];
    int block_count, open;
} gpu = {.lock = PTHREAD_MUTEX_INITIALIZER};

void emulator_open_memory(void);
void emulator_close_memory(void);
void emulator_fill_cudnn(cudnn_table *out); /* cudnn.c */

/* ---- memory ----------------------------------------------------------------------------------- */

static void reserve(void)
{
    if (gpu.space) return;
    gpu.space = mmap(NULL, SPACE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (gpu.space == MAP_FAILED) abort();
}

static void protect(void)
{
    if (gpu.end) mprotect(gpu.space, gpu.end, gpu.open > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void emulator_open_memory(void)
{
    pthread_mutex_lock(&gpu.lock);
    if (gpu.open++ == 0) protect();
    pthread_mutex_unlock(&gpu.lock);
}

void emulator_close_memory(void)
{
    pthread_mutex_lock(&gpu.lock);
    if (--gpu.open == 0) protect();
    pthread_mutex_unlock(&gpu.lock);
}

static memory_block *find_free(size_t bytes)
{
    for (int i = 0; i < gpu.block_count; i++)
        if (!gpu.blocks[i].used && gpu.blocks[i].bytes == bytes) return &gpu.blocks[i];
    if (gpu.block_count == MOST_BLOCKS || SPACE_BYTES - gpu.end < bytes) return NULL;
    memory_block *b = &gpu.blocks[gpu.block_count++];
    *b = (memory_block){.offset = gpu.end, .bytes = bytes};
    gpu.end += bytes;
    return b;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    size_t rounded = (bytes + PAGE - 1) / PAGE * PAGE;
    pthread_mutex_lock(&gpu.lock);
    reserve();
    memory_block *b = find_free(rounded);
    if (b) {
        b->used = 1;
        *out = gpu.space + b->offset;
        protect();
    }
    pthread_mutex_unlock(&gpu.lock);
    return b ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *data)
{
    pthread_mutex_lock(&gpu.lock);
    for (int i = 0; i < gpu.block_count; i++) {
        if (gpu.space + gpu.blocks[i].offset != data) continue;
        gpu.blocks[i].used = 0;
        madvise(data, gpu.blocks[i].bytes, MADV_DONTNEED);
    }
    pthread_mutex_unlock(&gpu.lock);
    return cudaSuccess;
}

/* Pinned memory has its size on a page in front of it. */
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    char *data = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return cudaErrorMemoryAllocation;
    *(uint64_t *)data = bytes + PAGE;
    *out = data + PAGE;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *data)
{
    uint64_t *head = (uint64_t *)((char *)data - PAGE);
    munmap(head, *head);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *data, size_t bytes, unsigned flags)
{
    (void)data, (void)bytes, (void)flags;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *data)
{
    (void)data;
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned flags)
{
    (void)flags;
    *out = host;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *data)
{
    const char *at = data;
    out->type = gpu.space && at >= gpu.space && at < gpu.space + SPACE_BYTES ? cudaMemoryTypeDevice
                                                                             : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    *total = SPACE_BYTES;
    *available = SPACE_BYTES - gpu.end;
    return cudaSuccess;
}

cudaError_t cudaMemset(void *data, int value, size_t bytes)
{
    emulator_open_memory();
    memset(data, value, bytes);
    emulator_close_memory();
    return cudaSuccess;
}

typedef struct fill {
    void *data;
    int value;
    size_t bytes;
} fill;

static void run_fill(void *context)
{
    const fill *f = context;
    cudaMemset(f->data, f->value, f->bytes);
}

cudaError_t cudaMemsetAsync(void *data, int value, size_t bytes, cudaStream_t s)
{
    fill f = {data, value, bytes};
    if (!emulator_record(s, run_fill, &f, sizeof f)) run_fill(&f);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s)
{
    (void)kind;
    if (s && s->capture) return cudaErrorInvalidValue; /* copies are not recorded here */
    emulator_open_memory();
    memmove(to, from, bytes);
    emulator_close_memory();
    return cudaSuccess;
}

/* ---- the device ------------------------------------------------------------------------------- */

/* All GPUs are the one memory and the one processor; EMULATED_GPUS says how many there seem to be. */
static int count_gpus(void)
{
    const char *count = getenv("EMULATED_GPUS");
    return count ? atoi(count) : 1;
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
    return code == cudaErrorMemoryAllocation ? "out of memory" : "error of the emulator";
}

const char *cudaGetErrorName(cudaError_t code)
{
    return code == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorInvalidValue";
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = count_gpus();
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int number)
{
    (void)number;
    *out = (struct cudaDeviceProp){.name = "emulator", .major = 9, .totalGlobalMem = SPACE_BYTES};
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest)
{
    *lowest = 0;
    *highest = -1;
    return cudaSuccess;
}

/* ---- streams and events: everything is done when it returns ----------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    *out = calloc(1, sizeof **out);
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    free(s);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    (void)s;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    *out = calloc(1, sizeof **out);
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    return cudaEventCreate(out);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    free(e);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    (void)s;
    e->at_ns = clock_now_ns();
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    (void)e;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    (void)e;
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    *ms = (float)(end->at_ns - begin->at_ns) * 1e-6f;
    return cudaSuccess;
}

/* ---- the driver ------------------------------------------------------------------------------- */

CUresult cuStreamWaitValue64_v2(CUstream s, CUdeviceptr address, uint64_t value, unsigned flags)
{
    (void)s, (void)flags;
    uint64_t *at = (uint64_t *)(uintptr_t)address;
    while ((int64_t)(__atomic_load_n(at, __ATOMIC_ACQUIRE) - value) < 0) sched_yield();
    return CUDA_SUCCESS;
}

CUresult cuStreamWriteValue64_v2(CUstream s, CUdeviceptr address, uint64_t value, unsigned flags)
{
    (void)s, (void)flags;
    __atomic_store_n((uint64_t *)(uintptr_t)address, value, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

void cuda_libraries_open(cuda_libraries *out)
{
    static const char why[] = "left out of the emulator";
    *out = (cuda_libraries){.driver = {cuStreamWaitValue64_v2, cuStreamWriteValue64_v2}};
    memcpy(out->why_cublaslt, why, sizeof why);
    if (getenv("EMULATED_CUDNN")) emulator_fill_cudnn(&out->cudnn);
    else memcpy(out->why_cudnn, why, sizeof why);
}
