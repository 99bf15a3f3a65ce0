/* Ranges of elements: copies that convert and divide, and sums of two ranges. */
#include "common/device/cuda/module/kernel.cuh"

#include <cuda_fp16.h>

constexpr int THREADS = 256;

static cudaLaunchConfig_t config_for(cudaStream_t s, int64_t count)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks_for(count, THREADS));
    config.blockDim = dim3(THREADS);
    config.stream = s;
    return config;
}

/* ---- between float32 and bfloat16, before and after the libraries --------------------------------- */

template <int V> __global__ static void to_bf16_kernel(int64_t count, const float *from, bf16 *to)
{
    for (int64_t i = global_thread() * V; i < count; i += grid_threads() * V) {
        float values[V];
        load_pack<V>(from + i, values);
        store_pack<V>(to + i, values);
    }
}

template <int V> __global__ static void to_f32_kernel(int64_t count, bool add, const bf16 *from, float *to)
{
    for (int64_t i = global_thread() * V; i < count; i += grid_threads() * V) {
        float values[V], old[V];
        load_pack<V>(from + i, values);
        if (add) load_pack<V>(to + i, old);
        for (int v = 0; v < V && add; v++) values[v] += old[v];
        store_pack<V>(to + i, values);
    }
}

static bool packs_of_four(int64_t count, const void *full, const void *half)
{
    return count % 4 == 0 && (uintptr_t)full % 16 == 0 && (uintptr_t)half % 8 == 0;
}

extern "C" status cuda_f32_to_bf16(const cuda_device *d, cudaStream_t s, int64_t count, const float *from, void *to)
{
    bool packs = packs_of_four(count, from, to);
    cudaLaunchConfig_t config = config_for(s, packs ? count / 4 : count);
    return cuda_check(d, cudaLaunchKernelEx(&config, packs ? to_bf16_kernel<4> : to_bf16_kernel<1>, count, from,
                                            (bf16 *)to),
                      "convert to bfloat16");
}

extern "C" status cuda_bf16_to_f32(const cuda_device *d, cudaStream_t s, int64_t count, const void *from, float *to,
                                   bool add)
{
    bool packs = packs_of_four(count, to, from);
    cudaLaunchConfig_t config = config_for(s, packs ? count / 4 : count);
    return cuda_check(d, cudaLaunchKernelEx(&config, packs ? to_f32_kernel<4> : to_f32_kernel<1>, count, add,
                                            (const bf16 *)from, to),
                      "convert from bfloat16");
}

/* ---- with a division -------------------------------------------------------------------------- */

/* The quotient is taken in float32, then rounded to the type that is written. */
template <typename To, typename From>
__global__ void convert_kernel(int64_t count, float divisor, const From *from, To *to)
{
    for (int64_t i = global_thread(); i < count; i += grid_threads()) to[i] = (To)((float)from[i] / divisor);
}

template <typename To, typename From>
static status convert(device_stream *base, void *to, const void *from, int64_t count, double divisor)
{
    cudaLaunchConfig_t config = config_for(((cuda_stream *)base)->stream, count);
    cudaError_t code = cudaLaunchKernelEx(&config, convert_kernel<To, From>, count, (float)divisor, (const From *)from,
                                          (To *)to);
    return cuda_check((const cuda_device *)base->device, code, "convert");
}

extern "C" status cuda_convert(device_stream *s, void *to, dtype to_type, const void *from, dtype from_type,
                               int64_t count, double divisor)
{
    const cuda_device *d = (const cuda_device *)s->device;
    TRY(cuda_use(d));
    if (count == 0) return STATUS_OK;
    if (to_type == from_type && divisor == 1)
        return to == from ? STATUS_OK
                          : cuda_check(d, cudaMemcpyAsync(to, from, (size_t)(count * dtype_size(to_type)),
                                                          cudaMemcpyDefault, ((cuda_stream *)s)->stream), "copy");
    if (from_type == DTYPE_F32 && to_type == DTYPE_F32) return convert<float, float>(s, to, from, count, divisor);
    if (from_type == DTYPE_F32 && to_type == DTYPE_F16) return convert<__half, float>(s, to, from, count, divisor);
    if (from_type == DTYPE_F32 && to_type == DTYPE_BF16 && divisor == 1)
        return cuda_f32_to_bf16(d, ((cuda_stream *)s)->stream, count, (const float *)from, to);
    if (from_type == DTYPE_F32 && to_type == DTYPE_BF16)
        return convert<__nv_bfloat16, float>(s, to, from, count, divisor);
    if (from_type == DTYPE_F16 && to_type == DTYPE_F32) return convert<float, __half>(s, to, from, count, divisor);
    if (from_type == DTYPE_BF16 && to_type == DTYPE_F32)
        return convert<float, __nv_bfloat16>(s, to, from, count, divisor);
    return fail(STATUS_INTERNAL, "device cuda: no conversion from %s to %s", dtype_name(from_type),
                dtype_name(to_type));
}

__global__ void add_kernel(int64_t count, const float *a, const float *b, float *to)
{
    for (int64_t i = global_thread(); i < count; i += grid_threads()) to[i] = a[i] + b[i];
}

extern "C" status cuda_add_ranges(device_stream *s, void *to, const void *a, const void *b, dtype type, int64_t count)
{
    const cuda_device *d = (const cuda_device *)s->device;
    if (type != DTYPE_F32)
        return fail(STATUS_INTERNAL, "device cuda: sum: expected %s, got %s", dtype_name(DTYPE_F32),
                    dtype_name(type));
    TRY(cuda_use(d));
    if (count == 0) return STATUS_OK;
    cudaLaunchConfig_t config = config_for(((cuda_stream *)s)->stream, count);
    return cuda_check(d, cudaLaunchKernelEx(&config, add_kernel, count, (const float *)a, (const float *)b, (float *)to),
                      "add");
}

extern "C" status cuda_clear(device_stream *s, void *data, size_t bytes)
{
    const cuda_device *d = (const cuda_device *)s->device;
    TRY(cuda_use(d));
    return cuda_check(d, cudaMemsetAsync(data, 0, bytes, ((cuda_stream *)s)->stream), "cudaMemsetAsync");
}
