/* What batch normalization on one rank and over all ranks share: passes over [rows, c]. */
#ifndef COMMON_DEVICE_CPU_BATCHNORM_H
#define COMMON_DEVICE_CPU_BATCHNORM_H

#include "common/device/cpu/kernel.h"

static inline int64_t batchnorm_rows(const batchnorm_attributes *a)
{
    return a->n * a->h * a->w;
}

/* The workspace: double sums [threads][2c], then four arrays of c floats. */
typedef struct batchnorm_scratch {
    double *sums;
    float *array[4];
} batchnorm_scratch;

status batchnorm_prepare(host_kernel *kernel, const device_layout *layout);
batchnorm_scratch batchnorm_scratch_of(const host_kernel *kernel, void *workspace);

/* sums [2c] = sum x, sum x^2 */
void batchnorm_sum(const host_kernel *kernel, const float *x, double *sums);

/* mean, invstd and the running statistics from sums over `count` rows. */
void batchnorm_moments(const batchnorm_attributes *a, const double *sums, double count, float *mean,
                       float *invstd, float *running_mean, float *running_var);

/* scale = gamma invstd */
void batchnorm_scale(int64_t c, const float *gamma, const float *invstd, float *scale);

void batchnorm_apply_all(const host_kernel *kernel, const cpu_batchnorm_data *d);

/* sums [2c] = sum g, sum g xhat; adds to or replaces dgamma and dbeta. */
void batchnorm_backward_sum(const host_kernel *kernel, const cpu_batchnorm_data *d, const float *invstd,
                            const op_scalars *scalars, double *sums, float *dgamma, float *dbeta);

/* dx from sums over `count` rows. `act` is the layer's, or NONE where d->dy is g. */
void batchnorm_backward_apply_all(const host_kernel *kernel, activation act, const cpu_batchnorm_data *d,
                                  const float *invstd, const double *sums, double count,
                                  batchnorm_scratch scratch, float *dx);

#endif
