/* Batch normalization (Ioffe and Szegedy, 2015) with PyTorch's conventions: the biased variance normalizes,
 * the unbiased one moves the running variance. Two passes over memory each way: sums, then the result. Where
 * nothing else needs the activation's gradient g, the second pass recomputes it from x and dy, which is cheaper
 * than writing and reading it. */
#include "common/device/cpu/kernel.h"

#include <math.h>
#include <string.h>

static int64_t row_count(const batchnorm_attributes *a)
{
    return a->n * a->h * a->w;
}

/* The workspace: double sums [threads][2c], then four arrays of c floats. */
typedef struct batchnorm_scratch {
    double *sums;
    float *array[4];
} batchnorm_scratch;

static status prepare(host_kernel *kernel, const device_layout *layout)
{
    int64_t c = kernel->base.op.u.batchnorm.c;
    kernel->base.workspace = cpu_sums_bytes(kernel->threads, 2 * c) + 4 * (size_t)c * sizeof(float);
    return STATUS_OK;
}

static batchnorm_scratch scratch_of(const host_kernel *kernel, void *workspace)
{
    int64_t c = kernel->base.op.u.batchnorm.c;
    batchnorm_scratch scratch = {.sums = workspace};
    float *arrays = (float *)(scratch.sums + kernel->threads * 2 * c);
    for (int i = 0; i < 4; i++) scratch.array[i] = arrays + i * c;
    return scratch;
}

/* ---- sums ------------------------------------------------------------------------------------- */

typedef struct pass_job {
    const cpu_batchnorm *kernels;
    activation act;
    const cpu_batchnorm_data *data;
    const cpu_batchnorm_gradient *gradient;
    double *sums; /* [parts][2c] */
} pass_job;

static void stats_part(const void *context, int part, int64_t first, int64_t end)
{
    const pass_job *job = context;
    int64_t c = job->data->c;
    double *sums = job->sums + part * 2 * c;
    memset(sums, 0, (size_t)(2 * c) * sizeof *sums);
    job->kernels->stats(job->data->x + first * c, end - first, c, sums);
}

/* Runs a pass over all rows; returns the number of parts. */
static int run_pass(const host_kernel *kernel, cpu_part_function run, activation act,
                    const cpu_batchnorm_data *data, const cpu_batchnorm_gradient *gradient, double *sums)
{
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    pass_job job = {cpu_isa_of(kernel)->batchnorm, act, data, gradient, sums};
    return cpu_parallel(kernel->threads, row_count(a), cpu_row_grain(a->c), run, &job);
}

/* sums [2c] = sum x, sum x^2 */
static void sum_rows(const host_kernel *kernel, const float *x, double *sums)
{
    cpu_batchnorm_data data = {.c = kernel->base.op.u.batchnorm.c, .x = x};
    int parts = run_pass(kernel, stats_part, ACTIVATION_NONE, &data, NULL, sums);
    cpu_sums_reduce(sums, parts, 2 * data.c);
}

/* mean, invstd and the running statistics from sums over `count` rows. */
static void moments(const batchnorm_attributes *a, const double *sums, double count, float *mean,
                       float *invstd, float *running_mean, float *running_var)
{
    for (int64_t i = 0; i < a->c; i++) {
        double m = sums[i] / count, variance = fmax(sums[a->c + i] / count - m * m, 0);
        double unbiased = variance * count / fmax(count - 1, 1);
        mean[i] = (float)m;
        invstd[i] = (float)(1 / sqrt(variance + a->eps));
        running_mean[i] = (float)((1 - a->momentum) * running_mean[i] + a->momentum * m);
        running_var[i] = (float)((1 - a->momentum) * running_var[i] + a->momentum * unbiased);
    }
}

/* ---- forward ---------------------------------------------------------------------------------- */

/* scale = gamma invstd */
static void scale_of(int64_t c, const float *gamma, const float *invstd, float *scale)
{
    for (int64_t i = 0; i < c; i++) scale[i] = gamma[i] * invstd[i];
}

static void apply_part(const void *context, int part, int64_t first, int64_t end)
{
    const pass_job *job = context;
    job->kernels->apply[job->act](job->data, first, end);
}

static void apply_all(const host_kernel *kernel, const cpu_batchnorm_data *d)
{
    run_pass(kernel, apply_part, kernel->base.op.u.batchnorm.act, d, NULL, NULL);
}

