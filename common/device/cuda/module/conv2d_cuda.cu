/* Convolutions of NHWC images with weights [k, r, s, c]. cuDNN computes them. If cuDNN is missing, or has no
 * deterministic algorithm for a shape, matmul.cuh computes them as implicit matrix multiplications. */
#include "common/device/cuda/module/columns.cuh"
#include "common/device/cuda/module/matmul.cuh"

extern "C" {
#include "common/device/cuda/module/cudnn_cuda.h"
}

static cudnn_conv *plan_of(const cuda_kernel *k)
{
    return (cudnn_conv *)k->state;
}

static void release(cuda_kernel *k)
{
    cudnn_conv *plan = plan_of(k);
    cudnn_conv_release(&plan);
}

static status prepare(cuda_kernel *k)
{
    const conv2d_attributes *a = &k->base.op.u.conv2d;
    cudnn_conv *plan = nullptr;
    TRY(cudnn_conv_prepare(cuda_device_of(k), &k->base.op, &plan));
    k->state = plan;
    k->base.workspace = cudnn_conv_workspace(plan);
    bool sums_bias = k->base.op.kind == OP_conv2d_backward_weights && a->bias;
    size_t columns = sums_bias ? column_workspace(a->n * a->p * a->q, a->k, write_sum::SUMS) : 0;
    if (columns > k->base.workspace) k->base.workspace = columns;
    return STATUS_OK;
}

/* ---- implicit matrix multiplications ---------------------------------------------------------- */

/* x as a matrix with a row per output pixel (n, p, q) and a column per position (r, s, c) of its window. */
template <typename T> struct windows {
    const T *x;
    conv2d_attributes a;
    __device__ float at(int64_t pixel, int64_t position) const
    {
        int64_t c = position % a.c, s = position / a.c % a.s, r = position / (a.c * a.s);
        int64_t q = pixel % a.q, p = pixel / a.q % a.p, n = pixel / (a.q * a.p);
        int64_t h = p * a.stride + r - a.pad_h, w = q * a.stride + s - a.pad_w;
        return h < 0 || h >= a.h || w < 0 || w >= a.w ? 0 : load(x + ((n * a.h + h) * a.w + w) * a.c + c);
    }
};

/* dy as a matrix with a row per input pixel (n, h, w) and a column per (r, s, k). An element is zero if no
 * window has the pixel at that position. */
template <typename T> struct covering_windows {
    const T *dy;
    conv2d_attributes a;
    __device__ float at(int64_t pixel, int64_t position) const
    {
        int64_t k = position % a.k, s = position / a.k % a.s, r = position / (a.k * a.s);
        int64_t w = pixel % a.w, h = pixel / a.w % a.h, n = pixel / (a.w * a.h);
        int64_t p = h + a.pad_h - r, q = w + a.pad_w - s;
        if (p < 0 || q < 0 || p % a.stride || q % a.stride) return 0;
        p /= a.stride;
        q /= a.stride;
        return p >= a.p || q >= a.q ? 0 : load(dy + ((n * a.p + p) * a.q + q) * a.k + k);
    }
};

/* Weights [k, r, s, c] as a matrix with rows (r, s, k) and columns c. */
template <typename T> struct turned_weights {
    const T *w;
    int64_t k, c, window; /* r s */
    __device__ float at(int64_t position, int64_t channel) const
    {
        return load(w + (position % k * window + position / k) * c + channel);
    }
};

template <typename T> struct store_with_bias {
    T *y;
    const T *bias; /* may be NULL */
    int64_t columns;
    __device__ void take(int64_t i, int64_t j, float sum) const
    {
        store(y + i * columns + j, bias ? sum + load(bias + j) : sum);
    }
};

template <typename T> struct add_bias_rule {
    int64_t k;
    const T *bias;
    T *y;
    template <int V> __device__ void at(int64_t i) const
    {
        store(y + i, load(y + i) + load(bias + i % k));
    }
};

/* ---- the operations --------------------------------------------------------------------------- */

