/* y = act(x w^T + b) with weights [out, in] (torch.nn.Linear). cuBLASLt multiplies and adds the bias, and
 * applies ReLU where that is the activation; the others follow in a pass of their own. Without cuBLASLt own
 * products take its place. */
#include "common/device/cuda/module/columns.cuh"
#include "common/device/cuda/module/product.cuh"

extern "C" {
#include "common/device/cuda/module/cublaslt.h"
}

constexpr int THREADS = 256;

static cublaslt_product *plan_of(const cuda_kernel *k)
{
    return (cublaslt_product *)k->state;
}

static void release(cuda_kernel *k)
{
    cublaslt_product *plan = plan_of(k);
    cublaslt_release(&plan);
}

static status prepare_product(cuda_kernel *k, cublaslt_shape shape)
{
    cublaslt_product *plan = nullptr;
    TRY(cublaslt_prepare(cuda_device_of(k), &shape, &plan));
    k->state = plan;
    k->base.workspace = cublaslt_workspace(plan);
    return STATUS_OK;
}

/* cuBLASLt's matrices run down columns: ours, read so, are their transposes. */
static status prepare_forward(cuda_kernel *k)
{
    const linear_attributes *a = &k->base.op.u.linear;
    cublaslt_shape shape = {a->out, a->m, a->in, true, false, CUBLASLT_N, a->bias, a->act == ACTIVATION_RELU};
    return prepare_product(k, shape);
}

static status prepare_backward_data(cuda_kernel *k)
{
    const linear_attributes *a = &k->base.op.u.linear;
    cublaslt_shape shape = {a->in, a->m, a->out, false, false, CUBLASLT_N, false, false};
    return prepare_product(k, shape);
}

static status prepare_backward_weights(cuda_kernel *k)
{
    const linear_attributes *a = &k->base.op.u.linear;
    cublaslt_shape shape = {a->in, a->out, a->m, false, true, CUBLASLT_K, false, false};
    TRY(prepare_product(k, shape));
    size_t columns = a->bias ? column_workspace(a->m, a->out, plain_terms::SUMS) : 0;
    if (columns > k->base.workspace) k->base.workspace = columns;
    return STATUS_OK;
}

/* ---- passes around the product ---------------------------------------------------------------- */

/* y = act(y), and its slope there where `slope` is given. */
__global__ static void activate_in_place(int act, int64_t count, float *y, float *slope)
{
    for (int64_t i = global_thread(); i < count; i += grid_threads()) {
        float value = y[i];
        if (slope) slope[i] = activate_backward(act, value, 1);
        y[i] = activate(act, value);
    }
}

__global__ static void gradient_in_place(int act, int64_t count, const float *kept, float *dy)
{
    for (int64_t i = global_thread(); i < count; i += grid_threads()) 
        dy[i] = act == ACTIVATION_RELU ? activate_backward(act, kept[i], dy[i]) : kept[i] * dy[i];
}

struct store_biased {
    float *y;
    const float *bias; /* may be NULL */
    int64_t columns;
    bool relu;
    __device__ void take(int64_t i, int64_t j, float sum) const
    {
        float value = bias ? sum + bias[j] : sum;
        y[i * columns + j] = relu ? activate(ACTIVATION_RELU, value) : value;
    }
};

/* ---- the operations --------------------------------------------------------------------------- */

static status forward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars, void *workspace)
{
    const linear_attributes *a = &k->base.op.u.linear;
    int64_t m = cuda_rows(scalars, a->m);
    const float *x = (const float *)o[LINEAR_FWD_X], *w = (const float *)o[LINEAR_FWD_W];
    const float *b = a->bias ? (const float *)o[LINEAR_FWD_B] : nullptr;
    float *y = (float *)o[LINEAR_FWD_Y];
    bool relu = a->act == ACTIVATION_RELU;
    if (plan_of(k))
        TRY(cublaslt_run(plan_of(k), s, w, x, b, y, m, false, workspace));
    else
        TRY(product(k, s, strided{x, a->in, 1}, strided{w, 1, a->in}, store_biased{y, b, a->out, relu}, m, a->out,
                    a->in));
    if (a->act == ACTIVATION_NONE || relu) return STATUS_OK;
    return launch(k, s, activate_in_place, dim3(blocks_for(m * a->out, THREADS)), dim3(THREADS), a->act, m * a->out, y,
                  (float *)o[LINEAR_FWD_SLOPE]);
}

static status backward_data(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars,
                            void *workspace)
{
    const linear_attributes *a = &k->base.op.u.linear;
    int64_t m = cuda_rows(scalars, a->m);
    const float *dy = (const float *)o[LINEAR_BWD_DATA_DY], *w = (const float *)o[LINEAR_BWD_DATA_W];
    float *dx = (float *)o[LINEAR_BWD_DATA_DX];
    if (plan_of(k)) return cublaslt_run(plan_of(k), s, w, dy, nullptr, dx, m, false, workspace);
    return product(k, s, strided{dy, a->out, 1}, strided{w, a->in, 1}, store_plain{dx, a->in, false}, m, a->in, a->out);
}

static status backward_weights(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars,
                               void *workspace)
{
    const linear_attributes *a = &k->base.op.u.linear;
    int64_t m = cuda_rows(scalars, a->m);
    bool add = cuda_accumulates(k, scalars);
    const float *x = (const float *)o[LINEAR_BWD_WEIGHTS_X];
    float *dy = (float *)o[LINEAR_BWD_WEIGHTS_DY], *dw = (float *)o[LINEAR_BWD_WEIGHTS_DW];
    if (a->act != ACTIVATION_NONE)
        TRY(launch(k, s, gradient_in_place, dim3(blocks_for(m * a->out, THREADS)), dim3(THREADS), a->act, m * a->out,
                   (const float *)o[LINEAR_BWD_WEIGHTS_ACT], dy));
    if (plan_of(k))
        TRY(cublaslt_run(plan_of(k), s, x, dy, nullptr, dw, m, add, workspace));
    else
        TRY(product(k, s, strided{dy, 1, a->out}, strided{x, a->in, 1}, store_plain{dw, a->in, add}, a->out, a->in, m));
    if (!a->bias) return STATUS_OK;
    return column_sums(k, s, plain_terms{dy, a->out}, write_sum{(float *)o[LINEAR_BWD_WEIGHTS_DB], add}, m, a->out,
                       (double *)workspace);
}

extern "C" {
const cuda_kernel_entry cuda_linear_forward = {prepare_forward, forward, release};
const cuda_kernel_entry cuda_linear_backward_data = {prepare_backward_data, backward_data, release};
const cuda_kernel_entry cuda_linear_backward_weights = {prepare_backward_weights, backward_weights, release};
}
