/* Code shared by BatchNorm's forward and backward kernels. A thread owns V neighboring channels, keeps their
 * constants in registers, and walks down the rows. T is the type in which activations are stored. */
#ifndef COMMON_DEVICE_CUDA_MODULE_BATCHNORM_CUH
#define COMMON_DEVICE_CUDA_MODULE_BATCHNORM_CUH

#include "common/device/cuda/module/columns.cuh"

constexpr int APPLY_THREADS = 256, APPLY_ROWS = 16, CHANNEL_THREADS = 128;

static inline int64_t rows_of(const batchnorm_attributes *a)
{
    return a->n * a->h * a->w;
}

/* Each array has c elements. */
struct channel_vectors {
    const float *mean, *invstd, *gamma, *beta;
};

/* Constants of a thread's channels. The compiler removes the values that a kernel does not use. */
template <int V> struct channels {
    float mean[V], invstd[V], scale[V], beta[V]; /* scale = invstd gamma */
};

template <int V> __device__ void load_floats(const float *from, float *out)
{
    constexpr int WIDE = V % 4 ? 1 : 4;
    for (int v = 0; v < V; v += WIDE) load_pack<WIDE>(from + v, out + v);
}

template <int V> __device__ channels<V> channels_at(const channel_vectors &f, int64_t column)
{
    channels<V> out;
    float gamma[V];
    load_floats<V>(f.mean + column, out.mean);
    load_floats<V>(f.invstd + column, out.invstd);
    load_floats<V>(f.gamma + column, gamma);
    load_floats<V>(f.beta + column, out.beta);
    for (int v = 0; v < V; v++) out.scale[v] = out.invstd[v] * gamma[v];
    return out;
}

/* Returns x normalized: the activation's argument without the residual. */
template <int V> __device__ float argument(const channels<V> &f, int v, float x)
{
    return (x - f.mean[v]) * f.scale[v] + f.beta[v];
}

/* Applies `rule` to all elements. `rule` has the constants V and AT_ONCE and the function at_column(column),
 * with the same meaning as in the argument `terms` of add_rows() (columns.cuh). `rule` also has read(i) and
 * write(kept, taken, i), which process elements [i, i + V). write() may write to memory that read() has read.
 */
template <typename Rule> __global__ void apply_kernel(Rule rule, int64_t rows, int64_t c)
{
    int64_t column = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * Rule::V;
    if (column >= c) return;
    auto kept = rule.at_column(column);
    walk_rows<Rule::AT_ONCE>(
        (int64_t)blockIdx.y * blockDim.y + threadIdx.y, rows, (int64_t)gridDim.y * blockDim.y,
        [&](int64_t row) { return rule.read(row * c + column); },
        [&](const auto &taken, int64_t row) { rule.write(kept, taken, row * c + column); });
}

template <typename Rule> status apply_to(const kernel_call &call, Rule rule)
{
    const batchnorm_attributes *a = &call.op->u.batchnorm;
    int width = column_width(a->c, Rule::V), down = APPLY_THREADS / width;
    int64_t blocks = ceil_div(rows_of(a), (int64_t)down * APPLY_ROWS);
    dim3 grid(ceil_div(a->c, (int64_t)width * Rule::V), blocks < MOST_BLOCKS_Y ? blocks : MOST_BLOCKS_Y);
    return launch(call, apply_kernel<Rule>, grid, dim3(width, down), rule, rows_of(a), a->c);
}

template <typename... Parameters, typename... Arguments>
status per_channel(const kernel_call &call, void (*kernel)(Parameters...), Arguments... arguments)
{
    int64_t c = call.op->u.batchnorm.c;
    return launch(call, kernel, ceil_div(c, CHANNEL_THREADS), CHANNEL_THREADS, c, arguments...);
}

#endif
