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

/* Where cuBLASLt multiplies bfloat16 and x is a batch's samples, they are rounded into the workspace, behind its own. */
static bool rounds_x(const cuda_kernel *k)
{
    return plan_of(k) && k->base.op.wide_x && k->base.op.kind != OP_linear_backward_data;
}

static status prepare_product(cuda_kernel *k, cublaslt_shape shape)
{
    const linear_attributes *a = &k->base.op.u.linear;
    cublaslt_product *plan = nullptr;
    bool narrow = k->base.op.narrow;
    shape.in = narrow ? DTYPE_BF16 : DTYPE_F32;
    shape.out = narrow && k->base.op.kind != OP_linear_backward_weights ? DTYPE_BF16 : DTYPE_F32;
    TRY(cublaslt_prepare(cuda_device_of(k), &shape, &plan));
    k->state = plan;
    k->base.workspace = cublaslt_workspace(plan);
    if (rounds_x(k)) k->base.workspace += (size_t)(a->m * a->in) * sizeof(bf16);
    return STATUS_OK;
}

/* cuBLASLt's matrices run down columns: ours, read so, are their transposes. */
static status prepare_forward(cuda_kernel *k)
{
    const linear_attributes *a = &k->base.op.u.linear;
    cublaslt_shape shape = {a->out, a->m, a->in, true, false, CUBLASLT_N, a->bias, a->act == ACTIVATION_RELU, {}, {}};
    return prepare_product(k, shape);
}

static status prepare_backward_data(cuda_kernel *k)
{
    const linear_attributes *a = &k->base.op.u.linear;
    cublaslt_shape shape = {a->in, a->m, a->out, false, false, CUBLASLT_N, false, false, {}, {}};
    return prepare_product(k, shape);
}

static status prepare_backward_weights(cuda_kernel *k)
{
    const linear_attributes *a = &k->base.op.u.linear;
    cublaslt_shape shape = {a->in, a->out, a->m, false, true, CUBLASLT_K, false, false, {}, {}};
    TRY(prepare_product(k, shape));
    size_t columns = a->bias ? column_workspace(a->m, a->out, write_sum::SUMS) : 0;
    if (columns > k->base.workspace) k->base.workspace = columns;
    return STATUS_OK;
}

/* ---- passes around the product ---------------------------------------------------------------- */

/* y = act(y), and its slope there where `slope` is given. */
template <typename T, int V> __global__ static void activate_in_place(int act, int64_t count, T *y, T *slope)
{
    for (int64_t i = global_thread() * V; i < count; i += grid_threads() * V) {
        float values[V], slopes[V];
        load_pack<V>(y + i, values);
        for (int v = 0; v < V; v++) {
            slopes[v] = slope ? activate_backward(act, values[v], 1) : 0;
            values[v] = activate(act, values[v]);
        }
        store_pack<V>(y + i, values);
        if (slope) store_pack<V>(slope + i, slopes);
    }
}

template <typename T, int V> __global__ static void gradient_in_place(int act, int64_t count, const T *kept, T *dy)
{
    for (int64_t i = global_thread() * V; i < count; i += grid_threads() * V) {
        float values[V], gradient[V];
        load_pack<V>(kept + i, values);
        load_pack<V>(dy + i, gradient);
        for (int v = 0; v < V; v++)
            gradient[v] = act == ACTIVATION_RELU ? activate_backward(act, values[v], gradient[v]) : values[v] * gradient[v];
        store_pack<V>(dy + i, gradient);
    }
}

template <int V> static dim3 grid_for(int64_t count)
{
    return dim3(blocks_for(ceil_div(count, V), THREADS));
}

template <typename T> struct store_biased {
    T *y;
    const T *bias; /* may be NULL */
    int64_t columns;
    bool relu;
    __device__ void take(int64_t i, int64_t j, float sum) const
    {
        float value = bias ? sum + load(bias + j) : sum;
        store(y + i * columns + j, relu ? activate(ACTIVATION_RELU, value) : value);
    }
};

/* X for cuBLASLt. */
static status take_x(const cuda_kernel *k, cudaStream_t s, const void *x, int64_t m, void *workspace, const void **out)
{
    const linear_attributes *a = &k->base.op.u.linear;
    *out = x;
    if (!rounds_x(k)) return STATUS_OK;
    *out = (char *)workspace + cublaslt_workspace(plan_of(k));
    return cuda_round(cuda_device_of(k), s, m * a->in, (const float *)x, (void *)*out);
}

/* ---- the operations --------------------------------------------------------------------------- */

