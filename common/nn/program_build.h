/* Shared by the files that compile a program; nobody else includes it. */
#ifndef COMMON_NN_PROGRAM_BUILD_H
#define COMMON_NN_PROGRAM_BUILD_H

#include "common/nn/program.h"

/* What the operands of a node's operations are; "d" in front of a name is its gradient. program.c lists them
 * by operation. */
typedef enum build_name {
    NONE,
    X,
    Y,
    RESIDUAL, /* X: the input, or the query, or q, k and v in one */
    K,
    V,
    PARAM0,
    PARAM1,
    PARAM2, /* the layer's parameters */
    WEIGHT,
    BIAS, /* the first two, as bfloat16 copies where activations are bf16 */
    BUFFER0,
    BUFFER1, /* running mean and variance */
    MEAN,
    INVSTD,
    LSE,
    SLOPE,
    INDEX,
    SUM, /* LayerNorm: what it normalizes */
    SUMS,
    COUNT, /* SyncBatchNorm: over all ranks */
    DY,
    DY2,
    DX,
    DRESIDUAL,
    DK,
    DV,
    DSUM,
    DSUMS,
    DPARAM0,
    DPARAM1,
    DPARAM2, /* the parameters' gradients */
    PART,
    DPART = PART + CONCAT_MOST, /* concatenation: each input, and its gradient */
    NAMES = DPART + CONCAT_MOST
} build_name;

/* A layer after fusion: what becomes one forward operation and its backward operations. */
typedef struct build_node {
    const nn_layer *layer; /* the one that names it and owns its parameters */
    nn_ref x, residual;    /* inputs, by the layer that produces them; residual NN_NONE */
    nn_ref k, v;
    nn_ref output;            /* the last layer fused into it: its consumers refer to that one */
    nn_ref sum_output;        /* LayerNorm with an addition: the addition's layer, else NN_NONE */
    op_attributes attributes; /* the layer's, for the program's batch and with what is fused into it */
    activation act;
    nn_operand at[NAMES];
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
    bool *fused;               /* per layer: another layer's node computes it */
    nn_operand *out;           /* per layer: where its output lies */
    build_gradient *gradients; /* per layer */
    int head_node;             /* first node of the masked head, or -1 */
    bool *written;             /* per parameter: its gradient is already written */
    status failure;            /* the first one; what is built after it is discarded */
} build;

/* program_fuse.c: fills nodes, and finds the masked head. */
void build_fuse(build *b);
/* The layer whose output really is read: flatten computes nothing. */
nn_ref build_through_flatten(const nn_model *m, nn_ref r);

/* program_forward.c, program_backward.c: emit operations. */
status build_forward(build *b);
status build_loss(build *b);
status build_backward(build *b);

/* program_finish.c: readiness, in-place results, lifetimes, placement. */
status build_finish(build *b);

/* Helpers of program.c. An operation of `node`, or of the loss (NULL), without attributes and operands. */
nn_op *build_op(build *b, op_kind kind, const build_node *node);
/* An operation with the node's attributes, and the operands that program.c lists for its kind. */
nn_op *build_emit(build *b, op_kind kind, const build_node *node);
/* Between the head and the layers in front of it: OP_gather_rows or OP_scatter_rows. Returns the result. */
nn_operand build_move_rows(build *b, op_kind kind, nn_operand rows);
nn_operand build_value(build *b, shape s, dtype type, ledger_class c);
/* The type in which activations and their gradients are stored. */
dtype build_storage(const build *b);

/* Of a layer's output: [n,h,w,c], or [batch, or batch * sequence, by the last dimension]. */
shape build_shape(const build *b, shape sample);

#endif
