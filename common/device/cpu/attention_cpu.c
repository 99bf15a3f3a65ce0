/* Attention head by head, in blocks of rows whose scores stay in the cache. Backward recomputes the
 * probabilities from the log-sum-exp (Dao et al., "FlashAttention", 2022). */
#include "common/device/cpu/gemm.h"

#include <math.h>

typedef struct attention_job {
    const cpu_isa *isa;
    const attention_attributes *attributes;
    void *const *operands;
    int64_t block; /* rows */
    char *workspace;
    size_t part_bytes;
} attention_job;

/* A part's memory: scores and their gradients [block, sequence], two arrays [block], the products' scratch.
 */
typedef struct attention_scratch {
    float *scores, *gradients, *row[2], *gemm;
} attention_scratch;

static int64_t rows_of_block(const attention_attributes *a)
{
    int64_t rows = a->sequence > 512 ? 64 : 128;
    return rows < a->sequence ? rows : a->sequence;
}

static size_t floats_of_part(const attention_attributes *a, int64_t block)
{
    cpu_gemm_shape scores = {.transpose_b = true, .m = block, .n = a->sequence, .k = a->width};
    size_t floats = (size_t)(2 * block * a->sequence + 2 * block) + cpu_gemm_scratch(&scores) / sizeof(float);
    return (floats + 15) / 16 * 16;
}

static attention_scratch scratch_of(const attention_job *job, int part)
{
    const attention_attributes *a = job->attributes;
    attention_scratch s = {.scores = (float *)(job->workspace + (size_t)part * job->part_bytes)};
    s.gradients = s.scores + job->block * a->sequence;
    s.row[0] = s.gradients + job->block * a->sequence;
    s.row[1] = s.row[0] + job->block;
    s.gemm = s.row[1] + job->block;
    return s;
}

static status prepare(host_kernel *kernel, const device_layout *layout)
{
    const attention_attributes *a = &kernel->base.op.u.attention;
    kernel->base.workspace = (size_t)kernel->threads * floats_of_part(a, rows_of_block(a)) * sizeof(float);
    return STATUS_OK;
}

static void run_heads(const host_kernel *kernel, cpu_part_function run, void *const *operands,
                      void *workspace)
{
    const attention_attributes *a = &kernel->base.op.u.attention;
    int64_t block = rows_of_block(a);
    attention_job job = {
        cpu_isa_of(kernel), a, operands, block, workspace, floats_of_part(a, block) * sizeof(float)};
    cpu_parallel(kernel->threads, a->batch * a->heads, 1, run, &job);
}

/* One block of one head: rows [first, first + rows) against the first `columns` keys. */
typedef struct attention_block {
    int64_t first, rows, columns;
    cpu_scores scores;
} attention_block;

static attention_block block_at(const attention_job *job, int64_t first, const attention_scratch *s)
{
    const attention_attributes *a = job->attributes;
    int64_t rows = a->sequence - first < job->block ? a->sequence - first : job->block;
    int64_t columns = a->causal ? first + rows : a->sequence;
    cpu_scores scores = {.s = s->scores,
                         .stride = a->sequence,
                         .rows = rows,
                         .columns = columns,
                         .visible = a->causal ? first : columns,
                         .scale = (float)(1 / sqrt((double)a->width))};
    return (attention_block){first, rows, columns, scores};
}

/* c [rows, columns] = a b^T over the width of a head. */
static void rows_by_rows(const attention_job *job, const attention_block *b, const float *left,
                         int64_t left_stride, const float *right, float *c, float *scratch)
{
    const attention_attributes *a = job->attributes;
    cpu_gemm_shape shape = {.transpose_b = true,
                            .m = b->rows,
                            .n = b->columns,
                            .k = a->width,
                            .a_stride = left_stride,
                            .b_stride = a->stride,
                            .c_stride = a->sequence};
    cpu_gemm(job->isa, &shape, left, right, false, c, scratch);
}

/* c [rows, width] = p [rows, columns] v */
static void rows_by_columns(const attention_job *job, const attention_block *b, const float *p,
                            const float *v, float *c, int64_t c_stride)
{
    const attention_attributes *a = job->attributes;
    cpu_gemm_shape shape = {.m = b->rows,
                            .n = a->width,
                            .k = b->columns,
                            .a_stride = a->sequence,
                            .b_stride = a->stride,
                            .c_stride = c_stride};
    cpu_gemm(job->isa, &shape, p, v, false, c, NULL);
}

