/* Layer normalization (Ba, Kiros, Hinton, 2016), including the addition of a residual. */
#include "common/device/cpu/kernel.h"

#include <string.h>

static int run_rows(const host_call *call, cpu_part_function run)
{
    const layernorm_attributes *a = &call->op->u.layernorm;
    return cpu_parallel(call->kernel->threads, host_rows(call, a->m), cpu_row_grain(a->c), run, call);
}

static void forward_part(const void *context, int part, int64_t first, int64_t end)
{
    const host_call *call = context;
    cpu_isa_of(call->kernel)->layernorm->forward(&call->op->u.layernorm, call->operands, first, end);
}

static void forward(const host_call *call)
{
    run_rows(call, forward_part);
}

/* Returns the bytes of sums [parts][2c]. */
static size_t sums_bytes(const host_kernel *kernel)
{
    return cpu_sums_bytes(kernel->threads, 2 * kernel->base.op.u.layernorm.c);
}

static void backward_part(const void *context, int part, int64_t first, int64_t end)
{
    const host_call *call = context;
    const layernorm_attributes *a = &call->op->u.layernorm;
    double *sums = (double *)call->workspace + part * 2 * a->c;
    memset(sums, 0, (size_t)(2 * a->c) * sizeof *sums);
    cpu_isa_of(call->kernel)->layernorm->backward(a, call->operands, first, end, sums);
}

static void backward(const host_call *call)
{
    int64_t c = call->op->u.layernorm.c;
    double *sums = call->workspace;
    cpu_sums_reduce(sums, run_rows(call, backward_part), 2 * c);
    cpu_sums_store(sums, c, host_accumulates(call), call->operands[LN_BWD_DGAMMA]);
    cpu_sums_store(sums + c, c, host_accumulates(call), call->operands[LN_BWD_DBETA]);
}

const host_kernel_entry cpu_layernorm_forward = {.run = forward};
const host_kernel_entry cpu_layernorm_backward = {.run = backward, .workspace = sums_bytes};
