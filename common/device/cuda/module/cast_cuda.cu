/* Between float32 and bfloat16, in front of and behind the libraries. */
#include "common/device/cuda/module/kernel.cuh"

constexpr int THREADS = 256;

template <int V> __global__ static void round_kernel(int64_t count, const float *from, bf16 *to)
{
    for (int64_t i = global_thread() * V; i < count; i += grid_threads() * V) {
        float values[V];
        load_pack<V>(from + i, values);
        store_pack<V>(to + i, values);
    }
}

template <int V> __global__ static void widen_kernel(int64_t count, bool add, const bf16 *from, float *to)
{
    for (int64_t i = global_thread() * V; i < count; i += grid_threads() * V) {
        float values[V], old[V];
        load_pack<V>(from + i, values);
        if (add) load_pack<V>(to + i, old);
        for (int v = 0; v < V && add; v++) values[v] += old[v];
        store_pack<V>(to + i, values);
    }
}

static cudaLaunchConfig_t config_for(cudaStream_t s, int64_t count)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks_for(count, THREADS));
    config.blockDim = dim3(THREADS);
    config.stream = s;
    return config;
}

static bool packs_of_four(int64_t count, const void *wide, const void *narrow)
{
    return count % 4 == 0 && (uintptr_t)wide % 16 == 0 && (uintptr_t)narrow % 8 == 0;
}

extern "C" status cuda_round(const cuda_device *d, cudaStream_t s, int64_t count, const float *from, void *to)
{
    bool packs = packs_of_four(count, from, to);
    cudaLaunchConfig_t config = config_for(s, packs ? count / 4 : count);
    return cuda_check(d, cudaLaunchKernelEx(&config, packs ? round_kernel<4> : round_kernel<1>, count, from, (bf16 *)to),
                      "round to bfloat16");
}

extern "C" status cuda_widen(const cuda_device *d, cudaStream_t s, int64_t count, const void *from, float *to, bool add)
{
    bool packs = packs_of_four(count, to, from);
    cudaLaunchConfig_t config = config_for(s, packs ? count / 4 : count);
    return cuda_check(d, cudaLaunchKernelEx(&config, packs ? widen_kernel<4> : widen_kernel<1>, count, add,
                                            (const bf16 *)from, to),
                      "widen bfloat16");
}
