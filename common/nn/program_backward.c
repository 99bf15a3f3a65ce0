/* The backward pass: the nodes in reverse. Gradients that reach an output from several readers are
 * handed to the operation that can take two, or added. */
#include "common/nn/program_build.h"

static shape value_shape(const build *b, nn_operand value)
{
    return b->program->values[value.index].shape;
}

/* Memory for the gradient of what lies at `like`. */
static nn_operand gradient_value(build *b, nn_operand like)
{
    if (b->failure != STATUS_OK) return (nn_operand){0};
    return build_value(b, value_shape(b, like), build_storage(b), LEDGER_ACTIVATIONS);
}

static nn_ref through_flatten(const nn_model *m, nn_ref r)
{
    while (m->layers[r].kind == NN_FLATTEN) r = m->layers[r].input[0];
    return r;
}

static bool is_input(const build *b, nn_ref r)
{
    return b->model->layers[through_flatten(b->model, r)].kind == NN_INPUT;
}

static void contribute(build *b, nn_ref r, nn_operand gradient)
{
    build_gradient *g = &b->gradients[through_flatten(b->model, r)];
    if (g->count == (int)(sizeof g->parts / sizeof g->parts[0])) {
        b->failure = fail(STATUS_CONFIG, "model %s: layer %s has too many readers",
                          b->model->name, b->model->layers[r].name);
        return;
    }
    g->parts[g->count++] = gradient;
}

static bool same_value(nn_operand x, nn_operand y)
{
    return x.space == NN_SPACE_VALUE && y.space == NN_SPACE_VALUE && x.index == y.index;
}

/* A sum's gradient goes to two layers, or twice to one: whether it is to be read besides as the last part of `r`'s. */
static bool is_awaited(const build *b, nn_ref r, nn_operand gradient)
{
    for (nn_ref layer = 0; layer < b->model->layer_count; layer++) {
        const build_gradient *g = &b->gradients[layer];
        int others = layer == r ? g->count - 1 : g->count;
        for (int i = 0; i < others; i++)
            if (same_value(g->parts[i], gradient)) return true;
    }
    return false;
}

/* Where a linear layer's gradient of its input goes: memory of its own, or on top of what others have
 * contributed, so that nobody needs to add the two. The head works on some rows alone, and does not. */
static nn_operand input_gradient(build *b, const build_node *node, nn_operand dy, bool *accumulate)
{
    nn_ref r = through_flatten(b->model, node->x);
    const build_gradient *g = &b->gradients[r];
    nn_operand last = g->count > 0 ? g->parts[g->count - 1] : (nn_operand){0};
    bool in_head = b->head_node >= 0 && node >= &b->nodes[b->head_node];
    *accumulate = g->count > 0 && !in_head && last.offset_bytes == 0 && !same_value(last, dy) &&
                  last.index != b->program->output_gradient_value && !is_awaited(b, r, last);
    if (*accumulate) return last;
    return gradient_value(b, b->out[node->x]);
}

static nn_operand add_gradients(build *b, const build_node *node, nn_operand x, nn_operand y)
{
    nn_operand sum = gradient_value(b, x);
    nn_op *op = build_op(b, OP_add, node);
    if (b->failure == STATUS_OK)
        op->desc.u.elementwise = (elementwise_attributes){.count = shape_elements(value_shape(b, x))};
    op->operands[ADD_A] = x;
    op->operands[ADD_B] = y;
    op->operands[ADD_Y] = sum;
    return sum;
}

/* The gradient of layer `r`'s output in at most `most` parts; the rest is NONE. */
static void take_gradient(build *b, const build_node *node, nn_ref r, int most, nn_operand *parts)
{
    build_gradient *g = &b->gradients[r];
    while (g->count > most) {
        g->parts[g->count - 2] = add_gradients(b, node, g->parts[g->count - 2], g->parts[g->count - 1]);
        g->count--;
    }
    for (int i = 0; i < most; i++) parts[i] = i < g->count ? g->parts[i] : (nn_operand){0};
}

