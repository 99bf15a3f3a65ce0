/* Linear layers: y = act(x w^T + b) with weights [out, in] (torch.nn.Linear).
 *
 * cuBLASLt multiplies, adds the bias, and applies ReLU. Other activations run in a separate pass, since
 * cuBLASLt's GELU is the tanh approximation. cuBLASLt also computes the gradient of a bias together with the
 * gradient of the weights. A separate pass sums the bias gradient if cuBLASLt cannot sum for a shape, if
 * gradients are accumulated, or if --benchmark shows that the separate pass takes less time. Without
 * cuBLASLt, matmul.cuh multiplies.
 *
 * The fast algorithms of cuBLASLt need rows of whole packs of 16 bytes. If many outputs do not fill the last
 * pack (GPT-2 has 50257 logits), the multiplication works on copies in the workspace that are padded with
 * zeros. */
#include "common/device/cuda/module/columns.cuh"
#include "common/device/cuda/module/matmul.cuh"

#include <stdlib.h>

extern "C" {
#include "common/device/cuda/module/cublaslt.h"
#include "common/device/cuda/module/trial.h"
}

/* Makes a separate pass sum the bias gradients, for comparisons. */
#define PLAIN_PRODUCTS "PSRING_PLAIN_PRODUCTS"

/* NULL without cuBLASLt. */
struct linear_matmuls {
    cublaslt_matmul *plain;
    cublaslt_matmul *summing; /* linear_backward_weights: also computes the bias gradient */
};

static linear_matmuls *matmuls_of(const cuda_kernel *k)
{
    return (linear_matmuls *)k->state;
}

static cublaslt_matmul *plan_of(const cuda_kernel *k)
{
    return matmuls_of(k)->plain;
}

static void release(cuda_kernel *k)
{
    linear_matmuls *products = matmuls_of(k);
    if (!products) return;
    cublaslt_release(&products->plain);
    cublaslt_release(&products->summing);
    free(products);
}

/* Returns true if cuBLASLt multiplies bfloat16 and x holds float32 samples. x is then rounded into the
 * workspace, after cuBLASLt's part. */
static bool rounds_x(const cuda_kernel *k)
{
    return plan_of(k) && k->base.op.x_f32 && k->base.op.kind != OP_linear_backward_data;
}

/* Returns the number of outputs rounded up to whole packs, or 0 if all packs are full or there are few
 * outputs, for which a copy would take a large part of the time. */
static int64_t padded_outputs(const op_desc *op)
{
    const int64_t many = 1024, pack = op->bf16 ? wide_pack<bf16>() : wide_pack<float>(),
                  out = op->u.linear.out;
    return out > many && out % pack ? ceil_div(out, pack) * pack : 0;
}

/* Offsets in bytes of the copies in the workspace, after cuBLASLt's part and x. */
struct padded_places {
    size_t w, b, y, end; /* w and b if they are read; y or dy */
};

static padded_places places_of(const cuda_kernel *k)
{
    const op_desc *op = &k->base.op;
    const linear_attributes *a = &op->u.linear;
    int64_t size = op->bf16 ? (int64_t)sizeof(bf16) : (int64_t)sizeof(float), padded = padded_outputs(op);
    auto aligned = [](int64_t bytes) { return (size_t)(ceil_div(bytes, 256) * 256); };
    padded_places p;
    p.w = cublaslt_workspace(plan_of(k)) + aligned(rounds_x(k) ? a->m * a->in * (int64_t)sizeof(bf16) : 0);
    p.b = p.w + aligned(op->kind == OP_linear_backward_weights ? 0 : padded * a->in * size);
    p.y = p.b + aligned(padded * size);
    p.end = p.y + aligned(a->m * padded * size);
    return p;
}

/* Returns the shape for cuBLASLt, which is column-major and so sees the transposes of these matrices. The
 * second factor of dw^T = x^T dy is dy, whose column sums are the bias gradient. */
