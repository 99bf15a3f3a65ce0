/* Ioffe and Szegedy, "Batch Normalization", 2015, with PyTorch's conventions (torch.nn.BatchNorm2d): the
 * biased variance normalizes, the unbiased one moves the running variance. */
#include "common/device/reference/reference_kernels.h"

#include <math.h>
#include <string.h>

/* Tensors are (count, c) with count = n h w. */
static int64_t batchnorm_count(const batchnorm_attributes *a)
{
    return a->n * a->h * a->w;
}

/* y = act((x - mean) * invstd * gamma + beta + residual) */
typedef struct batchnorm_affine {
    const double *x, *gamma, *beta, *residual; /* residual NULL: none */
    const double *mean, *invstd;               /* (c) */
} batchnorm_affine;

/* The backward pass up to g, the gradient of act's argument. */
typedef struct batchnorm_gradient {
    batchnorm_affine forward;
    const double *y, *dy, *dy2; /* dy2 NULL: none */
} batchnorm_gradient;

static double normalized(const batchnorm_affine *f, int64_t i, int64_t channel)
{
    return (f->x[i] - f->mean[channel]) * f->invstd[channel];
}

static double act_argument(const batchnorm_affine *f, int64_t i, int64_t channel)
{
    return normalized(f, i, channel) * f->gamma[channel] + f->beta[channel] +
           (f->residual ? f->residual[i] : 0);
}

static void batchnorm_normalize(const batchnorm_attributes *a, batchnorm_affine f, double *y)
{
    for (int64_t row = 0; row < batchnorm_count(a); row++)
        for (int64_t c = 0, i = row * a->c; c < a->c; c++, i++)
            y[i] = reference_activate(a->act, act_argument(&f, i, c));
}

/* g = (dy + dy2) act' at element i of channel `channel`. */
static double batchnorm_gradient_at(const batchnorm_attributes *a, const batchnorm_gradient *b, int64_t i,
                             int64_t channel)
{
    double dy = b->dy[i] + (b->dy2 ? b->dy2[i] : 0);
    switch (a->act) {
    case ACTIVATION_NONE:
        return dy;
    case ACTIVATION_RELU:
        return reference_activate_backward(a->act, b->y[i], dy);
    default:
        return reference_activate_backward(a->act, act_argument(&b->forward, i, channel), dy);
    }
}

/* sum_g (c) and sum_gx (c): sums of g and of g xhat, xhat = (x - mean) invstd. */
static void batchnorm_gradient_sums(const batchnorm_attributes *a, const batchnorm_gradient *b, double *sum_g,
                             double *sum_gx)
{
    memset(sum_g, 0, (size_t)a->c * sizeof *sum_g);
    memset(sum_gx, 0, (size_t)a->c * sizeof *sum_gx);
    for (int64_t row = 0; row < batchnorm_count(a); row++)
        for (int64_t c = 0, i = row * a->c; c < a->c; c++, i++) {
            double g = batchnorm_gradient_at(a, b, i, c);
            sum_g[c] += g;
            sum_gx[c] += g * normalized(&b->forward, i, c);
        }
}

/* Moves the running statistics (c) towards mean and the unbiased variance of `count` values. */
static void batchnorm_update_running(const batchnorm_attributes *a, const double *mean, const double *variance,
                              double count, double *running_mean, double *running_var)
{
    for (int64_t c = 0; c < a->c; c++) {
        double unbiased = variance[c] * count / (count - 1);
        running_mean[c] = (1 - a->momentum) * running_mean[c] + a->momentum * mean[c];
        running_var[c] = (1 - a->momentum) * running_var[c] + a->momentum * unbiased;
    }
}

/* mean (c) and, in a second pass over x, the biased variance (c). */
static void channel_moments(const batchnorm_attributes *a, const double *x, double *mean, double *variance)
{
    int64_t count = batchnorm_count(a);
    memset(mean, 0, (size_t)a->c * sizeof *mean);
    memset(variance, 0, (size_t)a->c * sizeof *variance);
    for (int64_t i = 0; i < count * a->c; i++) mean[i % a->c] += x[i];
    for (int64_t c = 0; c < a->c; c++) mean[c] /= (double)count;
    for (int64_t i = 0; i < count * a->c; i++) {
        double deviation = x[i] - mean[i % a->c];
        variance[i % a->c] += deviation * deviation;
    }
    for (int64_t c = 0; c < a->c; c++) variance[c] /= (double)count;
}

