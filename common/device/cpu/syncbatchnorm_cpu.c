/* Batch normalization over all ranks, in halves with an all-reduce of the sums between. */
#include "common/device/cpu/batchnorm.h"

#include <string.h>

static void stats(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                  void *workspace)
{
    (void)scalars;
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    batchnorm_scratch scratch = batchnorm_scratch_of(kernel, workspace);
    double *sums = operands[BN_STATS_SUMS];
    batchnorm_sum(kernel, operands[BN_STATS_X], scratch.sums);
    memcpy(sums, scratch.sums, (size_t)(2 * a->c) * sizeof *sums);
    sums[2 * a->c] = (double)batchnorm_rows(a);
}

static void apply(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                  void *workspace)
{
    (void)scalars;
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    const double *sums = operands[BN_APPLY_SUMS];
    float *scale = batchnorm_scratch_of(kernel, workspace).array[0];
    batchnorm_moments(a, sums, sums[2 * a->c], operands[BN_APPLY_MEAN], operands[BN_APPLY_INVSTD],
                      operands[BN_APPLY_RUNNING_MEAN], operands[BN_APPLY_RUNNING_VAR]);
    batchnorm_scale(a->c, operands[BN_APPLY_GAMMA], operands[BN_APPLY_INVSTD], scale);
    cpu_batchnorm_data data = {.c = a->c,
                               .x = operands[BN_APPLY_X],
                               .residual = a->residual ? operands[BN_APPLY_RESIDUAL] : NULL,
                               .mean = operands[BN_APPLY_MEAN],
                               .scale = scale,
                               .beta = operands[BN_APPLY_BETA],
                               .y = operands[BN_APPLY_Y]};
    batchnorm_apply_all(kernel, &data);
}

static void backward_stats(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                           void *workspace)
{
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    batchnorm_scratch scratch = batchnorm_scratch_of(kernel, workspace);
    double *sums = operands[BN_BSTATS_SUMS];
    batchnorm_scale(a->c, operands[BN_BSTATS_GAMMA], operands[BN_BSTATS_INVSTD], scratch.array[0]);
    cpu_batchnorm_data data = {.c = a->c,
                               .x = operands[BN_BSTATS_X],
                               .residual = a->residual ? operands[BN_BSTATS_RESIDUAL] : NULL,
                               .mean = operands[BN_BSTATS_MEAN],
                               .scale = scratch.array[0],
                               .beta = operands[BN_BSTATS_BETA],
                               .y = a->residual ? operands[BN_BSTATS_Y] : NULL,
                               .dy = operands[BN_BSTATS_DY],
                               .dy2 = a->dy2 ? operands[BN_BSTATS_DY2] : NULL,
                               .g = operands[BN_BSTATS_G]};
    batchnorm_backward_sum(kernel, &data, operands[BN_BSTATS_INVSTD], scalars, scratch.sums,
                           operands[BN_BSTATS_DGAMMA], operands[BN_BSTATS_DBETA]);
    memcpy(sums, scratch.sums, (size_t)(2 * a->c) * sizeof *sums);
}

static void backward_apply(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                           void *workspace)
{
    (void)scalars;
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    batchnorm_scratch scratch = batchnorm_scratch_of(kernel, workspace);
    const double *count = operands[BN_BAPPLY_COUNT];
    batchnorm_scale(a->c, operands[BN_BAPPLY_GAMMA], operands[BN_BAPPLY_INVSTD], scratch.array[0]);
    cpu_batchnorm_data data = {.c = a->c,
                               .x = operands[BN_BAPPLY_X],
                               .mean = operands[BN_BAPPLY_MEAN],
                               .scale = scratch.array[0],
                               .dy = operands[BN_BAPPLY_G]};
    batchnorm_backward_apply_all(kernel, ACTIVATION_NONE, &data, operands[BN_BAPPLY_INVSTD],
                                 operands[BN_BAPPLY_SUMS], *count, scratch, operands[BN_BAPPLY_DX]);
}

const host_kernel_entry cpu_batchnorm_stats = {batchnorm_prepare, stats, NULL};
const host_kernel_entry cpu_batchnorm_apply = {batchnorm_prepare, apply, NULL};
const host_kernel_entry cpu_batchnorm_backward_stats = {batchnorm_prepare, backward_stats, NULL};
const host_kernel_entry cpu_batchnorm_backward_apply = {batchnorm_prepare, backward_apply, NULL};
