/* Linear layers: y = act(x w^T + b) with weights [out, in] (torch.nn.Linear).
 *
 * cuBLASLt multiplies, adds the bias, and applies ReLU. Other activations run in a separate pass, because the
 * only GELU of cuBLASLt is the tanh approximation. cuBLASLt also computes the gradient of a bias together
 * with the gradient of the weights. A separate pass sums the bias gradient if cuBLASLt does not support the
 * sums for a shape, if gradients are accumulated, or if --benchmark shows that the separate pass takes less
 * time. Without cuBLASLt, matmul.cuh multiplies.
 *
 * The fast algorithms of cuBLASLt need rows whose length is a multiple of 16 bytes. If a layer has many
 * outputs and a row has another length (GPT-2 has 50257 logits), the multiplication uses copies in the
 * workspace that are padded with zeros. */
#include "common/device/cuda/module/linear_passes.cuh"
#include "common/device/cuda/module/matmul.cuh"

#include <stdlib.h>

extern "C" {
#include "common/device/cuda/module/cublaslt.h"
#include "common/device/cuda/module/trial.h"
}

/* Environment variable that makes a separate pass sum the bias gradients, for comparisons. */
#define PLAIN_PRODUCTS "PSRING_PLAIN_PRODUCTS"

/* Both members are NULL without cuBLASLt. */
struct linear_matmuls {
    cublaslt_matmul *plain;
    cublaslt_matmul *summing; /* includes the bias gradient; NULL except in linear_backward_weights */
};

static linear_matmuls *matmuls_of(const cuda_kernel *k)
{
    return (linear_matmuls *)k->state;
}

static void release(cuda_kernel *k)
{
    linear_matmuls *products = matmuls_of(k);
    if (!products) return;
    cublaslt_release(&products->plain);
    cublaslt_release(&products->summing);
    free(products);
}

/* Returns true if cuBLASLt multiplies bfloat16 and x holds float32 samples. The workspace then holds a
 * rounded copy of x, after cuBLASLt's part. */
static bool rounds_x(const cuda_kernel *k)
{
    return matmuls_of(k)->plain && k->base.op.x_f32 && k->base.op.kind != OP_linear_backward_data;
}

/* Returns the number of outputs rounded up to whole packs, or 0 if no padding is needed. If there are few
 * outputs, nothing is padded, because a copy would take a large part of the time. */
static int64_t padded_outputs(const op_desc *op)
{
    const int64_t many = 1024, pack = op->bf16 ? wide_pack<bf16>() : wide_pack<float>(),
                  out = op->u.linear.out;
    return out > many && out % pack ? ceil_div(out, pack) * pack : 0;
}

/* Offsets in bytes of the copies in the workspace, after cuBLASLt's part. */
struct copy_places {
    size_t x, w, b, y, end; /* w and b are used only if the operation reads them; y is a copy of y or dy */
};

static copy_places places_of(const cuda_kernel *k)
{
    const op_desc *op = &k->base.op;
    const linear_attributes *a = &op->u.linear;
    int64_t size = op->bf16 ? (int64_t)sizeof(bf16) : (int64_t)sizeof(float), padded = padded_outputs(op);
    auto aligned = [](int64_t bytes) { return (size_t)(ceil_div(bytes, 256) * 256); };
    copy_places p;
    p.x = cublaslt_workspace(matmuls_of(k)->plain);
    p.w = p.x + aligned(rounds_x(k) ? a->m * a->in * (int64_t)sizeof(bf16) : 0);
    p.b = p.w + aligned(op->kind == OP_linear_backward_weights ? 0 : padded * a->in * size);
    p.y = p.b + aligned(padded * size);
    p.end = p.y + aligned(a->m * padded * size);
    return p;
}

/* Returns the shape for cuBLASLt. cuBLASLt's matrices are column-major, so cuBLASLt multiplies the transposes
 * of these matrices. In dw^T = x^T dy the second factor is dy, whose column sums are the bias gradient. */
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

/* ---- operands for cuBLASLt ---------------------------------------------------------------------- */

/* Copies rows to rows of a different length: truncates them or pads them with zeros. A thread moves single
 * elements, because rows may begin at addresses that are not aligned to 16 bytes. */
