/* Rows looked up in tables, and rows taken from and put back into a matrix. */
#include "common/device/reference/reference_kernels.h"

#include <string.h>

static void add_row(double *to, const double *from, int64_t hidden)
{
    for (int64_t i = 0; i < hidden; i++) to[i] += from[i];
}

static void clear_rows(double *to, int64_t rows, int64_t hidden)
{
    memset(to, 0, (size_t)(rows * hidden) * sizeof *to);
}

static void embedding_forward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                              void *workspace)
{
    const embedding_attributes *a = &kernel->base.op.u.embedding;
    const int32_t *tokens = operands[EMB_FWD_TOKENS];
    const double *table = operands[EMB_FWD_TABLE], *position = operands[EMB_FWD_POSITION];
    double *y = operands[EMB_FWD_Y];
    clear_rows(y, a->batch * a->sequence, a->hidden);
    for (int64_t i = 0; i < a->batch * a->sequence; i++) {
        add_row(y + i * a->hidden, table + tokens[i] * a->hidden, a->hidden);
        if (a->position_table) add_row(y + i * a->hidden, position + i % a->sequence * a->hidden, a->hidden);
        if (a->type_table) add_row(y + i * a->hidden, operands[EMB_FWD_TYPE], a->hidden);
    }
}

static void embedding_backward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                               void *workspace)
{
    const embedding_attributes *a = &kernel->base.op.u.embedding;
    const int32_t *tokens = operands[EMB_BWD_TOKENS];
    const double *dy = operands[EMB_BWD_DY];
    double *dtable = operands[EMB_BWD_DTABLE], *dposition = operands[EMB_BWD_DPOSITION];
    double *dtypes = operands[EMB_BWD_DTYPE];
    bool micro_batch = scalars && scalars->accumulate;
    if (!reference_accumulates(&kernel->base.op, scalars)) clear_rows(dtable, a->vocabulary, a->hidden);
    if (!micro_batch && a->position_table) clear_rows(dposition, a->positions, a->hidden);
    if (!micro_batch && a->type_table) clear_rows(dtypes, 2, a->hidden);
    for (int64_t i = 0; i < a->batch * a->sequence; i++) {
        const double *row = dy + i * a->hidden;
        add_row(dtable + tokens[i] * a->hidden, row, a->hidden);
        if (a->position_table) add_row(dposition + i % a->sequence * a->hidden, row, a->hidden);
        if (a->type_table) add_row(dtypes, row, a->hidden);
    }
}

static int64_t selected_row(const rows_attributes *a, const int32_t *index, int64_t i)
{
    return a->every > 0 ? i * a->every : index[i];
}

static void gather(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                   void *workspace)
{
    const rows_attributes *a = &kernel->base.op.u.rows;
    const double *x = operands[ROWS_GATHER_X];
    double *y = operands[ROWS_GATHER_Y];
    for (int64_t i = 0; i < reference_rows(scalars, a->selected); i++)
        memcpy(y + i * a->hidden, x + selected_row(a, operands[ROWS_GATHER_INDEX], i) * a->hidden,
               (size_t)a->hidden * sizeof *y);
}

static void scatter(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                    void *workspace)
{
    const rows_attributes *a = &kernel->base.op.u.rows;
    const double *dy = operands[ROWS_SCATTER_DY];
    double *dx = operands[ROWS_SCATTER_DX];
    clear_rows(dx, a->rows, a->hidden);
    for (int64_t i = 0; i < reference_rows(scalars, a->selected); i++)
        add_row(dx + selected_row(a, operands[ROWS_SCATTER_INDEX], i) * a->hidden, dy + i * a->hidden,
                a->hidden);
}

const host_kernel_entry reference_embedding_forward = {NULL, embedding_forward, NULL};
const host_kernel_entry reference_embedding_backward = {NULL, embedding_backward, NULL};
const host_kernel_entry reference_gather_rows = {NULL, gather, NULL};
const host_kernel_entry reference_scatter_rows = {NULL, scatter, NULL};
