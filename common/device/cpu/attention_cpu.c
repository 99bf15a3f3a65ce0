/* Computes attention one head at a time, in blocks of query rows. The scores of a block stay in the cache.
 * The backward pass recomputes the probabilities from the log-sum-exp (Dao et al., "FlashAttention",
 * 2022). */
#include "common/device/cpu/gemm.h"

#include <math.h>

static int64_t rows_of_block(const attention_attributes *a)
{
    int64_t rows = a->sequence > 512 ? 64 : 128;
    return rows < a->sequence ? rows : a->sequence;
}

/* Returns the number of floats that one part of the job needs: scores and their gradients [block, sequence],
 * one value per row, and scratch memory for the multiplications. */
static int64_t floats_of_part(const attention_attributes *a)
{
    int64_t block = rows_of_block(a);
    cpu_gemm_shape scores = {.transpose_b = true, .m = block, .n = a->sequence, .k = a->width};
    int64_t floats = 2 * block * a->sequence + block + (int64_t)(cpu_gemm_prepare(&scores) / sizeof(float));
    return (floats + 15) / 16 * 16;
}

static size_t workspace_bytes(const host_kernel *kernel)
{
    return (size_t)(kernel->threads * floats_of_part(&kernel->base.op.u.attention)) * sizeof(float);
}

/* One block of one head: queries [first, first + scores.rows) and the first scores.columns keys. */
typedef struct attention_block {
    const cpu_isa *isa;
    const attention_attributes *attributes;
    cpu_scores scores;
    float *gradients, *row, *gemm;
} attention_block;

static attention_block block_at(const host_call *call, int part, int64_t first)
{
    const attention_attributes *a = &call->op->u.attention;
    int64_t most = rows_of_block(a), rows = a->sequence - first < most ? a->sequence - first : most;
    int64_t columns = a->causal ? first + rows : a->sequence;
    attention_block b = {.isa = cpu_isa_of(call->kernel), .attributes = a};
    b.scores = (cpu_scores){.s = (float *)call->workspace + part * floats_of_part(a),
                            .stride = a->sequence,
                            .rows = rows,
                            .columns = columns,
                            .visible = a->causal ? first : columns,
                            .scale = (float)(1 / sqrt((double)a->width))};
    b.gradients = b.scores.s + most * a->sequence;
    b.row = b.gradients + most * a->sequence;
    b.gemm = b.row + most;
    return b;
}

/* Computes c [rows, columns] = left right^T over the width of a head. */
static void rows_by_rows(const attention_block *b, const float *left, int64_t left_stride, const float *right,
                         float *c)
{
    const attention_attributes *a = b->attributes;
    cpu_gemm_shape shape = {false,    true,        b->scores.rows, b->scores.columns,
                            a->width, left_stride, a->stride,      a->sequence};
    cpu_gemm(b->isa, &shape, left, right, false, c, b->gemm);
}

/* Computes c [rows, width] = p [rows, columns] v [columns, width]. */
static void rows_by_columns(const attention_block *b, const float *p, const float *v, float *c,
                            int64_t c_stride)
{
    const attention_attributes *a = b->attributes;
    cpu_gemm_shape shape = {false,       false,     b->scores.rows, a->width, b->scores.columns,
                            a->sequence, a->stride, c_stride};
    cpu_gemm(b->isa, &shape, p, v, false, c, NULL);
}

/* Computes c [columns, width] = p^T [columns, rows] x [rows, width], or adds this product to c if `add`. */
static void columns_by_columns(const attention_block *b, const float *p, const float *x, int64_t x_stride,
                               bool add, float *c)
{
    const attention_attributes *a = b->attributes;
    cpu_gemm_shape shape = {true,           false,       b->scores.columns, a->width,
                            b->scores.rows, a->sequence, x_stride,          a->stride};
    cpu_gemm(b->isa, &shape, p, x, add, c, NULL);
}