static cublaslt_shape shape_of(const op_desc *op)
{
    const linear_attributes *a = &op->u.linear;
    dtype in = op->bf16 ? DTYPE_BF16 : DTYPE_F32;
    int64_t padded = padded_outputs(op), out = padded ? padded : a->out;
    if (op->kind == OP_linear_forward)
        return {out,   a->m, a->in, true, false, CUBLASLT_N, a->bias, a->act == ACTIVATION_RELU,
                false, in,   in,    0};
    if (op->kind == OP_linear_backward_data)
        return {a->in, a->m, out, false, false, CUBLASLT_N, false, false, false, in, in, 0};
    return {a->in, a->out, a->m, false, true, CUBLASLT_K, false, false, false, in, DTYPE_F32, padded};
}

static status choose_sum(cuda_kernel *k);

static status prepare(cuda_kernel *k)
{
    const linear_attributes *a = &k->base.op.u.linear;
    bool sums_bias = k->base.op.kind == OP_linear_backward_weights && a->bias;
    cublaslt_shape shape = shape_of(&k->base.op);
    linear_matmuls *products = (linear_matmuls *)calloc(1, sizeof *products);
    if (!products) return fail(STATUS_SYSTEM, "no memory for a matrix product");
    k->state = products;
    TRY(cublaslt_prepare(cuda_device_of(k), k->base.op.kind, &shape, &products->plain));
    k->base.workspace = cublaslt_workspace(products->plain);
    if (rounds_x(k)) k->base.workspace += (size_t)(a->m * a->in) * sizeof(bf16);
    if (products->plain && padded_outputs(&k->base.op)) k->base.workspace = places_of(k).end;
    if (!sums_bias) return STATUS_OK;
    shape.sums = true;
    if (products->plain && !getenv(PLAIN_PRODUCTS))
        TRY(cublaslt_prepare(cuda_device_of(k), k->base.op.kind, &shape, &products->summing));
    size_t columns = column_workspace(a->m, a->out, write_sum::SUMS);
    if (columns > k->base.workspace) k->base.workspace = columns;
    if (products->summing && cuda_device_of(k)->base.config.benchmark) TRY(choose_sum(k));
    log_debug("linear %lldx%lld to %lld: the bias's gradient %s", (long long)a->m, (long long)a->in,
              (long long)a->out, products->summing ? "with the weights'" : "by a separate sum");
    return STATUS_OK;
}

/* ---- passes before and after the multiplication ----------------------------------------------- */

template <typename T, int ACT> struct activate_rule {
    T *y, *slope; /* slope may be NULL */
    template <int V> __device__ void at(int64_t i) const
    {
        float values[V], slopes[V];
        load_pack<V>(y + i, values);
        for (int v = 0; v < V; v++) activate_with_slope<ACT>(values[v], &values[v], &slopes[v]);
        store_pack<V>(y + i, values);
        if (slope) store_pack<V>(slope + i, slopes);
    }
};

/* Computes dy act'. `kept` is y for RELU, the slope for the others. */
template <int V> __device__ static inline void apply_slope(int act, const float *kept, float *dy)
{
    for (int v = 0; v < V; v++)
        dy[v] = act == ACTIVATION_RELU ? activate_backward(act, kept[v], dy[v]) : kept[v] * dy[v];
}

template <typename T> struct slope_rule {
    int act;
    const T *kept;
    T *dy;
    template <int V> __device__ void at(int64_t i) const
    {
        float values[V], gradient[V];
        load_pack<V>(kept + i, values);
        load_pack<V>(dy + i, gradient);
        apply_slope<V>(act, values, gradient);
        store_pack<V>(dy + i, gradient);
    }
};

