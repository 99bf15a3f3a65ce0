/* Convolution as PyTorch defines it (torch.nn.Conv2d, a cross-correlation):
 *
 *   y[n,p,q,k] = b[k] + sum over r, s, c of x[n, p stride + r - pad, q stride + s - pad, c] * w[k,c,r,s]
 *
 * where x is zero outside the image. For fixed n, p, r, s that is a matrix multiplication over a row of
 * output pixels; the gradients are the same with the operands exchanged. */
#include "common/device/reference/reference_kernels.h"

#include <string.h>

/* A row of output pixels through one position of the kernel: `count` pixels from column q on. */
typedef struct pixel_row {
    int64_t count;
    int64_t input;  /* element of x that the first reads; the next is stride * c further */
    int64_t output; /* element of y of the first; the next is k further */
} pixel_row;

static pixel_row row_through(const conv2d_attributes *a, int64_t n, int64_t p, int64_t r, int64_t s)
{
    int64_t h = p * a->stride + r - a->pad, q = 0, count = 0;
    if (h < 0 || h >= a->h) return (pixel_row){0};
    while (q < a->q && q * a->stride + s - a->pad < 0) q++;
    int64_t w = q * a->stride + s - a->pad;
    while (q + count < a->q && w + count * a->stride < a->w) count++;
    return (pixel_row){count, ((n * a->h + h) * a->w + w) * a->c, ((n * a->p + p) * a->q + q) * a->k};
}

static int64_t weight_count(const conv2d_attributes *a)
{
    return a->k * a->c * a->r * a->s;
}

static status prepare_weights(host_kernel *kernel, const device_layout *layout)
{
    kernel->base.workspace = (size_t)weight_count(&kernel->base.op.u.conv2d) * sizeof(double);
    return STATUS_OK;
}

/* Element [r,s,c,k] of the workspace is element [k,c,r,s] of the weights; or [r,s,k,c]. */
typedef enum weight_order { ORDER_RSCK, ORDER_RSKC } weight_order;

static int64_t ordered(const conv2d_attributes *a, weight_order order, int64_t k, int64_t c, int64_t r,
                       int64_t s)
{
    int64_t position = (r * a->s + s) * a->c * a->k;
    return position + (order == ORDER_RSCK ? c * a->k + k : k * a->c + c);
}

static void reorder_weights(const conv2d_attributes *a, weight_order order, const double *weights,
                            double *out)
{
    for (int64_t k = 0; k < a->k; k++)
        for (int64_t c = 0; c < a->c; c++)
            for (int64_t r = 0; r < a->r; r++)
                for (int64_t s = 0; s < a->s; s++) out[ordered(a, order, k, c, r, s)] = *weights++;
}

static void forward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                    void *workspace)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    const double *x = operands[CONV_FWD_X], *b = operands[CONV_FWD_B];
    double *y = operands[CONV_FWD_Y], *w = workspace; /* (r, s, c, k) */
    reorder_weights(a, ORDER_RSCK, operands[CONV_FWD_W], w);
    for (int64_t i = 0; i < a->n * a->p * a->q; i++)
        for (int64_t k = 0; k < a->k; k++) y[i * a->k + k] = a->bias ? b[k] : 0;
    for (int64_t n = 0; n < a->n; n++)
        for (int64_t p = 0; p < a->p; p++)
            for (int64_t r = 0; r < a->r; r++)
                for (int64_t s = 0; s < a->s; s++) {
                    pixel_row row = row_through(a, n, p, r, s);
                    matrix_view pixels = {x + row.input, a->stride * a->c, 1};
                    reference_matmul(row.count, a->k, a->c, pixels, w + ordered(a, ORDER_RSCK, 0, 0, r, s),
                                      a->k, y + row.output, a->k);
                }
}

/* dx[n, p stride + r - pad, q stride + s - pad, c] = sum over all p, q, r, s that meet there, and k, of
 * dy[n,p,q,k] * w[k,c,r,s] */
static void backward_data(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                          void *workspace)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    const double *dy = operands[CONV_BWD_DATA_DY];
    double *dx = operands[CONV_BWD_DATA_DX], *w = workspace; /* (r, s, k, c) */
    reorder_weights(a, ORDER_RSKC, operands[CONV_BWD_DATA_W], w);
    memset(dx, 0, (size_t)(a->n * a->h * a->w * a->c) * sizeof *dx);
    for (int64_t n = 0; n < a->n; n++)
        for (int64_t p = 0; p < a->p; p++)
            for (int64_t r = 0; r < a->r; r++)
                for (int64_t s = 0; s < a->s; s++) {
                    pixel_row row = row_through(a, n, p, r, s);
                    matrix_view gradients = {dy + row.output, a->k, 1};
                    reference_matmul(row.count, a->c, a->k, gradients,
                                      w + ordered(a, ORDER_RSKC, 0, 0, r, s), a->c, dx + row.input,
                                      a->stride * a->c);
                }
}

/* dw[k,c,r,s] = sum over n, p, q of x[n, p stride + r - pad, q stride + s - pad, c] * dy[n,p,q,k];
 * db[k] = sum over n, p, q of dy[n,p,q,k] */
static void backward_weights(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                             void *workspace)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    const double *x = operands[CONV_BWD_WEIGHTS_X], *dy = operands[CONV_BWD_WEIGHTS_DY];
    double *dw = operands[CONV_BWD_WEIGHTS_DW], *db = operands[CONV_BWD_WEIGHTS_DB];
    double *sums = workspace; /* (r, s, c, k) */
    bool add = reference_accumulates(&kernel->base.op, scalars);
    memset(sums, 0, (size_t)weight_count(a) * sizeof *sums);
    for (int64_t n = 0; n < a->n; n++)
        for (int64_t p = 0; p < a->p; p++)
            for (int64_t r = 0; r < a->r; r++)
                for (int64_t s = 0; s < a->s; s++) {
                    pixel_row row = row_through(a, n, p, r, s);
                    matrix_view pixels = {x + row.input, 1, a->stride * a->c}; /* transposed */
                    reference_matmul(a->c, a->k, row.count, pixels, dy + row.output, a->k,
                                      sums + ordered(a, ORDER_RSCK, 0, 0, r, s), a->k);
                }
    for (int64_t k = 0; k < a->k; k++)
        for (int64_t c = 0; c < a->c; c++)
            for (int64_t r = 0; r < a->r; r++)
                for (int64_t s = 0; s < a->s; s++, dw++)
                    *dw = (add ? *dw : 0) + sums[ordered(a, ORDER_RSCK, k, c, r, s)];
    if (!a->bias) return;
    for (int64_t k = 0; k < a->k; k++) {
        double sum = 0;
        for (int64_t i = 0; i < a->n * a->p * a->q; i++) sum += dy[i * a->k + k];
        db[k] = (add ? db[k] : 0) + sum;
    }
}

const host_kernel_entry reference_conv2d_forward = {prepare_weights, forward, NULL};
const host_kernel_entry reference_conv2d_backward_data = {prepare_weights, backward_data, NULL};
const host_kernel_entry reference_conv2d_backward_weights = {prepare_weights, backward_weights, NULL};
