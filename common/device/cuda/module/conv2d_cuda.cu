/* Convolution in NHWC with weights k, r, s, c. cuDNN does it; where it is missing, or has no deterministic
 * algorithm for a shape, own implicit products do. */
#include "common/device/cuda/module/columns.cuh"
#include "common/device/cuda/module/product.cuh"

extern "C" {
#include "common/device/cuda/module/cudnn_cuda.h"
}

constexpr int THREADS = 256;

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
    size_t columns = sums_bias ? column_workspace(a->n * a->p * a->q, a->k, plain_terms::SUMS) : 0;
    if (columns > k->base.workspace) k->base.workspace = columns;
    return STATUS_OK;
}

/* ---- own products ----------------------------------------------------------------------------- */

/* x as a matrix: a row an output pixel (n, p, q), a column a position (r, s, c) of its window. */
struct windows {
    const float *x;
    conv2d_attributes a;
    __device__ float at(int64_t pixel, int64_t position) const
    {
        int64_t c = position % a.c, s = position / a.c % a.s, r = position / (a.c * a.s);
        int64_t q = pixel % a.q, p = pixel / a.q % a.p, n = pixel / (a.q * a.p);
        int64_t h = p * a.stride + r - a.pad, w = q * a.stride + s - a.pad;
        return h < 0 || h >= a.h || w < 0 || w >= a.w ? 0 : x[((n * a.h + h) * a.w + w) * a.c + c];
    }
};

/* dy as a matrix: a row an input pixel (n, h, w), a column (r, s, k); zero where no window has the pixel at
 * that position. */
struct covering_windows {
    const float *dy;
    conv2d_attributes a;
    __device__ float at(int64_t pixel, int64_t position) const
    {
        int64_t k = position % a.k, s = position / a.k % a.s, r = position / (a.k * a.s);
        int64_t w = pixel % a.w, h = pixel / a.w % a.h, n = pixel / (a.w * a.h);
        int64_t p = h + a.pad - r, q = w + a.pad - s;
        if (p < 0 || q < 0 || p % a.stride || q % a.stride) return 0;
        p /= a.stride;
        q /= a.stride;
        return p >= a.p || q >= a.q ? 0 : dy[((n * a.p + p) * a.q + q) * a.k + k];
    }
};

/* Weights k, r, s, c as a matrix of rows (r, s, k) and columns c. */
struct turned_weights {
    const float *w;
    int64_t k, c, window; /* r s */
    __device__ float at(int64_t position, int64_t channel) const
    {
        return w[(position % k * window + position / k) * c + channel];
    }
};

struct store_with_bias {
    float *y;
    const float *bias; /* may be NULL */
    int64_t columns;
    __device__ void take(int64_t i, int64_t j, float sum) const
    {
        y[i * columns + j] = bias ? sum + bias[j] : sum;
    }
};

__global__ static void add_bias(int64_t count, int64_t k, const float *bias, float *y)
{
    for (int64_t i = global_thread(); i < count; i += grid_threads()) y[i] += bias[i % k];
}

/* ---- the operations --------------------------------------------------------------------------- */

static status forward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *, void *workspace)
{
    const conv2d_attributes *a = &k->base.op.u.conv2d;
    int64_t pixels = a->n * a->p * a->q, depth = a->r * a->s * a->c;
    const float *x = (const float *)o[CONV_FWD_X], *w = (const float *)o[CONV_FWD_W];
    const float *b = a->bias ? (const float *)o[CONV_FWD_B] : nullptr;
    float *y = (float *)o[CONV_FWD_Y];
    if (!plan_of(k))
        return product(k, s, windows{x, *a}, strided{w, 1, depth}, store_with_bias{y, b, a->k}, pixels, a->k, depth);
    TRY(cudnn_conv_run(plan_of(k), s, x, w, y, false, workspace));
    if (!b) return STATUS_OK;
    return launch(k, s, add_bias, dim3(blocks_for(pixels * a->k, THREADS)), dim3(THREADS), pixels * a->k, a->k, b, y);
}

static status backward_data(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *, void *workspace)
{
    const conv2d_attributes *a = &k->base.op.u.conv2d;
    const float *dy = (const float *)o[CONV_BWD_DATA_DY], *w = (const float *)o[CONV_BWD_DATA_W];
    float *dx = (float *)o[CONV_BWD_DATA_DX];
    if (plan_of(k)) return cudnn_conv_run(plan_of(k), s, w, dy, dx, false, workspace);
    return product(k, s, covering_windows{dy, *a}, turned_weights{w, a->k, a->c, a->r * a->s},
                   store_plain{dx, a->c, false}, a->n * a->h * a->w, a->c, a->r * a->s * a->k);
}

static status backward_weights(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars,
                               void *workspace)
{
    const conv2d_attributes *a = &k->base.op.u.conv2d;
    int64_t pixels = a->n * a->p * a->q, depth = a->r * a->s * a->c;
    bool add = cuda_accumulates(k, scalars);
    const float *x = (const float *)o[CONV_BWD_WEIGHTS_X], *dy = (const float *)o[CONV_BWD_WEIGHTS_DY];
    float *dw = (float *)o[CONV_BWD_WEIGHTS_DW];
    if (plan_of(k))
        TRY(cudnn_conv_run(plan_of(k), s, x, dy, dw, add, workspace));
    else
        TRY(product(k, s, strided{dy, 1, a->k}, windows{x, *a}, store_plain{dw, depth, add}, a->k, depth, pixels));
    if (!a->bias) return STATUS_OK;
    return column_sums(k, s, plain_terms{dy, a->k}, write_sum{(float *)o[CONV_BWD_WEIGHTS_DB], add}, pixels, a->k,
                       (double *)workspace);
}

extern "C" {
const cuda_kernel_entry cuda_conv2d_forward = {prepare, forward, release};
const cuda_kernel_entry cuda_conv2d_backward_data = {prepare, backward_data, release};
const cuda_kernel_entry cuda_conv2d_backward_weights = {prepare, backward_weights, release};
}
