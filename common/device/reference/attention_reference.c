/* Scaled dot-product attention (Vaswani et al., "Attention Is All You Need", 2017, equation 1), one head and
 * one query at a time:
 *
 *   s_j = q . k_j / sqrt(width)   over all keys j, or over j <= the query's index if causal
 *   p_j = exp(s_j - lse),  lse = log sum_j exp(s_j),  out = sum_j p_j v_j */
#include "common/device/reference/reference_kernels.h"

#include <math.h>
#include <string.h>

/* Returns the first row of a head of one sequence, in an operand whose rows are `stride` elements apart. */
static double *rows_of(const host_call *call, int slot, int64_t head, int64_t stride)
{
    const attention_attributes *a = &call->op->u.attention;
    int64_t row = head / a->heads * a->sequence, column = head % a->heads * a->width;
    return (double *)call->operands[slot] + row * stride + column;
}

static double dot(const double *a, const double *b, int64_t width)
{
    double sum = 0;
    for (int64_t i = 0; i < width; i++) sum += a[i] * b[i];
    return sum;
}

static void add_scaled(double *to, double factor, const double *from, int64_t width)
{
    for (int64_t i = 0; i < width; i++) to[i] += factor * from[i];
}

static int64_t keys_seen(const attention_attributes *a, int64_t query)
{
    return a->causal ? query + 1 : a->sequence;
}

static void head_forward(const host_call *call, int64_t head)
{
    const attention_attributes *a = &call->op->u.attention;
    int64_t hidden = a->heads * a->width;
    const double *q = rows_of(call, ATT_FWD_Q, head, a->stride),
                 *k = rows_of(call, ATT_FWD_K, head, a->stride);
    const double *v = rows_of(call, ATT_FWD_V, head, a->stride);
    double *out = rows_of(call, ATT_FWD_OUT, head, hidden), *scores = call->workspace;
    double *lse = (double *)call->operands[ATT_FWD_LSE] + head * a->sequence;
    double scale = 1 / sqrt((double)a->width);
    for (int64_t i = 0; i < a->sequence; i++, q += a->stride, out += hidden) {
        double largest = -INFINITY, sum = 0;
        for (int64_t j = 0; j < keys_seen(a, i); j++) {
            scores[j] = scale * dot(q, k + j * a->stride, a->width);
            largest = fmax(largest, scores[j]);
        }
        for (int64_t j = 0; j < keys_seen(a, i); j++) sum += exp(scores[j] - largest);
        lse[i] = largest + log(sum);
        memset(out, 0, (size_t)a->width * sizeof *out);
        for (int64_t j = 0; j < keys_seen(a, i); j++)
            add_scaled(out, exp(scores[j] - lse[i]), v + j * a->stride, a->width);
    }
}

void reference_attention_forward(const host_call *call)
{
    const attention_attributes *a = &call->op->u.attention;
    for (int64_t head = 0; head < a->batch * a->heads; head++) head_forward(call, head);
}

/* Computes the gradients of one head:
 *
 *   dp_j = dout . v_j,  ds_j = p_j (dp_j - dout . out),
 *   dq = sum_j ds_j k_j / sqrt(width),  dk_j += ds_j q / sqrt(width),  dv_j += p_j dout */
static void head_backward(const host_call *call, int64_t head)
{
    const attention_attributes *a = &call->op->u.attention;
    int64_t stride = a->stride, hidden = a->heads * a->width;
    const double *q = rows_of(call, ATT_BWD_Q, head, stride), *k = rows_of(call, ATT_BWD_K, head, stride);
    const double *v = rows_of(call, ATT_BWD_V, head, stride), *out = rows_of(call, ATT_BWD_OUT, head, hidden);
    const double *dout = rows_of(call, ATT_BWD_DOUT, head, hidden);
    const double *lse = (const double *)call->operands[ATT_BWD_LSE] + head * a->sequence;
    double *dq = rows_of(call, ATT_BWD_DQ, head, stride), *dk = rows_of(call, ATT_BWD_DK, head, stride);
    double *dv = rows_of(call, ATT_BWD_DV, head, stride), scale = 1 / sqrt((double)a->width);
    for (int64_t i = 0; i < a->sequence; i++)
        for (int64_t c = i * stride; c < i * stride + a->width; c++) dq[c] = dk[c] = dv[c] = 0;
    for (int64_t i = 0; i < a->sequence; i++, q += stride, dq += stride, out += hidden, dout += hidden) {
        double delta = dot(dout, out, a->width);
        for (int64_t j = 0; j < keys_seen(a, i); j++) {
            double p = exp(scale * dot(q, k + j * stride, a->width) - lse[i]);
            double ds = p * (dot(dout, v + j * stride, a->width) - delta);
            add_scaled(dq, scale * ds, k + j * stride, a->width);
            add_scaled(dk + j * stride, scale * ds, q, a->width);
            add_scaled(dv + j * stride, p, dout, a->width);
        }
    }
}

void reference_attention_backward(const host_call *call)
{
    const attention_attributes *a = &call->op->u.attention;
    for (int64_t head = 0; head < a->batch * a->heads; head++) head_backward(call, head);
}
