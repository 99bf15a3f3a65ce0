/* torch.optim.SGD, Adam and AdamW in one pass over the arena, and other operations over the pieces of an
 * arena that a launch lists. */
#include "common/device/cuda/module/chunks.cuh"

typedef chunk_table<piece> piece_table;

/* The elements [begin, end) of the arena that a block processes. */
struct range {
    int64_t begin, end;
};

__device__ static range chunk_of(const piece_table &table, int64_t chunk)
{
    int64_t first;
    const piece &p = table.find(chunk, &first);
    int64_t begin = p.offset + first, end = p.offset + p.count;
    return {begin, begin + CHUNK < end ? begin + CHUNK : end};
}

/* ---- the rules: values read and written per element ------------------------------------------- */

__device__ static inline void put_parameter(float *param, bf16 *rounded, int64_t i, float value)
{
    param[i] = value;
    if (rounded) store(rounded + i, value);
}

/* If the gradient of element i is not finite, records the element in `nonfinite`, which may be NULL. The
 * result does not depend on the order of the blocks. */
__device__ static inline void check_gradient(float scaled, int64_t i, int32_t *nonfinite)
{
    if (nonfinite && !isfinite(scaled)) atomicMax(nonfinite, INT32_MAX - (int32_t)(i / OP_NONFINITE_UNIT));
}

/* The formulas are in reference/optimizer_reference.c. */
struct sgd_rule {
    float *param, *buffer;
    bf16 *rounded; /* may be NULL */
    const float *grad;
    float scale, decay, lr, momentum, undamped;
    bool first_step, nesterov;
    int32_t *nonfinite;
    struct element {
        float param, grad, buffer;
    };
    __device__ element read(int64_t i) const
    {
        return {param[i], grad[i], momentum != 0 && !first_step ? buffer[i] : 0};
    }
    __device__ void write(const element &e, int64_t i) const
    {
        float p = e.param, g = scale * e.grad + decay * p;
        check_gradient(scale * e.grad, i, nonfinite);
        if (momentum != 0) {
            float b = first_step ? g : momentum * e.buffer + undamped * g;
            buffer[i] = b;
            g = nesterov ? g + momentum * b : b;
        }
        put_parameter(param, rounded, i, p - lr * g);
    }
};

struct adam_rule {
    float *param, *m, *v;
    bf16 *rounded; /* may be NULL */
    const float *grad;
    float scale, decay, lr_decay, beta1, rest1, beta2, rest2, step, root_correction2, eps;
    bool decoupled;
    int32_t *nonfinite;
    struct element {
        float param, grad, m, v;
    };
    __device__ element read(int64_t i) const
    {
        return {param[i], grad[i], m[i], v[i]};
    }
    __device__ void write(const element &e, int64_t i) const
    {
        float p = e.param, g = scale * e.grad;
        check_gradient(g, i, nonfinite);
        if (decoupled)
            p -= lr_decay * p;
        else
            g += decay * p;
        float first = beta1 * e.m + rest1 * g, second = beta2 * e.v + rest2 * g * g;
        m[i] = first;
        v[i] = second;
        put_parameter(param, rounded, i, p - step * first / (sqrtf(second) / root_correction2 + eps));
    }
};

struct divide_rule {
    float *x;
    float divisor;
    __device__ float read(int64_t i) const
    {
        return x[i];
    }
    __device__ void write(float value, int64_t i) const
    {
        x[i] = value / divisor;
    }
};

struct fill_rule {
    float *x;
    __device__ float read(int64_t) const
    {
        return 0;
    }
    __device__ void write(float zero, int64_t i) const
    {
        x[i] = zero;
    }
};

/* Updates the chunk that belongs to this block. A thread processes every CHUNK_THREADS-th element, so that
 * neighboring threads have neighboring elements. A thread reads all its elements before it writes the first
 * one, because the compiler cannot move a load before a store that may have the same address. */
template <typename Rule> __global__ void update_kernel(piece_table table, Rule rule)
{
    range r = chunk_of(table, blockIdx.x);
    decltype(rule.read(0)) taken[CHUNK_EACH];
    if (r.end - r.begin < CHUNK) {
        for (int64_t i = r.begin + threadIdx.x; i < r.end; i += CHUNK_THREADS) rule.write(rule.read(i), i);
        return;
    }
    int64_t first = r.begin + threadIdx.x;
#pragma unroll
    for (int i = 0; i < CHUNK_EACH; i++) taken[i] = rule.read(first + i * CHUNK_THREADS);
#pragma unroll
    for (int i = 0; i < CHUNK_EACH; i++) rule.write(taken[i], first + i * CHUNK_THREADS);
}

