/* Fuses layers into one operation:
 *
 *   BatchNorm (+ addition) (+ activation)    linear (+ activation)    (addition +) LayerNorm
 *
 * An addition is fused into a BatchNorm only if the BatchNorm runs after the layer that computes the other
 * input. In a downsampling block of torchvision's ResNets both inputs are BatchNorms, and the BatchNorm of
 * the downsampling branch runs last. Therefore the addition is fused into the BatchNorm of the downsampling
 * branch, and gradients become ready in exactly the reverse order of registration. */
#include "common/nn/program_build.h"

nn_ref build_through_flatten(const nn_model *m, nn_ref r)
{
    while (r != NN_NONE && m->layers[r].kind == NN_FLATTEN) r = m->layers[r].input[0];
    return r;
}

static void count_consumers(build *b)
{
    const nn_model *m = b->model;
    for (int i = 0; i < m->layer_count; i++) {
        const nn_layer *l = &m->layers[i];
        for (int j = 0; j < NN_MAX_INPUTS; j++) {
            bool repeated = j > 0 && l->input[j] == l->input[j - 1];
            if (l->input[j] != NN_NONE && !repeated) b->layers[l->input[j]].consumers++;
        }
    }
    b->layers[m->output].consumers++; /* The loss reads the output. */
}

/* Returns the first layer after `after` that reads `r`, or NN_NONE. */
static nn_ref next_reader(const build *b, nn_ref r, nn_ref after)
{
    for (int i = after + 1; i < b->model->layer_count; i++)
        for (int j = 0; j < NN_MAX_INPUTS; j++)
            if (b->model->layers[i].input[j] == r) return i;
    return NN_NONE;
}

static bool is_kind(const build *b, nn_ref r, nn_layer_kind kind)
{
    return r != NN_NONE && b->model->layers[r].kind == kind;
}

/* Returns the only reader of `r` if it is of kind `kind`, else NN_NONE. */
static nn_ref only_reader(const build *b, nn_ref r, nn_layer_kind kind)
{
    nn_ref reader = b->layers[r].consumers == 1 ? next_reader(b, r, r) : NN_NONE;
    return is_kind(b, reader, kind) ? reader : NN_NONE;
}

static bool read_by(const build *b, nn_ref r, nn_layer_kind kind)
{
    nn_ref reader = next_reader(b, r, r);
    while (reader != NN_NONE && !is_kind(b, reader, kind)) reader = next_reader(b, r, reader);
    return reader != NN_NONE;
}

static void fuse_activation(build *b, build_node *node)
{
    nn_ref act = only_reader(b, node->output, NN_ACTIVATION);
    if (act == NN_NONE) return;
    /* If an addition reads the output, the gradient of the output is also the gradient of the addition's
     * other input. The backward pass of a fused layer would overwrite this gradient, so the layers are not
     * fused. */
    if (node->layer->kind == NN_LINEAR && read_by(b, act, NN_ADD)) return;
    node->act = b->model->layers[act].attributes.elementwise.act;
    node->output = act;
    b->layers[act].fused = true;
}

static void fuse_residual(build *b, build_node *node)
{
    nn_ref self = node->output, add = only_reader(b, self, NN_ADD);
    if (add == NN_NONE) return;
    const nn_layer *l = &b->model->layers[add];
    nn_ref other = l->input[0] == self ? l->input[1] : l->input[0];
    if (other >= self) return; /* The other input of the addition is computed later. */
    node->residual = other;
    node->output = add;
    b->layers[add].fused = true;
}

/* Returns true if the first reader of an addition is a LayerNorm, which computes the addition itself. */
static bool belongs_to_layernorm(const build *b, nn_ref add)
{
    return is_kind(b, add, NN_ADD) && is_kind(b, next_reader(b, add, add), NN_LAYERNORM);
}

static void fuse_sum(build *b, build_node *node)
{
    nn_ref add = node->x;
    if (b->layers[add].fused || !belongs_to_layernorm(b, add) || next_reader(b, add, add) != node->output)
        return;
    const nn_ref *in = b->model->layers[add].input;
    /* The sum may overwrite x. Therefore x is the input that is computed last. */
    node->sum_output = add;
    node->x = in[1] > in[0] ? in[1] : in[0];
    node->residual = in[1] > in[0] ? in[0] : in[1];
}

