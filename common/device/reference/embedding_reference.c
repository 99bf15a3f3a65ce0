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

void reference_embedding_forward(const host_call *call)
{
    const embedding_attributes *a = &call->op->u.embedding;
    const int32_t *tokens = call->operands[EMB_FWD_TOKENS];
    const double *table = call->operands[EMB_FWD_TABLE], *position = call->operands[EMB_FWD_POSITION];
    double *y = call->operands[EMB_FWD_Y];
    clear_rows(y, a->batch * a->sequence, a->hidden);
    for (int64_t i = 0; i < a->batch * a->sequence; i++) {
        add_row(y + i * a->hidden, table + tokens[i] * a->hidden, a->hidden);
        if (a->position_table) add_row(y + i * a->hidden, position + i % a->sequence * a->hidden, a->hidden);
        if (a->type_table) add_row(y + i * a->hidden, call->operands[EMB_FWD_TYPE], a->hidden);
    }
}

void reference_embedding_backward(const host_call *call)
{
    const embedding_attributes *a = &call->op->u.embedding;
    const int32_t *tokens = call->operands[EMB_BWD_TOKENS];
    const double *dy = call->operands[EMB_BWD_DY];
    double *dtable = call->operands[EMB_BWD_DTABLE], *dposition = call->operands[EMB_BWD_DPOSITION];
    double *dtypes = call->operands[EMB_BWD_DTYPE];
    bool micro_batch = call->scalars && call->scalars->accumulate;
    if (!host_accumulates(call)) clear_rows(dtable, a->vocabulary, a->hidden);
    if (!micro_batch && a->position_table) clear_rows(dposition, a->positions, a->hidden);
    if (!micro_batch && a->type_table) clear_rows(dtypes, 2, a->hidden);
    for (int64_t i = 0; i < a->batch * a->sequence; i++) {
        const double *row = dy + i * a->hidden;
        add_row(dtable + tokens[i] * a->hidden, row, a->hidden);
        if (a->position_table) add_row(dposition + i % a->sequence * a->hidden, row, a->hidden);
        if (a->type_table) add_row(dtypes, row, a->hidden);
    }
}
