#include "common/nn/program_build.h"

static bool training(const build *b)
{
    return b->program->config.mode == NN_TRAIN;
}

static nn_operand output_like(build *b, const build_node *node, dtype type, ledger_class class)
{
    return build_value(b, build_shape(b, node->layer->sample), type, class);
}

static nn_operand saved_vector(build *b, int64_t count)
{
    return build_value(b, shape_1d(count), b->program->config.type, LEDGER_ACTIVATIONS);
}

static void forward_batchnorm(build *b, build_node *node)
{
    const batchnorm_attributes *a = &node->attributes.batchnorm;
    bool synchronized = a->world > 1;
    if (!training(b)) {
        build_emit(b, OP_batchnorm_inference, node);
        return;
    }
    if (a->n * a->h * a->w * a->world < 2) {
        b->failure = fail(STATUS_CONFIG,
                          "--batch: expected at least 2 values per channel for BatchNorm layer %s, got 1",
                          node->layer->name);
        return;
    }
    if (synchronized) {
        node->at[SUMS] = build_value(b, shape_1d(2 * a->c + 1), DTYPE_F64, LEDGER_ACTIVATIONS);
        nn_op *stats = build_emit(b, OP_batchnorm_stats, node);
        stats->group_reduce = (int)(2 * a->c + 1);
        stats->group_slot = BN_STATS_SUMS;
    }
    node->at[MEAN] = saved_vector(b, a->c);
    node->at[INVSTD] = saved_vector(b, a->c);
    build_emit(b, synchronized ? OP_batchnorm_apply : OP_batchnorm_forward, node);
}

static void forward_layernorm(build *b, build_node *node)
{
    int64_t rows = node->attributes.layernorm.m;
    node->at[MEAN] = saved_vector(b, rows);
    node->at[INVSTD] = saved_vector(b, rows);
    if (node->residual != NN_NONE)
        b->layers[node->sum_output].out = node->at[SUM] =
            output_like(b, node, build_storage(b), LEDGER_ACTIVATIONS);
    build_emit(b, OP_layernorm_forward, node);
    if (node->residual == NN_NONE) node->at[SUM] = node->at[X];
}

static void forward_attention(build *b, build_node *node)
{
    const attention_attributes *a = &node->attributes.attention;
    int64_t bytes = a->heads * a->width * dtype_size(build_storage(b));
    bool packed = node->x == node->k;
    node->at[K] = b->layers[node->k].out;
    node->at[V] = b->layers[node->v].out;
    if (packed) node->at[K].offset_bytes = bytes;
    if (packed) node->at[V].offset_bytes = 2 * bytes;
    node->at[LSE] = saved_vector(b, a->batch * a->heads * a->sequence);
    build_emit(b, OP_attention_forward, node);
}

static void forward_node(build *b, build_node *node)
{
    static const op_kind kinds[] = {
        [NN_CONV2D] = OP_conv2d_forward,         [NN_LINEAR] = OP_linear_forward,
        [NN_ACTIVATION] = OP_activation_forward, [NN_ADD] = OP_add,
        [NN_CONCAT] = OP_concat_forward,         [NN_MAXPOOL] = OP_maxpool_forward,
        [NN_AVGPOOL] = OP_avgpool_forward,       [NN_EMBEDDING] = OP_embedding_forward,
        [NN_TAKE_FIRST] = OP_gather_rows};
    nn_layer_kind kind = node->layer->kind;
    bool slope = node->act != ACTIVATION_NONE && node->act != ACTIVATION_RELU;
    ledger_class class =
        node->output == b->model->output && !b->model->sent ? LEDGER_OUTPUTS : LEDGER_ACTIVATIONS;
    node->at[X] = b->layers[node->x].out;
    if (node->residual != NN_NONE) node->at[RESIDUAL] = b->layers[node->residual].out;
    for (int i = 0; kind == NN_CONCAT && i < NN_MAX_INPUTS && node->layer->input[i] != NN_NONE; i++)
        node->at[PART + i] = b->layers[node->layer->input[i]].out;
    node->at[Y] = output_like(b, node, build_storage(b), class);
    if (kind == NN_LINEAR && training(b) && slope)
        node->at[SLOPE] = output_like(b, node, build_storage(b), LEDGER_ACTIVATIONS);
    if (kind == NN_MAXPOOL) node->at[INDEX] = output_like(b, node, DTYPE_U8, LEDGER_ACTIVATIONS);
    if (kind == NN_BATCHNORM)
        forward_batchnorm(b, node);
    else if (kind == NN_LAYERNORM)
        forward_layernorm(b, node);
    else if (kind == NN_ATTENTION)
        forward_attention(b, node);
    else
        build_emit(b, kinds[kind], node);
    b->layers[node->output].out = node->at[Y];
}

status build_forward(build *b)
{
    b->layers[0].out = (nn_operand){NN_SPACE_INPUT, 0, 0};
    if (b->model->received) {
        b->layers[0].out =
            build_value(b, build_shape(b, b->model->layers[0].sample), build_storage(b), LEDGER_ACTIVATIONS);
        b->program->input_value = b->layers[0].out.index;
    }
    for (int i = 0; i < b->node_count && b->failure == STATUS_OK; i++) {
        nn_operand *read = &b->layers[b->nodes[i].x].out;
        /* Gathers the rows of the head's input. Only the head reads this input. */
        if (i == b->head_node) *read = build_move_rows(b, OP_gather_rows, *read);
        forward_node(b, &b->nodes[i]);
    }
    b->program->output_value = b->layers[build_through_flatten(b->model, b->model->output)].out.index;
    return b->failure;
}

status build_loss(build *b)
{
    nn_program *p = b->program;
    const nn_model *m = b->model;
    nn_ref output = build_through_flatten(m, m->output);
    p->output_gradient_value = NN_NONE;
    nn_operand gradient = {0};
    shape s = shape_2d(p->config.batch * m->rows_per_sample, m->classes);
    if (training(b)) {
        gradient = build_value(b, s, build_storage(b), m->sent ? LEDGER_ACTIVATIONS : LEDGER_OUTPUTS);
        p->output_gradient_value = gradient.index;
        b->layers[output].gradient = (build_gradient){.parts = {gradient}, .count = 1};
    }
    if (p->config.external_loss) return b->failure;
    nn_op *op = build_op(b, m->loss == NN_LOSS_MSE ? OP_mean_squared_error : OP_cross_entropy, NULL);
    op->desc.u.loss = (loss_attributes){.rows = s.dims[0], .classes = m->classes, .gradient = training(b)};
    op->operands[LOSS_LOGITS] = b->layers[output].out;
    op->operands[LOSS_TARGETS] = (nn_operand){NN_SPACE_TARGET, 0, 0};
    op->operands[LOSS_DLOGITS] = gradient;
    op->operands[LOSS_SUMS] = (nn_operand){NN_SPACE_LOSS, 0, 0};
    return b->failure;
}
