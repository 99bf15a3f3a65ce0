#include "common/device/cpu/kernel.h"

#include <string.h>

static void elementwise_part(const void *context, int part, int64_t first, int64_t end)
{
    const host_call *call = context;
    const cpu_elementwise *kernels = cpu_isa_of(call->kernel)->elementwise;
    activation act = call->op->u.elementwise.act;
    const float *a = cpu_at(call, 0, first), *b = cpu_at(call, 1, first);
    if (call->op->kind == OP_activation_forward)
        kernels->activate[act](a, cpu_at(call, ACT_FWD_Y, first), end - first);
    else if (call->op->kind == OP_activation_backward)
        kernels->activate_backward[act](a, b, cpu_at(call, ACT_BWD_DX, first), end - first);
    else
        kernels->add(a, b, cpu_at(call, ADD_Y, first), end - first);
}

static void elementwise(const host_call *call)
{
    cpu_parallel(call->kernel->threads, call->op->u.elementwise.count, CPU_GRAIN, elementwise_part, call);
}

static void concat_part(const void *context, int part, int64_t first, int64_t end)
{
    host_concat_rows(context, first, end);
}

static void concat(const host_call *call)
{
    const concat_attributes *a = &call->op->u.concat;
    int64_t columns = 0;
    for (int i = 0; i < CONCAT_MOST; i++) columns += a->c[i];
    cpu_parallel(call->kernel->threads, a->rows, cpu_row_grain(columns), concat_part, call);
}

static void divide_piece(const void *context, int part, int64_t offset, int64_t count)
{
    const host_call *call = context;
    cpu_isa_of(call->kernel)
        ->elementwise->divide(cpu_at(call, DIVIDE_X, offset), (float)call->scalars->divisor, count);
}

static void divide(const host_call *call)
{
    cpu_parallel_pieces(call, divide_piece, call);
}

static void fill_piece(const void *context, int part, int64_t offset, int64_t count)
{
    memset(cpu_at(context, FILL_X, offset), 0, (size_t)count * sizeof(float));
}

static void fill(const host_call *call)
{
    cpu_parallel_pieces(call, fill_piece, call);
}

const host_kernel_entry cpu_activation_forward = {.run = elementwise};
const host_kernel_entry cpu_activation_backward = {.run = elementwise};
const host_kernel_entry cpu_add = {.run = elementwise};
const host_kernel_entry cpu_concat_forward = {.run = concat};
const host_kernel_entry cpu_concat_backward = {.run = concat};
const host_kernel_entry cpu_divide = {.run = divide};
const host_kernel_entry cpu_fill = {.run = fill};
