/* Sizes and attributes of operations, from a node's layer and the batch. */
#include "common/nn/program_build.h"

conv2d_attributes build_conv2d(const build *b, const build_node *node)
{
    const nn_layer *l = node->layer;
    const shape in = b->model->layers[node->x].sample;
    return (conv2d_attributes){.n = build_batch(b),
                               .h = in.dims[0],
                               .w = in.dims[1],
                               .c = in.dims[2],
                               .k = l->k,
                               .r = l->r,
                               .s = l->r,
                               .stride = l->stride,
                               .pad = l->pad,
                               .p = l->sample.dims[0],
                               .q = l->sample.dims[1],
                               .bias = l->param[1] != NN_NONE};
}

linear_attributes build_linear(const build *b, const build_node *node)
{
    const nn_layer *l = node->layer;
    const nn_param *w = &b->model->params[l->param[0]];
    return (linear_attributes){.m = build_rows(b, l->sample),
                               .in = w->shape.dims[1],
                               .out = l->k,
                               .bias = l->param[1] != NN_NONE,
                               .act = node->act,
                               .flat_c = w->flat_c,
                               .flat_h = w->flat_h,
                               .flat_w = w->flat_w};
}

batchnorm_attributes build_batchnorm(const build *b, const build_node *node)
{
    const nn_layer *l = node->layer;
    return (batchnorm_attributes){.n = build_batch(b),
                                  .h = l->sample.dims[0],
                                  .w = l->sample.dims[1],
                                  .c = l->sample.dims[2],
                                  .eps = l->eps,
                                  .momentum = l->momentum,
                                  .act = node->act,
                                  .residual = node->residual != NN_NONE,
                                  .world = l->sync ? b->program->config.world : 1};
}

layernorm_attributes build_layernorm(const build *b, const build_node *node)
{
    const nn_layer *l = node->layer;
    return (layernorm_attributes){.m = build_rows(b, l->sample),
                                  .c = l->sample.dims[l->sample.rank - 1],
                                  .eps = l->eps,
                                  .residual = node->residual != NN_NONE};
}

pool_attributes build_pool(const build *b, const build_node *node)
{
    const nn_layer *l = node->layer;
    const shape in = b->model->layers[node->x].sample;
    return (pool_attributes){.n = build_batch(b),
                             .h = in.dims[0],
                             .w = in.dims[1],
                             .c = in.dims[2],
                             .r = l->r,
                             .s = l->r,
                             .stride = l->stride,
                             .pad = l->pad,
                             .p = l->sample.dims[0],
                             .q = l->sample.dims[1]};
}

elementwise_attributes build_elementwise(const build *b, const build_node *node)
{
    return (elementwise_attributes){.count = build_batch(b) * shape_elements(node->layer->sample), .act = node->act};
}

embedding_attributes build_embedding(const build *b, const build_node *node)
{
    const nn_layer *l = node->layer;
    return (embedding_attributes){
        .batch = build_batch(b),
        .sequence = l->sample.dims[0],
        .hidden = l->sample.dims[1],
        .vocabulary = l->vocabulary,
        .positions = l->param[1] == NN_NONE ? 0 : b->model->params[l->param[1]].shape.dims[0],
        .position_table = l->param[1] != NN_NONE,
        .type_table = l->param[2] != NN_NONE};
}

attention_attributes build_attention(const build *b, const build_node *node)
{
    const nn_layer *l = node->layer;
    int64_t hidden = l->sample.dims[1];
    return (attention_attributes){.batch = build_batch(b),
                                  .sequence = l->sample.dims[0],
                                  .heads = l->heads,
                                  .width = hidden / l->heads,
                                  .causal = l->causal,
                                  .stride = node->q == node->k ? 3 * hidden : hidden};
}

rows_attributes build_take_first(const build *b, const build_node *node)
{
    const shape in = b->model->layers[node->x].sample;
    return (rows_attributes){.rows = build_rows(b, in),
                             .hidden = in.dims[1],
                             .selected = build_batch(b),
                             .every = in.dims[0]};
}
