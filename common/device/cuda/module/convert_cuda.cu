#include "common/device/cuda/module/chunks.cuh"

#include <cuda_fp16.h>

/* Divides in float32, then rounds to the type of the result. */
template <typename To, typename From> struct convert_rule {
    float divisor;
    const From *from;
    To *to;
    template <int V> __device__ void at(int64_t i) const
    {
        to[i] = (To)((float)from[i] / divisor);
    }
};

/* Converts without a division, four elements at a time if possible. If `add`, adds to the existing values. */
template <typename To, typename From> struct cast_rule {
    const From *from;
    To *to;
    bool add;
    template <int V> __device__ void at(int64_t i) const
    {
        float values[V], old[V];
        load_pack<V>(from + i, values);
        if (add) load_pack<V>(to + i, old);
        for (int v = 0; v < V && add; v++) values[v] += old[v];
        store_pack<V>(to + i, values);
    }
};

struct sum_rule {
    const float *a, *b;
    float *to;
    template <int V> __device__ void at(int64_t i) const
    {
        to[i] = a[i] + b[i];
    }
};

template <typename To, typename From>
static status convert(To *, From *, device_stream *s, void *to, const void *from, int64_t count,
                      double divisor)
{
    return over<1>((const cuda_device *)s->device, "convert", ((cuda_stream *)s)->stream, count,
                   convert_rule<To, From>{(float)divisor, (const From *)from, (To *)to});
}

/* ---- between float32 and bfloat16, before and after library calls --------------------------------- */

template <typename To, typename From>
static status cast(const cuda_device *d, cudaStream_t s, int64_t count, cast_rule<To, From> rule)
{
    bool fits = count % 4 == 0 && (uintptr_t)rule.from % (4 * sizeof(From)) == 0 &&
                (uintptr_t)rule.to % (4 * sizeof(To)) == 0;
    return fits ? over<4>(d, "convert", s, count, rule) : over<1>(d, "convert", s, count, rule);
}

extern "C" status cuda_f32_to_bf16(const cuda_device *d, cudaStream_t s, int64_t count, const float *from,
                                   void *to)
{
    return cast(d, s, count, cast_rule<bf16, float>{from, (bf16 *)to, false});
}

extern "C" status cuda_bf16_to_f32(const cuda_device *d, cudaStream_t s, int64_t count, const void *from,
                                   float *to, bool add)
{
    return cast(d, s, count, cast_rule<float, bf16>{(const bf16 *)from, to, add});
}

/* ---- many ranges by one launch ------------------------------------------------------------------ */

typedef chunk_table<device_range> range_table;

/* Converts the chunk that belongs to this block. A thread reads all its elements before it writes the first
 * one. */
template <typename To, typename From> __global__ void pack_kernel(range_table table, float divisor)
{
    int64_t first;
    const device_range &r = table.find(blockIdx.x, &first);
    const From *from = (const From *)r.from;
    To *to = (To *)r.to;
    float taken[CHUNK_EACH];
    first += threadIdx.x;
#pragma unroll
    for (int i = 0; i < CHUNK_EACH; i++)
        taken[i] = first + i * CHUNK_THREADS < r.count ? (float)from[first + i * CHUNK_THREADS] : 0;
#pragma unroll
    for (int i = 0; i < CHUNK_EACH; i++)
        if (first + i * CHUNK_THREADS < r.count) to[first + i * CHUNK_THREADS] = (To)(taken[i] / divisor);
}

template <typename To, typename From>
static status pack_ranges(To *, From *, device_stream *s, const device_range *ranges, int count,
                          double divisor)
{
    range_table table;
    int next = 0;
    while (table.fill(ranges, count, &next))
        TRY(launch_on((const cuda_device *)s->device, "pack", ((cuda_stream *)s)->stream,
                      pack_kernel<To, From>, table.chunks, CHUNK_THREADS, table, (float)divisor));
    return STATUS_OK;
}

/* ---- the device's functions --------------------------------------------------------------------- */

/* Calls `use` with two null pointers, which have the types of the result and of the source. */
template <typename Use> static status with_types(dtype to, dtype from, const char *what, Use use)
{
    float *f32 = nullptr;
    __half *f16 = nullptr;
    bf16 *brain = nullptr;
    if (from == DTYPE_F32 && to == DTYPE_F32) return use(f32, f32);
    if (from == DTYPE_F32 && to == DTYPE_F16) return use(f16, f32);
    if (from == DTYPE_F32 && to == DTYPE_BF16) return use(brain, f32);
    if (from == DTYPE_F16 && to == DTYPE_F32) return use(f32, f16);
    if (from == DTYPE_BF16 && to == DTYPE_F32) return use(f32, brain);
    return fail(STATUS_INTERNAL, "device cuda: no %s from %s to %s", what, dtype_name(from), dtype_name(to));
}

extern "C" status cuda_convert(device_stream *s, void *to, dtype to_type, const void *from, dtype from_type,
                               int64_t count, double divisor)
{
    const cuda_device *d = (const cuda_device *)s->device;
    cudaStream_t stream = ((cuda_stream *)s)->stream;
    TRY(cuda_use(d));
    if (count == 0 || (to == from && to_type == from_type && divisor == 1)) return STATUS_OK;
    if (to_type == from_type && divisor == 1)
        return cuda_check(
            d, cudaMemcpyAsync(to, from, (size_t)(count * dtype_size(to_type)), cudaMemcpyDefault, stream),
            "copy");
    if (from_type == DTYPE_F32 && to_type == DTYPE_BF16 && divisor == 1)
        return cuda_f32_to_bf16(d, stream, count, (const float *)from, to);
    return with_types(to_type, from_type, "conversion", [=](auto *to_null, auto *from_null) {
        return convert(to_null, from_null, s, to, from, count, divisor);
    });
}

extern "C" status cuda_pack(device_stream *s, const device_range *ranges, int count, dtype to_type,
                            dtype from_type, double divisor)
{
    TRY(cuda_use((const cuda_device *)s->device));
    return with_types(to_type, from_type, "packing",
                      [=](auto *to, auto *from) { return pack_ranges(to, from, s, ranges, count, divisor); });
}

extern "C" status cuda_add_ranges(device_stream *s, void *to, const void *a, const void *b, dtype type,
                                  int64_t count)
{
    const cuda_device *d = (const cuda_device *)s->device;
    if (type != DTYPE_F32)
        return fail(STATUS_INTERNAL, "device cuda: sum: expected %s, got %s", dtype_name(DTYPE_F32),
                    dtype_name(type));
    TRY(cuda_use(d));
    if (count == 0) return STATUS_OK;
    return over<1>(d, "add", ((cuda_stream *)s)->stream, count,
                   sum_rule{(const float *)a, (const float *)b, (float *)to});
}

extern "C" status cuda_clear(device_stream *s, void *data, size_t bytes)
{
    const cuda_device *d = (const cuda_device *)s->device;
    TRY(cuda_use(d));
    return cuda_check(d, cudaMemsetAsync(data, 0, bytes, ((cuda_stream *)s)->stream), "cudaMemsetAsync");
}
