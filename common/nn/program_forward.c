/* The forward pass and the loss: one operation a node. */
#include "common/nn/program_build.h"

static bool training(const build *b)
{
    return b->program->config.mode == NN_TRAIN;
}

static dtype type_of(const build *b)
{
    return b->program->config.type;
}

/* With the batch in front: [n,h,w,c], or rows by the last dimension. */
static shape batched(const build *b, shape sample)
{
    if (sample.rank == 3) return shape_4d(build_batch(b), sample.dims[0], sample.dims[1], sample.dims[2]);
    return shape_2d(build_rows(b, sample), sample.dims[sample.rank - 1]);
}

/* Memory for a node's output; the model's output is a class of its own. */
static nn_operand output_value(build *b, const build_node *node)
{
    bool is_output = node->output == b->model->output;
    return build_value(b, batched(b, node->layer->sample), build_storage(b),
                       is_output ? LEDGER_OUTPUTS : LEDGER_ACTIVATIONS);
}

static nn_operand saved_vector(build *b, int64_t count)
{
    return build_value(b, shape_1d(count), type_of(b), LEDGER_ACTIVATIONS);
}

static bool reads_input(const nn_op *op, int slot)
{
    return op->desc.bf16 && op->operands[slot].space == NN_SPACE_INPUT;
}

static void forward_conv2d(build *b, build_node *node)
{
    const nn_layer *l = node->layer;
    nn_op *op = build_op(b, OP_conv2d_forward, node);
    op->desc.u.conv2d = build_conv2d(b, node);
    op->weight_param = l->param[0];
    op->operands[CONV_FWD_X] = b->out[node->x];
    op->operands[CONV_FWD_W] = build_weight(b, l->param[0]);
    op->operands[CONV_FWD_B] = build_weight(b, l->param[1]);
    op->desc.x_f32 = reads_input(op, CONV_FWD_X);
    op->operands[CONV_FWD_Y] = node->y = output_value(b, node);
}

static void forward_linear(build *b, build_node *node)
{
    const nn_layer *l = node->layer;
    nn_op *op = build_op(b, OP_linear_forward, node);
    op->desc.u.linear = build_linear(b, node);
    op->weight_param = l->param[0];
    op->operands[LINEAR_FWD_X] = b->out[node->x];
    op->operands[LINEAR_FWD_W] = build_weight(b, l->param[0]);
    op->operands[LINEAR_FWD_B] = build_weight(b, l->param[1]);
    op->desc.x_f32 = reads_input(op, LINEAR_FWD_X);
    op->operands[LINEAR_FWD_Y] = node->y = output_value(b, node);
    if (training(b) && node->act != ACTIVATION_NONE && node->act != ACTIVATION_RELU)
        op->operands[LINEAR_FWD_SLOPE] = node->slope =
            build_value(b, batched(b, l->sample), build_storage(b), LEDGER_ACTIVATIONS);
}

static nn_operand buffer_operand(int buffer)
{
    return (nn_operand){NN_SPACE_BUFFER, buffer, 0};
}

/* The operands that the three forward operations have in common, in the order of their first slots. */
static void batchnorm_inputs(const build *b, const build_node *node, nn_op *op)
{
    const nn_layer *l = node->layer;
    op->operands[BN_FWD_X] = b->out[node->x];
    op->operands[BN_FWD_GAMMA] = build_param(l->param[0]);
    op->operands[BN_FWD_BETA] = build_param(l->param[1]);
    if (node->residual != NN_NONE) op->operands[BN_FWD_RESIDUAL] = b->out[node->residual];
    op->operands[BN_FWD_RUNNING_MEAN] = buffer_operand(l->buffer[0]);
    op->operands[BN_FWD_RUNNING_VAR] = buffer_operand(l->buffer[1]);
}

#define SAME(a, b) ((int)(a) == (int)(b))
_Static_assert(SAME(BN_FWD_X, BN_INF_X) && SAME(BN_FWD_RUNNING_VAR, BN_INF_RUNNING_VAR) && SAME(BN_FWD_Y, BN_INF_Y) &&
                   SAME(BN_FWD_X, BN_APPLY_X) && SAME(BN_FWD_RUNNING_VAR, BN_APPLY_RUNNING_VAR) &&
                   SAME(BN_FWD_Y, BN_APPLY_Y) && SAME(BN_FWD_MEAN, BN_APPLY_MEAN) &&
                   SAME(BN_FWD_INVSTD, BN_APPLY_INVSTD),
               "the forward operations of BatchNorm share their first slots");
#undef SAME