__global__ static void square_kernel(piece_table table, const float *x, double *parts)
{
    range r = chunk_of(table, blockIdx.x);
    double sum = 0;
    for (int64_t i = r.begin + threadIdx.x; i < r.end; i += CHUNK_THREADS) sum += (double)x[i] * x[i];
    sum = block_sum<CHUNK_THREADS>(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ static void add_parts(int64_t count, const double *parts, double *out)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += CHUNK_THREADS) sum += parts[i];
    sum = block_sum<CHUNK_THREADS>(sum);
    if (threadIdx.x == 0) *out += sum;
}

/* ---- launching -------------------------------------------------------------------------------- */

template <typename Rule> static status update(const kernel_call &call, Rule rule)
{
    piece_table table;
    int next = 0;
    while (table.fill(call.scalars->pieces, call.scalars->piece_count, &next))
        TRY(launch(call, update_kernel<Rule>, table.chunks, CHUNK_THREADS, table, rule));
    return STATUS_OK;
}

static status sgd(const kernel_call &call)
{
    const optimizer_attributes *a = &call.op->u.optimizer;
    const op_scalars *scalars = call.scalars;
    sgd_rule rule = {call[OPT_PARAM],
                     call[OPT_STATE1],
                     call[OPT_BF16],
                     call[OPT_GRAD],
                     (float)scalars->gradient_scale,
                     (float)scalars->weight_decay,
                     (float)scalars->learning_rate,
                     (float)a->momentum,
                     (float)(1 - a->dampening),
                     scalars->first_step,
                     a->nesterov,
                     scalars->nonfinite};
    return update(call, rule);
}

static status adam(const kernel_call &call)
{
    const optimizer_attributes *a = &call.op->u.optimizer;
    const op_scalars *scalars = call.scalars;
    adam_rule rule = {call[OPT_PARAM],
                      call[OPT_STATE1],
                      call[OPT_STATE2],
                      call[OPT_BF16],
                      call[OPT_GRAD],
                      (float)scalars->gradient_scale,
                      (float)scalars->weight_decay,
                      (float)(scalars->learning_rate * scalars->weight_decay),
                      (float)a->beta1,
                      (float)(1 - a->beta1),
                      (float)a->beta2,
                      (float)(1 - a->beta2),
                      (float)(scalars->learning_rate / scalars->bias_correction1),
                      (float)sqrt(scalars->bias_correction2),
                      (float)a->eps,
                      a->decoupled,
                      scalars->nonfinite};
    return update(call, rule);
}

static status divide(const kernel_call &call)
{
    return update(call, divide_rule{call[DIVIDE_X], (float)call.scalars->divisor});
}

static status fill(const kernel_call &call)
{
    return update(call, fill_rule{call[FILL_X]});
}

static status prepare_squares(cuda_kernel *k)
{
    k->base.workspace =
        (size_t)(ceil_div(k->base.op.u.optimizer.count, CHUNK) + piece_table::MOST) * sizeof(double);
    return STATUS_OK;
}

static status sum_squares(const kernel_call &call)
{
    piece_table table;
    int next = 0;
    while (table.fill(call.scalars->pieces, call.scalars->piece_count, &next)) {
        TRY(launch(call, square_kernel, table.chunks, CHUNK_THREADS, table, call[SUMSQ_X], call.scratch()));
        TRY(launch(call, add_parts, 1, CHUNK_THREADS, table.chunks, call.scratch(), call[SUMSQ_OUT]));
    }
    return STATUS_OK;
}

extern "C" {
const cuda_kernel_entry cuda_sgd = {nullptr, by_storage<sgd, sgd>, nullptr};
const cuda_kernel_entry cuda_adam = {nullptr, by_storage<adam, adam>, nullptr};
const cuda_kernel_entry cuda_sum_squares = {prepare_squares, by_storage<sum_squares, sum_squares>, nullptr};
const cuda_kernel_entry cuda_divide = {nullptr, by_storage<divide, divide>, nullptr};
const cuda_kernel_entry cuda_fill = {nullptr, by_storage<fill, fill>, nullptr};
}