/* Terms that compute dy act' and sum its columns, from the stored values. */
template <typename T, int PACK> struct slope_terms : keeps_nothing {
    static constexpr int SUMS = 1, V = PACK, AT_ONCE = 4;
    struct row_taken {
        pack<T, V> kept, dy;
    };
    int act;
    const T *kept;
    T *dy;
    int64_t c;
    __device__ row_taken read(int64_t row, int64_t column) const
    {
        int64_t i = row * c + column;
        return {take_pack<V>(kept + i), take_pack<V>(dy + i)};
    }
    __device__ void add(nothing_kept, const row_taken &taken, int64_t row, int64_t column,
                        float (*sums)[V]) const
    {
        float values[V], gradient[V];
        unpack<V>(taken.kept, values);
        unpack<V>(taken.dy, gradient);
        apply_slope<V>(act, values, gradient);
        store_pack<V>(dy + row * c + column, gradient);
        for (int v = 0; v < V; v++) sums[0][v] += as_stored<T>(gradient[v]);
    }
};

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

static status take_x(const cuda_kernel *k, cudaStream_t s, const void *x, int64_t m, void *workspace,
                     const void **out)
{
    const linear_attributes *a = &k->base.op.u.linear;
    *out = x;
    if (!rounds_x(k)) return STATUS_OK;
    *out = (char *)workspace + cublaslt_workspace(plan_of(k));
    return cuda_f32_to_bf16(cuda_device_of(k), s, m * a->in, (const float *)x, (void *)*out);
}

/* Copies rows to rows of another length, which are cut or padded with zeros. Neighboring threads take
 * neighboring elements, because rows are not aligned. */
template <typename T>
__global__ void copy_rows_kernel(int64_t rows, const T *from, int64_t length, T *to, int64_t new_length)
{
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y)
        for (int64_t i = global_thread(); i < new_length; i += grid_threads())
            to[row * new_length + i] = i < length ? from[row * length + i] : (T)0.0f;
}

template <typename T>
static status copy_rows(const cuda_kernel *k, cudaStream_t s, int64_t rows, const T *from, int64_t length,
                        T *to, int64_t new_length)
{
    constexpr int THREADS = 256, EACH = 4;
    dim3 grid(blocks_for(ceil_div(new_length, EACH), THREADS),
              (unsigned)(rows < MOST_BLOCKS_Y ? rows : MOST_BLOCKS_Y));
    return launch(k, s, copy_rows_kernel<T>, grid, dim3(THREADS), rows, from, length, to, new_length);
}

/* Replaces W, B and dy by padded copies for cuBLASLt. A NULL pointer stays NULL. */
template <typename T>
static status take_padded(const cuda_kernel *k, cudaStream_t s, int64_t m, const T **w, const T **b,
                          const T **dy, void *workspace)
{
    const linear_attributes *a = &k->base.op.u.linear;
    int64_t padded = padded_outputs(&k->base.op);
    if (!padded) return STATUS_OK;
    padded_places at = places_of(k);
    T *new_w = (T *)((char *)workspace + at.w), *new_b = (T *)((char *)workspace + at.b),
      *new_dy = (T *)((char *)workspace + at.y);
    if (*w) TRY(copy_rows(k, s, 1, *w, a->out * a->in, new_w, padded * a->in));
    if (*b) TRY(copy_rows(k, s, 1, *b, a->out, new_b, padded));
    if (*dy) TRY(copy_rows(k, s, m, *dy, a->out, new_dy, padded));
    if (*w) *w = new_w;
    if (*b) *b = new_b;
    if (*dy) *dy = new_dy;
    return STATUS_OK;
}

/* ---- the operations --------------------------------------------------------------------------- */

