/* The head of a token model on the rows that have targets alone: with masked-language-model targets that is
 * 15% of them, and the head of BERT-base is a fifth of its arithmetic. */
#include "common/nn/program_build.h"

static bool works_row_by_row(const build_node *node)
{
    switch (node->layer->kind) {
    case NN_LINEAR:
    case NN_ACTIVATION: return true;
    case NN_LAYERNORM: return node->residual == NN_NONE;
    default: return false;
    }
}

void build_find_head(build *b)
{
    b->head_node = -1;
    const nn_model *m = b->model;
    if (!b->program->config.masked_loss || m->rows_per_sample < 2 || m->loss != NN_LOSS_CROSS_ENTROPY) return;
    nn_ref wanted = m->output;
    for (int i = b->node_count - 1; i >= 0; i--) {
        const build_node *node = &b->nodes[i];
        if (node->output != wanted || b->consumers[wanted] != 1 || !works_row_by_row(node)) break;
        b->head_node = i;
        wanted = node->x;
    }
    /* What the head reads must be read by nobody else. */
    while (b->head_node >= 0 && b->consumers[b->nodes[b->head_node].x] != 1)
        b->head_node = b->head_node + 1 < b->node_count ? b->head_node + 1 : -1;
    b->program->masked = b->head_node >= 0;
}

static rows_attributes head_rows(const build *b)
{
    const shape sample = b->model->layers[b->nodes[b->head_node].x].sample;
    int64_t rows = build_rows(b, sample);
    return (rows_attributes){.rows = rows, .hidden = sample.dims[sample.rank - 1], .selected = rows};
}

static nn_operand rows_value(build *b)
{
    rows_attributes r = head_rows(b);
    return build_value(b, shape_2d(r.rows, r.hidden), build_storage(b), LEDGER_ACTIVATIONS);
}

void build_gather(build *b)
{
    const build_node *node = &b->nodes[b->head_node];
    nn_operand gathered = rows_value(b);
    nn_op *op = build_op(b, OP_gather_rows, node);
    op->desc.u.rows = head_rows(b);
    op->rows_vary = true;
    op->operands[ROWS_GATHER_X] = b->out[node->x];
    op->operands[ROWS_GATHER_INDEX] = (nn_operand){NN_SPACE_INDEX, 0, 0};
    op->operands[ROWS_GATHER_Y] = gathered;
    b->out[node->x] = gathered; /* for the head, its only reader */
}

void build_scatter(build *b)
{
    const build_node *node = &b->nodes[b->head_node];
    build_gradient *g = &b->gradients[node->x];
    if (g->count != 1) return;
    nn_operand dx = rows_value(b);
    nn_op *op = build_op(b, OP_scatter_rows, node);
    op->desc.u.rows = head_rows(b);
    op->rows_vary = true;
    op->operands[ROWS_SCATTER_DY] = g->parts[0];
    op->operands[ROWS_SCATTER_INDEX] = (nn_operand){NN_SPACE_INDEX, 0, 0};
    op->operands[ROWS_SCATTER_DX] = dx;
    g->parts[0] = dx;
}
