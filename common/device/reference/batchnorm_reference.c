/* Batch normalization (Ioffe and Szegedy, 2015) with PyTorch's conventions (torch.nn.BatchNorm2d): values are
 * normalized by the biased variance, and the running variance moves towards the unbiased variance. */
#include "common/device/reference/reference_kernels.h"

#include <math.h>
#include <string.h>

static int64_t batchnorm_count(const batchnorm_attributes *a)
{
    return a->n * a->h * a->w;
}

/* The operands of y = act((x - mean) * invstd * gamma + beta + residual). */
typedef struct batchnorm_affine {
    const double *x, *gamma, *beta, *residual; /* residual may be NULL */
    const double *mean, *invstd;               /* (c) */
} batchnorm_affine;

/* The operands from which the backward pass computes g, the gradient with respect to act's argument. */
typedef struct batchnorm_gradient {
    batchnorm_affine forward;
    const double *y, *dy, *dy2; /* dy2 may be NULL */
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

/* ---- forward ---------------------------------------------------------------------------------- */

static void normalize(const host_call *call, const double *mean, const double *invstd)
{
    const batchnorm_attributes *a = &call->op->u.batchnorm;
    void *const *operands = call->operands;
    const double *residual = a->residual ? operands[BN_FWD_RESIDUAL] : NULL;
    batchnorm_affine f = {
        operands[BN_FWD_X], operands[BN_FWD_GAMMA], operands[BN_FWD_BETA], residual, mean, invstd};
    double *y = operands[BN_FWD_Y];
    for (int64_t i = 0; i < batchnorm_count(a) * a->c; i++)
        y[i] = reference_activate(a->act, act_argument(&f, i, i % a->c));
}

/* Moves the running statistics (c) towards the mean and the unbiased variance of `count` values, replaces the
 * biased variance in INVSTD by 1 / sqrt(variance + eps), and normalizes x. */
static void finish_forward(const host_call *call, double count)
{
    const batchnorm_attributes *a = &call->op->u.batchnorm;
    const double *mean = call->operands[BN_FWD_MEAN];
    double *running_mean = call->operands[BN_FWD_RUNNING_MEAN],
           *running_var = call->operands[BN_FWD_RUNNING_VAR];
    double *invstd = call->operands[BN_FWD_INVSTD];
    for (int64_t c = 0; c < a->c; c++) {
        double variance = invstd[c], unbiased = variance * count / (count - 1);
        running_mean[c] = (1 - a->momentum) * running_mean[c] + a->momentum * mean[c];
        running_var[c] = (1 - a->momentum) * running_var[c] + a->momentum * unbiased;
        invstd[c] = 1 / sqrt(variance + a->eps);
    }
    normalize(call, mean, invstd);
}

/* Computes the mean and, in a second pass over x, the biased variance. */
void reference_batchnorm_forward(const host_call *call)
{
    const batchnorm_attributes *a = &call->op->u.batchnorm;
    const double *x = call->operands[BN_FWD_X];
    double *mean = call->operands[BN_FWD_MEAN], *variance = call->operands[BN_FWD_INVSTD];
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
    finish_forward(call, (double)count);
}

void reference_batchnorm_inference(const host_call *call)
{
    const batchnorm_attributes *a = &call->op->u.batchnorm;
    const double *running_var = call->operands[BN_FWD_RUNNING_VAR];
    double *invstd = call->workspace;
    for (int64_t c = 0; c < a->c; c++) invstd[c] = 1 / sqrt(running_var[c] + a->eps);
    normalize(call, call->operands[BN_FWD_RUNNING_MEAN], invstd);
}

/* ---- backward --------------------------------------------------------------------------------- */

static batchnorm_gradient gradient_of(const host_call *call)
{
    const batchnorm_attributes *a = &call->op->u.batchnorm;
    void *const *operands = call->operands;
    return (batchnorm_gradient){{operands[BN_BWD_X], operands[BN_BWD_GAMMA], operands[BN_BWD_BETA],
                                 a->residual ? operands[BN_BWD_RESIDUAL] : NULL, operands[BN_BWD_MEAN],
                                 operands[BN_BWD_INVSTD]},
                                operands[BN_BWD_Y],
                                operands[BN_BWD_DY],
                                a->dy2 ? operands[BN_BWD_DY2] : NULL};
}

/* Returns g = (dy + dy2) act' at element i of channel `channel`. */
static double gradient_at(const batchnorm_attributes *a, const batchnorm_gradient *b, int64_t i,
                          int64_t channel)
{
    double dy = b->dy[i] + (b->dy2 ? b->dy2[i] : 0);
    if (a->act == ACTIVATION_NONE) return dy;
    double kept = a->act == ACTIVATION_RELU ? b->y[i] : act_argument(&b->forward, i, channel);
    return reference_activate_backward(a->act, kept, dy);
}

/* Computes sums (2c) = [ dbeta | dgamma ] = [ sum g | sum g xhat ] with xhat = (x - mean) invstd. */
static void sum_gradients(const host_call *call, const batchnorm_gradient *b, double *sums)
{
    const batchnorm_attributes *a = &call->op->u.batchnorm;
    bool add = host_accumulates(call);
    memset(sums, 0, (size_t)(2 * a->c) * sizeof *sums);
    for (int64_t i = 0; i < batchnorm_count(a) * a->c; i++) {
        int64_t c = i % a->c;
        double g = gradient_at(a, b, i, c);
        sums[c] += g;
        sums[a->c + c] += g * normalized(&b->forward, i, c);
    }
    reference_store_sums(sums, a->c, add, call->operands[BN_BWD_DBETA]);
    reference_store_sums(sums + a->c, a->c, add, call->operands[BN_BWD_DGAMMA]);
}

/* Returns dx = gamma invstd (g - mean(g) - xhat mean(g xhat)), with means over `count` values. */
static double through_normalization(const batchnorm_affine *f, int64_t i, int64_t c, double g, double sum_g,
                                    double sum_gx, double count)
{
    return f->gamma[c] * f->invstd[c] * (g - sum_g / count - normalized(f, i, c) * sum_gx / count);
}

void reference_batchnorm_backward(const host_call *call)
{
    const batchnorm_attributes *a = &call->op->u.batchnorm;
    batchnorm_gradient b = gradient_of(call);
    double *dx = call->operands[BN_BWD_DX], *dresidual = call->operands[BN_BWD_DRESIDUAL],
           *sums = call->workspace;
    sum_gradients(call, &b, sums);
    for (int64_t i = 0; i < batchnorm_count(a) * a->c; i++) {
        int64_t c = i % a->c;
        double g = gradient_at(a, &b, i, c);
        if (dresidual) dresidual[i] = g;
        dx[i] =
            through_normalization(&b.forward, i, c, g, sums[c], sums[a->c + c], (double)batchnorm_count(a));
    }
}

/* ---- SyncBatchNorm (torch.nn.SyncBatchNorm) ------------------------------------------------------
 *
 * The forward pass and the backward pass have two halves each. Between the halves the engine all-reduces SUMS
 * over all ranks. */

void reference_batchnorm_stats(const host_call *call)
{
    const batchnorm_attributes *a = &call->op->u.batchnorm;
    const double *x = call->operands[BN_STATS_X];
    double *sums = call->operands[BN_STATS_SUMS]; /* (2c + 1) */
    memset(sums, 0, (size_t)(2 * a->c) * sizeof *sums);
    for (int64_t i = 0; i < batchnorm_count(a) * a->c; i++) {
        sums[i % a->c] += x[i];
        sums[a->c + i % a->c] += x[i] * x[i];
    }
    sums[2 * a->c] = (double)batchnorm_count(a);
}

/* Computes variance = E[x^2] - E[x]^2, but at least 0. */
void reference_batchnorm_apply(const host_call *call)
{
    const batchnorm_attributes *a = &call->op->u.batchnorm;
    const double *sums = call->operands[BN_FWD_SUMS];
    double *mean = call->operands[BN_FWD_MEAN], *variance = call->operands[BN_FWD_INVSTD];
    double count = sums[2 * a->c];
    for (int64_t c = 0; c < a->c; c++) {
        mean[c] = sums[c] / count;
        variance[c] = fmax(sums[a->c + c] / count - mean[c] * mean[c], 0);
    }
    finish_forward(call, count);
}

void reference_batchnorm_backward_stats(const host_call *call)
{
    const batchnorm_attributes *a = &call->op->u.batchnorm;
    batchnorm_gradient b = gradient_of(call);
    double *g = call->operands[BN_BWD_DRESIDUAL];
    sum_gradients(call, &b, call->operands[BN_BWD_SUMS]);
    for (int64_t i = 0; i < batchnorm_count(a) * a->c; i++) g[i] = gradient_at(a, &b, i, i % a->c);
}

void reference_batchnorm_backward_apply(const host_call *call)
{
    const batchnorm_attributes *a = &call->op->u.batchnorm;
    void *const *operands = call->operands;
    batchnorm_affine f = {.x = operands[BN_BAPPLY_X],
                          .gamma = operands[BN_BAPPLY_GAMMA],
                          .mean = operands[BN_BAPPLY_MEAN],
                          .invstd = operands[BN_BAPPLY_INVSTD]};
    const double *g = operands[BN_BAPPLY_G], *sums = operands[BN_BAPPLY_SUMS],
                 *count = operands[BN_BAPPLY_COUNT];
    double *dx = operands[BN_BAPPLY_DX];
    for (int64_t i = 0; i < batchnorm_count(a) * a->c; i++) {
        int64_t c = i % a->c;
        dx[i] = through_normalization(&f, i, c, g[i], sums[c], sums[a->c + c], *count);
    }
}
