/* CUDA C++ for the host's compiler: the keywords and functions that the kernels use, and launches. */
#ifndef TESTS_GPU_EMULATOR_CUDA_RUNTIME_H
#define TESTS_GPU_EMULATOR_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

#define __global__
#define __device__
#define __shared__ static thread_local /* Blocks of a launch run one after another in one thread. */

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z)
    {
    }
};

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    cudaStream_t stream;
};

extern "C" {
extern __thread emulated_size threadIdx, blockIdx, blockDim, gridDim;
void __syncthreads();
int __syncthreads_or(int value);
/* Returns the value of another lane of the warp, as 8 bytes. */
uint64_t emulator_exchange(uint64_t value, int lane_mask);
}

template <typename T> T __shfl_xor_sync(unsigned, T value, int lane_mask)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = emulator_exchange(bits, lane_mask);
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Works only for blocks whose warps lie along x. */
static inline unsigned __ballot_sync(unsigned, bool value)
{
    uint64_t bits = value ? (uint64_t)1 << threadIdx.x % 32 : 0;
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2) bits |= emulator_exchange(bits, lane_mask);
    return (unsigned)bits;
}

static inline int __popc(unsigned bits)
{
    return __builtin_popcount(bits);
}

/* Does nothing, since blocks of a launch run one after another in one thread. */
static inline void __threadfence()
{
}

template <typename T> static inline T __ldcg(const T *from)
{
    return *from;
}

static inline unsigned atomicInc(unsigned *at, unsigned most)
{
    unsigned old = *at;
    *at = old >= most ? 0 : old + 1;
    return old;
}

static inline int32_t atomicMax(int32_t *at, int32_t value)
{
    int32_t old = *at;
    if (value > old) *at = value;
    return old;
}

/* Returns whether a GPU accepts these sizes of grid and block (CUDA C++ Programming Guide, "Compute
 * Capabilities"). */
static inline bool emulator_can_launch(dim3 grid, dim3 block)
{
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    return grid.x >= 1 && grid.x <= 0x7fffffffu && grid.y >= 1 && grid.y <= 65535 && grid.z >= 1 &&
           grid.z <= 65535 && threads >= 1 && threads <= 1024 && block.z <= 64;
}

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Parameters...),
                               Arguments... arguments)
{
    const cudaLaunchConfig_t config_of = *config;
    if (!emulator_can_launch(config->gridDim, config->blockDim)) return cudaErrorInvalidConfiguration;
    emulator_count_launch(config->stream);
    auto body = [=] { kernel(static_cast<Parameters>(arguments)...); };
    typedef decltype(body) body_type;
    auto launch = [=] {
        body_type copy = body;
        emulator_run(
            {config_of.gridDim.x, config_of.gridDim.y, config_of.gridDim.z},
            {config_of.blockDim.x, config_of.blockDim.y, config_of.blockDim.z},
            [](void *context) { (*static_cast<body_type *>(context))(); }, &copy);
    };
    typedef decltype(launch) launch_type;
    static_assert(__is_trivially_copyable(launch_type), "a kernel's arguments are copied byte by byte");
    if (!emulator_record(
            config->stream, [](void *context) { (*static_cast<launch_type *>(context))(); }, &launch,
            sizeof launch))
        launch();
    return cudaSuccess;
}

#endif
