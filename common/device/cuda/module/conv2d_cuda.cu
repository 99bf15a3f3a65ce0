/* Convolutions of NHWC images with weights [k, r, s, c]. cuDNN computes them. If cuDNN is missing, or has no
 * deterministic algorithm for a shape, matmul.cuh computes them as implicit matrix multiplications. */
#include "common/device/cuda/module/columns.cuh"
#include "common/device/cuda/module/matmul.cuh"

extern "C" {
#include "common/device/cuda/module/cudnn_cuda.h"
}

static cudnn_conv *plan_of(const kernel_call &call)
{
    return (cudnn_conv *)call.kernel->state;
}

static void release(cuda_kernel *k)
{
    cudnn_conv *plan = (cudnn_conv *)k->state;
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

/* x as a matrix with a row per output pixel (n, p, q) and a column per position (r, s, c) of the pixel's
 * window. */
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
 * window has the pixel at position (r, s). */
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
    int64_t k, c, window; /* window = r s */
    __device__ float at(int64_t position, int64_t channel) const
    {
        return load(w + (position % k * window + position / k) * c + channel);
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

/* X is the type of x. T is the type of the other activations and of W and B. */
template <typename X, typename T> static status forward_product(const kernel_call &call)
{
    const conv2d_attributes *a = &call.op->u.conv2d;
    int64_t pixels = a->n * a->p * a->q, depth = a->r * a->s * a->c;
    return matmul(call, windows<X>{call[CONV_FWD_X], *a}, strided<T>{call[CONV_FWD_W], 1, depth},
                  store_biased<T>{call[CONV_FWD_Y], call[CONV_FWD_B], a->k, false}, pixels, a->k, depth);
}

template <typename T> static status forward(const kernel_call &call)
{
    const conv2d_attributes *a = &call.op->u.conv2d;
    int64_t count = a->n * a->p * a->q * a->k;
    if (!plan_of(call)) return call.op->x_f32 ? forward_product<float, T>(call) : forward_product<T, T>(call);
    TRY(cudnn_conv_run(plan_of(call), call.stream, call[CONV_FWD_X], call[CONV_FWD_W], call[CONV_FWD_Y],
                       false, call.workspace));
    if (!a->bias) return STATUS_OK;
    return over<1>(call.device(), op_name(call.op->kind), call.stream, count,
                   add_bias_rule<T>{a->k, call[CONV_FWD_B], call[CONV_FWD_Y]});
}

template <typename T> static status backward_data(const kernel_call &call)
{
    const conv2d_attributes *a = &call.op->u.conv2d;
    const T *dy = call[CONV_BWD_DATA_DY], *w = call[CONV_BWD_DATA_W];
    T *dx = call[CONV_BWD_DATA_DX];
    if (plan_of(call)) return cudnn_conv_run(plan_of(call), call.stream, w, dy, dx, false, call.workspace);
    return matmul(call, covering_windows<T>{dy, *a}, turned_weights<T>{w, a->k, a->c, a->r * a->s},
                  store_plain<T>{dx, a->c, false}, a->n * a->h * a->w, a->c, a->r * a->s * a->k);
}

template <typename X, typename T> static status weights_product(const kernel_call &call, bool add)
{
    const conv2d_attributes *a = &call.op->u.conv2d;
    int64_t pixels = a->n * a->p * a->q, depth = a->r * a->s * a->c;
    return matmul(call, strided<T>{call[CONV_BWD_WEIGHTS_DY], 1, a->k},
                  windows<X>{call[CONV_BWD_WEIGHTS_X], *a},
                  store_plain<float>{call[CONV_BWD_WEIGHTS_DW], depth, add}, a->k, depth, pixels);
}

template <typename T> static status backward_weights(const kernel_call &call)
{
    const conv2d_attributes *a = &call.op->u.conv2d;
    bool add = call.accumulates();
    if (plan_of(call))
        TRY(cudnn_conv_run(plan_of(call), call.stream, call[CONV_BWD_WEIGHTS_X], call[CONV_BWD_WEIGHTS_DY],
                           call[CONV_BWD_WEIGHTS_DW], add, call.workspace));
    else
        TRY(call.op->x_f32 ? (weights_product<float, T>(call, add)) : (weights_product<T, T>(call, add)));
    if (!a->bias) return STATUS_OK;
    return sum_columns<T>(call, call[CONV_BWD_WEIGHTS_DY], call[CONV_BWD_WEIGHTS_DB], add, a->n * a->p * a->q,
                          a->k);
}

extern "C" {
const cuda_kernel_entry cuda_conv2d_forward = {prepare, BY_STORAGE(forward), release};
const cuda_kernel_entry cuda_conv2d_backward_data = {prepare, BY_STORAGE(backward_data), release};
const cuda_kernel_entry cuda_conv2d_backward_weights = {prepare, BY_STORAGE(backward_weights), release};
}