static void backward_conv2d(build *b, const build_node *node, nn_operand dy)
{
    const nn_layer *l = node->layer;
    nn_op *op = build_op(b, OP_conv2d_backward_weights, node);
    op->desc.u.conv2d = build_conv2d(b, node);
    op->weight_param = l->param[0];
    op->operands[CONV_BWD_WEIGHTS_X] = b->out[node->x];
    op->operands[CONV_BWD_WEIGHTS_DY] = dy;
    op->operands[CONV_BWD_WEIGHTS_DW] = build_grad(b, l->param[0], &op->desc);
    op->operands[CONV_BWD_WEIGHTS_DB] = build_grad(b, l->param[1], &op->desc);
    op->desc.x_f32 = op->desc.bf16 && is_input(b, node->x);
    if (is_input(b, node->x)) return;
    op = build_op(b, OP_conv2d_backward_data, node);
    op->desc.u.conv2d = build_conv2d(b, node);
    op->weight_param = l->param[0];
    op->operands[CONV_BWD_DATA_DY] = dy;
    op->operands[CONV_BWD_DATA_W] = build_weight(b, l->param[0]);
    nn_operand dx = gradient_value(b, b->out[node->x]);
    b->program->ops[b->program->op_count - 1].operands[CONV_BWD_DATA_DX] = dx;
    contribute(b, node->x, dx);
}

static void backward_linear(build *b, const build_node *node, nn_operand dy)
{
    const nn_layer *l = node->layer;
    nn_op *op = build_op(b, OP_linear_backward_weights, node);
    op->desc.u.linear = build_linear(b, node);
    op->weight_param = l->param[0];
    op->operands[LINEAR_BWD_WEIGHTS_X] = b->out[node->x];
    op->operands[LINEAR_BWD_WEIGHTS_DY] = dy;
    op->operands[LINEAR_BWD_WEIGHTS_DW] = build_grad(b, l->param[0], &op->desc);
    op->operands[LINEAR_BWD_WEIGHTS_DB] = build_grad(b, l->param[1], &op->desc);
    if (node->act != ACTIVATION_NONE)
        op->operands[LINEAR_BWD_WEIGHTS_ACT] = node->act == ACTIVATION_RELU ? node->y : node->slope;
    op->desc.x_f32 = op->desc.bf16 && is_input(b, node->x);
    if (is_input(b, node->x)) return;
    bool accumulate;
    nn_operand dx = input_gradient(b, node, dy, &accumulate);
    op = build_op(b, OP_linear_backward_data, node);
    op->desc.u.linear = build_linear(b, node);
    op->desc.accumulate = accumulate;
    op->weight_param = l->param[0];
    op->operands[LINEAR_BWD_DATA_DY] = dy;
    op->operands[LINEAR_BWD_DATA_W] = build_weight(b, l->param[0]);
    op->operands[LINEAR_BWD_DATA_DX] = dx;
    if (!accumulate) contribute(b, node->x, dx);
}

/* Whether the gradient that reaches the residual is dy itself, untouched. */
static bool passes_through(const build_node *node, nn_operand dy2)
{
    return node->act == ACTIVATION_NONE && dy2.space == NN_SPACE_NONE;
}

