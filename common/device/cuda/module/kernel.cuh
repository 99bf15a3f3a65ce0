/* Functions shared by the kernels: launching, reductions within a block, activation functions.
 *
 * The order of every sum depends only on shapes, so the same call gives bit-identical results. The
 * compiler fuses no multiply-adds (--fmad=false); kernels call fmaf() explicitly. No sum uses atomics. */
#ifndef COMMON_DEVICE_CUDA_MODULE_KERNEL_CUH
#define COMMON_DEVICE_CUDA_MODULE_KERNEL_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

extern "C" {
#include "common/device/cuda/module/cuda_impl.h"
}

constexpr int WARP = 32, MOST_BLOCKS_Y = 65535;

/* A pointer that converts to a pointer to any type. */
struct any_pointer {
    void *data;
    template <typename T> operator T *() const
    {
        return (T *)data;
    }
};

/* The launch of an operation, as the run functions of this folder receive it. call[SLOT] is an operand. */
struct kernel_call : cuda_call {
    any_pointer operator[](int slot) const
    {
        return {operands[slot]};
    }
    /* Returns the workspace from byte `offset` on. */
    any_pointer scratch(size_t offset = 0) const
    {
        return {(char *)workspace + offset};
    }
    const cuda_device *device() const
    {
        return cuda_device_of(kernel);
    }
    bool accumulates() const
    {
        return op->accumulate || (scalars && scalars->accumulate);
    }
    int64_t rows(int64_t most) const
    {
        return scalars && scalars->rows > 0 ? scalars->rows : most;
    }
};

/* by_storage() calls F32 if the operation's activations are stored as float32, or BF16 if they are stored as
 * bfloat16. */
typedef status run_function(const kernel_call &);
template <run_function *F32, run_function *BF16> static status by_storage(const cuda_call *call)
{
    return call->op->bf16 ? BF16({*call}) : F32({*call});
}

#define BY_STORAGE(run) by_storage<run<float>, run<bf16>>

/* Launches a kernel. `what` names the kernel in error messages. */
template <typename... Parameters, typename... Arguments>
status launch_on(const cuda_device *d, const char *what, cudaStream_t stream, void (*kernel)(Parameters...),
                 dim3 grid, dim3 block, Arguments... arguments)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = stream;
    return cuda_check(d, cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), what);
}

