/* Convolution as PyTorch defines it (torch.nn.Conv2d, a cross-correlation):
 *
 *   y[n,p,q,k] = b[k] + sum over r, s, c of x[n, p stride + r - pad_h, q stride + s - pad_w, c] * w[k,c,r,s]
 *
 * x is zero outside the image. For fixed n, p, r, s the sum is a matrix multiplication over a row of output
 * pixels. The gradients are computed by the same multiplication with its operands exchanged. */
#include "common/base/least.h"
#include "common/device/reference/reference_kernels.h"

#include <string.h>

/* The `count` neighboring output pixels of one row to which one kernel position (r, s) contributes. */
typedef struct pixel_row {
    int64_t count;
    /* Index of the element of x that the first pixel reads. The index of the next pixel is stride * c
     * larger. */
    int64_t input;
    /* Index of the first pixel's element of y. The index of the next pixel is k larger. */
    int64_t output;
    /* Index of the first weight of the kernel position in the workspace. */
    int64_t weights;
} pixel_row;

static int64_t row_count(const conv2d_attributes *a)
{
    return a->n * a->p * a->r * a->s;
}

static pixel_row row_at(const conv2d_attributes *a, int64_t index)
{
    int64_t s = index % a->s, r = index / a->s % a->r, row = index / (a->r * a->s), n = row / a->p;
    int64_t h = row % a->p * a->stride + r - a->pad_h, q = 0, count = 0;
    if (h < 0 || h >= a->h) return (pixel_row){0};
    while (q < a->q && q * a->stride + s - a->pad_w < 0) q++;
    int64_t w = q * a->stride + s - a->pad_w;
    while (q + count < a->q && w + count * a->stride < a->w) count++;
    return (pixel_row){count, ((n * a->h + h) * a->w + w) * a->c, (row * a->q + q) * a->k,
                       (r * a->s + s) * a->c * a->k};
}

/* Copies weights between PyTorch's order [k, c, r, s] and the workspace's order, which is [r, s, k, c] if
 * `channels_last`, else [r, s, c, k]. Copies FILTERS filters at a time, so that their weights at one tap and
 * channel fill a cache line in either order. */
enum weights_copy { TO_WORKSPACE, TO_GRADIENT, ADD_TO_GRADIENT };

static void copy_weights(const conv2d_attributes *a, enum weights_copy copy, bool channels_last,
                         double *weights, double *workspace)
{
    enum { FILTERS = 8 };
    int64_t taps = a->r * a->s;
    for (int64_t first = 0; first < a->k; first += FILTERS)
        for (int64_t c = 0; c < a->c; c++)
            for (int64_t k = first; k < least(first + FILTERS, a->k); k++) {
                double *plain = weights + (k * a->c + c) * taps;
                double *turned = workspace + (channels_last ? k * a->c + c : c * a->k + k);
                for (int64_t tap = 0; tap < taps; tap++, turned += a->c * a->k)
                    if (copy == TO_WORKSPACE)
                        *turned = plain[tap];
                    else
                        plain[tap] = (copy == ADD_TO_GRADIENT ? plain[tap] : 0) + *turned;
            }
}

void reference_conv2d_forward(const host_call *call)
{
    const conv2d_attributes *a = &call->op->u.conv2d;
    const double *x = call->operands[CONV_FWD_X], *b = call->operands[CONV_FWD_B];
    double *y = call->operands[CONV_FWD_Y], *w = call->workspace;
    copy_weights(a, TO_WORKSPACE, false, call->operands[CONV_FWD_W], w);
    for (int64_t i = 0; i < a->n * a->p * a->q * a->k; i++) y[i] = a->bias ? b[i % a->k] : 0;
    for (int64_t i = 0; i < row_count(a); i++) {
        pixel_row row = row_at(a, i);
        matrix_view pixels = {x + row.input, a->stride * a->c, 1};
        reference_matmul(row.count, a->k, a->c, pixels, w + row.weights, a->k, y + row.output, a->k);
    }
}

/* Computes dx[n, h, w, c] = sum of dy[n,p,q,k] * w[k,c,r,s] over k and over all p, q, r, s with h = p stride
 * + r - pad_h and w = q stride + s - pad_w. */
void reference_conv2d_backward_data(const host_call *call)
{
    const conv2d_attributes *a = &call->op->u.conv2d;
    const double *dy = call->operands[CONV_BWD_DATA_DY];
    double *dx = call->operands[CONV_BWD_DATA_DX], *w = call->workspace;
    copy_weights(a, TO_WORKSPACE, true, call->operands[CONV_BWD_DATA_W], w);
    memset(dx, 0, (size_t)(a->n * a->h * a->w * a->c) * sizeof *dx);
    for (int64_t i = 0; i < row_count(a); i++) {
        pixel_row row = row_at(a, i);
        matrix_view gradients = {dy + row.output, a->k, 1};
        reference_matmul(row.count, a->c, a->k, gradients, w + row.weights, a->c, dx + row.input,
                         a->stride * a->c);
    }
}

/* Computes the gradients of weights and bias:
 *
 *   dw[k,c,r,s] = sum over n, p, q of x[n, p stride + r - pad_h, q stride + s - pad_w, c] * dy[n,p,q,k]
 *   db[k] = sum over n, p, q of dy[n,p,q,k] */
void reference_conv2d_backward_weights(const host_call *call)
{
    const conv2d_attributes *a = &call->op->u.conv2d;
    const double *x = call->operands[CONV_BWD_WEIGHTS_X], *dy = call->operands[CONV_BWD_WEIGHTS_DY];
    double *dw = call->operands[CONV_BWD_WEIGHTS_DW], *sums = call->workspace;
    bool add = host_accumulates(call);
    memset(sums, 0, (size_t)(a->k * a->c * a->r * a->s) * sizeof *sums);
    for (int64_t i = 0; i < row_count(a); i++) {
        pixel_row row = row_at(a, i);
        /* The row of pixels as a transposed matrix. */
        matrix_view pixels = {x + row.input, 1, a->stride * a->c};
        reference_matmul(a->c, a->k, row.count, pixels, dy + row.output, a->k, sums + row.weights, a->k);
    }
    copy_weights(a, add ? ADD_TO_GRADIENT : TO_GRADIENT, false, dw, sums);
    if (a->bias)
        reference_column_sums(dy, a->n * a->p * a->q, a->k, add, call->operands[CONV_BWD_WEIGHTS_DB]);
}
