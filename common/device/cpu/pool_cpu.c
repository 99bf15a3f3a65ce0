#include "common/device/cpu/kernel.h"

static void pool_part(const void *context, int part, int64_t first, int64_t end)
{
    const host_call *call = context;
    const cpu_pool *kernels = cpu_isa_of(call->kernel)->pool;
    kernels->run[call->op->kind - OP_maxpool_forward](&call->op->u.pool, call->operands, first, end);
}

/* Runs a pooling operation. The work is split by rows of the output (forward) or of the input's gradient
 * (backward). */
static void pool(const host_call *call)
{
    const pool_attributes *a = &call->op->u.pool;
    int64_t rows = a->n * a->h, row_elements = a->w * a->c;
    if (call->op->kind == OP_maxpool_forward || call->op->kind == OP_avgpool_forward) rows = a->n * a->p;
    if (call->op->kind == OP_maxpool_forward) row_elements = a->q * a->c;
    if (call->op->kind == OP_avgpool_forward) row_elements = a->q * a->c * a->r * a->s;
    cpu_parallel(call->kernel->threads, rows, cpu_row_grain(row_elements), pool_part, call);
}

const host_kernel_entry cpu_maxpool_forward = {.run = pool};
const host_kernel_entry cpu_maxpool_backward = {.run = pool};
const host_kernel_entry cpu_avgpool_forward = {.run = pool};
const host_kernel_entry cpu_avgpool_backward = {.run = pool};
