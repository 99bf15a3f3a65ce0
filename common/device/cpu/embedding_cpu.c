/* Embedding tables, and the selection of rows. */

#include "common/device/cpu/kernel.h"
#include <string.h>

/* ---- embedding -------------------------------------------------------------------------------- */

typedef struct embedding_job {
    const cpu_elementwise *kernels;
    const embedding_attributes *attributes;
    void *const *operands;
    bool add_table, add_others;
    double *type_sums; /* [hidden] */
} embedding_job;

static void forward_part(const void *context, int part, int64_t first, int64_t end)
{
    const embedding_job *job = context;
    const embedding_attributes *a = job->attributes;
    const int32_t *tokens = job->operands[EMB_FWD_TOKENS];
    const float *table = job->operands[EMB_FWD_TABLE], *position = job->operands[EMB_FWD_POSITION];
    for (int64_t i = first; i < end; i++) {
        float *y = (float *)job->operands[EMB_FWD_Y] + i * a->hidden;
        const float *row = table + tokens[i] * a->hidden;
        if (a->position_table)
            job->kernels->add(row, position + i % a->sequence * a->hidden, y, a->hidden);
        else
            memcpy(y, row, (size_t)a->hidden * sizeof *y);
        if (a->type_table) job->kernels->add(y, job->operands[EMB_FWD_TYPE], y, a->hidden);
    }
}

static void forward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                    void *workspace)
{
    const embedding_attributes *a = &kernel->base.op.u.embedding;
    embedding_job job = {.kernels = cpu_isa_of(kernel)->elementwise, .attributes = a, .operands = operands};
    cpu_parallel(kernel->threads, a->batch * a->sequence, cpu_row_grain(a->hidden), forward_part, &job);
}

static void clear_columns(float *x, int64_t rows, int64_t stride, int64_t columns)
{
    if (columns == stride) {
        memset(x, 0, (size_t)(rows * stride) * sizeof *x);
        return;
    }
    for (int64_t i = 0; i < rows; i++) memset(x + i * stride, 0, (size_t)columns * sizeof *x);
}

static status prepare_backward(host_kernel *kernel, const device_layout *layout)
{
    kernel->base.workspace = (size_t)kernel->base.op.u.embedding.hidden * sizeof(double);
    return STATUS_OK;
}

/* A part owns columns [first, end) of every table, so that rows used twice are summed in the batch's order
 * whatever the number of threads. */
static void backward_part(const void *context, int part, int64_t first, int64_t end)
{
    const embedding_job *job = context;
    const embedding_attributes *a = job->attributes;
    int64_t hidden = a->hidden, columns = end - first, rows = a->batch * a->sequence;
    const int32_t *tokens = job->operands[EMB_BWD_TOKENS];
    const float *dy = (const float *)job->operands[EMB_BWD_DY] + first;
    float *table = (float *)job->operands[EMB_BWD_DTABLE] + first;
    if (!job->add_table) clear_columns(table, a->vocabulary, hidden, columns);
    for (int64_t i = 0; i < rows; i++) {
        float *row = table + tokens[i] * hidden;
        job->kernels->add(row, dy + i * hidden, row, columns);
    }
    if (a->position_table) {
        float *position = (float *)job->operands[EMB_BWD_DPOSITION] + first;
        if (!job->add_others) clear_columns(position, a->positions, hidden, columns);
        for (int64_t i = 0; i < rows; i++) {
            float *row = position + i % a->sequence * hidden;
            job->kernels->add(row, dy + i * hidden, row, columns);
        }
    }
    if (a->type_table) {
        float *type = (float *)job->operands[EMB_BWD_DTYPE] + first;
        double *sums = job->type_sums + first;
        memset(sums, 0, (size_t)columns * sizeof *sums);
        job->kernels->column_sums(dy, hidden, rows, columns, sums);
        cpu_sums_store(sums, columns, job->add_others, type);
        if (!job->add_others) clear_columns(type + hidden, 1, hidden, columns);
    }
}

static void backward(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                     void *workspace)
{
    enum { COLUMN_GRAIN = 64 };
    const embedding_attributes *a = &kernel->base.op.u.embedding;
    embedding_job job = {.kernels = cpu_isa_of(kernel)->elementwise,
                         .attributes = a,
                         .operands = operands,
                         .add_table = cpu_accumulates(kernel, scalars),
                         .add_others = scalars && scalars->accumulate,
                         .type_sums = workspace};
    cpu_parallel(kernel->threads, a->hidden, COLUMN_GRAIN, backward_part, &job);
}

/* ---- rows ------------------------------------------------------------------------------------- */

static int64_t selected_row(const rows_attributes *a, const int32_t *index, int64_t i)
{
    return a->every > 0 ? i * a->every : index[i];
}

static void gather(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                   void *workspace)
{
    const rows_attributes *a = &kernel->base.op.u.rows;
    const float *x = operands[ROWS_GATHER_X];
    float *y = operands[ROWS_GATHER_Y];
    size_t bytes = (size_t)a->hidden * sizeof *y;
    int64_t used = cpu_rows_used(a->selected, scalars);
    for (int64_t i = 0; i < used; i++)
        memcpy(y + i * a->hidden, x + selected_row(a, operands[ROWS_GATHER_INDEX], i) * a->hidden, bytes);
}

static void scatter(const host_kernel *kernel, void *const *operands, const op_scalars *scalars,
                    void *workspace)
{
    const rows_attributes *a = &kernel->base.op.u.rows;
    const float *dy = operands[ROWS_SCATTER_DY];
    float *dx = operands[ROWS_SCATTER_DX];
    size_t bytes = (size_t)a->hidden * sizeof *dx;
    int64_t used = cpu_rows_used(a->selected, scalars);
    memset(dx, 0, bytes * (size_t)a->rows);
    for (int64_t i = 0; i < used; i++)
        memcpy(dx + selected_row(a, operands[ROWS_SCATTER_INDEX], i) * a->hidden, dy + i * a->hidden, bytes);
}

const host_kernel_entry cpu_embedding_forward = {NULL, forward, NULL};
const host_kernel_entry cpu_embedding_backward = {prepare_backward, backward, NULL};
const host_kernel_entry cpu_gather_rows = {NULL, gather, NULL};
const host_kernel_entry cpu_scatter_rows = {NULL, scatter, NULL};
