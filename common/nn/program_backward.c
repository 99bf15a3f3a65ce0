/* Emits the backward pass by walking the nodes in reverse. If several layers read an output, the gradient of
 * the output has several parts. An operation that can read two parts adds the two parts itself. For other
 * operations, additional operations add all parts first. */
#include "common/nn/program_build.h"

static nn_operand gradient_value(build *b, nn_operand like)
{
    return build_value(b, b->program->values[like.index].shape, build_storage(b), LEDGER_ACTIVATIONS);
}

/* Returns true if layer `r` is the batch's samples, which get no gradient. If the input is the output of the
 * previous stage, the input gets a gradient. */
static bool is_samples(const build *b, nn_ref r)
{
    return b->model->layers[r].kind == NN_INPUT && !b->model->received;
}

static void contribute(build *b, nn_ref r, nn_operand gradient)
{
    build_gradient *g = &b->layers[build_through_flatten(b->model, r)].gradient;
    if (g->count == (int)(sizeof g->parts / sizeof g->parts[0])) {
        b->failure = fail(STATUS_CONFIG, "model %s: layer %s has too many readers", b->model->name,
                          b->model->layers[r].name);
        return;
    }
    g->parts[g->count++] = gradient;
}

static bool same_value(nn_operand x, nn_operand y)
{
    return x.space == NN_SPACE_VALUE && y.space == NN_SPACE_VALUE && x.index == y.index;
}

/* Returns true if `gradient` has another use than as the last part of the gradient of `r`. For example,
 * the gradient of an addition is a part of the gradients of both inputs, and both inputs may be the same
 * layer. */
static bool is_awaited(const build *b, nn_ref r, nn_operand gradient)
{
    for (nn_ref layer = 0; layer < b->model->layer_count; layer++) {
        const build_gradient *g = &b->layers[layer].gradient;
        int others = layer == r ? g->count - 1 : g->count;
        for (int i = 0; i < others; i++)
            if (same_value(g->parts[i], gradient)) return true;
    }
    return false;
}

/* Returns the memory for a linear layer's gradient of its input. If other layers read the same input, the
 * layer adds its gradient to their gradient if possible, which saves an operation. Layers in the masked head
 * cannot do this, because the head works on fewer rows. */
static nn_operand input_gradient(build *b, const build_node *node, bool *accumulate)
{
    const build_gradient *g = &b->layers[node->x].gradient;
    nn_operand last = g->count > 0 ? g->parts[g->count - 1] : (nn_operand){0};
    bool in_head = b->head_node >= 0 && node >= &b->nodes[b->head_node];
    *accumulate = g->count > 0 && !in_head && last.offset_bytes == 0 && !same_value(last, node->at[DY]) &&
                  (last.index != b->program->output_gradient_value || b->model->sent) &&
                  !is_awaited(b, node->x, last);
    return *accumulate ? last : gradient_value(b, node->at[X]);
}

static nn_operand add_gradients(build *b, const build_node *node, nn_operand x, nn_operand y)
{
    nn_op *op = build_op(b, OP_add, node);
    op->desc.u.elementwise.count = shape_elements(b->program->values[x.index].shape);
    op->operands[ADD_A] = x;
    op->operands[ADD_B] = y;
    return op->operands[ADD_Y] = gradient_value(b, x);
}

/* Gets the gradient of layer `r`'s output. Emits additions until at most `most` parts are left, and writes
 * the remaining parts to `parts`. Sets the unused entries of `parts` to NONE. */
static void take_gradient(build *b, const build_node *node, nn_ref r, int most, nn_operand *parts)
{
    build_gradient *g = &b->layers[r].gradient;
    while (g->count > most) {
        g->parts[g->count - 2] = add_gradients(b, node, g->parts[g->count - 2], g->parts[g->count - 1]);
        g->count--;
    }
    for (int i = 0; i < most; i++) parts[i] = i < g->count ? g->parts[i] : (nn_operand){0};
}

/* Emits the operation that computes the gradient of the input from DY, for layers that have only this
 * operation. Emits nothing if the input is the batch's samples. */
static void backward_input(build *b, build_node *node)
{
    static const op_kind kinds[] = {[NN_CONV2D] = OP_conv2d_backward_data,
                                    [NN_ACTIVATION] = OP_activation_backward,
                                    [NN_MAXPOOL] = OP_maxpool_backward,
                                    [NN_AVGPOOL] = OP_avgpool_backward,
                                    [NN_TAKE_FIRST] = OP_scatter_rows};
    nn_layer_kind kind = node->layer->kind;
    if (kind == NN_CONV2D) build_emit(b, OP_conv2d_backward_weights, node);
    if (kind == NN_ACTIVATION && node->act == ACTIVATION_RELU) node->at[X] = node->at[Y];
    if (is_samples(b, node->x)) return;
    node->at[DX] = gradient_value(b, node->at[X]);
    build_emit(b, kinds[kind], node);
    contribute(b, node->x, node->at[DX]);
}

static void backward_linear(build *b, build_node *node)
{
    bool accumulate;
    if (node->act == ACTIVATION_RELU) node->at[SLOPE] = node->at[Y];
    build_emit(b, OP_linear_backward_weights, node);
    if (is_samples(b, node->x)) return;
    node->at[DX] = input_gradient(b, node, &accumulate);
    build_emit(b, OP_linear_backward_data, node)->desc.accumulate = accumulate;
    if (!accumulate) contribute(b, node->x, node->at[DX]);
}