static void forward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                    void *workspace)
{
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    double *mean = operands[BN_FWD_MEAN], *invstd = operands[BN_FWD_INVSTD];
    double *variance = invstd;
    channel_moments(a, operands[BN_FWD_X], mean, variance);
    batchnorm_update_running(a, mean, variance, (double)batchnorm_count(a), operands[BN_FWD_RUNNING_MEAN],
                             operands[BN_FWD_RUNNING_VAR]);
    for (int64_t c = 0; c < a->c; c++) invstd[c] = 1 / sqrt(variance[c] + a->eps);
    batchnorm_affine f = {operands[BN_FWD_X],
                          operands[BN_FWD_GAMMA],
                          operands[BN_FWD_BETA],
                          a->residual ? operands[BN_FWD_RESIDUAL] : NULL,
                          mean,
                          invstd};
    batchnorm_normalize(a, f, operands[BN_FWD_Y]);
}

static status prepare_channels(host_kernel *kernel, const device_layout *layout)
{
    kernel->base.workspace = (size_t)(2 * kernel->base.op.u.batchnorm.c) * sizeof(double);
    return STATUS_OK;
}

static void inference(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                      void *workspace)
{
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    const double *running_var = operands[BN_INF_RUNNING_VAR];
    double *invstd = workspace;
    for (int64_t c = 0; c < a->c; c++) invstd[c] = 1 / sqrt(running_var[c] + a->eps);
    batchnorm_affine f = {operands[BN_INF_X],
                          operands[BN_INF_GAMMA],
                          operands[BN_INF_BETA],
                          a->residual ? operands[BN_INF_RESIDUAL] : NULL,
                          operands[BN_INF_RUNNING_MEAN],
                          invstd};
    batchnorm_normalize(a, f, operands[BN_INF_Y]);
}

/* dbeta = sum g, dgamma = sum g xhat, dx = gamma invstd (g - mean(g) - xhat mean(g xhat)) */
static void backward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                     void *workspace)
{
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    batchnorm_gradient b = {.forward = {operands[BN_BWD_X], operands[BN_BWD_GAMMA], operands[BN_BWD_BETA],
                                        a->residual ? operands[BN_BWD_RESIDUAL] : NULL, operands[BN_BWD_MEAN],
                                        operands[BN_BWD_INVSTD]},
                            .y = operands[BN_BWD_Y],
                            .dy = operands[BN_BWD_DY],
                            .dy2 = a->dy2 ? operands[BN_BWD_DY2] : NULL};
    double *dx = operands[BN_BWD_DX], *dresidual = operands[BN_BWD_DRESIDUAL];
    double *dgamma = operands[BN_BWD_DGAMMA], *dbeta = operands[BN_BWD_DBETA];
    double *sum_g = workspace, *sum_gx = sum_g + a->c;
    double count = (double)batchnorm_count(a);
    bool add = reference_accumulates(&kernel->base.op, scalars);
    batchnorm_gradient_sums(a, &b, sum_g, sum_gx);
    for (int64_t row = 0; row < batchnorm_count(a); row++)
        for (int64_t c = 0, i = row * a->c; c < a->c; c++, i++) {
            double g = batchnorm_gradient_at(a, &b, i, c), xhat = normalized(&b.forward, i, c);
            if (dresidual) dresidual[i] = g;
            dx[i] =
                b.forward.gamma[c] * b.forward.invstd[c] * (g - sum_g[c] / count - xhat * sum_gx[c] / count);
        }
    for (int64_t c = 0; c < a->c; c++) {
        dgamma[c] = (add ? dgamma[c] : 0) + sum_gx[c];
        dbeta[c] = (add ? dbeta[c] : 0) + sum_g[c];
    }
}

/* ---- SyncBatchNorm (torch.nn.SyncBatchNorm): each direction in two halves, between which the engine all-reduces
 * SUMS over all ranks ---------------------------------------------------------------------------- */

static void sync_stats(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                  void *workspace)
{
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

/* variance = E[x^2] - E[x]^2, not below zero */
static void sync_apply(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                  void *workspace)
{
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

static void sync_backward_stats(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                           void *workspace)
{
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
static void sync_backward_apply(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                           void *workspace)
{
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

const host_kernel_entry reference_batchnorm_forward = {NULL, forward, NULL};
const host_kernel_entry reference_batchnorm_inference = {prepare_channels, inference, NULL};
const host_kernel_entry reference_batchnorm_backward = {prepare_channels, backward, NULL};
const host_kernel_entry reference_batchnorm_stats = {NULL, sync_stats, NULL};
const host_kernel_entry reference_batchnorm_apply = {prepare_channels, sync_apply, NULL};
const host_kernel_entry reference_batchnorm_backward_stats = {NULL, sync_backward_stats, NULL};
const host_kernel_entry reference_batchnorm_backward_apply = {NULL, sync_backward_apply, NULL};