/* c [columns, width] (+)= p^T [columns, rows] x [rows, width] */
static void columns_by_columns(const attention_job *job, const attention_block *b, const float *p,
                               const float *x, int64_t x_stride, bool add, float *c)
{
    const attention_attributes *a = job->attributes;
    cpu_gemm_shape shape = {.transpose_a = true,
                            .m = b->columns,
                            .n = a->width,
                            .k = b->rows,
                            .a_stride = a->sequence,
                            .b_stride = x_stride,
                            .c_stride = a->stride};
    cpu_gemm(job->isa, &shape, p, x, add, c, NULL);
}

static void forward_part(const void *context, int part, int64_t first, int64_t end)
{
    const attention_job *job = context;
    const attention_attributes *a = job->attributes;
    attention_scratch s = scratch_of(job, part);
    int64_t hidden = a->heads * a->width;
    for (int64_t head = first; head < end; head++) {
        int64_t row = head / a->heads * a->sequence, column = head % a->heads * a->width;
        const float *q = (const float *)job->operands[ATT_FWD_Q] + row * a->stride + column;
        const float *k = (const float *)job->operands[ATT_FWD_K] + row * a->stride + column;
        const float *v = (const float *)job->operands[ATT_FWD_V] + row * a->stride + column;
        float *out = (float *)job->operands[ATT_FWD_OUT] + row * hidden + column;
        float *lse = (float *)job->operands[ATT_FWD_LSE] + head * a->sequence;
        for (int64_t i = 0; i < a->sequence; i += job->block) {
            attention_block b = block_at(job, i, &s);
            rows_by_rows(job, &b, q + i * a->stride, a->stride, k, s.scores, s.gemm);
            job->isa->softmax->attention_forward(&b.scores, s.row[0], lse + i);
            rows_by_columns(job, &b, s.scores, v, out + i * hidden, hidden);
            job->isa->softmax->scale_rows(out + i * hidden, hidden, b.rows, a->width, s.row[0]);
        }
    }
}

static void forward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                    void *workspace)
{
    run_heads(kernel, forward_part, operands, workspace);
}

/* With dP = dout V^T and delta the rows' sums of dout out: dS = P (dP - delta) / sqrt(width),
 * dQ = dS K, dK = dS^T Q, dV = P^T dout. The last block is first, since only it always has every key. */
static void backward_part(const void *context, int part, int64_t first, int64_t end)
{
    const attention_job *job = context;
    const attention_attributes *a = job->attributes;
    attention_scratch s = scratch_of(job, part);
    int64_t hidden = a->heads * a->width;
    for (int64_t head = first; head < end; head++) {
        int64_t row = head / a->heads * a->sequence, column = head % a->heads * a->width;
        int64_t at = row * a->stride + column, out_at = row * hidden + column;
        const float *q = (const float *)job->operands[ATT_BWD_Q] + at,
                    *k = (const float *)job->operands[ATT_BWD_K] + at;
        const float *v = (const float *)job->operands[ATT_BWD_V] + at;
        const float *out = (const float *)job->operands[ATT_BWD_OUT] + out_at;
        const float *dout = (const float *)job->operands[ATT_BWD_DOUT] + out_at;
        const float *lse = (const float *)job->operands[ATT_BWD_LSE] + head * a->sequence;
        float *dq = (float *)job->operands[ATT_BWD_DQ] + at, *dk = (float *)job->operands[ATT_BWD_DK] + at;
        float *dv = (float *)job->operands[ATT_BWD_DV] + at;
        int64_t last = (a->sequence - 1) / job->block * job->block;
        for (int64_t i = last; i >= 0; i -= job->block) {
            attention_block b = block_at(job, i, &s);
            rows_by_rows(job, &b, q + i * a->stride, a->stride, k, s.scores, s.gemm);
            rows_by_rows(job, &b, dout + i * hidden, hidden, v, s.gradients, s.gemm);
            job->isa->softmax->row_dots(dout + i * hidden, out + i * hidden, hidden, b.rows, a->width,
                                        s.row[0]);
            job->isa->softmax->attention_backward(&b.scores, s.gradients, lse + i, s.row[0]);
            columns_by_columns(job, &b, s.scores, dout + i * hidden, hidden, i < last, dv);
            columns_by_columns(job, &b, s.gradients, q + i * a->stride, a->stride, i < last, dk);
            rows_by_columns(job, &b, s.gradients, k, dq + i * a->stride, a->stride);
        }
    }
}

static void backward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                     void *workspace)
{
    run_heads(kernel, backward_part, operands, workspace);
}

const host_kernel_entry cpu_attention_forward = {prepare, forward, NULL};
const host_kernel_entry cpu_attention_backward = {prepare, backward, NULL};