template <typename T>
__global__ void copy_rows_kernel(int64_t rows, const T *from, int64_t length, T *to, int64_t new_length)
{
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y)
        for (int64_t i = global_thread(); i < new_length; i += grid_threads())
            to[row * new_length + i] = i < length ? from[row * length + i] : (T)0.0f;
}

template <typename T>
static status copy_rows(const kernel_call &call, int64_t rows, const void *from, int64_t length, T *to,
                        int64_t new_length)
{
    constexpr int THREADS = 256, EACH = 4;
    dim3 grid(blocks_for(ceil_div(new_length, EACH), THREADS), rows < MOST_BLOCKS_Y ? rows : MOST_BLOCKS_Y);
    return launch(call, copy_rows_kernel<T>, grid, THREADS, rows, (const T *)from, length, to, new_length);
}

/* Copies *data with padded rows to byte `place` of the workspace, and sets *data to the copy. */
template <typename T>
static status pad(const kernel_call &call, const void **data, size_t place, int64_t rows, int64_t length,
                  int64_t new_length)
{
    T *copy = call.scratch(place);
    TRY(copy_rows(call, rows, *data, length, copy, new_length));
    *data = copy;
    return STATUS_OK;
}

/* Replaces operands for cuBLASLt by copies in the workspace if cuBLASLt needs another type or padded rows. */
template <typename T> static status copy_operands(const kernel_call &call, int64_t m, cublaslt_operands *o)
{
    const linear_attributes *a = &call.op->u.linear;
    bool forward = call.op->kind == OP_linear_forward, weights = call.op->kind == OP_linear_backward_weights;
    int64_t padded = padded_outputs(call.op);
    copy_places at = places_of(call.kernel);
    if (rounds_x(call.kernel)) {
        const void **x = forward ? &o->b : &o->a;
        TRY(cuda_f32_to_bf16(call.device(), call.stream, m * a->in, (const float *)*x, call.scratch(at.x)));
        *x = call.scratch(at.x);
    }
    if (!padded) return STATUS_OK;
    if (!weights) TRY(pad<T>(call, &o->a, at.w, 1, a->out * a->in, padded * a->in));
    if (o->bias) TRY(pad<T>(call, &o->bias, at.b, 1, a->out, padded));
    if (!forward) return pad<T>(call, &o->b, at.y, m, a->out, padded);
    o->d = call.scratch(at.y);
    return STATUS_OK;
}

/* Multiplies with cuBLASLt. *refused is true if `plan` is NULL or cuBLASLt does not support the shape. */
template <typename T>
static status multiply(const kernel_call &call, cublaslt_matmul *plan, int64_t m, bool add,
                       cublaslt_operands o, bool *refused)
{
    const linear_attributes *a = &call.op->u.linear;
    int64_t padded = padded_outputs(call.op);
    *refused = true;
    if (!plan) return STATUS_OK;
    TRY(copy_operands<T>(call, m, &o));
    TRY(cublaslt_run(plan, call.stream, &o, m, add, call.workspace, refused));
    if (*refused || !padded || call.op->kind != OP_linear_forward) return STATUS_OK;
    return copy_rows<T>(call, m, o.d, padded, call[LINEAR_FWD_Y], a->out);
}

/* ---- the operations --------------------------------------------------------------------------- */

/* X is the type of x. T is the type of the other activations and of W and B. */
template <typename X, typename T> static status forward_product(const kernel_call &call, int64_t m)
{
    const linear_attributes *a = &call.op->u.linear;
    cublaslt_operands o = {call[LINEAR_FWD_W], call[LINEAR_FWD_X], call[LINEAR_FWD_B], call[LINEAR_FWD_Y],
                           nullptr};
    bool refused;
    TRY(multiply<T>(call, matmuls_of(call.kernel)->plain, m, false, o, &refused));
    if (!refused) return STATUS_OK;
    store_biased<T> y = {call[LINEAR_FWD_Y], call[LINEAR_FWD_B], a->out, a->act == ACTIVATION_RELU};
    return matmul(call, strided<X>{call[LINEAR_FWD_X], a->in, 1}, strided<T>{call[LINEAR_FWD_W], 1, a->in}, y,
                  m, a->out, a->in);
}

