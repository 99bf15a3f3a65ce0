/* Maximum and average over windows of r by s (torch.nn.MaxPool2d, AvgPool2d). */
#include "common/device/reference/reference_kernels.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* The element of x (n, h, w, c) under position (r, s) of the window of output pixel `pixel` = (n, p, q),
 * or -1 in the padding. */
static int64_t input_under(const pool_attributes *a, int64_t pixel, int64_t r, int64_t s, int64_t c)
{
    int64_t q = pixel % a->q, p = pixel / a->q % a->p, n = pixel / (a->q * a->p);
    int64_t h = p * a->stride + r - a->pad, w = q * a->stride + s - a->pad;
    if (h < 0 || h >= a->h || w < 0 || w >= a->w) return -1;
    return ((n * a->h + h) * a->w + w) * a->c + c;
}

static int64_t pixels(const pool_attributes *a)
{
    return a->n * a->p * a->q;
}

static status prepare_maximum(host_kernel *kernel, const device_layout *layout)
{
    const pool_attributes *a = &kernel->base.op.u.pool;
    assert(a->r * a->s <= 256 && 2 * a->pad <= a->r && 2 * a->pad <= a->s);
    return STATUS_OK;
}

/* The first of equals wins; a NaN wins over all. */
static void maximum_forward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                            void *workspace)
{
    const pool_attributes *a = &kernel->base.op.u.pool;
    const double *x = operands[MAXPOOL_FWD_X];
    double *y = operands[MAXPOOL_FWD_Y];
    uint8_t *index = operands[MAXPOOL_FWD_INDEX];
    for (int64_t pixel = 0; pixel < pixels(a); pixel++)
        for (int64_t c = 0; c < a->c; c++) {
            double best = -INFINITY;
            int64_t position = -1;
            for (int64_t r = 0; r < a->r; r++)
                for (int64_t s = 0; s < a->s; s++) {
                    int64_t i = input_under(a, pixel, r, s, c);
                    if (i < 0 || !(position < 0 || x[i] > best || isnan(x[i]))) continue;
                    best = x[i];
                    position = r * a->s + s;
                }
            y[pixel * a->c + c] = best;
            index[pixel * a->c + c] = (uint8_t)position;
        }
}

static void maximum_backward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                             void *workspace)
{
    const pool_attributes *a = &kernel->base.op.u.pool;
    const double *dy = operands[MAXPOOL_BWD_DY];
    const uint8_t *index = operands[MAXPOOL_BWD_INDEX];
    double *dx = operands[MAXPOOL_BWD_DX];
    memset(dx, 0, (size_t)(a->n * a->h * a->w * a->c) * sizeof *dx);
    for (int64_t pixel = 0; pixel < pixels(a); pixel++)
        for (int64_t c = 0; c < a->c; c++) {
            int64_t i = pixel * a->c + c;
            dx[input_under(a, pixel, index[i] / a->s, index[i] % a->s, c)] += dy[i];
        }
}

static void average_forward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                            void *workspace)
{
    const pool_attributes *a = &kernel->base.op.u.pool;
    const double *x = operands[AVGPOOL_FWD_X];
    double *y = operands[AVGPOOL_FWD_Y];
    for (int64_t pixel = 0; pixel < pixels(a); pixel++)
        for (int64_t c = 0; c < a->c; c++) {
            double sum = 0;
            for (int64_t r = 0; r < a->r; r++)
                for (int64_t s = 0; s < a->s; s++) sum += x[input_under(a, pixel, r, s, c)];
            y[pixel * a->c + c] = sum / (double)(a->r * a->s);
        }
}

static void average_backward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                             void *workspace)
{
    const pool_attributes *a = &kernel->base.op.u.pool;
    const double *dy = operands[AVGPOOL_BWD_DY];
    double *dx = operands[AVGPOOL_BWD_DX];
    memset(dx, 0, (size_t)(a->n * a->h * a->w * a->c) * sizeof *dx);
    for (int64_t pixel = 0; pixel < pixels(a); pixel++)
        for (int64_t c = 0; c < a->c; c++)
            for (int64_t r = 0; r < a->r; r++)
                for (int64_t s = 0; s < a->s; s++)
                    dx[input_under(a, pixel, r, s, c)] += dy[pixel * a->c + c] / (double)(a->r * a->s);
}

static status prepare_average(host_kernel *kernel, const device_layout *layout)
{
    assert(kernel->base.op.u.pool.pad == 0);
    return STATUS_OK;
}

const host_kernel_entry reference_maxpool_forward = {prepare_maximum, maximum_forward, NULL};
const host_kernel_entry reference_maxpool_backward = {prepare_maximum, maximum_backward, NULL};
const host_kernel_entry reference_avgpool_forward = {prepare_average, average_forward, NULL};
const host_kernel_entry reference_avgpool_backward = {prepare_average, average_backward, NULL};