template <typename... Parameters, typename... Arguments>
status launch(const kernel_call &call, void (*kernel)(Parameters...), dim3 grid, dim3 block,
              Arguments... arguments)
{
    return launch_on(call.device(), op_name(call.op->kind), call.stream, kernel, grid, block, arguments...);
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Returns the number of blocks for a grid-stride loop over `count` elements. */
static inline unsigned blocks_for(int64_t count, int threads)
{
    constexpr int MOST = 4096;
    int64_t blocks = ceil_div(count, threads);
    return (unsigned)(blocks < 1 ? 1 : blocks < MOST ? blocks : MOST);
}

__device__ static inline int64_t global_thread()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ static inline int64_t grid_threads()
{
    return (int64_t)gridDim.x * blockDim.x;
}

/* ---- activations in float32 or bfloat16 ------------------------------------------------------- */

typedef __nv_bfloat16 bf16;

__device__ static inline float load(const float *p)
{
    return *p;
}

__device__ static inline float load(const bf16 *p)
{
    return (float)*p;
}

__device__ static inline void store(float *p, float value)
{
    *p = value;
}

__device__ static inline void store(bf16 *p, float value)
{
    *p = (bf16)value;
}

/* Returns `value` rounded to T, as if it had been stored and loaded again. */
template <typename T> __device__ static inline float as_stored(float value)
{
    T stored;
    store(&stored, value);
    return load(&stored);
}

/* V neighboring elements, moved by one access. */
template <typename T, int V> struct alignas(sizeof(T) * V) pack {
    T at[V];
};

template <int V, typename T> __device__ static inline pack<T, V> take_pack(const T *from)
{
    return *reinterpret_cast<const pack<T, V> *>(from);
}

template <int V, typename T> __device__ static inline void unpack(const pack<T, V> &p, float *out)
{
    for (int i = 0; i < V; i++) out[i] = load(&p.at[i]);
}

template <int V, typename T> __device__ static inline void load_pack(const T *from, float *out)
{
    unpack<V>(take_pack<V>(from), out);
}

template <int V, typename T> __device__ static inline void store_pack(T *to, const float *values)
{
    pack<T, V> p;
    for (int i = 0; i < V; i++) store(&p.at[i], values[i]);
    *reinterpret_cast<pack<T, V> *>(to) = p;
}

/* Returns the number of elements of T in a pack of 16 bytes. */
template <typename T> constexpr int wide_pack()
{
    return (int)(16 / sizeof(T));
}

/* Returns true if packs of 16 bytes can be used: a row of `count` elements of T is a whole number of
 * packs, and all operands are aligned to 16 bytes. */
template <typename T> static bool packs(int64_t count, void *const *operands)
{
    if (count % wide_pack<T>()) return false;
    for (int i = 0; i < OP_MAX_OPERANDS; i++)
        if ((uintptr_t)operands[i] % 16) return false;
    return true;
}

/* Calls run<T, V>. V is the number of elements in 16 bytes if rows of `count` elements and the operands
 * allow it, else 1. */
#define WITH_PACKS(run, T, count, call, ...)                                                                 \
    (packs<T>((count), (call).operands) ? run<T, wide_pack<T>()>((call), __VA_ARGS__)                        \
                                        : run<T, 1>((call), __VA_ARGS__))

/* ---- element by element ------------------------------------------------------------------------- */

/* `rule` has at<V>(i), which processes elements [i, i + V). */
template <int V, typename Rule> __global__ void elementwise_kernel(int64_t count, Rule rule)
{
    for (int64_t i = global_thread() * V; i < count; i += grid_threads() * V) rule.template at<V>(i);
}

template <int V, typename Rule>
status over(const cuda_device *d, const char *what, cudaStream_t s, int64_t count, Rule rule)
{
    constexpr int THREADS_OF_BLOCK = 256;
    return launch_on(d, what, s, elementwise_kernel<V, Rule>,
                     blocks_for(ceil_div(count, V), THREADS_OF_BLOCK), THREADS_OF_BLOCK, count, rule);
}

/* Runs `rule` on 16 bytes of T per thread and iteration. If rows of `row` elements or the operands do not
 * allow packs, runs `rule` on single elements. */
template <typename T, typename Rule>
status over_packs(const kernel_call &call, int64_t row, int64_t count, Rule rule)
{
    const char *what = op_name(call.op->kind);
    return packs<T>(row, call.operands) ? over<wide_pack<T>()>(call.device(), what, call.stream, count, rule)
                                        : over<1>(call.device(), what, call.stream, count, rule);
}

/* ---- sums over a block: all THREADS threads in x take part and get the result -------------------- */

template <typename T> __device__ T warp_sum(T value)
{
    for (int lane = WARP / 2; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
    return value;
}

template <int THREADS, typename T> __device__ T block_sum(T value)
{
    __shared__ T parts[THREADS / WARP];
    value = warp_sum(value);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = value;
    __syncthreads();
    T total = parts[0];
    for (int i = 1; i < THREADS / WARP; i++) total += parts[i];
    __syncthreads();
    return total;
}

/* ---- activations ------------------------------------------------------------------------------ */

__device__ static inline float normal_cdf(float x)
{
    return fmaf(0.5f, erff(x * 0.70710678118654752f), 0.5f);
}

__device__ static inline float normal_density(float x)
{
    return 0.39894228040143268f * expf(-0.5f * x * x);
}

__device__ static inline float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* The argument of tanh in GELU (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016). */
__device__ static inline float gelu_inner(float x)
{
    return 0.79788456080286536f * (x + 0.044715f * x * x * x);
}

__device__ static inline float activate(int act, float x)
{
    switch (act) {
    case ACTIVATION_RELU:
        return x <= 0 ? 0 : x; /* NaN stays NaN, as in PyTorch */
    case ACTIVATION_SILU:
        return x * sigmoid(x);
    case ACTIVATION_GELU:
        return x * normal_cdf(x);
    case ACTIVATION_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(gelu_inner(x)));
    default:
        return x;
    }
}

/* Returns dy * act'(x). `kept` is y for RELU, and x for other activations. */
__device__ static inline float activate_backward(int act, float kept, float dy)
{
    float s, t;
    switch (act) {
    case ACTIVATION_RELU:
        return kept <= 0 ? 0 : dy;
    case ACTIVATION_SILU:
        s = sigmoid(kept);
        return dy * s * (1.0f + kept * (1.0f - s));
    case ACTIVATION_GELU:
        return dy * (normal_cdf(kept) + kept * normal_density(kept));
    case ACTIVATION_GELU_TANH:
        t = tanhf(gelu_inner(kept));
        return dy * 0.5f *
               (1.0f + t +
                kept * (1.0f - t * t) * 0.79788456080286536f * (1.0f + 3.0f * 0.044715f * kept * kept));
    default:
        return dy;
    }
}

/* Computes act(x) and act'(x), which share their expensive terms. Must not be called for RELU. */
template <int ACT> __device__ static inline void activate_with_slope(float x, float *y, float *slope)
{
    if (ACT == ACTIVATION_GELU) {
        float cdf = normal_cdf(x);
        *y = x * cdf;
        *slope = cdf + x * normal_density(x);
    } else if (ACT == ACTIVATION_SILU) {
        float s = sigmoid(x);
        *y = x * s;
        *slope = s * (1.0f + x * (1.0f - s));
    } else {
        float t = tanhf(gelu_inner(x));
        *y = 0.5f * x * (1.0f + t);
        *slope =
            0.5f * (1.0f + t + x * (1.0f - t * t) * 0.79788456080286536f * (1.0f + 3.0f * 0.044715f * x * x));
    }
}

#endif
