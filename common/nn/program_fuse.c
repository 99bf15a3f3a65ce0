/* Which layers become one operation.
 *
 *   BatchNorm (+ addition) (+ activation)    linear (+ activation)    (addition +) LayerNorm
 *
 * The addition is fused into the BatchNorm that runs last among its inputs: in torchvision's ResNets
 * that is the downsample's where there is one, and the gradients then become ready in exact reverse
 * order of registration. */
#include "common/nn/program_build.h"

/* The layer whose output really is read: flatten computes nothing. */
static nn_ref through_flatten(const nn_model *m, nn_ref r)
{
    while (m->layers[r].kind == NN_FLATTEN) r = m->layers[r].input[0];
    return r;
}

static void count_consumers(build *b)
{
    const nn_model *m = b->model;
    for (int i = 0; i < m->layer_count; i++) {
        const nn_layer *l = &m->layers[i];
        for (int j = 0; j < NN_MAX_INPUTS; j++) {
            bool repeated = j > 0 && l->input[j] == l->input[j - 1];
            if (l->input[j] != NN_NONE && !repeated) b->consumers[l->input[j]]++;
        }
        b->fused_into[i] = i;
    }
    b->consumers[m->output]++; /* the loss */
}

static bool is_kind(const build *b, nn_ref r, nn_layer_kind kind)
{
    return r != NN_NONE && b->model->layers[r].kind == kind;
}

/* The only layer that reads `r` if it is of that kind, else NN_NONE. */
static nn_ref only_reader(const build *b, nn_ref r, nn_layer_kind kind)
{
    const nn_model *m = b->model;
    if (b->consumers[r] != 1) return NN_NONE;
    for (int i = r + 1; i < m->layer_count; i++)
        for (int j = 0; j < NN_MAX_INPUTS; j++)
            if (m->layers[i].input[j] == r) return m->layers[i].kind == kind ? i : NN_NONE;
    return NN_NONE;
}

static bool read_by(const build *b, nn_ref r, nn_layer_kind kind)
{
    const nn_model *m = b->model;
    for (int i = r + 1; i < m->layer_count; i++)
        for (int j = 0; j < NN_MAX_INPUTS; j++)
            if (m->layers[i].input[j] == r && m->layers[i].kind == kind) return true;
    return false;
}

static void fuse_activation(build *b, build_node *node)
{
    nn_ref act = only_reader(b, node->output, NN_ACTIVATION);
    if (act == NN_NONE) return;
    /* A linear layer's backward overwrites the gradient of its output, which an addition hands to both
     * of its inputs. */
    if (node->layer->kind == NN_LINEAR && read_by(b, act, NN_ADD)) return;
    node->act = b->model->layers[act].act;
    node->output = act;
    b->fused_into[act] = node->layer_index;
}

static void fuse_residual(build *b, build_node *node)
{
    nn_ref add = only_reader(b, node->layer_index, NN_ADD);
    if (add == NN_NONE) return;
    const nn_layer *l = &b->model->layers[add];
    nn_ref other = l->input[0] == node->layer_index ? l->input[1] : l->input[0];
    if (other == node->layer_index || other > node->layer_index) return; /* the other one runs later */
    node->residual = other;
    node->output = add;
    b->fused_into[add] = node->layer_index;
}

/* An addition read by a LayerNorm is computed there. */
static nn_ref reading_layernorm(const build *b, nn_ref add)
{
    const nn_model *m = b->model;
    for (int i = add + 1; i < m->layer_count; i++)
        if (m->layers[i].kind == NN_LAYERNORM && m->layers[i].input[0] == add) return i;
    return NN_NONE;
}

static bool read_between(const build *b, nn_ref r, nn_ref from, nn_ref to)
{
    for (int i = from + 1; i < to; i++)
        for (int j = 0; j < NN_MAX_INPUTS; j++)
            if (b->model->layers[i].input[j] == r) return true;
    return false;
}

static void make_node(build *b, int i)
{
    const nn_layer *l = &b->model->layers[i];
    build_node *node = &b->nodes[b->node_count++];
    *node = (build_node){.layer = l,
                         .layer_index = i,
                         .x = l->input[0],
                         .residual = l->kind == NN_ADD ? l->input[1] : NN_NONE,
                         .q = l->input[0],
                         .k = l->input[1],
                         .v = l->input[2],
                         .act = l->kind == NN_ACTIVATION ? l->act : ACTIVATION_NONE,
                         .output = i,
                         .sum_output = NN_NONE};
    if (l->kind == NN_BATCHNORM) fuse_residual(b, node);
    if (l->kind == NN_BATCHNORM || l->kind == NN_LINEAR) fuse_activation(b, node);
    if (l->kind == NN_LAYERNORM && is_kind(b, l->input[0], NN_ADD) && b->fused_into[l->input[0]] == i) {
        const nn_layer *add = &b->model->layers[l->input[0]];
        /* x is the input whose memory the sum may take: the one computed last. */
        bool second_later = add->input[1] > add->input[0];
        node->sum_output = l->input[0];
        node->x = second_later ? add->input[1] : add->input[0];
        node->residual = second_later ? add->input[0] : add->input[1];
    }
}

status build_fuse(build *b)
{
    const nn_model *m = b->model;
    count_consumers(b);
    for (int i = 0; i < m->layer_count; i++) {
        const nn_layer *l = &m->layers[i];
        if (l->kind == NN_INPUT || l->kind == NN_FLATTEN || b->fused_into[i] != i) continue;
        if (l->kind == NN_ADD) {
            nn_ref norm = reading_layernorm(b, i);
            if (norm != NN_NONE && !read_between(b, i, i, norm)) {
                b->fused_into[i] = norm;
                continue;
            }
        }
        make_node(b, i);
    }
    for (int i = 0; i < m->layer_count; i++)
        if (m->layers[i].kind == NN_FLATTEN) b->fused_into[i] = through_flatten(m, i);
    return STATUS_OK;
}