template <typename T> static status forward(const kernel_call &call)
{
    const linear_attributes *a = &call.op->u.linear;
    int64_t m = call.rows(a->m), count = m * a->out;
    TRY(call.op->x_f32 ? (forward_product<float, T>(call, m)) : (forward_product<T, T>(call, m)));
    T *y = call[LINEAR_FWD_Y], *slope = call[LINEAR_FWD_SLOPE];
    switch (a->act) {
    case ACTIVATION_SILU:
        return over_packs<T>(call, count, count, activate_rule<T, ACTIVATION_SILU>{y, slope});
    case ACTIVATION_GELU:
        return over_packs<T>(call, count, count, activate_rule<T, ACTIVATION_GELU>{y, slope});
    case ACTIVATION_GELU_TANH:
        return over_packs<T>(call, count, count, activate_rule<T, ACTIVATION_GELU_TANH>{y, slope});
    default:
        return STATUS_OK;
    }
}

template <typename T> static status backward_data(const kernel_call &call)
{
    const linear_attributes *a = &call.op->u.linear;
    int64_t m = call.rows(a->m);
    bool add = call.op->accumulate, refused;
    const T *dy = call[LINEAR_BWD_DATA_DY], *w = call[LINEAR_BWD_DATA_W];
    T *dx = call[LINEAR_BWD_DATA_DX];
    TRY(multiply<T>(call, matmuls_of(call.kernel)->plain, m, add, {w, dy, nullptr, dx, nullptr}, &refused));
    if (!refused) return STATUS_OK;
    return matmul(call, strided<T>{dy, a->out, 1}, strided<T>{w, a->in, 1}, store_plain<T>{dx, a->in, add}, m,
                  a->in, a->out);
}

/* Computes the weight gradient, and stores the bias gradient in `db` unless `db` is NULL. If cuBLASLt refuses
 * the multiplication although its search found an algorithm, a separate pass sums the bias gradient from now
 * on. */
template <typename X, typename T>
static status weights_product(const kernel_call &call, int64_t m, bool add, float *db)
{
    const linear_attributes *a = &call.op->u.linear;
    linear_matmuls *matmuls = matmuls_of(call.kernel);
    const X *x = call[LINEAR_BWD_WEIGHTS_X];
    const T *dy = call[LINEAR_BWD_WEIGHTS_DY];
    float *dw = call[LINEAR_BWD_WEIGHTS_DW];
    cublaslt_matmul *plan = db ? matmuls->summing : matmuls->plain;
    bool refused;
    TRY(multiply<T>(call, plan, m, add, {x, dy, nullptr, dw, db}, &refused));
    if (!refused) return STATUS_OK;
    if (!db)
        return matmul(call, strided<T>{dy, 1, a->out}, strided<X>{x, a->in, 1},
                      store_plain<float>{dw, a->in, add}, a->out, a->in, m);
    cublaslt_release(&matmuls->summing);
    TRY(sum_columns(call, dy, db, false, m, a->out));
    return weights_product<X, T>(call, m, add, nullptr);
}

template <typename T, int V>
static status multiply_slope(const kernel_call &call, int64_t m, write_sum finish)
{
    const linear_attributes *a = &call.op->u.linear;
    slope_terms<T, V> terms = {{}, a->act, call[LINEAR_BWD_WEIGHTS_ACT], call[LINEAR_BWD_WEIGHTS_DY], a->out};
    return column_sums(call, terms, finish, m, a->out);
}

/* Multiplies dy by the activation's slope, and writes the column sums to `sums` unless `sums` is NULL. */
template <typename T> static status before_product(const kernel_call &call, int64_t m, float *sums, bool add)
{
    const linear_attributes *a = &call.op->u.linear;
    T *dy = call[LINEAR_BWD_WEIGHTS_DY];
    if (a->act != ACTIVATION_NONE && sums)
        return WITH_PACKS(multiply_slope, T, a->out, call, m, (write_sum{sums, add}));
    if (a->act != ACTIVATION_NONE)
        return over_packs<T>(call, a->out, m * a->out,
                             slope_rule<T>{a->act, call[LINEAR_BWD_WEIGHTS_ACT], dy});
    return sums ? sum_columns(call, dy, sums, add, m, a->out) : STATUS_OK;
}

