/* Internal header of the files that compile a program. */
#ifndef COMMON_NN_PROGRAM_BUILD_H
#define COMMON_NN_PROGRAM_BUILD_H

#include "common/nn/program.h"

/* Names of the operands of a node's operations. A name with D in front is a gradient. program.c lists the
 * operands of each kind of operation. */
typedef enum build_name {
    NONE,
    X,
    Y,
    RESIDUAL, /* X is the input, the query, or packed q, k and v */
    K,
    V,
    PARAM0,
    PARAM1,
    PARAM2, /* parameters of the layer */
    WEIGHT,
    BIAS, /* the first two parameters, as bfloat16 copies if activations are bfloat16 */
    BUFFER0,
    BUFFER1, /* running mean and running variance */
    MEAN,
    INVSTD,
    LSE,
    SLOPE,
    INDEX,
    SUM, /* input of LayerNorm after the addition */
    SUMS,
    COUNT, /* SyncBatchNorm's sums and count over all ranks */
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
    DPARAM2, /* gradients of the parameters */
    PART,
    DPART = PART + CONCAT_MOST, /* inputs of a concatenation, and their gradients */
    NAMES = DPART + CONCAT_MOST
} build_name;

/* A layer after fusion, which becomes a forward operation and backward operations. */
typedef struct build_node {
    const nn_layer *layer; /* layer that names the node and owns its parameters */
    nn_ref x, residual;    /* layers that produce the inputs; residual may be NN_NONE */
    nn_ref k, v;
    nn_ref output;     /* last layer that is fused into the node; layers that read the node name this layer */
    nn_ref sum_output; /* layer of the addition that a LayerNorm computes, else NN_NONE */
    op_attributes attributes; /* attributes for the program's batch and the fused layers */
    activation act;
    nn_operand at[NAMES];
} build_node;

typedef struct build_gradient {
    nn_operand parts[4];
    int count;
} build_gradient;

/* A layer of the model. */
typedef struct build_layer {
    int consumers; /* number of layers that read its output */
    bool fused;    /* true if the node of another layer computes it */
    nn_operand out;
    build_gradient gradient; /* gradient of `out` */
} build_layer;

typedef struct build {
    const nn_model *model;
    nn_program *program;
    build_node *nodes;
    int node_count;
    build_layer *layers;
    int head_node;  /* first node of the masked head, or -1 */
    bool *written;  /* per parameter: true if an operation already writes its gradient */
    status failure; /* first failure; operations that are built later are discarded */
} build;

/* program_fuse.c: fills `nodes` and finds the masked head. */
void build_fuse(build *b);
/* Returns layer `r`, or if `r` is a flatten layer, the nearest layer before `r` that is none. Flatten layers
 * compute nothing. */
nn_ref build_through_flatten(const nn_model *m, nn_ref r);

/* program_forward.c and program_backward.c: emit operations. */
status build_forward(build *b);
status build_loss(build *b);
status build_backward(build *b);

/* program_finish.c: computes readiness, in-place results, lifetimes and places. */
status build_finish(build *b);

/* Adds an operation of `node`, or of the loss if `node` is NULL, without attributes and operands. */
nn_op *build_op(build *b, op_kind kind, const build_node *node);
/* Adds an operation with the node's attributes and the operands that program.c lists for `kind`. */
nn_op *build_emit(build *b, op_kind kind, const build_node *node);
/* Adds OP_gather_rows or OP_scatter_rows between the head and the layers before it. Returns the result. */
nn_operand build_move_rows(build *b, op_kind kind, nn_operand rows);
nn_operand build_value(build *b, shape s, dtype type, ledger_class c);
dtype build_storage(const build *b);

/* Returns the shape of a layer's output for the program's batch: [n,h,w,c], [batch * sequence, columns] or
 * [batch, columns]. */
shape build_shape(const build *b, shape sample);

#endif
