/* Batch normalization (Ioffe and Szegedy, 2015) with PyTorch's conventions: values are normalized by the
 * biased variance, and the running variance moves towards the unbiased variance.
 *
 * The forward pass and the backward pass traverse memory twice each: once for sums, once for the result. Let
 * g be the gradient with respect to the activation's argument. If no other operation needs g, the backward
 * pass computes g from x and dy twice, because this is cheaper than writing and reading g. */
#include "common/device/cpu/kernel.h"

#include <math.h>
#include <string.h>

static int64_t row_count(const batchnorm_attributes *a)
{
    return a->n * a->h * a->w;
}

/* Returns the bytes of the workspace: double sums [threads][2c], then three arrays of c floats. */
static size_t workspace_bytes(const host_kernel *kernel)
{
    int64_t c = kernel->base.op.u.batchnorm.c;
    return cpu_sums_bytes(kernel->threads, 2 * c) + 3 * (size_t)c * sizeof(float);
}

static float *array_of(const host_call *call, int index)
{
    int64_t c = call->op->u.batchnorm.c;
    return (float *)((double *)call->workspace + call->kernel->threads * 2 * c) + index * c;
}

typedef struct pass_job {
    const cpu_batchnorm *kernels;
    activation act;
    cpu_batchnorm_data data;
    cpu_batchnorm_gradient gradient;
    double *sums; /* [parts][2c] */
} pass_job;

static double *part_sums(const pass_job *job, int part)
{
    double *sums = job->sums + part * 2 * job->data.c;
    return memset(sums, 0, (size_t)(2 * job->data.c) * sizeof *sums);
}

static int run_pass(const host_call *call, cpu_part_function run, pass_job *job)
{
    const batchnorm_attributes *a = &call->op->u.batchnorm;
    job->kernels = cpu_isa_of(call->kernel)->batchnorm;
    job->data.c = a->c;
    job->sums = call->workspace;
    return cpu_parallel(call->kernel->threads, row_count(a), cpu_row_grain(a->c), run, job);
}

/* ---- forward ---------------------------------------------------------------------------------- */

static void stats_part(const void *context, int part, int64_t first, int64_t end)
{
    const pass_job *job = context;
    job->kernels->stats(job->data.x + first * job->data.c, end - first, job->data.c, part_sums(job, part));
}

/* Returns sums [2c] = [ sum x | sum x^2 ], which are in the workspace. */
static const double *sum_rows(const host_call *call, const float *x)
{
    pass_job job = {.data.x = x};
    int parts = run_pass(call, stats_part, &job);
    cpu_sums_reduce(job.sums, parts, 2 * job.data.c);
    return job.sums;
}

static void apply_part(const void *context, int part, int64_t first, int64_t end)
{
    const pass_job *job = context;
    job->kernels->apply[job->act](&job->data, first, end);
}

/* Normalizes x. The first array of floats in the workspace must hold the scale gamma invstd. */
static void apply(const host_call *call, const float *mean)
{
    const batchnorm_attributes *a = &call->op->u.batchnorm;
    pass_job job = {.act = a->act,
                    .data = {.x = call->operands[BN_FWD_X],
                             .residual = a->residual ? call->operands[BN_FWD_RESIDUAL] : NULL,
                             .mean = mean,
                             .scale = array_of(call, 0),
                             .beta = call->operands[BN_FWD_BETA],
                             .y = call->operands[BN_FWD_Y]}};
    run_pass(call, apply_part, &job);
}

/* Computes mean, invstd and the running statistics from sums over `count` rows, then y. */
static void apply_sums(const host_call *call, const double *sums, double count)
{
    const batchnorm_attributes *a = &call->op->u.batchnorm;
    const float *gamma = call->operands[BN_FWD_GAMMA];
    float *mean = call->operands[BN_FWD_MEAN], *invstd = call->operands[BN_FWD_INVSTD],
          *scale = array_of(call, 0);
    float *running_mean = call->operands[BN_FWD_RUNNING_MEAN],
          *running_var = call->operands[BN_FWD_RUNNING_VAR];
    for (int64_t i = 0; i < a->c; i++) {
        double m = sums[i] / count, variance = fmax(sums[a->c + i] / count - m * m, 0);
        double unbiased = variance * count / fmax(count - 1, 1);
        mean[i] = (float)m;
        invstd[i] = (float)(1 / sqrt(variance + a->eps));
        running_mean[i] = (float)((1 - a->momentum) * running_mean[i] + a->momentum * m);
        running_var[i] = (float)((1 - a->momentum) * running_var[i] + a->momentum * unbiased);
        scale[i] = gamma[i] * invstd[i];
    }
    apply(call, mean);
}

static void forward(const host_call *call)
{
    apply_sums(call, sum_rows(call, call->operands[BN_FWD_X]), (double)row_count(&call->op->u.batchnorm));
}

static void inference(const host_call *call)
{
    const batchnorm_attributes *a = &call->op->u.batchnorm;
    const float *running_var = call->operands[BN_FWD_RUNNING_VAR], *gamma = call->operands[BN_FWD_GAMMA];
    float *scale = array_of(call, 0);
    for (int64_t i = 0; i < a->c; i++) scale[i] = (float)(gamma[i] / sqrt(running_var[i] + a->eps));
    apply(call, call->operands[BN_FWD_RUNNING_MEAN]);
}

/* ---- backward --------------------------------------------------------------------------------- */

static void backward_stats_part(const void *context, int part, int64_t first, int64_t end)
{
    const pass_job *job = context;
    job->kernels->backward_stats[job->act](&job->data, first, end, part_sums(job, part));
}

