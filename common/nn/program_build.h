/* Internal header of the files that compile a program. */
#ifndef COMMON_NN_PROGRAM_BUILD_H
#define COMMON_NN_PROGRAM_BUILD_H

#include "common/nn/program.h"

/* Names of the operands of a node's operations. A name that begins with D stands for a gradient. program.c
 * lists the operands of each kind of operation. */
typedef enum build_name {
    NONE,
    X,
    Y,
    RESIDUAL, /* X is the input. For attention, X is the query, or packed q, k and v. */
    K,
    V,
    PARAM0,
    PARAM1,
    PARAM2, /* PARAM0 to PARAM2 are the parameters of the layer */
    WEIGHT,
    /* WEIGHT and BIAS are the first two parameters, or their bfloat16 copies if activations are bfloat16 */
    BIAS,
    BUFFER0,
    BUFFER1, /* BUFFER0 is the running mean, and BUFFER1 the running variance */
    MEAN,
    INVSTD,
    LSE,
    SLOPE,
    INDEX,
    SUM, /* sum that LayerNorm normalizes */
    SUMS,
    COUNT, /* SUMS and COUNT are SyncBatchNorm's sums and count over all ranks */
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
    DPARAM2, /* DPARAM0 to DPARAM2 are the gradients of the parameters */
    PART,
    /* PART and the next names are the inputs of a concatenation, DPART and the next names their gradients */
    DPART = PART + CONCAT_MOST,
    NAMES = DPART + CONCAT_MOST
} build_name;

/* A node is a layer, or several layers that are fused. It becomes one forward operation and its backward
 * operations. */
typedef struct build_node {
    const nn_layer *layer; /* layer that names the node and owns its parameters */
    nn_ref x, residual;    /* layers that produce the inputs; residual may be NN_NONE */
    nn_ref k, v;
    /* last layer that is fused into the node; layers that read the node's result refer to this layer */
    nn_ref output;
    nn_ref sum_output;        /* addition that the LayerNorm of this node also computes, or NN_NONE */
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
    int consumers; /* number of layers that read the output of this layer */
    bool fused;    /* true if the node of another layer computes this layer */
    nn_operand out;
    build_gradient gradient; /* gradient of `out` */
} build_layer;

typedef struct build {
    const nn_model *model;
    nn_program *program;
    build_node *nodes;
    int node_count;
    build_layer *layers;
    int head_node; /* first node of the masked head, or -1 */
    /* [param_count] true if an operation that has been emitted writes the parameter's gradient */
    bool *written;
    status failure; /* first failure; operations that are built later are discarded */
} build;

/* Fills `nodes` and finds the masked head (program_fuse.c). */
void build_fuse(build *b);
/* Returns layer `r`. If `r` is a flatten layer, returns the nearest layer before `r` that is not a flatten
 * layer, because flatten layers compute nothing. */
nn_ref build_through_flatten(const nn_model *m, nn_ref r);

/* Emit the operations (program_forward.c and program_backward.c). */
status build_forward(build *b);
status build_loss(build *b);
status build_backward(build *b);
/* Emits the segments of a recorded model and places their memory (program_recorded.c). */
status build_recorded(build *b);

/* Computes when gradients are ready, in-place results, and lifetimes and offsets of values
 * (program_finish.c). */
status build_finish(build *b);

/* Adds an operation of `node`, or of the loss if `node` is NULL. The caller sets the attributes and the
 * operands. */
nn_op *build_op(build *b, op_kind kind, const build_node *node);
/* Adds an operation with the node's attributes and the operands that program.c lists for `kind`. */
nn_op *build_emit(build *b, op_kind kind, const build_node *node);
/* Adds OP_gather_rows or OP_scatter_rows between the masked head and the layers before the head. Returns the
 * operand that holds the result. */
nn_operand build_move_rows(build *b, op_kind kind, nn_operand rows);
nn_operand build_value(build *b, shape s, dtype type, ledger_class c);
dtype build_storage(const build *b);

/* Returns the shape of a layer's output for the program's batch, which is [n,h,w,c], [batch * sequence,
 * columns] or [batch, columns]. */
shape build_shape(const build *b, shape sample);

#endif