static void forward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                    void *workspace)
{
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    batchnorm_scratch scratch = scratch_of(kernel, workspace);
    sum_rows(kernel, operands[BN_FWD_X], scratch.sums);
    moments(a, scratch.sums, (double)row_count(a), operands[BN_FWD_MEAN],
                      operands[BN_FWD_INVSTD], operands[BN_FWD_RUNNING_MEAN], operands[BN_FWD_RUNNING_VAR]);
    scale_of(a->c, operands[BN_FWD_GAMMA], operands[BN_FWD_INVSTD], scratch.array[0]);
    cpu_batchnorm_data data = {.c = a->c,
                               .x = operands[BN_FWD_X],
                               .residual = a->residual ? operands[BN_FWD_RESIDUAL] : NULL,
                               .mean = operands[BN_FWD_MEAN],
                               .scale = scratch.array[0],
                               .beta = operands[BN_FWD_BETA],
                               .y = operands[BN_FWD_Y]};
    apply_all(kernel, &data);
}

static void inference(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                      void *workspace)
{
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    const float *running_var = operands[BN_INF_RUNNING_VAR], *gamma = operands[BN_INF_GAMMA];
    float *scale = scratch_of(kernel, workspace).array[0];
    for (int64_t i = 0; i < a->c; i++) scale[i] = (float)(gamma[i] / sqrt(running_var[i] + a->eps));
    cpu_batchnorm_data data = {.c = a->c,
                               .x = operands[BN_INF_X],
                               .residual = a->residual ? operands[BN_INF_RESIDUAL] : NULL,
                               .mean = operands[BN_INF_RUNNING_MEAN],
                               .scale = scale,
                               .beta = operands[BN_INF_BETA],
                               .y = operands[BN_INF_Y]};
    apply_all(kernel, &data);
}

/* ---- backward --------------------------------------------------------------------------------- */

static void backward_stats_part(const void *context, int part, int64_t first, int64_t end)
{
    const pass_job *job = context;
    double *sums = job->sums + part * 2 * job->data->c;
    memset(sums, 0, (size_t)(2 * job->data->c) * sizeof *sums);
    job->kernels->backward_stats[job->act](job->data, first, end, sums);
}

/* sums [2c] = sum g, sum g xhat; adds to or replaces dgamma and dbeta. */
static void backward_sum(const host_kernel *kernel, const cpu_batchnorm_data *d, const float *invstd,
                            const op_scalars *scalars, double *sums, float *dgamma, float *dbeta)
{
    bool add = cpu_accumulates(kernel, scalars);
    int parts = run_pass(kernel, backward_stats_part, kernel->base.op.u.batchnorm.act, d, NULL, sums);
    cpu_sums_reduce(sums, parts, 2 * d->c);
    for (int64_t i = 0; i < d->c; i++) sums[d->c + i] *= invstd[i];
    cpu_sums_store(sums, d->c, add, dbeta);
    cpu_sums_store(sums + d->c, d->c, add, dgamma);
}

static void backward_apply_part(const void *context, int part, int64_t first, int64_t end)
{
    const pass_job *job = context;
    job->kernels->backward_apply[job->act](job->data, job->gradient, first, end);
}

/* dx = gamma invstd (g - mean(g) - xhat mean(g xhat)), from sums over `count` rows. `act` is the layer's, or NONE
 * where d->dy is g. */
static void backward_apply_all(const host_kernel *kernel, activation act, const cpu_batchnorm_data *d,
                                  const float *invstd, const double *sums, double count,
                                  batchnorm_scratch scratch, float *dx)
{
    cpu_batchnorm_gradient gradient = {d->scale, scratch.array[1], scratch.array[2], dx};
    for (int64_t i = 0; i < d->c; i++) {
        scratch.array[1][i] = (float)(-(double)d->scale[i] * invstd[i] * (sums[d->c + i] / count));
        scratch.array[2][i] = (float)(-(double)d->scale[i] * (sums[i] / count));
    }
    run_pass(kernel, backward_apply_part, act, d, &gradient, NULL);
}

