/* SGD, Adam and AdamW as in torch.optim, and the sum of squares for gradient clipping. */
#include "common/device/cpu/kernel.h"

#include <math.h>
#include <string.h>

typedef struct update_job {
    const host_call *call;
    cpu_sgd_step sgd;
    cpu_adam_step adam;
} update_job;

static void update_piece(const void *context, int part, int64_t offset, int64_t count)
{
    const update_job *job = context;
    const host_call *call = job->call;
    const cpu_optimizer *kernels = cpu_isa_of(call->kernel)->optimizer;
    float *param = cpu_at(call, OPT_PARAM, offset), *state1 = cpu_at(call, OPT_STATE1, offset);
    const float *grad = cpu_at(call, OPT_GRAD, offset);
    bool finite =
        call->op->kind == OP_sgd
            ? kernels->sgd(&job->sgd, param, grad, job->sgd.has_momentum ? state1 : NULL, count)
            : kernels->adam(&job->adam, param, grad, state1, cpu_at(call, OPT_STATE2, offset), count);
    if (!finite && call->scalars->nonfinite) __atomic_store_n(call->scalars->nonfinite, 1, __ATOMIC_RELAXED);
}

static void sgd(const host_call *call)
{
    const optimizer_attributes *a = &call->op->u.optimizer;
    const op_scalars *s = call->scalars;
    update_job job = {.call = call,
                      .sgd = {.learning_rate = (float)s->learning_rate,
                              .weight_decay = (float)s->weight_decay,
                              .gradient_scale = (float)s->gradient_scale,
                              .momentum = (float)a->momentum,
                              .undamped = (float)(1 - a->dampening),
                              .has_momentum = a->momentum != 0,
                              .nesterov = a->nesterov,
                              .first_step = s->first_step}};
    cpu_parallel_pieces(call, update_piece, &job);
}

static void adam(const host_call *call)
{
    const optimizer_attributes *a = &call->op->u.optimizer;
    const op_scalars *s = call->scalars;
    update_job job = {.call = call,
                      .adam = {.decay = (float)(a->decoupled ? 1 - s->learning_rate * s->weight_decay : 1),
                               .weight_decay = (float)(a->decoupled ? 0 : s->weight_decay),
                               .gradient_scale = (float)s->gradient_scale,
                               .beta1 = (float)a->beta1,
                               .beta1_rest = (float)(1 - a->beta1),
                               .beta2 = (float)a->beta2,
                               .beta2_rest = (float)(1 - a->beta2),
                               .eps = (float)a->eps,
                               .step_size = (float)(s->learning_rate / s->bias_correction1),
                               .root_correction2 = (float)sqrt(s->bias_correction2)}};
    cpu_parallel_pieces(call, update_piece, &job);
}

/* ---- sum of squares, one per part --------------------------------------------------------------- */

static size_t long_sums(const host_kernel *kernel)
{
    return (size_t)kernel->threads * sizeof(cpu_long_sum);
}

static void squares_piece(const void *context, int part, int64_t offset, int64_t count)
{
    const host_call *call = context;
    cpu_long_sum *sums = call->workspace;
    cpu_isa_of(call->kernel)->optimizer->sum_squares(cpu_at(call, SUMSQ_X, offset), count, &sums[part]);
}

static void sum_squares(const host_call *call)
{
    cpu_long_sum *sums = call->workspace;
    memset(sums, 0, call->kernel->base.workspace);
    int parts = cpu_parallel_pieces(call, squares_piece, call);
    cpu_long_sum total = sums[0];
    for (int i = 1; i < parts; i++) {
        double high = total.high + sums[i].high, added = high - total.high;
        total.low += (total.high - (high - added)) + (sums[i].high - added) + sums[i].low;
        total.high = high;
    }
    *(double *)call->operands[SUMSQ_OUT] += total.high + total.low;
}

const host_kernel_entry cpu_sgd = {.run = sgd};
const host_kernel_entry cpu_adam = {.run = adam};
const host_kernel_entry cpu_sum_squares = {.run = sum_squares, .workspace = long_sums};
