/* SGD, Adam and AdamW as torch.optim has them, and the sum of squares for clipping. */
#include "common/device/cpu/kernel.h"

#include <math.h>
#include <string.h>

typedef struct update_job {
    const cpu_optimizer *kernels;
    cpu_sgd_step sgd;
    cpu_adam_step adam;
    float *param, *state1, *state2;
    const float *grad;
    int32_t *nonfinite;
} update_job;

static update_job update_of(const host_kernel *kernel, void *const *operands, const op_scalars *scalars)
{
    return (update_job){.kernels = cpu_isa_of(kernel)->optimizer,
                        .param = operands[OPT_PARAM],
                        .state1 = operands[OPT_STATE1],
                        .state2 = operands[OPT_STATE2],
                        .grad = operands[OPT_GRAD],
                        .nonfinite = scalars->nonfinite};
}

static void note_nonfinite(const update_job *job)
{
    if (job->nonfinite) __atomic_store_n(job->nonfinite, 1, __ATOMIC_RELAXED);
}

static void sgd_piece(const void *context, int part, int64_t offset, int64_t count)
{
    const update_job *job = context;
    float *momentum = job->sgd.has_momentum ? job->state1 + offset : NULL;
    if (!job->kernels->sgd(&job->sgd, job->param + offset, job->grad + offset, momentum, count)) note_nonfinite(job);
}

static void sgd(const host_kernel *kernel, void *const *operands, const op_scalars *scalars, void *workspace)
{
    const optimizer_attributes *a = &kernel->base.op.u.optimizer;
    update_job job = update_of(kernel, operands, scalars);
    job.sgd = (cpu_sgd_step){.learning_rate = (float)scalars->learning_rate,
                             .weight_decay = (float)scalars->weight_decay,
                             .gradient_scale = (float)scalars->gradient_scale,
                             .momentum = (float)a->momentum,
                             .undamped = (float)(1 - a->dampening),
                             .has_momentum = a->momentum != 0,
                             .nesterov = a->nesterov,
                             .first_step = scalars->first_step};
    cpu_parallel_pieces(kernel->threads, scalars, sgd_piece, &job);
}

static void adam_piece(const void *context, int part, int64_t offset, int64_t count)
{
    const update_job *job = context;
    if (!job->kernels->adam(&job->adam, job->param + offset, job->grad + offset, job->state1 + offset,
                            job->state2 + offset, count))
        note_nonfinite(job);
}

static void adam(const host_kernel *kernel, void *const *operands, const op_scalars *scalars, void *workspace)
{
    const optimizer_attributes *a = &kernel->base.op.u.optimizer;
    double decay = scalars->weight_decay;
    update_job job = update_of(kernel, operands, scalars);
    job.adam = (cpu_adam_step){.decay = (float)(a->decoupled ? 1 - scalars->learning_rate * decay : 1),
                               .weight_decay = (float)(a->decoupled ? 0 : decay),
                               .gradient_scale = (float)scalars->gradient_scale,
                               .beta1 = (float)a->beta1,
                               .beta1_rest = (float)(1 - a->beta1),
                               .beta2 = (float)a->beta2,
                               .beta2_rest = (float)(1 - a->beta2),
                               .eps = (float)a->eps,
                               .step_size = (float)(scalars->learning_rate / scalars->bias_correction1),
                               .root_correction2 = (float)sqrt(scalars->bias_correction2)};
    cpu_parallel_pieces(kernel->threads, scalars, adam_piece, &job);
}

/* ---- sum of squares --------------------------------------------------------------------------- */

typedef struct squares_job {
    const cpu_optimizer *kernels;
    const float *x;
    cpu_long_sum *sums; /* one a part */
} squares_job;

static void squares_piece(const void *context, int part, int64_t offset, int64_t count)
{
    const squares_job *job = context;
    job->kernels->sum_squares(job->x + offset, count, &job->sums[part]);
}

static status prepare_sum_squares(host_kernel *kernel, const device_layout *layout)
{
    kernel->base.workspace = (size_t)kernel->threads * sizeof(cpu_long_sum);
    return STATUS_OK;
}

static void sum_squares(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                        void *workspace)
{
    squares_job job = {cpu_isa_of(kernel)->optimizer, operands[SUMSQ_X], workspace};
    memset(job.sums, 0, kernel->base.workspace);
    int parts = cpu_parallel_pieces(kernel->threads, scalars, squares_piece, &job);
    cpu_long_sum total = job.sums[0];
    for (int i = 1; i < parts; i++) {
        double high = total.high + job.sums[i].high, added = high - total.high;
        total.low += (total.high - (high - added)) + (job.sums[i].high - added) + job.sums[i].low;
        total.high = high;
    }
    *(double *)operands[SUMSQ_OUT] += total.high + total.low;
}

const host_kernel_entry cpu_sgd = {NULL, sgd, NULL};
const host_kernel_entry cpu_adam = {NULL, adam, NULL};
const host_kernel_entry cpu_sum_squares = {prepare_sum_squares, sum_squares, NULL};