/* X is the type of x, T the type of the other activations, W and B. */
template <typename X, typename T>
static status forward_product(const cuda_kernel *k, cudaStream_t s, void *const *o, int64_t m,
                              void *workspace)
{
    const linear_attributes *a = &k->base.op.u.linear;
    const X *x = (const X *)o[LINEAR_FWD_X];
    const T *w = (const T *)o[LINEAR_FWD_W], *b = a->bias ? (const T *)o[LINEAR_FWD_B] : nullptr;
    T *y = (T *)o[LINEAR_FWD_Y];
    const void *taken;
    bool refused = true;
    if (plan_of(k)) {
        TRY(take_x(k, s, x, m, workspace, &taken));
        int64_t padded = padded_outputs(&k->base.op);
        const T *taken_w = w, *taken_b = b, *none = nullptr;
        T *made = padded ? (T *)((char *)workspace + places_of(k).y) : y;
        TRY(take_padded(k, s, m, &taken_w, &taken_b, &none, workspace));
        cublaslt_operands operands = {taken_w, taken, taken_b, made, nullptr};
        TRY(cublaslt_run(plan_of(k), s, &operands, m, false, workspace, &refused));
        if (!refused && padded) return copy_rows(k, s, m, (const T *)made, padded, y, a->out);
    }
    if (!refused) return STATUS_OK;
    return matmul(k, s, strided<X>{x, a->in, 1}, strided<T>{w, 1, a->in},
                  store_biased<T>{y, b, a->out, a->act == ACTIVATION_RELU}, m, a->out, a->in);
}

template <typename T>
static status forward(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars,
                      void *workspace)
{
    const linear_attributes *a = &k->base.op.u.linear;
    int64_t m = cuda_rows(scalars, a->m), count = m * a->out;
    TRY(k->base.op.x_f32 ? (forward_product<float, T>(k, s, o, m, workspace))
                         : (forward_product<T, T>(k, s, o, m, workspace)));
    T *y = (T *)o[LINEAR_FWD_Y], *slope = (T *)o[LINEAR_FWD_SLOPE];
    switch (a->act) {
    case ACTIVATION_SILU:
        return over_packs<T>(k, s, o, count, count, activate_rule<T, ACTIVATION_SILU>{y, slope});
    case ACTIVATION_GELU:
        return over_packs<T>(k, s, o, count, count, activate_rule<T, ACTIVATION_GELU>{y, slope});
    case ACTIVATION_GELU_TANH:
        return over_packs<T>(k, s, o, count, count, activate_rule<T, ACTIVATION_GELU_TANH>{y, slope});
    default:
        return STATUS_OK;
    }
}

template <typename T>
static status backward_data(const cuda_kernel *k, cudaStream_t s, void *const *o, const op_scalars *scalars,
                            void *workspace)
{
    const linear_attributes *a = &k->base.op.u.linear;
    int64_t m = cuda_rows(scalars, a->m);
    const T *dy = (const T *)o[LINEAR_BWD_DATA_DY], *w = (const T *)o[LINEAR_BWD_DATA_W];
    T *dx = (T *)o[LINEAR_BWD_DATA_DX];
    bool add = k->base.op.accumulate, refused = true;
    if (plan_of(k)) {
        const T *taken_w = w, *taken_dy = dy, *none = nullptr;
        TRY(take_padded(k, s, m, &taken_w, &none, &taken_dy, workspace));
        cublaslt_operands operands = {taken_w, taken_dy, nullptr, dx, nullptr};
        TRY(cublaslt_run(plan_of(k), s, &operands, m, add, workspace, &refused));
    }
    if (!refused) return STATUS_OK;
    return matmul(k, s, strided<T>{dy, a->out, 1}, strided<T>{w, a->in, 1}, store_plain<T>{dx, a->in, add}, m,
                  a->in, a->out);
}

/* Computes the weight gradient, and the bias gradient in `db` unless it is NULL. If cuBLASLt refuses although
 * its search found an algorithm, a separate pass sums the bias gradient from now on. */
