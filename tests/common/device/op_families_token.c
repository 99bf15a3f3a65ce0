#include "tests/common/device/op_families.h"

#include <inttypes.h>

void case_embedding(op_case *c, embedding_attributes a, case_options o)
{
    case_begin(c, "embedding %" PRId64 "x%" PRId64 "x%" PRId64 " of %" PRId64 "%s%s%s%s", a.batch, a.sequence,
               a.hidden, a.vocabulary, a.position_table ? " position" : "", a.type_table ? " type" : "",
               o.accumulate ? " accumulated" : "", o.micro_batch ? " as a later micro-batch" : "");
    c->scalars.accumulate = o.micro_batch;
    int64_t rows = a.batch * a.sequence;
    int tokens = case_integers(c, "tokens", FILL_INDEX, rows, a.vocabulary);
    int table = case_parameter(c, "table", FILL_SIGNED, shape_2d(a.vocabulary, a.hidden));
    int y = case_output(c, "y", rows, a.hidden), dy = case_input(c, "dy", rows, a.hidden);
    int dtable = case_parameter_gradient(c, "dtable", table, o.accumulate || o.micro_batch);
    int position = CASE_NONE, dposition = CASE_NONE, type = CASE_NONE, dtypes = CASE_NONE;
    case_objective(c, y, dy);
    case_gradient(c, table, dtable, o.accumulate || o.micro_batch);
    if (a.position_table) {
        position = case_parameter(c, "position", FILL_SIGNED, shape_2d(a.positions, a.hidden));
        dposition = case_parameter_gradient(c, "dposition", position, o.micro_batch);
        case_gradient(c, position, dposition, o.micro_batch);
    }
    if (a.type_table) {
        type = case_parameter(c, "type", FILL_SIGNED, shape_2d(2, a.hidden));
        dtypes = case_parameter_gradient(c, "dtype", type, o.micro_batch);
        case_gradient(c, type, dtypes, o.micro_batch);
    }
    op_desc op = {.kind = OP_embedding_forward, .type = DTYPE_F64, .u.embedding = a};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){tokens, table, position, type, y}, 1 << EMB_FWD_Y);
    c->forward_steps = c->step_count;
    op.kind = OP_embedding_backward;
    op.accumulate = o.accumulate;
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){tokens, dy, dtable, dposition, dtypes},
                  1 << EMB_BWD_DTABLE | 1 << EMB_BWD_DPOSITION | 1 << EMB_BWD_DTYPE);
}

/* Adds the tensors q, k and v, or their gradients, either as three tensors or as three views of one
 * tensor. */
static void three(op_case *c, const attention_attributes *a, case_fill fill, bool packed,
                  const char *const names[4], int out[4])
{
    int64_t rows = a->batch * a->sequence, hidden = a->heads * a->width;
    out[3] = packed ? case_tensor_add(c, names[3], fill, rows, 3 * hidden) : CASE_NONE;
    for (int i = 0; i < 3; i++)
        out[i] = packed ? case_view(c, names[i], out[3], i * hidden)
                        : case_tensor_add(c, names[i], fill, rows, hidden);
}

void case_attention(op_case *c, attention_attributes a)
{
    int64_t rows = a.batch * a.sequence, hidden = a.heads * a.width;
    bool packed = a.stride == 3 * hidden;
    if (!packed) a.stride = hidden;
    case_begin(c, "attention %" PRId64 "x%" PRId64 " heads %" PRId64 " width %" PRId64 "%s%s", a.batch,
               a.sequence, a.heads, a.width, a.causal ? " causal" : "", packed ? " packed" : "");
    int in[4], gradients[4];
    three(c, &a, FILL_SIGNED, packed, (const char *const[]){"q", "k", "v", "qkv"}, in);
    three(c, &a, FILL_OUTPUT, packed, (const char *const[]){"dq", "dk", "dv", "dqkv"}, gradients);
    int out = case_output(c, "out", rows, hidden), dout = case_input(c, "dout", rows, hidden);
    int lse = case_output(c, "lse", a.batch * a.heads, a.sequence);
    op_desc op = {.kind = OP_attention_forward, .type = DTYPE_F64, .u.attention = a};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){in[0], in[1], in[2], out, lse},
                  1 << ATT_FWD_OUT | 1 << ATT_FWD_LSE);
    c->forward_steps = c->step_count;
    op.kind = OP_attention_backward;
    case_add_step(
        c, &op,
        (int[OP_MAX_OPERANDS]){in[0], in[1], in[2], out, lse, dout, gradients[0], gradients[1], gradients[2]},
        1 << ATT_BWD_DQ | 1 << ATT_BWD_DK | 1 << ATT_BWD_DV);
    case_objective(c, out, dout);
    for (int i = packed ? 3 : 0; i < (packed ? 4 : 3); i++) case_gradient(c, in[i], gradients[i], false);
}

void case_rows(op_case *c, rows_attributes a, case_options o)
{
    case_begin(c, "rows %" PRId64 " of %" PRId64 "x%" PRId64 "%s", a.selected, a.rows, a.hidden,
               a.every > 0  ? " evenly spaced"
               : o.rows > 0 ? " with fewer in use"
                            : "");
    c->scalars.rows = o.rows;
    int x = case_input(c, "x", a.rows, a.hidden);
    int index = a.every > 0 ? CASE_NONE : case_integers(c, "index", FILL_DISTINCT, a.selected, a.rows);
    int y = case_output(c, "y", a.selected, a.hidden), dy = case_input(c, "dy", a.selected, a.hidden);
    int dx = case_output(c, "dx", a.rows, a.hidden);
    if (o.rows > 0) {
        c->tensors[y].used = c->tensors[dy].used = o.rows * a.hidden;
        if (index) c->tensors[index].used = o.rows;
    }
    op_desc op = {.kind = OP_gather_rows, .type = DTYPE_F64, .u.rows = a};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){x, index, y}, 1 << ROWS_GATHER_Y);
    c->forward_steps = c->step_count;
    op.kind = OP_scatter_rows;
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){dy, index, dx}, 1 << ROWS_SCATTER_DX);
    case_objective(c, y, dy);
    case_gradient(c, x, dx, false);
}
