/* Layer normalization (Ba, Kiros, Hinton, 2016; torch.nn.LayerNorm): each row of (m, c) is normalized by its
 * mean and its biased variance. */
#include "common/device/reference/reference_kernels.h"

#include <math.h>
#include <string.h>

void reference_layernorm_forward(const host_call *call)
{
    const layernorm_attributes *a = &call->op->u.layernorm;
    const double *x = call->operands[LN_FWD_X], *residual = call->operands[LN_FWD_RESIDUAL];
    const double *gamma = call->operands[LN_FWD_GAMMA], *beta = call->operands[LN_FWD_BETA];
    double *y = call->operands[LN_FWD_Y], *sum = call->operands[LN_FWD_SUM];
    double *mean = call->operands[LN_FWD_MEAN], *invstd = call->operands[LN_FWD_INVSTD];
    double columns = (double)a->c;
    if (a->residual) {
        for (int64_t i = 0; i < host_rows(call, a->m) * a->c; i++) sum[i] = x[i] + residual[i];
        x = sum;
    }
    for (int64_t row = 0; row < host_rows(call, a->m); row++) {
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

/* Computes the gradients, with h = dy gamma:
 *
 *   dx = invstd (h - mean(h) - xhat mean(h xhat)) + dsum    means over the row
 *   dgamma = sum dy xhat, dbeta = sum dy                    sums over the rows */
void reference_layernorm_backward(const host_call *call)
{
    const layernorm_attributes *a = &call->op->u.layernorm;
    const double *x = call->operands[LN_BWD_X], *gamma = call->operands[LN_BWD_GAMMA],
                 *dy = call->operands[LN_BWD_DY];
    const double *mean = call->operands[LN_BWD_MEAN], *invstd = call->operands[LN_BWD_INVSTD];
    const double *dsum = a->dsum ? call->operands[LN_BWD_DSUM] : NULL;
    double *dx = call->operands[LN_BWD_DX], *sum_gx = call->workspace, *sum_g = sum_gx + a->c;
    double columns = (double)a->c;
    memset(sum_gx, 0, (size_t)(2 * a->c) * sizeof(double));
    for (int64_t row = 0; row < host_rows(call, a->m); row++) {
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
    bool add = host_accumulates(call);
    reference_store_sums(sum_gx, a->c, add, call->operands[LN_BWD_DGAMMA]);
    reference_store_sums(sum_g, a->c, add, call->operands[LN_BWD_DBETA]);
}