template <typename X, typename T>
static status weights_product(const cuda_kernel *k, cudaStream_t s, void *const *o, int64_t m, bool add,
                              float *db, void *workspace)
{
    const linear_attributes *a = &k->base.op.u.linear;
    const X *x = (const X *)o[LINEAR_BWD_WEIGHTS_X];
    const T *dy = (const T *)o[LINEAR_BWD_WEIGHTS_DY];
    float *dw = (float *)o[LINEAR_BWD_WEIGHTS_DW];
    const void *taken;
    bool refused = true;
    if (plan_of(k)) {
        TRY(take_x(k, s, x, m, workspace, &taken));
        const T *taken_dy = dy, *none = nullptr;
        TRY(take_padded(k, s, m, &none, &none, &taken_dy, workspace));
        cublaslt_operands operands = {taken, taken_dy, nullptr, dw, db};
        TRY(cublaslt_run(db ? matmuls_of(k)->summing : plan_of(k), s, &operands, m, add, workspace,
                         &refused));
    }
    if (!refused) return STATUS_OK;
    if (!db)
        return matmul(k, s, strided<T>{dy, 1, a->out}, strided<X>{x, a->in, 1},
                      store_plain<float>{dw, a->in, add}, a->out, a->in, m);
    cublaslt_release(&matmuls_of(k)->summing);
    TRY(sum_columns(k, s, dy, db, false, m, a->out, workspace));
    return weights_product<X, T>(k, s, o, m, add, nullptr, workspace);
}

template <typename T, int V>
static status multiply_slope(const cuda_kernel *k, cudaStream_t s, void *const *o, int64_t m,
                             write_sum finish, void *workspace)
{
    const linear_attributes *a = &k->base.op.u.linear;
    slope_terms<T, V> terms = {
        {}, a->act, (const T *)o[LINEAR_BWD_WEIGHTS_ACT], (T *)o[LINEAR_BWD_WEIGHTS_DY], a->out};
    return column_sums(k, s, terms, finish, m, a->out, (double *)workspace);
}

/* Sets *out to true if the epilogue can compute the bias gradient. The epilogue stores sums and cannot add to
 * them. */
static status can_sum_with_weights(const cuda_kernel *k, int64_t m, bool add, bool *out)
{
    cublaslt_matmul *summing = matmuls_of(k)->summing;
    *out = false;
    return summing && !add ? cublaslt_set_rows(summing, m, out) : STATUS_OK;
}

/* Multiplies dy by the activation's slope, and writes the column sums to `own` unless it is NULL. */
template <typename T>
static status before_product(const cuda_kernel *k, cudaStream_t s, void *const *o, int64_t m, float *own,
                             bool add, void *workspace)
{
    const linear_attributes *a = &k->base.op.u.linear;
    T *dy = (T *)o[LINEAR_BWD_WEIGHTS_DY];
    if (a->act != ACTIVATION_NONE && own)
        return WITH_PACKS(multiply_slope, T, a->out, k, s, o, m, (write_sum{own, add}), workspace);
    if (a->act != ACTIVATION_NONE)
        return over_packs<T>(k, s, o, a->out, m * a->out,
                             slope_rule<T>{a->act, (const T *)o[LINEAR_BWD_WEIGHTS_ACT], dy});
    return own ? sum_columns(k, s, dy, own, add, m, a->out, workspace) : STATUS_OK;
}

template <typename T>
static status backward_weights(const cuda_kernel *k, cudaStream_t s, void *const *o,
                               const op_scalars *scalars, void *workspace)
{
    const linear_attributes *a = &k->base.op.u.linear;
    int64_t m = cuda_rows(scalars, a->m);
    bool add = cuda_accumulates(k, scalars), summed;
    TRY(can_sum_with_weights(k, m, add, &summed));
    float *db = a->bias ? (float *)o[LINEAR_BWD_WEIGHTS_DB] : nullptr, *own = summed ? nullptr : db;
    TRY(before_product<T>(k, s, o, m, own, add, workspace));
    return k->base.op.x_f32 ? weights_product<float, T>(k, s, o, m, add, summed ? db : nullptr, workspace)
                            : weights_product<T, T>(k, s, o, m, add, summed ? db : nullptr, workspace);
}

/* ---- timing of the bias gradient ---------------------------------------------------------------- */

