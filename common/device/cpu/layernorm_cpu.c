/* Layer normalization (Ba, Kiros and Hinton, 2016), with the addition before it. */
#include "common/device/cpu/kernel.h"

#include <string.h>

typedef struct layernorm_job {
    const cpu_layernorm *kernels;
    const layernorm_attributes *attributes;
    void *const *operands;
    double *sums; /* [parts][2c] */
} layernorm_job;

static void forward_part(const void *context, int part, int64_t first, int64_t end)
{
    const layernorm_job *job = context;
    job->kernels->forward(job->attributes, job->operands, first, end);
}

static void forward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                    void *workspace)
{
    const layernorm_attributes *a = &kernel->base.op.u.layernorm;
    layernorm_job job = {cpu_isa_of(kernel)->layernorm, a, operands, NULL};
    cpu_parallel(kernel->threads, cpu_rows_used(a->m, scalars), cpu_row_grain(a->c), forward_part, &job);
}

static status prepare_backward(host_kernel *kernel, const device_layout *layout)
{
    kernel->base.workspace = cpu_sums_bytes(kernel->threads, 2 * kernel->base.op.u.layernorm.c);
    return STATUS_OK;
}

static void backward_part(const void *context, int part, int64_t first, int64_t end)
{
    const layernorm_job *job = context;
    int64_t c = job->attributes->c;
    double *sums = job->sums + part * 2 * c;
    memset(sums, 0, (size_t)(2 * c) * sizeof *sums);
    job->kernels->backward(job->attributes, job->operands, first, end, sums);
}

static void backward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                     void *workspace)
{
    const layernorm_attributes *a = &kernel->base.op.u.layernorm;
    layernorm_job job = {cpu_isa_of(kernel)->layernorm, a, operands, workspace};
    bool add = cpu_accumulates(kernel, scalars);
    int parts =
        cpu_parallel(kernel->threads, cpu_rows_used(a->m, scalars), cpu_row_grain(a->c), backward_part, &job);
    cpu_sums_reduce(job.sums, parts, 2 * a->c);
    cpu_sums_store(job.sums, a->c, add, operands[LN_BWD_DGAMMA]);
    cpu_sums_store(job.sums + a->c, a->c, add, operands[LN_BWD_DBETA]);
}

const host_kernel_entry cpu_layernorm_forward = {NULL, forward, NULL};
const host_kernel_entry cpu_layernorm_backward = {prepare_backward, backward, NULL};
