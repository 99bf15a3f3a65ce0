/* A model compiled for one batch size: a flat list of operations with their operands; for each operation the
 * parameters that it is the first or the last of its pass to use and the gradients that it completes; and the
 * lifetime and place of every activation. Immutable after compilation and without device memory, so all ranks
 * of a process share one.
 *
 * Compilation fuses layers (BatchNorm with the following residual addition and activation, linear layers with
 * their activation, LayerNorm with the preceding addition), derives the backward pass by walking the fused
 * layers in reverse, and orders gradients so that for ResNets they become ready in exact reverse order of
 * registration.
 *
 *     program_fuse.c       layers to nodes; the head that leaves out rows without a target
 *     program_forward.c    a node's forward operation, the loss
 *     program_backward.c   a node's backward operations
 *     program.c            the operands of each kind of operation
 *     program_finish.c     readiness, lifetimes, memory */
#ifndef COMMON_NN_PROGRAM_H
#define COMMON_NN_PROGRAM_H

#include "common/memory/ledger.h"
#include "common/nn/model.h"

/* Where an operand lies. */
typedef enum nn_space {
    NN_SPACE_NONE,
    NN_SPACE_VALUE,     /* program->values[index] */
    NN_SPACE_PARAM,     /* model->params[index], in the parameter arena */
    NN_SPACE_BF16_COPY, /* its bfloat16 copy, made by the forward operation that reads it */
    NN_SPACE_GRAD,      /* its gradient */
    NN_SPACE_BUFFER,    /* model->buffers[index] */
    NN_SPACE_INPUT,     /* the batch's samples */
    NN_SPACE_TARGET,    /* the batch's targets */
    NN_SPACE_INDEX,     /* int32 rows of the output that have targets (masked_loss) */
    NN_SPACE_LOSS       /* the two sums of LOSS_SUMS */
} nn_space;

typedef struct nn_operand {
    nn_space space;
    int index;
    int64_t offset_bytes; /* into the value (packed q, k, v) */
} nn_operand;

/* A planned range of activation memory. In-place results share the value of their source. */
typedef struct nn_value {
    shape shape;
    dtype type;
    int64_t bytes;
    ledger_class ledger_class;
    int first, last; /* operations of its lifetime, inclusive; last == op_count: still needed afterwards */
    int64_t offset;  /* into the activation memory */
} nn_value;

typedef struct nn_op {
    op_desc desc;
    nn_operand operands[OP_MAX_OPERANDS];
    int layer;                  /* of the model, for traces and profiles */
    int weight_param;           /* whose layout the kernel is prepared with, or NN_NONE */
    int need_first, need_count; /* program->needs[]: parameters that the pass uses here for the first time */
    int release_first, release_count; /* program->releases[]: those that it uses here for the last time */
    int ready_first, ready_count;     /* program->ready_order[]: gradients complete after this operation */
    int live_first, live_count;       /* program->births[]: values that begin to live before it */
    int dead_first, dead_count;       /* program->deaths[]: values that end after it */
    bool rows_vary;                   /* runs on the first op_scalars.rows rows; other operations take all */
    int group_reduce; /* > 0: bytes / 8 float64 of operand `group_slot` to be summed over all ranks afterwards
                       */
    int group_slot;
} nn_op;

typedef enum nn_mode { NN_TRAIN, NN_EVALUATE } nn_mode;

typedef struct nn_program_config {
    int64_t batch; /* samples per rank and step */
    nn_mode mode;
    dtype type; /* the device's compute type */
    bool bf16;  /* activations and their gradients are stored as bfloat16 (op_desc.bf16) */
    /* Rows without a target are left out of the head, the layers at the end that work row by row: they are
     * gathered before it, targets are handed over without those that do not count, and op_scalars.rows
     * says how many there are. */
    bool masked_loss;
    bool external_loss; /* the loss is computed elsewhere: the program's output and its gradient are
                         * exchanged. Always of a stage that is not the last (nn_model.sent) */
    int64_t world;      /* ranks of SyncBatchNorm's group */
} nn_program_config;

typedef struct nn_program {
    const nn_model *model; /* borrowed */
    nn_program_config config;
    nn_op *ops;
    int op_count;
    int forward_end; /* ops [0, forward_end) are the forward pass */
    int loss_end;    /* ops [forward_end, loss_end) the loss; the rest is the backward pass */
    nn_value *values;
    int value_count;
    int *needs, *releases; /* a parameter is used where it is read and where its gradient is written; once in
                            * each list for the forward pass, and once for the backward pass */
    int *births, *deaths;
    int output_value;          /* the model's output, until the loss is computed */
    int output_gradient_value; /* the loss's gradient with respect to it (may be the same) */
    int input_value,
        input_gradient_value; /* of a stage that is not the first (nn_model.received): where its input is put
                               * before operation 0, and its gradient after the last one; else NN_NONE */
    int64_t activation_bytes; /* of the planned memory, gaps included */
    bool masked;              /* the head does run on gathered rows: the model has one */
    int *ready_order;         /* parameters in the order in which their gradients become ready */
    int ready_count;
} nn_program;

status nn_program_compile(const nn_model *model, const nn_program_config *config, nn_program **out);
void nn_program_free(nn_program **program);

/* Largest sum of logical bytes of values that live at the same time. */
int64_t nn_program_peak_bytes(const nn_program *program);

#endif
