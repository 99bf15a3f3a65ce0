/* Internals of the module, for this folder and for common/collectives/nccl, which is part of the module.
 *
 * Storage is float32. If op_desc.bf16 is set, activations and the weights of matrix multiplications are
 * stored as bfloat16. device_config.precision is the type of the factors in matrix multiplications of float32
 * values.
 *
 * A device belongs to its rank's thread. Another thread (the agent) may use streams and fences, but only one
 * thread may use a stream at a time. Every function called from outside makes the GPU current for the calling
 * thread. */
#ifndef COMMON_DEVICE_CUDA_MODULE_CUDA_IMPL_H
#define COMMON_DEVICE_CUDA_MODULE_CUDA_IMPL_H

#include "common/base/log.h"
#include "common/device/cuda/cuda_module.h"
#include "common/memory/piece.h"

#include <cuda_runtime_api.h>

typedef struct cuda_staging cuda_staging;
typedef struct cuda_libraries cuda_libraries; /* libraries.h */

/* Counters of blocks that have ended, for kernels in which the last block does additional work (columns.cuh).
 * The counters are zero between launches. Kernels that count blocks must run on the compute stream of the
 * device. */
enum { CUDA_COUNTERS = 4096, CUDA_FALLBACKS = 16 };

typedef struct cuda_device {
    device base;
    int gpu;
    cuda_libraries *libraries;
    void *cublaslt, *cudnn; /* handles, or NULL if kernels of this module run instead */
    cudaStream_t cudnn_stream;
    struct cuda_choice *chosen; /* used only by trial.c */
    cuda_staging *staging;
    int64_t allocated_bytes; /* bytes that device_allocate() has allocated */
    unsigned *counters;      /* [CUDA_COUNTERS] on the GPU */
    device_fallback fallbacks[CUDA_FALLBACKS];
    cudaStream_t anchor_stream; /* never waits; used for anchors, clearing and timing */
    /* Atomic. The first cuda_fail() sets `failing`, then writes `failure`, and then sets `failed`. */
    bool failing, failed;
    error_record failure;
} cuda_device;

typedef struct cuda_stream {
    device_stream base;
    cudaStream_t stream;
    /* Events that relate the GPU's clock to the host's (stream_cuda.c). Anchors belong to a stream, because
     * different threads use different streams. */
    cudaEvent_t anchors[2];
    int64_t anchor_ns[2];
    int anchored;                    /* index of the anchor for new marks */
    cudaEvent_t marks[DEVICE_MARKS]; /* created at first use */
    uint8_t anchor_of[DEVICE_MARKS];
} cuda_stream;

/* A number in pinned host memory. The GPU waits until the number reaches a value, and writes the number,
 * in stream order (cuStreamWaitValue64, cuStreamWriteValue64). The host reads and writes the number at any
 * time. */
typedef struct cuda_fence {
    device_fence base;
    uint64_t *value; /* pinned; atomic */
    void *address;
} cuda_fence;

typedef struct cuda_kernel cuda_kernel;

/* A launch of an operation. */
typedef struct cuda_call {
    const cuda_kernel *kernel;
    const op_desc *op; /* description in `kernel` */
    cudaStream_t stream;
    void *const *operands;
    const op_scalars *scalars; /* may be NULL */
    void *workspace;
} cuda_call;

typedef status cuda_run_function(const cuda_call *call);

/* Functions of one operation. `prepare` and `release` may be NULL. */
typedef struct cuda_kernel_entry {
    status (*prepare)(cuda_kernel *k);
    cuda_run_function *run;
    void (*release)(cuda_kernel *k);
} cuda_kernel_entry;

struct cuda_kernel {
    device_kernel base;
    const cuda_kernel_entry *entry;
    void *state;
};

static inline cuda_device *cuda_device_of(const cuda_kernel *k)
{
    return (cuda_device *)k->base.device;
}

/* device_cuda.c */
/* Converts a CUDA error to a status and clears the error. Fails with STATUS_SYSTEM and "rank R on HOST, GPU
 * G: WHAT: the error's text". */
status cuda_check(const cuda_device *d, cudaError_t code, const char *what);
status cuda_use(const cuda_device *d);

/* Counts an operation that a library does not support (device_info.fallbacks). `instead` names the slower
 * method that runs. Warns once for each pair of a kind of operation and a reason. */
void cuda_fall_back(cuda_device *d, op_kind kind, const char *shape, const char *reason, const char *instead);

/* memory_cuda.c */
status cuda_staging_open(cuda_device *d);
void cuda_staging_close(cuda_device *d);
/* Sets the bytes to zero before it returns. */
status cuda_zero(const cuda_device *d, void *data, size_t bytes);

/* cuda_NAME implements the slot NAME of device_backend (device_impl.h), in memory_cuda.c, kernel_cuda.c or
 * stream_cuda.c. */
/* clang-format off */
#define CUDA_FUNCTIONS(X) \
    X(allocate) X(free) X(pin) X(unpin) X(upload) X(download) X(usage) X(enable_peer) \
    X(prepare) X(release) X(launch) X(stream_open) X(stream_close) X(stream_signal) \
    X(stream_wait) X(stream_synchronize) X(fence_open) X(fence_close) X(fence_reach) X(fence_reached) \
    X(fence_fail) X(capture_begin) X(capture_end) X(graph_launch) X(graph_close) X(mark) X(mark_ns) \
    X(now_ns) X(stream_wait_mark) X(mark_passed) X(mark_wait) X(fail) X(convert) X(pack) X(clear)
/* clang-format on */
#define CUDA_FUNCTION(name) DEVICE_FUNCTION(cuda, name)
#ifndef __cplusplus
CUDA_FUNCTIONS(CUDA_FUNCTION)
#endif

/* convert_cuda.cu */
status cuda_add_ranges(device_stream *s, void *to, const void *a, const void *b, dtype type, int64_t count);
status cuda_f32_to_bf16(const cuda_device *d, cudaStream_t s, int64_t count, const float *from,
                        void *to_bf16);
/* Computes to = from, or to += from if `add`. */
status cuda_bf16_to_f32(const cuda_device *d, cudaStream_t s, int64_t count, const void *from_bf16, float *to,
                        bool add);

#define CUDA_ENTRY(name, class) extern const cuda_kernel_entry cuda_##name;
OP_LIST(CUDA_ENTRY)
#undef CUDA_ENTRY

#endif
