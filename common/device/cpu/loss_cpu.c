/* Losses: softmax with cross entropy and its gradient row by row, mean squared error. */

#include "common/device/cpu/kernel.h"
#include <string.h>

typedef struct loss_job {
    const cpu_softmax *kernels;
    const loss_attributes *attributes;
    const float *logits;
    const void *targets;
    float *dlogits; /* or NULL */
    double normalizer;
    double *sums; /* [parts][2] */
} loss_job;

static status prepare(host_kernel *kernel, const device_layout *layout)
{
    kernel->base.workspace = cpu_sums_bytes(kernel->threads, 2);
    return STATUS_OK;
}

static void run_loss(const host_kernel *kernel, cpu_part_function run, void *const *operands,
                     const op_scalars *scalars, void *workspace)
{
    const loss_attributes *a = &kernel->base.op.u.loss;
    loss_job job = {.kernels = cpu_isa_of(kernel)->softmax,
                    .attributes = a,
                    .logits = operands[LOSS_LOGITS],
                    .targets = operands[LOSS_TARGETS],
                    .dlogits = a->gradient ? operands[LOSS_DLOGITS] : NULL,
                    .normalizer = a->gradient ? scalars->loss_normalizer : 1,
                    .sums = workspace};
    int64_t rows = cpu_rows_used(a->rows, scalars);
    int parts = cpu_parallel(kernel->threads, rows, cpu_row_grain(a->classes), run, &job);
    cpu_sums_reduce(job.sums, parts, 2);
    memcpy(operands[LOSS_SUMS], job.sums, 2 * sizeof *job.sums);
}

static void cross_entropy_part(const void *context, int part, int64_t first, int64_t end)
{
    const loss_job *job = context;
    int64_t offset = first * job->attributes->classes;
    double *sums = job->sums + 2 * part;
    sums[0] = sums[1] = 0;
    job->kernels->cross_entropy(job->logits + offset, (const int32_t *)job->targets + first, end - first,
                                job->attributes->classes, job->normalizer,
                                job->dlogits ? job->dlogits + offset : NULL, sums);
}

static void cross_entropy(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                          void *workspace)
{
    run_loss(kernel, cross_entropy_part, operands, scalars, workspace);
}

static void squared_error_part(const void *context, int part, int64_t first, int64_t end)
{
    const loss_job *job = context;
    int64_t classes = job->attributes->classes, offset = first * classes;
    float *dlogits = job->dlogits ? job->dlogits + offset : NULL;
    job->sums[2 * part] =
        job->kernels->squared_error(job->logits + offset, (const float *)job->targets + offset, dlogits,
                                    job->normalizer, (end - first) * classes);
    job->sums[2 * part + 1] = 0;
}

static void mean_squared_error(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                               void *workspace)
{
    run_loss(kernel, squared_error_part, operands, scalars, workspace);
}

const host_kernel_entry cpu_cross_entropy = {prepare, cross_entropy, NULL};
const host_kernel_entry cpu_mean_squared_error = {prepare, mean_squared_error, NULL};