static void backward_batchnorm(build *b, const build_node *node, nn_operand dy, nn_operand dy2)
{
    const nn_layer *l = node->layer;
    bool residual = node->residual != NN_NONE, recompute = node->act != ACTIVATION_NONE && node->act != ACTIVATION_RELU;
    nn_operand dx = gradient_value(b, node->y);
    nn_operand dresidual = {0};
    if (residual) dresidual = passes_through(node, dy2) ? dy : gradient_value(b, node->y);
    nn_op *op = build_op(b, OP_batchnorm_backward, node);
    op->desc.u.batchnorm = build_batchnorm(b, node);
    op->desc.u.batchnorm.dy2 = dy2.space != NN_SPACE_NONE;
    op->operands[BN_BWD_X] = b->out[node->x];
    if (node->act == ACTIVATION_RELU) op->operands[BN_BWD_Y] = node->y;
    op->operands[BN_BWD_GAMMA] = build_param(l->param[0]);
    op->operands[BN_BWD_BETA] = build_param(l->param[1]);
    if (residual && recompute) op->operands[BN_BWD_RESIDUAL] = b->out[node->residual];
    op->operands[BN_BWD_MEAN] = node->mean;
    op->operands[BN_BWD_INVSTD] = node->invstd;
    op->operands[BN_BWD_DY] = dy;
    op->operands[BN_BWD_DY2] = dy2;
    op->operands[BN_BWD_DX] = dx;
    op->operands[BN_BWD_DGAMMA] = build_grad(b, l->param[0], &op->desc);
    op->operands[BN_BWD_DBETA] = build_grad(b, l->param[1], &op->desc);
    if (residual && !passes_through(node, dy2)) op->operands[BN_BWD_DRESIDUAL] = dresidual;
    contribute(b, node->x, dx);
    if (residual) contribute(b, node->residual, dresidual);
}

static void backward_sync_batchnorm(build *b, const build_node *node, nn_operand dy, nn_operand dy2)
{
    const nn_layer *l = node->layer;
    int64_t c = l->sample.dims[2];
    bool residual = node->residual != NN_NONE, recompute = node->act != ACTIVATION_NONE && node->act != ACTIVATION_RELU;
    nn_operand g = gradient_value(b, node->y), dx = gradient_value(b, node->y);
    nn_operand sums = build_value(b, shape_1d(2 * c), DTYPE_F64, LEDGER_ACTIVATIONS);
    batchnorm_attributes attributes = build_batchnorm(b, node);
    attributes.dy2 = dy2.space != NN_SPACE_NONE;
    nn_op *op = build_op(b, OP_batchnorm_backward_stats, node);
    op->desc.u.batchnorm = attributes;
    op->operands[BN_BSTATS_X] = b->out[node->x];
    if (node->act == ACTIVATION_RELU) op->operands[BN_BSTATS_Y] = node->y;
    op->operands[BN_BSTATS_GAMMA] = build_param(l->param[0]);
    op->operands[BN_BSTATS_BETA] = build_param(l->param[1]);
    if (residual && recompute) op->operands[BN_BSTATS_RESIDUAL] = b->out[node->residual];
    op->operands[BN_BSTATS_MEAN] = node->mean;
    op->operands[BN_BSTATS_INVSTD] = node->invstd;
    op->operands[BN_BSTATS_DY] = dy;
    op->operands[BN_BSTATS_DY2] = dy2;
    op->operands[BN_BSTATS_G] = g;
    op->operands[BN_BSTATS_DGAMMA] = build_grad(b, l->param[0], &op->desc);
    op->operands[BN_BSTATS_DBETA] = build_grad(b, l->param[1], &op->desc);
    op->operands[BN_BSTATS_SUMS] = sums;
    op->group_reduce = (int)(2 * c);
    op->group_slot = BN_BSTATS_SUMS;
    op = build_op(b, OP_batchnorm_backward_apply, node);
    op->desc.u.batchnorm = attributes;
    op->operands[BN_BAPPLY_X] = b->out[node->x];
    op->operands[BN_BAPPLY_GAMMA] = build_param(l->param[0]);
    op->operands[BN_BAPPLY_MEAN] = node->mean;
    op->operands[BN_BAPPLY_INVSTD] = node->invstd;
    op->operands[BN_BAPPLY_G] = g;
    op->operands[BN_BAPPLY_DX] = dx;
    op->operands[BN_BAPPLY_SUMS] = sums;
    op->operands[BN_BAPPLY_COUNT] = node->sums;
    op->operands[BN_BAPPLY_COUNT].offset_bytes = 2 * c * (int64_t)sizeof(double);
    contribute(b, node->x, dx);
    if (residual) contribute(b, node->residual, g);
}