typedef struct sum_trial {
    const cuda_kernel *kernel;
    void *operands[OP_MAX_OPERANDS], *sums, *workspace;
} sum_trial;

/* Runs the pass before the multiplication: index 0 with the sums, index 1 without them. */
static status attempt(void *context, int index, cudaStream_t s, bool *works)
{
    const sum_trial *t = (const sum_trial *)context;
    const linear_attributes *a = &t->kernel->base.op.u.linear;
    float *own = index == 0 ? (float *)t->sums : nullptr;
    *works = true;
    return t->kernel->base.op.bf16
               ? before_product<bf16>(t->kernel, s, t->operands, a->m, own, false, t->workspace)
               : before_product<float>(t->kernel, s, t->operands, a->m, own, false, t->workspace);
}

/* Times both passes. ms[2] stay negative if the GPU lacks memory. */
static status time_sums(const cuda_kernel *k, float *ms)
{
    const linear_attributes *a = &k->base.op.u.linear;
    size_t bytes = (size_t)(a->m * a->out) * (k->base.op.bf16 ? sizeof(bf16) : sizeof(float));
    cuda_trial trial;
    sum_trial t = {k, {}, nullptr, nullptr};
    status rc = cuda_trial_open(cuda_device_of(k), &trial);
    if (rc == STATUS_OK) rc = cuda_trial_memory(&trial, bytes, &t.operands[LINEAR_BWD_WEIGHTS_DY]);
    if (rc == STATUS_OK) rc = cuda_trial_memory(&trial, bytes, &t.operands[LINEAR_BWD_WEIGHTS_ACT]);
    if (rc == STATUS_OK) rc = cuda_trial_memory(&trial, (size_t)a->out * sizeof(float), &t.sums);
    if (rc == STATUS_OK) rc = cuda_trial_memory(&trial, k->base.workspace, &t.workspace);
    bool all =
        t.operands[LINEAR_BWD_WEIGHTS_DY] && t.operands[LINEAR_BWD_WEIGHTS_ACT] && t.sums && t.workspace;
    for (int i = 0; i < 2 && rc == STATUS_OK && all; i++)
        rc = cuda_trial_time(&trial, attempt, &t, i, &ms[i]);
    cuda_trial_close(&trial);
    return rc;
}

/* Drops the multiplication with sums if it takes longer than the plain one with a separate pass. */
static status choose_sum(cuda_kernel *k)
{
    const linear_attributes *a = &k->base.op.u.linear;
    linear_matmuls *products = matmuls_of(k);
    int64_t key[] = {k->base.op.kind, a->m, a->in, a->out, a->act, k->base.op.bf16, k->base.op.x_f32};
    bool separate = false;
    if (!cuda_recall(cuda_device_of(k), key, sizeof key, &separate, sizeof separate)) {
        float ms[2] = {-1, -1}, plain = cublaslt_ms(products->plain),
              summing = cublaslt_ms(products->summing);
        TRY(time_sums(k, ms));
        separate = ms[0] >= 0 && ms[1] >= 0 && plain >= 0 && summing >= 0 && ms[0] + plain < ms[1] + summing;
        log_debug("linear %lldx%lld to %lld: %.3f ms and a sum of %.3f ms, or %.3f ms and %.3f ms with the "
                  "sum in the product",
                  (long long)a->m, (long long)a->in, (long long)a->out, (double)plain, (double)ms[0],
                  (double)summing, (double)ms[1]);
        TRY(cuda_remember(cuda_device_of(k), key, sizeof key, &separate, sizeof separate));
    }
    if (separate) cublaslt_release(&products->summing);
    return STATUS_OK;
}

extern "C" {
const cuda_kernel_entry cuda_linear_forward = {prepare, BY_STORAGE(forward), release};
const cuda_kernel_entry cuda_linear_backward_data = {prepare, BY_STORAGE(backward_data), release};
const cuda_kernel_entry cuda_linear_backward_weights = {prepare, BY_STORAGE(backward_weights), release};
}
