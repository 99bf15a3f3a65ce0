/* Shared by the files that compile a program; nobody else includes it. */
#ifndef COMMON_NN_PROGRAM_BUILD_H
#define COMMON_NN_PROGRAM_BUILD_H

#include "common/nn/program.h"

/* A layer after fusion: what becomes one forward operation and its backward operations. */
typedef struct build_node {
    const nn_layer *layer; /* the one that names it and owns its parameters */
    int layer_index;
    nn_ref x, residual; /* inputs, by the layer that produces them; residual NN_NONE */
    nn_ref q, k, v;
    activation act;
    nn_ref output;      /* the last layer fused into it: its consumers refer to that one */
    nn_ref sum_output;  /* LayerNorm with an addition: the addition's layer, else NN_NONE */
    nn_operand y, slope, mean, invstd, index, lse, sum, sums;
} build_node;

/* The gradients that have reached a layer's output during the backward walk. */
typedef struct build_gradient {
    nn_operand parts[4];
    int count;
} build_gradient;

typedef struct build {
    const nn_model *model;
    nn_program *program;
    build_node *nodes;
    int node_count;
    int *consumers;            /* per layer: how many layers read it */
    int *fused_into;           /* per layer: the layer whose node computes it, or itself */
    nn_operand *out;           /* per layer: where its output lies */
    build_gradient *gradients; /* per layer */
    int head_node;             /* first node of the masked head, or -1 */
    bool *needed, *written;    /* per parameter: used by an earlier operation; gradient already written */
    int op_capacity, value_capacity, need_capacity;
    status failure;
} build;

/* program_fuse.c: fills nodes, consumers, fused_into. */
status build_fuse(build *b);

/* program_head.c: finds the head (head_node), and moves rows in front of and behind it. */
void build_find_head(build *b);
void build_gather(build *b);
void build_scatter(build *b);

/* program_forward.c, program_backward.c: emit operations. */
status build_forward(build *b);
status build_loss(build *b);
status build_backward(build *b);

/* program_finish.c: readiness, in-place results, lifetimes, placement. */
status build_finish(build *b);

/* Helpers of program.c. Failures stick in b->failure; the returned op is then a dummy. */
nn_op *build_op(build *b, op_kind kind, const build_node *node);
nn_operand build_value(build *b, shape s, dtype type, ledger_class c);
nn_operand build_param(int param);
/* W or B of a convolution or linear layer: the copy where activations are bf16. */
nn_operand build_weight(const build *b, int param);
/* The type in which activations and their gradients are stored. */
dtype build_storage(const build *b);
nn_operand build_grad(build *b, int param, op_desc *desc);
void build_need(build *b, nn_op *op, int param);
int64_t build_batch(const build *b);

/* Rows of a layer's output: batch, or batch * sequence for token models. */
int64_t build_rows(const build *b, shape sample);

/* program_attributes.c: what a node's forward and backward operations have in common. */
conv2d_attributes build_conv2d(const build *b, const build_node *node);
linear_attributes build_linear(const build *b, const build_node *node);
batchnorm_attributes build_batchnorm(const build *b, const build_node *node);
layernorm_attributes build_layernorm(const build *b, const build_node *node);
pool_attributes build_pool(const build *b, const build_node *node);
elementwise_attributes build_elementwise(const build *b, const build_node *node);
embedding_attributes build_embedding(const build *b, const build_node *node);
attention_attributes build_attention(const build *b, const build_node *node);
rows_attributes build_take_first(const build *b, const build_node *node);

#endif