/* X: the type of x; T: of the other activations, W and B. */
template <typename X, typename T>
static status forward_product(const cuda_kernel *k, cudaStream_t s, void *const *o, int64_t m, void *workspace)
{
    const linear_attributes *a = &k->base.op.u.linear;
    const X *x = (const X *)o[LINEAR_FWD_X];
    const T *w = (const T *)o[LINEAR_FWD_W], *b = a->bias ? (const T *)o[LINEAR_FWD_B] : nullptr;
    T *y = (T *)o[LINEAR_FWD_Y];
    const void *taken;
    if (!plan_of(k))
        return product(k, s, strided<X>{x, a->in, 1}, strided<T>{w, 1, a->in},
                       store_biased<T>{y, b, a->out, a->act == ACTIVATION_RELU}, m, a->out, a->in);
    TRY(take_x(k, s, x, m, workspace, &taken));
    return cublaslt_run(plan_of(k), s, w, taken, b, y, m, false, workspace);
}

template <typename T>
static status forward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars, void *workspace)
{
    const linear_attributes *a = &k->base.op.u.linear;
    constexpr int V = wide_pack<T>();
    int64_t m = cuda_rows(scalars, a->m), count = m * a->out;
    T *y = (T *)o[LINEAR_FWD_Y], *slope = (T *)o[LINEAR_FWD_SLOPE];
    TRY(k->base.op.wide_x ? (forward_product<float, T>(k, s, o, m, workspace))
                          : (forward_product<T, T>(k, s, o, m, workspace)));
    if (a->act == ACTIVATION_NONE || a->act == ACTIVATION_RELU) return STATUS_OK;
    if (packs<T>(count, o))
        return launch(k, s, activate_in_place<T, V>, grid_for<V>(count), dim3(THREADS), a->act, count, y, slope);
    return launch(k, s, activate_in_place<T, 1>, grid_for<1>(count), dim3(THREADS), a->act, count, y, slope);
}

template <typename T>
static status backward_data(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars,
                            void *workspace)
{
    const linear_attributes *a = &k->base.op.u.linear;
    int64_t m = cuda_rows(scalars, a->m);
    const T *dy = (const T *)o[LINEAR_BWD_DATA_DY], *w = (const T *)o[LINEAR_BWD_DATA_W];
    T *dx = (T *)o[LINEAR_BWD_DATA_DX];
    if (plan_of(k)) return cublaslt_run(plan_of(k), s, w, dy, nullptr, dx, m, false, workspace);
    return product(k, s, strided<T>{dy, a->out, 1}, strided<T>{w, a->in, 1}, store_plain<T>{dx, a->in, false}, m, a->in,
                   a->out);
}

template <typename X, typename T>
static status weights_product(const cuda_kernel *k, cudaStream_t s, void *const *o, int64_t m, bool add, void *workspace)
{
    const linear_attributes *a = &k->base.op.u.linear;
    const X *x = (const X *)o[LINEAR_BWD_WEIGHTS_X];
    const T *dy = (const T *)o[LINEAR_BWD_WEIGHTS_DY];
    float *dw = (float *)o[LINEAR_BWD_WEIGHTS_DW];
    const void *taken;
    if (!plan_of(k))
        return product(k, s, strided<T>{dy, 1, a->out}, strided<X>{x, a->in, 1}, store_plain<float>{dw, a->in, add},
                       a->out, a->in, m);
    TRY(take_x(k, s, x, m, workspace, &taken));
    return cublaslt_run(plan_of(k), s, taken, dy, nullptr, dw, m, add, workspace);
}

template <typename T>
static status backward_weights(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars,
                               void *workspace)
{
    const linear_attributes *a = &k->base.op.u.linear;
    constexpr int V = wide_pack<T>();
    int64_t m = cuda_rows(scalars, a->m), count = m * a->out;
    bool add = cuda_accumulates(k, scalars);
    const T *kept = (const T *)o[LINEAR_BWD_WEIGHTS_ACT];
    T *dy = (T *)o[LINEAR_BWD_WEIGHTS_DY];
    if (a->act != ACTIVATION_NONE)
        TRY(packs<T>(count, o) ? launch(k, s, gradient_in_place<T, V>, grid_for<V>(count), dim3(THREADS), a->act, count,
                                        kept, dy)
                               : launch(k, s, gradient_in_place<T, 1>, grid_for<1>(count), dim3(THREADS), a->act, count,
                                        kept, dy));
    TRY(k->base.op.wide_x ? (weights_product<float, T>(k, s, o, m, add, workspace))
                          : (weights_product<T, T>(k, s, o, m, add, workspace)));
    if (!a->bias) return STATUS_OK;
    return sum_columns(k, s, (const T *)dy, (float *)o[LINEAR_BWD_WEIGHTS_DB], add, m, a->out, workspace);
}

extern "C" {
const cuda_kernel_entry cuda_linear_forward = {prepare_forward, by_storage<forward<float>, forward<bf16>>, release};
const cuda_kernel_entry cuda_linear_backward_data = {prepare_backward_data,
                                                     by_storage<backward_data<float>, backward_data<bf16>>, release};
const cuda_kernel_entry cuda_linear_backward_weights = {
    prepare_backward_weights, by_storage<backward_weights<float>, backward_weights<bf16>>, release};
}