static void backward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                     void *workspace)
{
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    batchnorm_scratch scratch = scratch_of(kernel, workspace);
    scale_of(a->c, operands[BN_BWD_GAMMA], operands[BN_BWD_INVSTD], scratch.array[0]);
    cpu_batchnorm_data data = {.c = a->c,
                               .x = operands[BN_BWD_X],
                               .residual = a->residual ? operands[BN_BWD_RESIDUAL] : NULL,
                               .mean = operands[BN_BWD_MEAN],
                               .scale = scratch.array[0],
                               .beta = operands[BN_BWD_BETA],
                               .y = a->residual ? operands[BN_BWD_Y] : NULL,
                               .dy = operands[BN_BWD_DY],
                               .dy2 = a->dy2 ? operands[BN_BWD_DY2] : NULL,
                               .g = operands[BN_BWD_DRESIDUAL]};
    backward_sum(kernel, &data, operands[BN_BWD_INVSTD], scalars, scratch.sums,
                           operands[BN_BWD_DGAMMA], operands[BN_BWD_DBETA]);
    activation act = a->act;
    if (data.g) {
        data.dy = data.g;
        data.dy2 = NULL;
        act = ACTIVATION_NONE;
    }
    backward_apply_all(kernel, act, &data, operands[BN_BWD_INVSTD], scratch.sums,
                                 (double)row_count(a), scratch, operands[BN_BWD_DX]);
}

/* ---- over all ranks: the two halves of each pass, between which the engine all-reduces the sums ---- */

static void sync_stats(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                  void *workspace)
{
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    batchnorm_scratch scratch = scratch_of(kernel, workspace);
    double *sums = operands[BN_STATS_SUMS];
    sum_rows(kernel, operands[BN_STATS_X], scratch.sums);
    memcpy(sums, scratch.sums, (size_t)(2 * a->c) * sizeof *sums);
    sums[2 * a->c] = (double)row_count(a);
}

static void sync_apply(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                  void *workspace)
{
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    const double *sums = operands[BN_APPLY_SUMS];
    float *scale = scratch_of(kernel, workspace).array[0];
    moments(a, sums, sums[2 * a->c], operands[BN_APPLY_MEAN], operands[BN_APPLY_INVSTD],
                      operands[BN_APPLY_RUNNING_MEAN], operands[BN_APPLY_RUNNING_VAR]);
    scale_of(a->c, operands[BN_APPLY_GAMMA], operands[BN_APPLY_INVSTD], scale);
    cpu_batchnorm_data data = {.c = a->c,
                               .x = operands[BN_APPLY_X],
                               .residual = a->residual ? operands[BN_APPLY_RESIDUAL] : NULL,
                               .mean = operands[BN_APPLY_MEAN],
                               .scale = scale,
                               .beta = operands[BN_APPLY_BETA],
                               .y = operands[BN_APPLY_Y]};
    apply_all(kernel, &data);
}

static void sync_backward_stats(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                           void *workspace)
{
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    batchnorm_scratch scratch = scratch_of(kernel, workspace);
    double *sums = operands[BN_BSTATS_SUMS];
    scale_of(a->c, operands[BN_BSTATS_GAMMA], operands[BN_BSTATS_INVSTD], scratch.array[0]);
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
    backward_sum(kernel, &data, operands[BN_BSTATS_INVSTD], scalars, scratch.sums,
                           operands[BN_BSTATS_DGAMMA], operands[BN_BSTATS_DBETA]);
    memcpy(sums, scratch.sums, (size_t)(2 * a->c) * sizeof *sums);
}

static void sync_backward_apply(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                           void *workspace)
{
    const batchnorm_attributes *a = &kernel->base.op.u.batchnorm;
    batchnorm_scratch scratch = scratch_of(kernel, workspace);
    const double *count = operands[BN_BAPPLY_COUNT];
    scale_of(a->c, operands[BN_BAPPLY_GAMMA], operands[BN_BAPPLY_INVSTD], scratch.array[0]);
    cpu_batchnorm_data data = {.c = a->c,
                               .x = operands[BN_BAPPLY_X],
                               .mean = operands[BN_BAPPLY_MEAN],
                               .scale = scratch.array[0],
                               .dy = operands[BN_BAPPLY_G]};
    backward_apply_all(kernel, ACTIVATION_NONE, &data, operands[BN_BAPPLY_INVSTD],
                                 operands[BN_BAPPLY_SUMS], *count, scratch, operands[BN_BAPPLY_DX]);
}

const host_kernel_entry cpu_batchnorm_forward = {prepare, forward, NULL};
const host_kernel_entry cpu_batchnorm_inference = {prepare, inference, NULL};
const host_kernel_entry cpu_batchnorm_backward = {prepare, backward, NULL};
const host_kernel_entry cpu_batchnorm_stats = {prepare, sync_stats, NULL};
const host_kernel_entry cpu_batchnorm_apply = {prepare, sync_apply, NULL};
const host_kernel_entry cpu_batchnorm_backward_stats = {prepare, sync_backward_stats, NULL};
const host_kernel_entry cpu_batchnorm_backward_apply = {prepare, sync_backward_apply, NULL};
