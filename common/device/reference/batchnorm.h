/* What the kernels of BatchNorm and SyncBatchNorm share. Tensors are (count, c) with count = n h w. */
#ifndef COMMON_DEVICE_REFERENCE_BATCHNORM_H
#define COMMON_DEVICE_REFERENCE_BATCHNORM_H

#include "common/ops/op.h"

static inline int64_t batchnorm_count(const batchnorm_attributes *a)
{
    return a->n * a->h * a->w;
}

/* y = act((x - mean) * invstd * gamma + beta + residual) */
typedef struct batchnorm_affine {
    const double *x, *gamma, *beta, *residual; /* residual NULL: none */
    const double *mean, *invstd;               /* (c) */
} batchnorm_affine;

void batchnorm_normalize(const batchnorm_attributes *a, batchnorm_affine f, double *y);

/* The backward pass up to g, the gradient of act's argument. */
typedef struct batchnorm_gradient {
    batchnorm_affine forward;
    const double *y, *dy, *dy2; /* dy2 NULL: none */
} batchnorm_gradient;

/* g = (dy + dy2) * act' at element i, of channel `channel`. */
double batchnorm_gradient_at(const batchnorm_attributes *a, const batchnorm_gradient *b, int64_t i,
                             int64_t channel);

/* sum_g (c) and sum_gx (c): sums of g and of g * xhat, xhat = (x - mean) * invstd. */
void batchnorm_gradient_sums(const batchnorm_attributes *a, const batchnorm_gradient *b, double *sum_g,
                             double *sum_gx);

/* Moves the running statistics (c) towards mean and the unbiased variance of `count` values. */
void batchnorm_update_running(const batchnorm_attributes *a, const double *mean, const double *variance,
                              double count, double *running_mean, double *running_var);

#endif
