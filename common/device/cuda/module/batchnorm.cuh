/* What BatchNorm's forward and backward kernels share: a thread owns V neighbouring channels, whose constants it
 * keeps in registers, and walks down the rows. T is the type in which activations are stored. */
#ifndef COMMON_DEVICE_CUDA_MODULE_BATCHNORM_CUH
#define COMMON_DEVICE_CUDA_MODULE_BATCHNORM_CUH

#include "common/device/cuda/module/columns.cuh"

constexpr int APPLY_THREADS = 256, APPLY_ROWS = 8, CHANNEL_THREADS = 128;

static inline int64_t rows_of(const batchnorm_attributes *a)
{
    return a->n * a->h * a->w;
}

/* Per channel: [c]. */
struct channel_vectors {
    const float *mean, *invstd, *gamma, *beta;
};

template <int V> struct channels {
    float mean[V], invstd[V], gamma[V], beta[V];
};

template <int V> __device__ channels<V> channels_at(const channel_vectors &f, int64_t column)
{
    channels<V> out;
    for (int v = 0; v < V; v++) {
        out.mean[v] = f.mean[column + v];
        out.invstd[v] = f.invstd[column + v];
        out.gamma[v] = f.gamma[column + v];
        out.beta[v] = f.beta[column + v];
    }
    return out;
}

/* The activation's argument: x normalised, and the residual where there is one. */
template <typename T> struct affine {
    const T *x, *residual; /* residual may be NULL */
    channel_vectors f;
};

template <int V, typename T>
__device__ void arguments_at(const affine<T> &a, const channels<V> &f, int64_t i, float *out)
{
    float x[V], residual[V];
    load_pack<V>(a.x + i, x);
    for (int v = 0; v < V; v++) out[v] = (x[v] - f.mean[v]) * f.invstd[v] * f.gamma[v] + f.beta[v];
    if (!a.residual) return;
    load_pack<V>(a.residual + i, residual);
    for (int v = 0; v < V; v++) out[v] += residual[v];
}

/* `rule` has V, at_column(column), which is called once a thread, and at(i, column): the elements [i, i + V). */
template <typename Rule> __global__ void apply_kernel(Rule rule, int64_t rows, int64_t c)
{
    int64_t column = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * Rule::V;
    if (column >= c) return;
    auto thread = rule.at_column(column);
    int64_t step = (int64_t)gridDim.y * blockDim.y;
#pragma unroll 2
    for (int64_t row = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += step)
        rule.at(thread, row * c + column);
}

template <typename Rule> status apply_to(const cuda_kernel *k, cudaStream_t s, Rule rule)
{
    const batchnorm_attributes *a = &k->base.op.u.batchnorm;
    int width = column_width(a->c, Rule::V), down = APPLY_THREADS / width;
    int64_t blocks = ceil_div(rows_of(a), (int64_t)down * APPLY_ROWS);
    dim3 grid((unsigned)ceil_div(a->c, (int64_t)width * Rule::V),
              (unsigned)(blocks < MOST_BLOCKS_Y ? blocks : MOST_BLOCKS_Y));
    return launch(k, s, apply_kernel<Rule>, grid, dim3((unsigned)width, (unsigned)down), rule, rows_of(a), a->c);
}

/* What is over a batch of `run`<T, V>, with packs where they fit. */
#define WITH_PACKS(run, T, k, s, o, ...)                                                                     \
    (packs<T>((k)->base.op.u.batchnorm.c, (o)) ? run<T, wide_pack<T>()>((k), (s), (o), __VA_ARGS__)          \
                                               : run<T, 1>((k), (s), (o), __VA_ARGS__))

#endif
