/* BatchNorm over the samples of all ranks (torch.nn.SyncBatchNorm): each direction in two halves, and
 * between them an all-reduce of SUMS that is not this file's. */
#include "common/device/reference/batchnorm.h"
#include "common/device/reference/reference_kernels.h"

#include <math.h>
#include <string.h>

static void stats(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                  void *workspace)
{
    (void)scalars, (void)workspace;
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    const double *x = operands[BN_STATS_X];
    double *sums = operands[BN_STATS_SUMS]; /* (2c + 1) */
    memset(sums, 0, (size_t)(2 * a->c) * sizeof *sums);
    for (int64_t i = 0; i < batchnorm_count(a) * a->c; i++) {
        sums[i % a->c] += x[i];
        sums[a->c + i % a->c] += x[i] * x[i];
    }
    sums[2 * a->c] = (double)batchnorm_count(a);
}

static status prepare_channels(host_kernel *kernel, const device_layout *layout)
{
    (void)layout;
    kernel->base.workspace = (size_t)(2 * kernel->base.op.u.batchnorm.c) * sizeof(double);
    return STATUS_OK;
}

/* variance = E[x^2] - E[x]^2, not below zero */
static void apply(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                  void *workspace)
{
    (void)scalars;
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    const double *sums = operands[BN_APPLY_SUMS];
    double *mean = operands[BN_APPLY_MEAN], *invstd = operands[BN_APPLY_INVSTD], *variance = workspace;
    double count = sums[2 * a->c];
    for (int64_t c = 0; c < a->c; c++) {
        mean[c] = sums[c] / count;
        variance[c] = fmax(sums[a->c + c] / count - mean[c] * mean[c], 0);
        invstd[c] = 1 / sqrt(variance[c] + a->eps);
    }
    batchnorm_update_running(a, mean, variance, count, operands[BN_APPLY_RUNNING_MEAN],
                             operands[BN_APPLY_RUNNING_VAR]);
    batchnorm_affine f = {operands[BN_APPLY_X],
                          operands[BN_APPLY_GAMMA],
                          operands[BN_APPLY_BETA],
                          a->residual ? operands[BN_APPLY_RESIDUAL] : NULL,
                          mean,
                          invstd};
    batchnorm_normalize(a, f, operands[BN_APPLY_Y]);
}

static void backward_stats(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                           void *workspace)
{
    (void)workspace;
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    batchnorm_gradient b = {.forward = {operands[BN_BSTATS_X], operands[BN_BSTATS_GAMMA],
                                        operands[BN_BSTATS_BETA],
                                        a->residual ? operands[BN_BSTATS_RESIDUAL] : NULL,
                                        operands[BN_BSTATS_MEAN], operands[BN_BSTATS_INVSTD]},
                            .y = operands[BN_BSTATS_Y],
                            .dy = operands[BN_BSTATS_DY],
                            .dy2 = a->dy2 ? operands[BN_BSTATS_DY2] : NULL};
    double *g = operands[BN_BSTATS_G], *sums = operands[BN_BSTATS_SUMS]; /* sums (2c) */
    double *dgamma = operands[BN_BSTATS_DGAMMA], *dbeta = operands[BN_BSTATS_DBETA];
    bool add = reference_accumulates(&kernel->base.op, scalars);
    batchnorm_gradient_sums(a, &b, sums, sums + a->c);
    for (int64_t i = 0; i < batchnorm_count(a) * a->c; i++) g[i] = batchnorm_gradient_at(a, &b, i, i % a->c);
    for (int64_t c = 0; c < a->c; c++) {
        dgamma[c] = (add ? dgamma[c] : 0) + sums[a->c + c];
        dbeta[c] = (add ? dbeta[c] : 0) + sums[c];
    }
}

/* dx = gamma invstd (g - mean(g) - xhat mean(g xhat)), means over all ranks */
static void backward_apply(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                           void *workspace)
{
    (void)scalars, (void)workspace;
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    const double *x = operands[BN_BAPPLY_X], *g = operands[BN_BAPPLY_G], *gamma = operands[BN_BAPPLY_GAMMA];
    const double *mean = operands[BN_BAPPLY_MEAN], *invstd = operands[BN_BAPPLY_INVSTD];
    const double *sums = operands[BN_BAPPLY_SUMS];
    double *dx = operands[BN_BAPPLY_DX], count = *(const double *)operands[BN_BAPPLY_COUNT];
    for (int64_t i = 0; i < batchnorm_count(a) * a->c; i++) {
        int64_t c = i % a->c;
        double xhat = (x[i] - mean[c]) * invstd[c];
        dx[i] = gamma[c] * invstd[c] * (g[i] - sums[c] / count - xhat * sums[a->c + c] / count);
    }
}

const host_kernel_entry reference_batchnorm_stats = {NULL, stats, NULL};
const host_kernel_entry reference_batchnorm_apply = {prepare_channels, apply, NULL};
const host_kernel_entry reference_batchnorm_backward_stats = {NULL, backward_stats, NULL};
const host_kernel_entry reference_batchnorm_backward_apply = {NULL, backward_apply, NULL};
