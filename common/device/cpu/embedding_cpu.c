#include "common/device/cpu/kernel.h"

#include <string.h>

static void forward_part(const void *context, int part, int64_t first, int64_t end)
{
    const host_call *call = context;
    const embedding_attributes *a = &call->op->u.embedding;
    const cpu_elementwise *kernels = cpu_isa_of(call->kernel)->elementwise;
    const int32_t *tokens = call->operands[EMB_FWD_TOKENS];
    for (int64_t i = first; i < end; i++) {
        float *y = cpu_at(call, EMB_FWD_Y, i * a->hidden);
        const float *row = cpu_at(call, EMB_FWD_TABLE, tokens[i] * a->hidden);
        if (a->position_table)
            kernels->add(row, cpu_at(call, EMB_FWD_POSITION, i % a->sequence * a->hidden), y, a->hidden);
        else
            memcpy(y, row, (size_t)a->hidden * sizeof *y);
        if (a->type_table) kernels->add(y, call->operands[EMB_FWD_TYPE], y, a->hidden);
    }
}

static void forward(const host_call *call)
{
    const embedding_attributes *a = &call->op->u.embedding;
    cpu_parallel(call->kernel->threads, a->batch * a->sequence, cpu_row_grain(a->hidden), forward_part, call);
}

static void clear_columns(float *x, int64_t rows, int64_t stride, int64_t columns)
{
    if (columns == stride) {
        memset(x, 0, (size_t)(rows * stride) * sizeof *x);
        return;
    }
    for (int64_t i = 0; i < rows; i++) memset(x + i * stride, 0, (size_t)columns * sizeof *x);
}

static size_t type_sums(const host_kernel *kernel)
{
    return (size_t)kernel->base.op.u.embedding.hidden * sizeof(double);
}

/* Computes columns [first, end) of every gradient. The work is split by columns, so that a table row that is
 * used twice is summed in the order of the batch, for any number of threads. */
static void backward_part(const void *context, int part, int64_t first, int64_t end)
{
    const host_call *call = context;
    const embedding_attributes *a = &call->op->u.embedding;
    const cpu_elementwise *kernels = cpu_isa_of(call->kernel)->elementwise;
    bool add_others = call->scalars && call->scalars->accumulate;
    int64_t hidden = a->hidden, columns = end - first, rows = a->batch * a->sequence;
    const int32_t *tokens = call->operands[EMB_BWD_TOKENS];
    const float *dy = cpu_at(call, EMB_BWD_DY, first);
    float *table = cpu_at(call, EMB_BWD_DTABLE, first);
    if (!host_accumulates(call)) clear_columns(table, a->vocabulary, hidden, columns);
    for (int64_t i = 0; i < rows; i++) {
        float *row = table + tokens[i] * hidden;
        kernels->add(row, dy + i * hidden, row, columns);
    }
    if (a->position_table) {
        float *position = cpu_at(call, EMB_BWD_DPOSITION, first);
        if (!add_others) clear_columns(position, a->positions, hidden, columns);
        for (int64_t i = 0; i < rows; i++) {
            float *row = position + i % a->sequence * hidden;
            kernels->add(row, dy + i * hidden, row, columns);
        }
    }
    if (a->type_table) {
        float *type = cpu_at(call, EMB_BWD_DTYPE, first);
        double *sums = (double *)call->workspace + first;
        memset(sums, 0, (size_t)columns * sizeof *sums);
        kernels->column_sums(dy, hidden, rows, columns, sums);
        cpu_sums_store(sums, columns, add_others, type);
        if (!add_others) clear_columns(type + hidden, 1, hidden, columns);
    }
}

static void backward(const host_call *call)
{
    enum { COLUMN_GRAIN = 64 };
    cpu_parallel(call->kernel->threads, call->op->u.embedding.hidden, COLUMN_GRAIN, backward_part, call);
}

const host_kernel_entry cpu_embedding_forward = {.run = forward};
const host_kernel_entry cpu_embedding_backward = {.run = backward, .workspace = type_sums};
const host_kernel_entry cpu_gather_rows = {.run = host_gather_rows};
const host_kernel_entry cpu_scatter_rows = {.run = host_scatter_rows};