/* cuBLASLt's epilogue computes the bias gradient if possible. The epilogue can only store sums, not add them
 * to an existing gradient. */
template <typename T> static status backward_weights(const kernel_call &call)
{
    const linear_attributes *a = &call.op->u.linear;
    cublaslt_matmul *summing = matmuls_of(call.kernel)->summing;
    int64_t m = call.rows(a->m);
    bool add = call.accumulates(), summed = false;
    float *db = call[LINEAR_BWD_WEIGHTS_DB];
    if (summing && !add) TRY(cublaslt_set_rows(summing, m, &summed));
    TRY(before_product<T>(call, m, summed ? nullptr : db, add));
    if (!summed) db = nullptr;
    return call.op->x_f32 ? weights_product<float, T>(call, m, add, db)
                          : weights_product<T, T>(call, m, add, db);
}

/* ---- timing of the bias gradient ---------------------------------------------------------------- */

/* Parts of the trial's memory. */
enum { TRIAL_DY, TRIAL_ACT, TRIAL_SUMS, TRIAL_WORKSPACE, TRIAL_PARTS };

typedef struct sum_trial {
    const cuda_kernel *kernel;
    cuda_trial trial;
} sum_trial;

/* Runs before_product(). If `index` is 0, it also computes the column sums of dy, which are the bias
 * gradient. */
static status attempt(void *context, int index, cudaStream_t s, bool *works)
{
    const sum_trial *t = (const sum_trial *)context;
    const op_desc *op = &t->kernel->base.op;
    void *const *memory = t->trial.memory, *operands[OP_MAX_OPERANDS] = {};
    kernel_call call = {{t->kernel, op, s, operands, nullptr, memory[TRIAL_WORKSPACE]}};
    float *sums = index == 0 ? (float *)memory[TRIAL_SUMS] : nullptr;
    operands[LINEAR_BWD_WEIGHTS_DY] = memory[TRIAL_DY];
    operands[LINEAR_BWD_WEIGHTS_ACT] = memory[TRIAL_ACT];
    *works = true;
    return op->bf16 ? before_product<bf16>(call, op->u.linear.m, sums, false)
                    : before_product<float>(call, op->u.linear.m, sums, false);
}

/* Times the pass with and without the sums. Both elements of ms stay negative if the GPU lacks memory. */
static status time_sums(const cuda_kernel *k, float *ms)
{
    const linear_attributes *a = &k->base.op.u.linear;
    size_t dy = (size_t)(a->m * a->out) * (k->base.op.bf16 ? sizeof(bf16) : sizeof(float));
    size_t bytes[TRIAL_PARTS] = {dy, dy, (size_t)a->out * sizeof(float), k->base.workspace};
    sum_trial t = {k, {}};
    status rc = cuda_trial_open(cuda_device_of(k), TRIAL_PARTS, bytes, &t.trial);
    for (int i = 0; i < 2 && rc == STATUS_OK && t.trial.complete; i++)
        rc = cuda_trial_time(&t.trial, attempt, &t, i, &ms[i]);
    cuda_trial_close(&t.trial);
    return rc;
}

/* Drops the multiplication with sums if this multiplication takes longer than the plain multiplication and
 * the separate pass together. */
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

static status prepare(cuda_kernel *k)
{
    const linear_attributes *a = &k->base.op.u.linear;
    bool sums_bias = k->base.op.kind == OP_linear_backward_weights && a->bias;
    cublaslt_shape shape = shape_of(&k->base.op);
    linear_matmuls *products = (linear_matmuls *)calloc(1, sizeof *products);
    if (!products) return fail(STATUS_SYSTEM, "no memory for a matrix product");
    k->state = products;
    TRY(cublaslt_prepare(cuda_device_of(k), k->base.op.kind, &shape, &products->plain));
    if (products->plain) k->base.workspace = places_of(k).end;
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

extern "C" {
const cuda_kernel_entry cuda_linear_forward = {prepare, BY_STORAGE(forward), release};
const cuda_kernel_entry cuda_linear_backward_data = {prepare, BY_STORAGE(backward_data), release};
const cuda_kernel_entry cuda_linear_backward_weights = {prepare, BY_STORAGE(backward_weights), release};
}