static void backward_sync_batchnorm(build *b, build_node *node)
{
    int64_t c = node->attributes.batchnorm.c;
    node->at[DSUMS] = build_value(b, shape_1d(2 * c), DTYPE_F64, LEDGER_ACTIVATIONS);
    node->at[COUNT] = node->at[SUMS];
    node->at[COUNT].offset_bytes = 2 * c * (int64_t)sizeof(double);
    nn_op *stats = build_emit(b, OP_batchnorm_backward_stats, node);
    stats->group_reduce = (int)(2 * c);
    stats->group_slot = BN_BWD_SUMS;
    build_emit(b, OP_batchnorm_backward_apply, node);
}

static void backward_batchnorm(build *b, build_node *node)
{
    nn_operand y = node->at[Y];
    bool synchronized = node->at[SUMS].space != NN_SPACE_NONE, residual = node->residual != NN_NONE;
    bool recompute = node->act != ACTIVATION_NONE && node->act != ACTIVATION_RELU;
    bool two = node->at[DY2].space != NN_SPACE_NONE;
    bool passes_through = !synchronized && node->act == ACTIVATION_NONE && !two;
    node->attributes.batchnorm.dy2 = two;
    if (synchronized) node->at[DRESIDUAL] = gradient_value(b, y);
    node->at[DX] = gradient_value(b, y);
    if (!synchronized && residual && !passes_through) node->at[DRESIDUAL] = gradient_value(b, y);
    if (node->act != ACTIVATION_RELU) node->at[Y] = (nn_operand){0};
    if (!recompute) node->at[RESIDUAL] = (nn_operand){0};
    if (synchronized)
        backward_sync_batchnorm(b, node);
    else
        build_emit(b, OP_batchnorm_backward, node);
    contribute(b, node->x, node->at[DX]);
    if (residual) contribute(b, node->residual, node->at[passes_through ? DY : DRESIDUAL]);
}

static void backward_layernorm(build *b, build_node *node)
{
    /* The LayerNorm normalizes the result of the addition if there is one, else its input. All other layers
     * that read the normalized value have already contributed their gradients. */
    nn_ref normalized = node->sum_output != NN_NONE ? node->sum_output : node->x;
    take_gradient(b, node, normalized, 1, &node->at[DSUM]);
    node->at[DX] = gradient_value(b, node->at[Y]);
    node->attributes.layernorm.dsum = node->at[DSUM].space != NN_SPACE_NONE;
    build_emit(b, OP_layernorm_backward, node);
    if (node->residual != NN_NONE) {
        contribute(b, node->x, node->at[DX]);
        contribute(b, node->residual, node->at[DX]);
    } else {
        b->layers[normalized].gradient = (build_gradient){.parts = {node->at[DX]}, .count = 1};
    }
}

static void backward_attention(build *b, build_node *node)
{
    bool packed = node->x == node->k;
    node->at[DX] = node->at[DK] = node->at[DV] = gradient_value(b, node->at[X]);
    if (packed) {
        node->at[DK].offset_bytes = node->at[K].offset_bytes;
        node->at[DV].offset_bytes = node->at[V].offset_bytes;
    } else {
        node->at[DK] = gradient_value(b, node->at[K]);
        node->at[DV] = gradient_value(b, node->at[V]);
    }
    build_emit(b, OP_attention_backward, node);
    contribute(b, node->x, node->at[DX]);
    if (packed) return;
    contribute(b, node->k, node->at[DK]);
    contribute(b, node->v, node->at[DV]);
}

static void backward_concat(build *b, build_node *node)
{
    const nn_ref *input = node->layer->input;
    for (int i = 0; i < NN_MAX_INPUTS && input[i] != NN_NONE; i++)
        if (!is_samples(b, input[i])) node->at[DPART + i] = gradient_value(b, node->at[PART + i]);
    build_emit(b, OP_concat_backward, node);
    for (int i = 0; i < NN_MAX_INPUTS && input[i] != NN_NONE; i++)
        if (node->at[DPART + i].space != NN_SPACE_NONE) contribute(b, input[i], node->at[DPART + i]);
}

static void backward_node(build *b, build_node *node)
{
    take_gradient(b, node, node->output, node->layer->kind == NN_BATCHNORM ? 2 : 1, &node->at[DY]);
    if (node->at[DY].space == NN_SPACE_NONE) return; /* The loss does not depend on this node. */
    b->layers[node->output].gradient.count = 0;
    nn_layer_kind kind = node->layer->kind;
    if (kind == NN_LINEAR)
        backward_linear(b, node);
    else if (kind == NN_BATCHNORM)
        backward_batchnorm(b, node);
    else if (kind == NN_LAYERNORM)
        backward_layernorm(b, node);
    else if (kind == NN_ATTENTION)
        backward_attention(b, node);
    else if (kind == NN_CONCAT)
        backward_concat(b, node);
    else if (kind == NN_EMBEDDING)
        build_emit(b, OP_embedding_backward, node);
    else if (kind != NN_ADD)
        backward_input(b, node);
    if (kind != NN_ADD) return;
    contribute(b, node->x, node->at[DY]);
    contribute(b, node->residual, node->at[DY]);
}

status build_backward(build *b)
{
    for (int i = b->node_count - 1; i >= 0 && b->failure == STATUS_OK; i--) {
        backward_node(b, &b->nodes[i]);
        build_gradient *g = &b->layers[b->nodes[i].x].gradient;
        if (i == b->head_node && g->count == 1)
            g->parts[0] = build_move_rows(b, OP_scatter_rows, g->parts[0]);
    }
    if (b->model->received && b->failure == STATUS_OK) {
        nn_operand gradient;
        take_gradient(b, &b->nodes[0], 0, 1, &gradient);
        b->program->input_gradient_value = gradient.index;
    }
    return b->failure;
}