static void backward_layernorm(build *b, const build_node *node, nn_operand dy)
{
    const nn_layer *l = node->layer;
    /* What was normalized is the addition, if there is one, or the input; whoever else read it has
     * already contributed to its gradient. */
    nn_ref normalized = node->sum_output != NN_NONE ? node->sum_output : through_flatten(b->model, node->x);
    nn_operand dsum = {0};
    if (b->gradients[normalized].count > 0) take_gradient(b, node, normalized, 1, &dsum);
    nn_operand dx = gradient_value(b, node->y);
    nn_op *op = build_op(b, OP_layernorm_backward, node);
    op->desc.u.layernorm = build_layernorm(b, node);
    op->desc.u.layernorm.dsum = dsum.space != NN_SPACE_NONE;
    op->operands[LN_BWD_X] = node->sum;
    op->operands[LN_BWD_GAMMA] = build_param(l->param[0]);
    op->operands[LN_BWD_MEAN] = node->mean;
    op->operands[LN_BWD_INVSTD] = node->invstd;
    op->operands[LN_BWD_DY] = dy;
    op->operands[LN_BWD_DSUM] = dsum;
    op->operands[LN_BWD_DX] = dx;
    op->operands[LN_BWD_DGAMMA] = build_grad(b, l->param[0], &op->desc);
    op->operands[LN_BWD_DBETA] = build_grad(b, l->param[1], &op->desc);
    if (node->residual != NN_NONE) {
        contribute(b, node->x, dx);
        contribute(b, node->residual, dx);
    } else {
        b->gradients[normalized] = (build_gradient){.parts = {dx}, .count = 1};
    }
}

static void backward_pool(build *b, const build_node *node, nn_operand dy)
{
    bool max = node->layer->kind == NN_MAXPOOL;
    nn_operand dx = gradient_value(b, b->out[node->x]);
    nn_op *op = build_op(b, max ? OP_maxpool_backward : OP_avgpool_backward, node);
    op->desc.u.pool = build_pool(b, node);
    op->operands[MAXPOOL_BWD_DY] = dy;
    if (max) op->operands[MAXPOOL_BWD_INDEX] = node->index;
    op->operands[max ? (int)MAXPOOL_BWD_DX : (int)AVGPOOL_BWD_DX] = dx;
    contribute(b, node->x, dx);
}

_Static_assert((int)MAXPOOL_BWD_DY == (int)AVGPOOL_BWD_DY, "pooling shares its first slot");

static void backward_activation(build *b, const build_node *node, nn_operand dy)
{
    nn_operand dx = gradient_value(b, node->y);
    nn_op *op = build_op(b, OP_activation_backward, node);
    op->desc.u.elementwise = build_elementwise(b, node);
    op->operands[ACT_BWD_X] = node->act == ACTIVATION_RELU ? node->y : b->out[node->x];
    op->operands[ACT_BWD_DY] = dy;
    op->operands[ACT_BWD_DX] = dx;
    contribute(b, node->x, dx);
}

static void backward_embedding(build *b, const build_node *node, nn_operand dy)
{
    const nn_layer *l = node->layer;
    nn_op *op = build_op(b, OP_embedding_backward, node);
    op->desc.u.embedding = build_embedding(b, node);
    op->operands[EMB_BWD_TOKENS] = b->out[node->x];
    op->operands[EMB_BWD_DY] = dy;
    op->operands[EMB_BWD_DTABLE] = build_grad(b, l->param[0], &op->desc);
    op->operands[EMB_BWD_DPOSITION] = build_grad(b, l->param[1], &op->desc);
    op->operands[EMB_BWD_DTYPE] = build_grad(b, l->param[2], &op->desc);
}