static void forward_batchnorm(build *b, build_node *node)
{
    const nn_layer *l = node->layer;
    int64_t c = l->sample.dims[2];
    batchnorm_attributes attributes = build_batchnorm(b, node);
    bool synchronized = training(b) && attributes.world > 1;
    if (training(b) && attributes.n * attributes.h * attributes.w * attributes.world < 2) {
        b->failure = fail(STATUS_CONFIG,
                          "--batch: expected at least 2 values per channel for BatchNorm layer %s, got 1",
                          l->name);
        return;
    }
    if (synchronized) {
        nn_op *stats = build_op(b, OP_batchnorm_stats, node);
        stats->desc.u.batchnorm = attributes;
        stats->operands[BN_STATS_X] = b->out[node->x];
        stats->operands[BN_STATS_SUMS] = node->sums =
            build_value(b, shape_1d(2 * c + 1), DTYPE_F64, LEDGER_ACTIVATIONS);
        stats->group_reduce = (int)(2 * c + 1);
        stats->group_slot = BN_STATS_SUMS;
    }
    nn_op *op = build_op(b,
                         !training(b)   ? OP_batchnorm_inference
                         : synchronized ? OP_batchnorm_apply
                                        : OP_batchnorm_forward,
                         node);
    op->desc.u.batchnorm = attributes;
    batchnorm_inputs(b, node, op);
    op->operands[BN_FWD_Y] = node->y = output_value(b, node);
    if (!training(b)) return;
    op->operands[BN_FWD_MEAN] = node->mean = saved_vector(b, c);
    op->operands[BN_FWD_INVSTD] = node->invstd = saved_vector(b, c);
    if (synchronized) op->operands[BN_APPLY_SUMS] = node->sums;
}

static void forward_layernorm(build *b, build_node *node)
{
    const nn_layer *l = node->layer;
    int64_t rows = build_rows(b, l->sample);
    nn_op *op = build_op(b, OP_layernorm_forward, node);
    op->desc.u.layernorm = build_layernorm(b, node);
    op->operands[LN_FWD_X] = b->out[node->x];
    op->operands[LN_FWD_GAMMA] = build_param(l->param[0]);
    op->operands[LN_FWD_BETA] = build_param(l->param[1]);
    op->operands[LN_FWD_Y] = node->y = output_value(b, node);
    op->operands[LN_FWD_MEAN] = node->mean = saved_vector(b, rows);
    op->operands[LN_FWD_INVSTD] = node->invstd = saved_vector(b, rows);
    if (node->residual != NN_NONE) {
        op->operands[LN_FWD_RESIDUAL] = b->out[node->residual];
        op->operands[LN_FWD_SUM] = node->sum =
            build_value(b, batched(b, l->sample), build_storage(b), LEDGER_ACTIVATIONS);
        b->out[node->sum_output] = node->sum;
    } else {
        node->sum = b->out[node->x];
    }
}

static void forward_maxpool(build *b, build_node *node)
{
    nn_op *op = build_op(b, OP_maxpool_forward, node);
    op->desc.u.pool = build_pool(b, node);
    op->operands[MAXPOOL_FWD_X] = b->out[node->x];
    op->operands[MAXPOOL_FWD_Y] = node->y = output_value(b, node);
    op->operands[MAXPOOL_FWD_INDEX] = node->index =
        build_value(b, batched(b, node->layer->sample), DTYPE_U8, LEDGER_ACTIVATIONS);
}

static void forward_avgpool(build *b, build_node *node)
{
    nn_op *op = build_op(b, OP_avgpool_forward, node);
    op->desc.u.pool = build_pool(b, node);
    op->operands[AVGPOOL_FWD_X] = b->out[node->x];
    op->operands[AVGPOOL_FWD_Y] = node->y = output_value(b, node);
}

static void forward_elementwise(build *b, build_node *node)
{
    bool add = node->layer->kind == NN_ADD;
    nn_op *op = build_op(b, add ? OP_add : OP_activation_forward, node);
    op->desc.u.elementwise = build_elementwise(b, node);
    if (add) op->operands[ADD_B] = b->out[node->residual];
    op->operands[ADD_A] = b->out[node->x];
    op->operands[add ? (int)ADD_Y : (int)ACT_FWD_Y] = node->y = output_value(b, node);
}

_Static_assert((int)ADD_A == (int)ACT_FWD_X, "elementwise operations share their first slot");

static void forward_embedding(build *b, build_node *node)
{
    const nn_layer *l = node->layer;
    nn_op *op = build_op(b, OP_embedding_forward, node);
    op->desc.u.embedding = build_embedding(b, node);
    op->operands[EMB_FWD_TOKENS] = b->out[node->x];
    op->operands[EMB_FWD_TABLE] = build_param(l->param[0]);
    op->operands[EMB_FWD_POSITION] = build_param(l->param[1]);
    op->operands[EMB_FWD_TYPE] = build_param(l->param[2]);
    op->operands[EMB_FWD_Y] = node->y = output_value(b, node);
}

