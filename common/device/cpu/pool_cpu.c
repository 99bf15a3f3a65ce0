#include "common/device/cpu/kernel.h"

typedef struct pool_job {
    const cpu_pool *kernels;
    const pool_attributes *attributes;
    const float *from;
    float *to;
    uint8_t *index;
} pool_job;

/* Forward is cut by rows of the output, backward by rows of the input's gradient. */
static void run_pool(const host_kernel *kernel, cpu_part_function run, int64_t rows, int64_t row_elements,
                     const float *from, uint8_t *index, float *to)
{
    pool_job job = {cpu_isa_of(kernel)->pool, &kernel->base.op.u.pool, from, to, index};
    cpu_parallel(kernel->threads, rows, cpu_row_grain(row_elements), run, &job);
}

static void max_forward_part(const void *context, int part, int64_t first, int64_t end)
{
    const pool_job *job = context;
    job->kernels->max_forward(job->attributes, job->from, job->to, job->index, first, end);
}

static void max_forward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                        void *workspace)
{
    const pool_attributes *a = &kernel->base.op.u.pool;
    run_pool(kernel, max_forward_part, a->n * a->p, a->q * a->c, operands[MAXPOOL_FWD_X],
             operands[MAXPOOL_FWD_INDEX], operands[MAXPOOL_FWD_Y]);
}

static void max_backward_part(const void *context, int part, int64_t first, int64_t end)
{
    const pool_job *job = context;
    job->kernels->max_backward(job->attributes, job->from, job->index, job->to, first, end);
}

static void max_backward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                         void *workspace)
{
    const pool_attributes *a = &kernel->base.op.u.pool;
    run_pool(kernel, max_backward_part, a->n * a->h, a->w * a->c, operands[MAXPOOL_BWD_DY],
             operands[MAXPOOL_BWD_INDEX], operands[MAXPOOL_BWD_DX]);
}

static void average_forward_part(const void *context, int part, int64_t first, int64_t end)
{
    const pool_job *job = context;
    job->kernels->average_forward(job->attributes, job->from, job->to, first, end);
}

static void average_forward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                            void *workspace)
{
    const pool_attributes *a = &kernel->base.op.u.pool;
    run_pool(kernel, average_forward_part, a->n * a->p, a->q * a->c * a->r * a->s, operands[AVGPOOL_FWD_X],
             NULL, operands[AVGPOOL_FWD_Y]);
}

static void average_backward_part(const void *context, int part, int64_t first, int64_t end)
{
    const pool_job *job = context;
    job->kernels->average_backward(job->attributes, job->from, job->to, first, end);
}

static void average_backward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                             void *workspace)
{
    const pool_attributes *a = &kernel->base.op.u.pool;
    run_pool(kernel, average_backward_part, a->n * a->h, a->w * a->c, operands[AVGPOOL_BWD_DY], NULL,
             operands[AVGPOOL_BWD_DX]);
}

const host_kernel_entry cpu_maxpool_forward = {NULL, max_forward, NULL};
const host_kernel_entry cpu_maxpool_backward = {NULL, max_backward, NULL};
const host_kernel_entry cpu_avgpool_forward = {NULL, average_forward, NULL};
const host_kernel_entry cpu_avgpool_backward = {NULL, average_backward, NULL};
