/* Maximum and average over windows of r by s (torch.nn.MaxPool2d, AvgPool2d). */
#include "common/device/reference/reference_kernels.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Returns the index of the element of x (n, h, w, c) under position `tap` of the window of element `output`
 * of y (n, p, q, c), or -1 if the position is in the padding. */
static int64_t input_under(const pool_attributes *a, int64_t output, int64_t tap)
{
    int64_t c = output % a->c, pixel = output / a->c;
    int64_t q = pixel % a->q, p = pixel / a->q % a->p, n = pixel / (a->q * a->p);
    int64_t h = p * a->stride + tap / a->s - a->pad, w = q * a->stride + tap % a->s - a->pad;
    if (h < 0 || h >= a->h || w < 0 || w >= a->w) return -1;
    return ((n * a->h + h) * a->w + w) * a->c + c;
}

static int64_t outputs(const pool_attributes *a)
{
    return a->n * a->p * a->q * a->c;
}

/* If several elements are equal to the maximum, takes the first one. A NaN counts as larger than every
 * number. */
void reference_maxpool_forward(const host_call *call)
{
    const pool_attributes *a = &call->op->u.pool;
    const double *x = call->operands[MAXPOOL_FWD_X];
    double *y = call->operands[MAXPOOL_FWD_Y];
    uint8_t *index = call->operands[MAXPOOL_FWD_INDEX];
    assert(a->r * a->s <= 256 && 2 * a->pad <= a->r && 2 * a->pad <= a->s);
    for (int64_t i = 0; i < outputs(a); i++) {
        int64_t position = -1;
        y[i] = -INFINITY;
        for (int64_t tap = 0; tap < a->r * a->s; tap++) {
            int64_t at = input_under(a, i, tap);
            if (at < 0 || !(position < 0 || x[at] > y[i] || isnan(x[at]))) continue;
            y[i] = x[at];
            position = tap;
        }
        index[i] = (uint8_t)position;
    }
}

void reference_maxpool_backward(const host_call *call)
{
    const pool_attributes *a = &call->op->u.pool;
    const double *dy = call->operands[MAXPOOL_BWD_DY];
    const uint8_t *index = call->operands[MAXPOOL_BWD_INDEX];
    double *dx = call->operands[MAXPOOL_BWD_DX];
    memset(dx, 0, (size_t)(a->n * a->h * a->w * a->c) * sizeof *dx);
    for (int64_t i = 0; i < outputs(a); i++) dx[input_under(a, i, index[i])] += dy[i];
}

void reference_avgpool_forward(const host_call *call)
{
    const pool_attributes *a = &call->op->u.pool;
    const double *x = call->operands[AVGPOOL_FWD_X];
    double *y = call->operands[AVGPOOL_FWD_Y];
    for (int64_t i = 0; i < outputs(a); i++) {
        double sum = 0;
        for (int64_t tap = 0; tap < a->r * a->s; tap++) {
            int64_t at = input_under(a, i, tap);
            if (at >= 0) sum += x[at];
        }
        y[i] = sum / (double)(a->r * a->s);
    }
}

void reference_avgpool_backward(const host_call *call)
{
    const pool_attributes *a = &call->op->u.pool;
    const double *dy = call->operands[AVGPOOL_BWD_DY];
    double *dx = call->operands[AVGPOOL_BWD_DX];
    memset(dx, 0, (size_t)(a->n * a->h * a->w * a->c) * sizeof *dx);
    for (int64_t i = 0; i < outputs(a); i++)
        for (int64_t tap = 0; tap < a->r * a->s; tap++) {
            int64_t at = input_under(a, i, tap);
            if (at >= 0) dx[at] += dy[i] / (double)(a->r * a->s);
        }
}