static void forward_part(const void *context, int part, int64_t first, int64_t end)
{
    const host_call *call = context;
    const attention_attributes *a = &call->op->u.attention;
    const cpu_softmax *kernels = cpu_isa_of(call->kernel)->softmax;
    int64_t hidden = a->heads * a->width, block = rows_of_block(a);
    for (int64_t head = first; head < end; head++) {
        int64_t row = head / a->heads * a->sequence, column = head % a->heads * a->width;
        int64_t at = row * a->stride + column;
        const float *q = cpu_at(call, ATT_FWD_Q, at), *k = cpu_at(call, ATT_FWD_K, at),
                    *v = cpu_at(call, ATT_FWD_V, at);
        float *out = cpu_at(call, ATT_FWD_OUT, row * hidden + column);
        float *lse = cpu_at(call, ATT_FWD_LSE, head * a->sequence);
        for (int64_t i = 0; i < a->sequence; i += block) {
            attention_block b = block_at(call, part, i);
            rows_by_rows(&b, q + i * a->stride, a->stride, k, b.scores.s);
            kernels->attention_forward(&b.scores, b.row, lse + i);
            rows_by_columns(&b, b.scores.s, v, out + i * hidden, hidden);
            kernels->scale_rows(out + i * hidden, hidden, b.scores.rows, a->width, b.row);
        }
    }
}

static void forward(const host_call *call)
{
    const attention_attributes *a = &call->op->u.attention;
    cpu_parallel(call->kernel->threads, a->batch * a->heads, 1, forward_part, call);
}

/* Computes the gradients of heads [first, end), with dP = dout V^T and delta = the row sums of dout * out:
 *
 *   dS = P (dP - delta) / sqrt(width),  dQ = dS K,  dK = dS^T Q,  dV = P^T dout
 *
 * Processes the last block first, because this block sees every key even if attention is causal. The last
 * block writes dK and dV, and the other blocks add to dK and dV. */
static void backward_part(const void *context, int part, int64_t first, int64_t end)
{
    const host_call *call = context;
    const attention_attributes *a = &call->op->u.attention;
    const cpu_softmax *kernels = cpu_isa_of(call->kernel)->softmax;
    int64_t hidden = a->heads * a->width, block = rows_of_block(a), last = (a->sequence - 1) / block * block;
    for (int64_t head = first; head < end; head++) {
        int64_t row = head / a->heads * a->sequence, column = head % a->heads * a->width;
        int64_t at = row * a->stride + column, out_at = row * hidden + column;
        const float *q = cpu_at(call, ATT_BWD_Q, at), *k = cpu_at(call, ATT_BWD_K, at),
                    *v = cpu_at(call, ATT_BWD_V, at);
        const float *lse = cpu_at(call, ATT_BWD_LSE, head * a->sequence);
        float *dq = cpu_at(call, ATT_BWD_DQ, at), *dk = cpu_at(call, ATT_BWD_DK, at),
              *dv = cpu_at(call, ATT_BWD_DV, at);
        for (int64_t i = last; i >= 0; i -= block) {
            const float *out = cpu_at(call, ATT_BWD_OUT, out_at + i * hidden);
            const float *dout = cpu_at(call, ATT_BWD_DOUT, out_at + i * hidden);
            attention_block b = block_at(call, part, i);
            rows_by_rows(&b, q + i * a->stride, a->stride, k, b.scores.s);
            rows_by_rows(&b, dout, hidden, v, b.gradients);
            kernels->row_dots(dout, out, hidden, b.scores.rows, a->width, b.row);
            kernels->attention_backward(&b.scores, b.gradients, lse + i, b.row);
            columns_by_columns(&b, b.scores.s, dout, hidden, i < last, dv);
            columns_by_columns(&b, b.gradients, q + i * a->stride, a->stride, i < last, dk);
            rows_by_columns(&b, b.gradients, k, dq + i * a->stride, a->stride);
        }
    }
}

static void backward(const host_call *call)
{
    const attention_attributes *a = &call->op->u.attention;
    cpu_parallel(call->kernel->threads, a->batch * a->heads, 1, backward_part, call);
}

const host_kernel_entry cpu_attention_forward = {.run = forward, .workspace = workspace_bytes};
const host_kernel_entry cpu_attention_backward = {.run = backward, .workspace = workspace_bytes};