static op_attributes attributes_of(const build *b, const build_node *node)
{
    nn_layer_kind kind = node->layer->kind;
    op_attributes a = node->layer->attributes;
    a.batch *= b->program->config.batch;
    if (kind == NN_TAKE_FIRST) a.rows.selected = b->program->config.batch;
    if (kind == NN_LINEAR) a.linear.act = node->act;
    if (kind == NN_LAYERNORM) a.layernorm.residual = node->residual != NN_NONE;
    if (kind == NN_BATCHNORM) {
        a.batchnorm.act = node->act;
        a.batchnorm.residual = node->residual != NN_NONE;
        if (node->layer->sync) a.batchnorm.world = b->program->config.world;
    }
    return a;
}

/* Sets the operands that exist before any operation: parameters, their gradients, and buffers. */
static void name_parameters(const build *b, build_node *node)
{
    const nn_layer *l = node->layer;
    nn_space weight = b->program->config.bf16 ? NN_SPACE_BF16_COPY : NN_SPACE_PARAM;
    for (int i = 0; i < NN_MAX_LAYER_PARAMS; i++) {
        if (l->param[i] == NN_NONE) continue;
        node->at[PARAM0 + i] = (nn_operand){NN_SPACE_PARAM, l->param[i], 0};
        node->at[DPARAM0 + i] = (nn_operand){NN_SPACE_GRAD, l->param[i], 0};
        if (i < 2) node->at[WEIGHT + i] = (nn_operand){weight, l->param[i], 0};
    }
    for (int i = 0; i < 2; i++)
        if (l->buffer[i] != NN_NONE) node->at[BUFFER0 + i] = (nn_operand){NN_SPACE_BUFFER, l->buffer[i], 0};
}

static void make_node(build *b, int i)
{
    const nn_layer *l = &b->model->layers[i];
    build_node *node = &b->nodes[b->node_count++];
    *node = (build_node){.layer = l,
                         .x = l->input[0],
                         .residual = l->kind == NN_ADD ? l->input[1] : NN_NONE,
                         .k = l->input[1],
                         .v = l->input[2],
                         .act = l->kind == NN_ACTIVATION ? l->attributes.elementwise.act : ACTIVATION_NONE,
                         .output = i,
                         .sum_output = NN_NONE};
    if (l->kind == NN_BATCHNORM) fuse_residual(b, node);
    if (l->kind == NN_BATCHNORM || l->kind == NN_LINEAR) fuse_activation(b, node);
    if (l->kind == NN_LAYERNORM) fuse_sum(b, node);
    node->x = build_through_flatten(b->model, node->x);
    node->residual = build_through_flatten(b->model, node->residual);
    node->attributes = attributes_of(b, node);
    name_parameters(b, node);
}

/* ---- the masked head -------------------------------------------------------------------------- */

static bool works_row_by_row(const build_node *node)
{
    nn_layer_kind kind = node->layer->kind;
    return kind == NN_LINEAR || kind == NN_ACTIVATION || (kind == NN_LAYERNORM && node->residual == NN_NONE);
}

/* Finds the head of a token model, which consists of the last layers that work row by row. The head runs only
 * on rows that have targets. In masked language modeling only 15 % of the rows have targets, and a fifth of
 * BERT-base's arithmetic is in the head. */
static void find_head(build *b)
{
    const nn_model *m = b->model;
    if (!b->program->config.masked_loss || m->rows_per_sample < 2 || m->loss != NN_LOSS_CROSS_ENTROPY) return;
    nn_ref wanted = m->output;
    for (int i = b->node_count - 1; i >= 0; i--) {
        const build_node *node = &b->nodes[i];
        if (node->output != wanted || b->layers[wanted].consumers != 1 || !works_row_by_row(node)) break;
        b->head_node = i;
        wanted = node->x;
    }
    /* Moves the beginning of the head until no other layer reads the input of the head. */
    while (b->head_node >= 0 && b->layers[b->nodes[b->head_node].x].consumers != 1)
        b->head_node = b->head_node + 1 < b->node_count ? b->head_node + 1 : -1;
    b->program->masked = b->head_node >= 0;
}

void build_fuse(build *b)
{
    const nn_model *m = b->model;
    count_consumers(b);
    for (int i = 0; i < m->layer_count; i++)
        if (m->layers[i].kind != NN_INPUT && m->layers[i].kind != NN_FLATTEN && !b->layers[i].fused &&
            !belongs_to_layernorm(b, i))
            make_node(b, i);
    find_head(b);
}