/* X is the type of x, T the type of the other activations, W and B. */
template <typename X, typename T>
static status forward_product(const cuda_kernel *k, cudaStream_t s, void *const *o)
{
    const conv2d_attributes *a = &k->base.op.u.conv2d;
    int64_t pixels = a->n * a->p * a->q, depth = a->r * a->s * a->c;
    const T *b = a->bias ? (const T *)o[CONV_FWD_B] : nullptr;
    return matmul(k, s, windows<X>{(const X *)o[CONV_FWD_X], *a},
                  strided<T>{(const T *)o[CONV_FWD_W], 1, depth},
                  store_with_bias<T>{(T *)o[CONV_FWD_Y], b, a->k}, pixels, a->k, depth);
}

template <typename T>
static status forward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *,
                      void *workspace)
{
    const conv2d_attributes *a = &k->base.op.u.conv2d;
    int64_t count = a->n * a->p * a->q * a->k;
    if (!plan_of(k))
        return k->base.op.x_f32 ? forward_product<float, T>(k, s, o) : forward_product<T, T>(k, s, o);
    TRY(cudnn_conv_run(plan_of(k), s, o[CONV_FWD_X], o[CONV_FWD_W], o[CONV_FWD_Y], false, workspace));
    if (!a->bias) return STATUS_OK;
    return over<1>(cuda_device_of(k), op_name(k->base.op.kind), s, count,
                   add_bias_rule<T>{a->k, (const T *)o[CONV_FWD_B], (T *)o[CONV_FWD_Y]});
}

template <typename T>
static status backward_data(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *,
                            void *workspace)
{
    const conv2d_attributes *a = &k->base.op.u.conv2d;
    const T *dy = (const T *)o[CONV_BWD_DATA_DY], *w = (const T *)o[CONV_BWD_DATA_W];
    T *dx = (T *)o[CONV_BWD_DATA_DX];
    if (plan_of(k)) return cudnn_conv_run(plan_of(k), s, w, dy, dx, false, workspace);
    return matmul(k, s, covering_windows<T>{dy, *a}, turned_weights<T>{w, a->k, a->c, a->r * a->s},
                  store_plain<T>{dx, a->c, false}, a->n * a->h * a->w, a->c, a->r * a->s * a->k);
}

template <typename X, typename T>
static status weights_product(const cuda_kernel *k, cudaStream_t s, void *const *o, bool add)
{
    const conv2d_attributes *a = &k->base.op.u.conv2d;
    int64_t pixels = a->n * a->p * a->q, depth = a->r * a->s * a->c;
    return matmul(k, s, strided<T>{(const T *)o[CONV_BWD_WEIGHTS_DY], 1, a->k},
                  windows<X>{(const X *)o[CONV_BWD_WEIGHTS_X], *a},
                  store_plain<float>{(float *)o[CONV_BWD_WEIGHTS_DW], depth, add}, a->k, depth, pixels);
}

template <typename T>
static status backward_weights(const cuda_kernel *k, cudaStream_t s, void *const *o,
                               const op_scalars *scalars, void *workspace)
{
    const conv2d_attributes *a = &k->base.op.u.conv2d;
    bool add = cuda_accumulates(k, scalars);
    if (plan_of(k))
        TRY(cudnn_conv_run(plan_of(k), s, o[CONV_BWD_WEIGHTS_X], o[CONV_BWD_WEIGHTS_DY],
                           o[CONV_BWD_WEIGHTS_DW], add, workspace));
    else
        TRY(k->base.op.x_f32 ? (weights_product<float, T>(k, s, o, add))
                             : (weights_product<T, T>(k, s, o, add)));
    if (!a->bias) return STATUS_OK;
    return sum_columns(k, s, (const T *)o[CONV_BWD_WEIGHTS_DY], (float *)o[CONV_BWD_WEIGHTS_DB], add,
                       a->n * a->p * a->q, a->k, workspace);
}

extern "C" {
const cuda_kernel_entry cuda_conv2d_forward = {prepare, BY_STORAGE(forward), release};
const cuda_kernel_entry cuda_conv2d_backward_data = {prepare, BY_STORAGE(backward_data), release};
const cuda_kernel_entry cuda_conv2d_backward_weights = {prepare, BY_STORAGE(backward_weights), release};
}