static void forward_attention(build *b, build_node *node)
{
    const nn_layer *l = node->layer;
    int64_t hidden = l->sample.dims[1], size = dtype_size(build_storage(b));
    bool packed = node->q == node->k;
    nn_op *op = build_op(b, OP_attention_forward, node);
    op->desc.u.attention = build_attention(b, node);
    op->operands[ATT_FWD_Q] = b->out[node->q];
    op->operands[ATT_FWD_K] = b->out[node->k];
    op->operands[ATT_FWD_V] = b->out[node->v];
    if (packed) {
        op->operands[ATT_FWD_K].offset_bytes = hidden * size;
        op->operands[ATT_FWD_V].offset_bytes = 2 * hidden * size;
    }
    op->operands[ATT_FWD_OUT] = node->y = output_value(b, node);
    op->operands[ATT_FWD_LSE] = node->lse = saved_vector(b, build_batch(b) * l->heads * l->sample.dims[0]);
}

static void forward_take_first(build *b, build_node *node)
{
    nn_op *op = build_op(b, OP_gather_rows, node);
    op->desc.u.rows = build_take_first(b, node);
    op->operands[ROWS_GATHER_X] = b->out[node->x];
    op->operands[ROWS_GATHER_Y] = node->y = output_value(b, node);
}

static void resolve_flatten(build *b)
{
    const nn_model *m = b->model;
    for (int i = 0; i < m->layer_count; i++)
        if (m->layers[i].kind == NN_FLATTEN) b->out[i] = b->out[m->layers[i].input[0]];
}

/* Samples are of the computation's type: what reads them is told so, or reads tokens. */
static void refuse_f32_input(build *b, const build_node *node)
{
    if (b->failure != STATUS_OK) return;
    const nn_op *op = &b->program->ops[b->program->op_count - 1];
    if (!op->desc.bf16 || op->desc.x_f32 || op->desc.kind == OP_embedding_forward) return;
    for (int i = 0; i < OP_MAX_OPERANDS; i++)
        if (op->operands[i].space == NN_SPACE_INPUT)
            b->failure = fail(STATUS_CONFIG,
                              "layer %s: expected a convolution, linear layer or embedding to read bfloat16 "
                              "samples, got %s",
                              node->layer->name, op_name(op->desc.kind));
}

static void forward_node(build *b, build_node *node)
{
    switch (node->layer->kind) {
    case NN_CONV2D: forward_conv2d(b, node); break;
    case NN_LINEAR: forward_linear(b, node); break;
    case NN_BATCHNORM: forward_batchnorm(b, node); break;
    case NN_LAYERNORM: forward_layernorm(b, node); break;
    case NN_ACTIVATION:
    case NN_ADD: forward_elementwise(b, node); break;
    case NN_MAXPOOL: forward_maxpool(b, node); break;
    case NN_AVGPOOL: forward_avgpool(b, node); break;
    case NN_EMBEDDING: forward_embedding(b, node); break;
    case NN_ATTENTION: forward_attention(b, node); break;
    case NN_TAKE_FIRST: forward_take_first(b, node); break;
    case NN_INPUT:
    case NN_FLATTEN: break;
    }
    refuse_f32_input(b, node);
    for (int i = 0; i < NN_MAX_LAYER_PARAMS && b->failure == STATUS_OK; i++)
        build_need(b, &b->program->ops[b->program->op_count - 1], node->layer->param[i]);
    b->out[node->output] = node->y;
    resolve_flatten(b);
}

status build_forward(build *b)
{
    b->out[0] = (nn_operand){NN_SPACE_INPUT, 0, 0};
    resolve_flatten(b);
    for (int i = 0; i < b->node_count && b->failure == STATUS_OK; i++) {
        if (i == b->head_node) build_gather(b);
        int first = b->program->op_count;
        forward_node(b, &b->nodes[i]);
        for (int o = first; o < b->program->op_count; o++)
            b->program->ops[o].rows_vary = b->head_node >= 0 && i >= b->head_node;
    }
    b->program->output_value = b->out[b->model->output].index;
    return b->failure;
}

status build_loss(build *b)
{
    nn_program *p = b->program;
    const nn_model *m = b->model;
    p->output_gradient_value = NN_NONE;
    nn_operand gradient = {0};
    shape s = shape_2d(build_batch(b) * m->rows_per_sample, m->classes);
    if (training(b)) {
        gradient = build_value(b, s, build_storage(b), LEDGER_OUTPUTS);
        p->output_gradient_value = gradient.index;
        build_gradient *g = &b->gradients[m->output];
        g->parts[g->count++] = gradient;
    }
    if (p->config.external_loss) return b->failure;
    nn_op *op = build_op(b, m->loss == NN_LOSS_MSE ? OP_mean_squared_error : OP_cross_entropy, NULL);
    op->rows_vary = true;
    op->desc.u.loss = (loss_attributes){.rows = s.dims[0], .classes = m->classes, .gradient = training(b)};
    op->operands[LOSS_LOGITS] = b->out[m->output];
    op->operands[LOSS_TARGETS] = (nn_operand){NN_SPACE_TARGET, 0, 0};
    op->operands[LOSS_DLOGITS] = gradient;
    op->operands[LOSS_SUMS] = (nn_operand){NN_SPACE_LOSS, 0, 0};
    return b->failure;
}