static void backward_attention(build *b, const build_node *node, nn_operand dy)
{
    const nn_layer *l = node->layer;
    int64_t hidden = l->sample.dims[1], size = dtype_size(build_storage(b));
    bool packed = node->q == node->k;
    nn_operand dq = gradient_value(b, b->out[node->q]), dk = dq, dv = dq;
    if (!packed) {
        dk = gradient_value(b, b->out[node->k]);
        dv = gradient_value(b, b->out[node->v]);
    }
    nn_operand k = b->out[node->k], v = b->out[node->v];
    if (packed) {
        k.offset_bytes = dk.offset_bytes = hidden * size;
        v.offset_bytes = dv.offset_bytes = 2 * hidden * size;
    }
    nn_op *op = build_op(b, OP_attention_backward, node);
    op->desc.u.attention = build_attention(b, node);
    op->operands[ATT_BWD_Q] = b->out[node->q];
    op->operands[ATT_BWD_K] = k;
    op->operands[ATT_BWD_V] = v;
    op->operands[ATT_BWD_OUT] = node->y;
    op->operands[ATT_BWD_LSE] = node->lse;
    op->operands[ATT_BWD_DOUT] = dy;
    op->operands[ATT_BWD_DQ] = dq;
    op->operands[ATT_BWD_DK] = dk;
    op->operands[ATT_BWD_DV] = dv;
    contribute(b, node->q, dq);
    if (packed) return;
    contribute(b, node->k, dk);
    contribute(b, node->v, dv);
}

static void backward_take_first(build *b, const build_node *node, nn_operand dy)
{
    nn_operand dx = gradient_value(b, b->out[node->x]);
    nn_op *op = build_op(b, OP_scatter_rows, node);
    op->desc.u.rows = build_take_first(b, node);
    op->operands[ROWS_SCATTER_DY] = dy;
    op->operands[ROWS_SCATTER_DX] = dx;
    contribute(b, node->x, dx);
}

static void backward_node(build *b, const build_node *node)
{
    bool batchnorm = node->layer->kind == NN_BATCHNORM;
    nn_operand dy[2] = {{0}, {0}};
    take_gradient(b, node, node->output, batchnorm ? 2 : 1, dy);
    if (dy[0].space == NN_SPACE_NONE) return; /* its output reaches no loss */
    b->gradients[node->output].count = 0;
    switch (node->layer->kind) {
    case NN_CONV2D: backward_conv2d(b, node, dy[0]); break;
    case NN_LINEAR: backward_linear(b, node, dy[0]); break;
    case NN_BATCHNORM:
        if (node->sums.space != NN_SPACE_NONE) backward_sync_batchnorm(b, node, dy[0], dy[1]);
        else backward_batchnorm(b, node, dy[0], dy[1]);
        break;
    case NN_LAYERNORM: backward_layernorm(b, node, dy[0]); break;
    case NN_ADD:
        contribute(b, node->x, dy[0]);
        contribute(b, node->residual, dy[0]);
        break;
    case NN_ACTIVATION: backward_activation(b, node, dy[0]); break;
    case NN_MAXPOOL:
    case NN_AVGPOOL: backward_pool(b, node, dy[0]); break;
    case NN_EMBEDDING: backward_embedding(b, node, dy[0]); break;
    case NN_ATTENTION: backward_attention(b, node, dy[0]); break;
    case NN_TAKE_FIRST: backward_take_first(b, node, dy[0]); break;
    case NN_INPUT:
    case NN_FLATTEN: break;
    }
}

status build_backward(build *b)
{
    for (int i = b->node_count - 1; i >= 0 && b->failure == STATUS_OK; i--) {
        int first = b->program->op_count;
        backward_node(b, &b->nodes[i]);
        for (int o = first; o < b->program->op_count; o++)
            b->program->ops[o].rows_vary = b->head_node >= 0 && i >= b->head_node;
        if (i == b->head_node) build_scatter(b);
    }
    return b->failure;
}
