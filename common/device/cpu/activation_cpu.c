/* Elementwise operations: activations, addition, division, clearing. */
#include "common/device/cpu/kernel.h"

#include <string.h>

typedef struct elementwise_job {
    const cpu_elementwise *kernels;
    activation act;
    const float *a, *b;
    float *y;
} elementwise_job;

static void run_elementwise(const host_kernel *kernel, cpu_part_function run, const float *a, const float *b,
                            float *y)
{
    const elementwise_attributes *attributes = &kernel->base.op.u.elementwise;
    elementwise_job job = {cpu_isa_of(kernel)->elementwise, attributes->act, a, b, y};
    cpu_parallel(kernel->threads, attributes->count, CPU_GRAIN, run, &job);
}

static void activate_part(const void *context, int part, int64_t first, int64_t end)
{
    const elementwise_job *job = context;
    job->kernels->activate[job->act](job->a + first, job->y + first, end - first);
}

static void activation_forward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                               void *workspace)
{
    run_elementwise(kernel, activate_part, operands[ACT_FWD_X], NULL, operands[ACT_FWD_Y]);
}

static void activate_backward_part(const void *context, int part, int64_t first, int64_t end)
{
    const elementwise_job *job = context;
    job->kernels->activate_backward[job->act](job->a + first, job->b + first, job->y + first, end - first);
}

static void activation_backward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                                void *workspace)
{
    run_elementwise(kernel, activate_backward_part, operands[ACT_BWD_X], operands[ACT_BWD_DY],
                    operands[ACT_BWD_DX]);
}

static void add_part(const void *context, int part, int64_t first, int64_t end)
{
    const elementwise_job *job = context;
    job->kernels->add(job->a + first, job->b + first, job->y + first, end - first);
}

static void add(const host_kernel *kernel, void *const *operands, const op_scalars *scalars, void *workspace)
{
    run_elementwise(kernel, add_part, operands[ADD_A], operands[ADD_B], operands[ADD_Y]);
}

/* ---- over pieces ------------------------------------------------------------------------------ */

typedef struct pieces_job {
    const cpu_elementwise *kernels;
    float *x, divisor;
} pieces_job;

static void divide_piece(const void *context, int part, int64_t offset, int64_t count)
{
    const pieces_job *job = context;
    job->kernels->divide(job->x + offset, job->divisor, count);
}

static void divide(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                   void *workspace)
{
    pieces_job job = {cpu_isa_of(kernel)->elementwise, operands[DIVIDE_X], (float)scalars->divisor};
    cpu_parallel_pieces(kernel->threads, scalars, divide_piece, &job);
}

static void fill_piece(const void *context, int part, int64_t offset, int64_t count)
{
    const pieces_job *job = context;
    memset(job->x + offset, 0, (size_t)count * sizeof *job->x);
}

static void fill(const host_kernel *kernel, void *const *operands, const op_scalars *scalars, void *workspace)
{
    pieces_job job = {.x = operands[FILL_X]};
    cpu_parallel_pieces(kernel->threads, scalars, fill_piece, &job);
}

const host_kernel_entry cpu_activation_forward = {NULL, activation_forward, NULL};
const host_kernel_entry cpu_activation_backward = {NULL, activation_backward, NULL};
const host_kernel_entry cpu_add = {NULL, add, NULL};
const host_kernel_entry cpu_divide = {NULL, divide, NULL};
const host_kernel_entry cpu_fill = {NULL, fill, NULL};
