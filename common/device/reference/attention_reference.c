/* Scaled dot-product attention (Vaswani et al., "Attention Is All You Need", 2017, equation 1), one head
 * and one query at a time:
 *
 *   s_j = q . k_j / sqrt(width)   over all keys j, or where causal over j <= the query's index
 *   p_j = exp(s_j - lse),  lse = log sum_j exp(s_j),  out = sum_j p_j v_j */
#include "common/device/reference/reference_kernels.h"

#include <math.h>
#include <string.h>

/* A head of one sequence: its first rows. Rows of q, k, v are `stride` apart. */
typedef struct head_offsets {
    int64_t packed; /* in q, k, v and their gradients */
    int64_t out;    /* in out and dout, whose rows are hidden apart */
    int64_t lse;
} head_offsets;

static head_offsets offsets_of(const attention_attributes *a, int64_t batch, int64_t head)
{
    int64_t row = batch * a->sequence;
    return (head_offsets){row * a->stride + head * a->width, (row * a->heads + head) * a->width,
                          (batch * a->heads + head) * a->sequence};
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

static status prepare_forward(host_kernel *kernel, const device_layout *layout)
{
    kernel->base.workspace = (size_t)kernel->base.op.u.attention.sequence * sizeof(double);
    return STATUS_OK;
}

static void head_forward(const attention_attributes *a, const double *q, const double *k, const double *v,
                         double *out, double *lse, double *scores)
{
    double scale = 1 / sqrt((double)a->width);
    for (int64_t i = 0; i < a->sequence; i++) {
        double largest = -INFINITY, sum = 0;
        double *to = out + i * a->heads * a->width;
        for (int64_t j = 0; j < keys_seen(a, i); j++) {
            scores[j] = scale * dot(q + i * a->stride, k + j * a->stride, a->width);
            largest = fmax(largest, scores[j]);
        }
        for (int64_t j = 0; j < keys_seen(a, i); j++) sum += exp(scores[j] - largest);
        lse[i] = largest + log(sum);
        memset(to, 0, (size_t)a->width * sizeof *to);
        for (int64_t j = 0; j < keys_seen(a, i); j++)
            add_scaled(to, exp(scores[j] - lse[i]), v + j * a->stride, a->width);
    }
}

static void forward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                    void *workspace)
{
    const attention_attributes *a = &kernel->base.op.u.attention;
    const double *q = operands[ATT_FWD_Q], *k = operands[ATT_FWD_K], *v = operands[ATT_FWD_V];
    double *out = operands[ATT_FWD_OUT], *lse = operands[ATT_FWD_LSE];
    for (int64_t batch = 0; batch < a->batch; batch++)
        for (int64_t head = 0; head < a->heads; head++) {
            head_offsets at = offsets_of(a, batch, head);
            head_forward(a, q + at.packed, k + at.packed, v + at.packed, out + at.out, lse + at.lse,
                         workspace);
        }
}

typedef struct head_gradients {
    const double *q, *k, *v, *out, *lse, *dout;
    double *dq, *dk, *dv;
} head_gradients;

/* dp_j = dout . v_j,  ds_j = p_j (dp_j - dout . out),
 * dq = sum_j ds_j k_j / sqrt(width),  dk_j += ds_j q / sqrt(width),  dv_j += p_j dout */
static void head_backward(const attention_attributes *a, const head_gradients *h)
{
    double scale = 1 / sqrt((double)a->width);
    for (int64_t i = 0; i < a->sequence; i++)
        for (int64_t c = 0; c < a->width; c++)
            h->dq[i * a->stride + c] = h->dk[i * a->stride + c] = h->dv[i * a->stride + c] = 0;
    for (int64_t i = 0; i < a->sequence; i++) {
        const double *q = h->q + i * a->stride, *dout = h->dout + i * a->heads * a->width;
        double delta = dot(dout, h->out + i * a->heads * a->width, a->width);
        for (int64_t j = 0; j < keys_seen(a, i); j++) {
            const double *k = h->k + j * a->stride;
            double p = exp(scale * dot(q, k, a->width) - h->lse[i]);
            double ds = p * (dot(dout, h->v + j * a->stride, a->width) - delta);
            add_scaled(h->dq + i * a->stride, scale * ds, k, a->width);
            add_scaled(h->dk + j * a->stride, scale * ds, q, a->width);
            add_scaled(h->dv + j * a->stride, p, dout, a->width);
        }
    }
}

static void backward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                     void *workspace)
{
    const attention_attributes *a = &kernel->base.op.u.attention;
    for (int64_t batch = 0; batch < a->batch; batch++)
        for (int64_t head = 0; head < a->heads; head++) {
            head_offsets at = offsets_of(a, batch, head);
            head_gradients h = {.q = (const double *)operands[ATT_BWD_Q] + at.packed,
                                .k = (const double *)operands[ATT_BWD_K] + at.packed,
                                .v = (const double *)operands[ATT_BWD_V] + at.packed,
                                .out = (const double *)operands[ATT_BWD_OUT] + at.out,
                                .lse = (const double *)operands[ATT_BWD_LSE] + at.lse,
                                .dout = (const double *)operands[ATT_BWD_DOUT] + at.out,
                                .dq = (double *)operands[ATT_BWD_DQ] + at.packed,
                                .dk = (double *)operands[ATT_BWD_DK] + at.packed,
                                .dv = (double *)operands[ATT_BWD_DV] + at.packed};
            head_backward(a, &h);
        }
}

const host_kernel_entry reference_attention_forward = {prepare_forward, forward, NULL};
const host_kernel_entry reference_attention_backward = {NULL, backward, NULL};