/* Computes scale = gamma invstd in the first array of floats in the workspace, and returns the array. */
static const float *scale_of(const host_call *call, const float *gamma, const float *invstd)
{
    float *scale = array_of(call, 0);
    for (int64_t i = 0; i < call->op->u.batchnorm.c; i++) scale[i] = gamma[i] * invstd[i];
    return scale;
}

/* Returns a job with sums [2c] = [ sum g | sum g xhat ]. The sums are also stored in dbeta and dgamma, or
 * added to them. Writes g to `g` unless `g` is NULL. */
static pass_job sum_gradients(const host_call *call, float *g)
{
    const batchnorm_attributes *a = &call->op->u.batchnorm;
    const float *invstd = call->operands[BN_BWD_INVSTD];
    pass_job job = {.act = a->act,
                    .data = {.x = call->operands[BN_BWD_X],
                             .residual = a->residual ? call->operands[BN_BWD_RESIDUAL] : NULL,
                             .mean = call->operands[BN_BWD_MEAN],
                             .scale = scale_of(call, call->operands[BN_BWD_GAMMA], invstd),
                             .beta = call->operands[BN_BWD_BETA],
                             .y = a->residual ? call->operands[BN_BWD_Y] : NULL,
                             .dy = call->operands[BN_BWD_DY],
                             .dy2 = a->dy2 ? call->operands[BN_BWD_DY2] : NULL,
                             .g = g}};
    int parts = run_pass(call, backward_stats_part, &job);
    cpu_sums_reduce(job.sums, parts, 2 * a->c);
    for (int64_t i = 0; i < a->c; i++) job.sums[a->c + i] *= invstd[i];
    cpu_sums_store(job.sums, a->c, host_accumulates(call), call->operands[BN_BWD_DBETA]);
    cpu_sums_store(job.sums + a->c, a->c, host_accumulates(call), call->operands[BN_BWD_DGAMMA]);
    return job;
}

static void backward_apply_part(const void *context, int part, int64_t first, int64_t end)
{
    const pass_job *job = context;
    job->kernels->backward_apply[job->act](&job->data, &job->gradient, first, end);
}

/* Computes dx = gamma invstd (g - mean(g) - xhat mean(g xhat)) from sums over `count` rows. */
static void backward_apply(const host_call *call, pass_job *job, const float *invstd, const double *sums,
                           double count, float *dx)
{
    int64_t c = call->op->u.batchnorm.c;
    const float *scale = job->data.scale;
    float *b = array_of(call, 1), *e = array_of(call, 2);
    for (int64_t i = 0; i < c; i++) {
        b[i] = (float)(-(double)scale[i] * invstd[i] * (sums[c + i] / count));
        e[i] = (float)(-(double)scale[i] * (sums[i] / count));
    }
    job->gradient = (cpu_batchnorm_gradient){scale, b, e, dx};
    run_pass(call, backward_apply_part, job);
}

static void backward(const host_call *call)
{
    pass_job job = sum_gradients(call, call->operands[BN_BWD_DRESIDUAL]);
    if (job.data.g) {
        job.data.dy = job.data.g;
        job.data.dy2 = NULL;
        job.act = ACTIVATION_NONE;
    }
    backward_apply(call, &job, call->operands[BN_BWD_INVSTD], job.sums,
                   (double)row_count(&call->op->u.batchnorm), call->operands[BN_BWD_DX]);
}

/* ---- SyncBatchNorm: between the two halves of a pass, the engine all-reduces the sums ----------------- */

static void sync_stats(const host_call *call)
{
    const batchnorm_attributes *a = &call->op->u.batchnorm;
    double *sums = call->operands[BN_STATS_SUMS];
    memcpy(sums, sum_rows(call, call->operands[BN_STATS_X]), (size_t)(2 * a->c) * sizeof *sums);
    sums[2 * a->c] = (double)row_count(a);
}

static void sync_apply(const host_call *call)
{
    const double *sums = call->operands[BN_FWD_SUMS];
    apply_sums(call, sums, sums[2 * call->op->u.batchnorm.c]);
}

static void sync_backward_stats(const host_call *call)
{
    pass_job job = sum_gradients(call, call->operands[BN_BWD_DRESIDUAL]);
    memcpy(call->operands[BN_BWD_SUMS], job.sums, (size_t)(2 * job.data.c) * sizeof *job.sums);
}

static void sync_backward_apply(const host_call *call)
{
    const float *invstd = call->operands[BN_BAPPLY_INVSTD];
    pass_job job = {.act = ACTIVATION_NONE,
                    .data = {.x = call->operands[BN_BAPPLY_X],
                             .mean = call->operands[BN_BAPPLY_MEAN],
                             .scale = scale_of(call, call->operands[BN_BAPPLY_GAMMA], invstd),
                             .dy = call->operands[BN_BAPPLY_G]}};
    backward_apply(call, &job, invstd, call->operands[BN_BAPPLY_SUMS],
                   *(const double *)call->operands[BN_BAPPLY_COUNT], call->operands[BN_BAPPLY_DX]);
}

const host_kernel_entry cpu_batchnorm_forward = {.run = forward, .workspace = workspace_bytes};
const host_kernel_entry cpu_batchnorm_inference = {.run = inference, .workspace = workspace_bytes};
const host_kernel_entry cpu_batchnorm_backward = {.run = backward, .workspace = workspace_bytes};
const host_kernel_entry cpu_batchnorm_stats = {.run = sync_stats, .workspace = workspace_bytes};
const host_kernel_entry cpu_batchnorm_apply = {.run = sync_apply, .workspace = workspace_bytes};
const host_kernel_entry cpu_batchnorm_backward_stats = {.run = sync_backward_stats,
                                                        .workspace = workspace_bytes};
const host_kernel_entry cpu_batchnorm_backward_apply = {.run = sync_backward_apply,
                                                        .workspace = workspace_bytes};
