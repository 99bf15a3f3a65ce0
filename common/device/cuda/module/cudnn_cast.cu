/* Between float32, in which everything is stored, and bfloat16, in which cuDNN multiplies with --bf16. */
#include "common/device/cuda/module/kernel.cuh"

#include <cuda_bf16.h>

extern "C" {
#include "common/device/cuda/module/cudnn_cuda.h"
}

constexpr int THREADS = 256;

__global__ static void round_kernel(int64_t count, const float *from, __nv_bfloat16 *to)
{
    for (int64_t i = global_thread(); i < count; i += grid_threads()) to[i] = (__nv_bfloat16)from[i];
}

__global__ static void widen_kernel(int64_t count, bool add, const __nv_bfloat16 *from, float *to)
{
    for (int64_t i = global_thread(); i < count; i += grid_threads()) to[i] = (add ? to[i] : 0.0f) + (float)from[i];
}

static cudaLaunchConfig_t config_for(cudaStream_t s, int64_t count)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks_for(count, THREADS));
    config.blockDim = dim3(THREADS);
    config.stream = s;
    return config;
}

extern "C" status cudnn_round(const cuda_device *d, cudaStream_t s, int64_t count, const float *from, void *to)
{
    cudaLaunchConfig_t config = config_for(s, count);
    return cuda_check(d, cudaLaunchKernelEx(&config, round_kernel, count, from, (__nv_bfloat16 *)to), "round to bfloat16");
}

extern "C" status cudnn_widen(const cuda_device *d, cudaStream_t s, int64_t count, const void *from, float *to, bool add)
{
    cudaLaunchConfig_t config = config_for(s, count);
    return cuda_check(d, cudaLaunchKernelEx(&config, widen_kernel, count, add, (const __nv_bfloat16 *)from, to),
                      "widen bfloat16");
}
