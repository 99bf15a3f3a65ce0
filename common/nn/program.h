/* A program is a model that is compiled for one batch size. It is a flat list of operations with their
 * operands. For each operation the program lists the parameters that the pass uses for the first time, the
 * parameters that the pass uses for the last time, and the gradients that the operation completes. Every
 * activation has a lifetime and an offset in memory. A program is immutable and holds no device memory, so
 * all ranks of a process share one program.
 *
 * Compilation fuses a BatchNorm with the following residual addition and activation, a linear layer with the
 * following activation, and a LayerNorm with the preceding addition. The backward pass walks the fused layers
 * in reverse. In a ResNet, gradients become ready in exactly the reverse order of registration.
 *
 *     program_fuse.c       fuses layers into nodes, and finds the masked head (masked_loss)
 *     program_forward.c    emits the forward operation of each node, and the loss
 *     program_backward.c   emits the backward operations of each node
 *     program.c            lists the operands that each kind of operation has
 *     program_recorded.c   emits the segments of a recorded model instead
 *     program_finish.c     computes when gradients are ready, and the lifetimes and offsets of values */
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
    NN_SPACE_INDEX,     /* int32 indices of the output's rows that have targets (masked_loss) */
    NN_SPACE_LOSS       /* the two sums of LOSS_SUMS */
} nn_space;

typedef struct nn_operand {
    nn_space space;
    int index;
    int64_t offset_bytes; /* offset of the operand in its value; 0 unless q, k and v are packed */
} nn_operand;

/* A value is a planned range of activation memory. If an operation works in place, its result and its operand
 * are the same value. */
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
    int weight_param; /* weight for whose layout the kernel is prepared, or NN_NONE */
    /* Range of program->needs that lists the parameters that the pass uses for the first time in this
     * operation. */
    int need_first, need_count;
    /* Range of program->releases that lists the parameters that the pass uses for the last time in this
     * operation. */
    int release_first, release_count;
    /* Range of program->ready_order that lists the gradients that this operation completes. */
    int ready_first, ready_count;
    /* Range of program->births that lists the values whose lifetime begins with this operation. */
    int live_first, live_count;
    /* Range of program->deaths that lists the values whose lifetime ends with this operation. */
    int dead_first, dead_count;
    /* True if the operation runs only on the first op_scalars.rows rows. */
    bool rows_vary;
    /* Number of float64 values that are summed over all ranks after the operation, or 0. The values are in
     * operand `group_slot`. */
    int group_reduce;
    int group_slot;
} nn_op;

typedef enum nn_mode { NN_TRAIN, NN_EVALUATE } nn_mode;

typedef struct nn_program_config {
    int64_t batch; /* number of samples per rank and step */
    nn_mode mode;
    dtype type;
    /* True to store activations and their gradients as bfloat16 (op_desc.bf16). */
    bool bf16;
    /* True to run the head only on rows that have targets. The head consists of the last layers that work row
     * by row. Rows with targets are gathered before the head. The caller passes only the targets of these
     * rows, and the number of these rows as op_scalars.rows. */
    bool masked_loss;
    /* True if the program does not compute the loss. Other code then computes the loss from the program's
     * output and provides the gradient of the output. Always true for a pipeline stage that sends its output
     * to the next stage (nn_model.sent). */
    bool external_loss;
    int64_t world; /* number of ranks over which SyncBatchNorm computes its statistics */
} nn_program_config;

typedef struct nn_program {
    const nn_model *model; /* borrowed */
    nn_program_config config;
    nn_op *ops;
    int op_count;
    int forward_end; /* ops [0, forward_end) are the forward pass */
    int loss_end;    /* ops [forward_end, loss_end) compute the loss; the later ops are the backward pass */
    nn_value *values;
    int value_count;
    /* `needs` lists the parameters in the order of their first use, and `releases` in the order of their last
     * use. The entries of the forward pass come first, then those of the backward pass. A parameter that both
     * passes use is in each list twice. An operation uses a parameter if it reads the parameter or writes
     * the gradient of the parameter. */
    int *needs, *releases;
    int *births, *deaths;
    int output_value; /* value that holds the model's output until the loss is computed */
    /* value that holds the gradient of the output; may be the same value as output_value */
    int output_gradient_value;
    /* Values that hold the input and the gradient of the input if the model is a pipeline stage that receives
     * its input (nn_model.received), else NN_NONE. The input is written before operation 0. The gradient is
     * complete after the last operation. */
    int input_value, input_gradient_value;
    int64_t activation_bytes; /* size of the activation memory, including gaps */
    bool masked;              /* true if the head runs on gathered rows */
    int *ready_order;         /* parameters in the order in which their gradients become ready */
    int ready_count;
    int more_owners; /* owners besides the first */
} nn_program;

status nn_program_compile(const nn_model *model, const nn_program_config *config, nn_program **out);
/* Makes the caller one more owner of the program, if nn_program_compile() with these arguments would make an
 * equal one. Else returns NULL. Owners of a program are on one thread. */
nn_program *nn_program_share(nn_program *program, const nn_model *model, const nn_program_config *config);
void nn_program_free(nn_program **program);

/* Returns the largest number of values that a layer sums over the ranks in one call of group_sum(), or 0 if
 * no layer needs sums over the ranks. */
int nn_program_largest_sum(const nn_program *program);

/* Returns the largest number of bytes, without padding, that values use at the same time. */
int64_t nn_program_peak_bytes(const nn_program *program);

#endif
