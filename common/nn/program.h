/* A model compiled for one batch size: a flat list of operations with their operands. Each operation has
 * three lists: parameters that the pass uses here for the first time, parameters that the pass uses here for
 * the last time, and gradients that the operation completes. Every activation has a lifetime and a place in
 * memory. A program is immutable and holds no device memory, so all ranks of a process share one.
 *
 * Compilation fuses layers: BatchNorm with the following residual addition and activation, linear layers
 * with the following activation, LayerNorm with the preceding addition. The backward pass walks the fused
 * layers in reverse. In a ResNet, gradients become ready in exactly the reverse order of registration.
 *
 *     program_fuse.c       fuses layers into nodes; finds the head that leaves out rows without a target
 *     program_forward.c    emits the forward operation of each node, and the loss
 *     program_backward.c   emits the backward operations of each node
 *     program.c            lists the operands of each kind of operation
 *     program_finish.c     computes readiness, lifetimes and places in memory */
#ifndef COMMON_NN_PROGRAM_H
#define COMMON_NN_PROGRAM_H

#include "common/memory/ledger.h"
#include "common/nn/model.h"

/* The memory that holds an operand. */
typedef enum nn_space {
    NN_SPACE_NONE,
    NN_SPACE_VALUE,     /* program->values[index] */
    NN_SPACE_PARAM,     /* model->params[index], in the parameter arena */
    NN_SPACE_BF16_COPY, /* bfloat16 copy of the parameter */
    NN_SPACE_GRAD,      /* gradient of the parameter */
    NN_SPACE_BUFFER,    /* model->buffers[index] */
    NN_SPACE_INPUT,     /* the batch's samples */
    NN_SPACE_TARGET,    /* the batch's targets */
    NN_SPACE_INDEX,     /* int32 rows of the output that have targets (masked_loss) */
    NN_SPACE_LOSS       /* the two sums of LOSS_SUMS */
} nn_space;

typedef struct nn_operand {
    nn_space space;
    int index;
    int64_t offset_bytes; /* offset of the operand in its value, if q, k and v are packed */
} nn_operand;

/* A planned range of activation memory. An in-place result shares the value of its source. */
typedef struct nn_value {
    shape shape;
    dtype type;
    int64_t bytes;
    ledger_class ledger_class;
    int first, last; /* first and last operation of the lifetime */
    int64_t offset;  /* offset in the activation memory */
} nn_value;

typedef struct nn_op {
    op_desc desc;
    nn_operand operands[OP_MAX_OPERANDS];
    int layer;        /* index of the model's layer, for traces and profiles */
    int weight_param; /* parameter whose layout the kernel is prepared for, or NN_NONE */
    /* Range of program->needs: parameters that the pass uses here for the first time. */
    int need_first, need_count;
    /* Range of program->releases: parameters that the pass uses here for the last time. */
    int release_first, release_count;
    /* Range of program->ready_order: gradients that are complete after this operation. */
    int ready_first, ready_count;
    /* Range of program->births: values whose lifetime begins before this operation. */
    int live_first, live_count;
    /* Range of program->deaths: values whose lifetime ends after this operation. */
    int dead_first, dead_count;
    /* True if the operation runs only on the first op_scalars.rows rows. */
    bool rows_vary;
    /* Number of float64 values of operand `group_slot` that are summed over all ranks after the operation. 0
     * if there is no sum. */
    int group_reduce;
    int group_slot;
} nn_op;

typedef enum nn_mode { NN_TRAIN, NN_EVALUATE } nn_mode;

typedef struct nn_program_config {
    int64_t batch; /* per rank and step */
    nn_mode mode;
    dtype type;
    /* True to store activations and their gradients as bfloat16 (op_desc.bf16). */
    bool bf16;
    /* True to leave rows without a target out of the head. The head is the last layers, which work row by
     * row. The remaining rows are gathered before the head. The caller passes only the targets of the
     * remaining rows, and the number of these rows as op_scalars.rows. */
    bool masked_loss;
    /* True if other code computes the loss from the program's output, and provides the gradient of the
     * output. Always true for a stage whose output goes to the next stage (nn_model.sent). */
    bool external_loss;
    int64_t world; /* ranks in the group of SyncBatchNorm */
} nn_program_config;

typedef struct nn_program {
    const nn_model *model; /* borrowed */
    nn_program_config config;
    nn_op *ops;
    int op_count;
    int forward_end; /* ops [0, forward_end) are the forward pass */
    int loss_end;    /* ops [forward_end, loss_end) are the loss, later ops are the backward pass */
    nn_value *values;
    int value_count;
    /* Parameters in the order of their first use (`needs`) and of their last use (`releases`). The two passes
     * have separate entries. Reading a parameter and writing its gradient are uses. */
    int *needs, *releases;
    int *births, *deaths;
    int output_value;          /* value of the model's output, until the loss is computed */
    int output_gradient_value; /* gradient of the loss with respect to the output, possibly the same value */
    /* Values of the input and its gradient in a stage that is not the first (nn_model.received), else
     * NN_NONE. The input is written before operation 0, and the gradient is complete after the last
     * operation. */
    int input_value, input_gradient_value;
    int64_t activation_bytes; /* gaps included */
    bool masked;              /* true if the head runs on gathered rows */
    int *ready_order;         /* parameters in the order in which their gradients become ready */
    int ready_count;
} nn_program;

status nn_program_compile(const nn_model *model, const nn_program_config *config, nn_program **out);
void nn_program_free(nn_program **program);

/* Returns the most bytes of values, without padding, that are in use at the same time. */
int64_t nn_program_peak_bytes(const nn_program *program);

#endif
