/* Ba, Kiros, Hinton, "Layer Normalization", 2016: each row of (m, c) is normalized by its own mean and
 * biased variance (torch.nn.LayerNorm). */
#include "common/device/reference/reference_kernels.h"

#include <math.h>
#include <string.h>

static void forward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                    void *workspace)
{
    const layernorm_attributes *a = &kernel->base.op.u.layernorm;
    const double *x = operands[LN_FWD_X], *residual = operands[LN_FWD_RESIDUAL];
    const double *gamma = operands[LN_FWD_GAMMA], *beta = operands[LN_FWD_BETA];
    double *y = operands[LN_FWD_Y], *sum = operands[LN_FWD_SUM];
    double *mean = operands[LN_FWD_MEAN], *invstd = operands[LN_FWD_INVSTD];
    double columns = (double)a->c;
    if (a->residual) {
        for (int64_t i = 0; i < reference_rows(scalars, a->m) * a->c; i++) sum[i] = x[i] + residual[i];
        x = sum;
    }
    for (int64_t row = 0; row < reference_rows(scalars, a->m); row++) {
        const double *in = x + row * a->c;
        double total = 0, squares = 0;
        for (int64_t c = 0; c < a->c; c++) total += in[c];
        mean[row] = total / columns;
        for (int64_t c = 0; c < a->c; c++) squares += (in[c] - mean[row]) * (in[c] - mean[row]);
        invstd[row] = 1 / sqrt(squares / columns + a->eps);
        for (int64_t c = 0; c < a->c; c++)
            y[row * a->c + c] = (in[c] - mean[row]) * invstd[row] * gamma[c] + beta[c];
    }
}

static status prepare_backward(host_kernel *kernel, const device_layout *layout)
{
    kernel->base.workspace = (size_t)(2 * kernel->base.op.u.layernorm.c) * sizeof(double);
    return STATUS_OK;
}

/* With h = dy gamma: dx = invstd (h - mean(h) - xhat mean(h xhat)) + dsum, means over the row;
 * dgamma = sum dy xhat and dbeta = sum dy over the rows. */
static void backward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                     void *workspace)
{
    const layernorm_attributes *a = &kernel->base.op.u.layernorm;
    const double *x = operands[LN_BWD_X], *gamma = operands[LN_BWD_GAMMA], *dy = operands[LN_BWD_DY];
    const double *mean = operands[LN_BWD_MEAN], *invstd = operands[LN_BWD_INVSTD];
    const double *dsum = a->dsum ? operands[LN_BWD_DSUM] : NULL;
    double *dx = operands[LN_BWD_DX], *dgamma = operands[LN_BWD_DGAMMA], *dbeta = operands[LN_BWD_DBETA];
    double *sum_gx = workspace, *sum_g = sum_gx + a->c;
    double columns = (double)a->c;
    memset(workspace, 0, (size_t)(2 * a->c) * sizeof(double));
    for (int64_t row = 0; row < reference_rows(scalars, a->m); row++) {
        double sum_h = 0, sum_hx = 0;
        for (int64_t c = 0, i = row * a->c; c < a->c; c++, i++) {
            double xhat = (x[i] - mean[row]) * invstd[row];
            sum_gx[c] += dy[i] * xhat;
            sum_g[c] += dy[i];
            sum_h += dy[i] * gamma[c];
            sum_hx += dy[i] * gamma[c] * xhat;
        }
        for (int64_t c = 0, i = row * a->c; c < a->c; c++, i++) {
            double xhat = (x[i] - mean[row]) * invstd[row];
            double through = invstd[row] * (dy[i] * gamma[c] - sum_h / columns - xhat * sum_hx / columns);
            dx[i] = through + (dsum ? dsum[i] : 0);
        }
    }
    bool add = reference_accumulates(&kernel->base.op, scalars);
    for (int64_t c = 0; c < a->c; c++) {
        dgamma[c] = (add ? dgamma[c] : 0) + sum_gx[c];
        dbeta[c] = (add ? dbeta[c] : 0) + sum_g[c];
    }
}

const host_kernel_entry reference_layernorm_forward = {NULL, forward, NULL};
const host_kernel_entry reference_layernorm_backward = {prepare_backward, backward, NULL};
