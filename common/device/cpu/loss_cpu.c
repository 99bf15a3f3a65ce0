/* Computes the losses and their gradients: cross entropy row by row, and mean squared error. */
#include "common/device/cpu/kernel.h"

#include <string.h>

/* Returns the bytes of sums [parts][2]. */
static size_t sums_bytes(const host_kernel *kernel)
{
    return cpu_sums_bytes(kernel->threads, 2);
}

static void loss_part(const void *context, int part, int64_t first, int64_t end)
{
    const host_call *call = context;
    const loss_attributes *a = &call->op->u.loss;
    const cpu_softmax *kernels = cpu_isa_of(call->kernel)->softmax;
    const float *logits = cpu_at(call, LOSS_LOGITS, first * a->classes);
    float *dlogits = a->gradient ? cpu_at(call, LOSS_DLOGITS, first * a->classes) : NULL;
    double normalizer = a->gradient ? call->scalars->loss_normalizer : 1,
           *sums = (double *)call->workspace + 2 * part;
    sums[0] = sums[1] = 0;
    if (call->op->kind == OP_cross_entropy)
        kernels->cross_entropy(logits, (const int32_t *)call->operands[LOSS_TARGETS] + first, end - first,
                               a->classes, normalizer, dlogits, sums);
    else
        sums[0] = kernels->squared_error(logits, cpu_at(call, LOSS_TARGETS, first * a->classes), dlogits,
                                         normalizer, (end - first) * a->classes);
}

static void loss(const host_call *call)
{
    const loss_attributes *a = &call->op->u.loss;
    double *sums = call->workspace;
    int parts = cpu_parallel(call->kernel->threads, host_rows(call, a->rows), cpu_row_grain(a->classes),
                             loss_part, call);
    cpu_sums_reduce(sums, parts, 2);
    memcpy(call->operands[LOSS_SUMS], sums, 2 * sizeof *sums);
}

const host_kernel_entry cpu_cross_entropy = {.run = loss, .workspace = sums_bytes};
const host_kernel_entry cpu_mean_squared_error = {.run = loss, .workspace = sums_bytes};
