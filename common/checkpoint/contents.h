/* What a checkpoint of a model holds: a list of tensors with names, shapes and places, known from model,
 * element type and optimizer alone. So every rank knows the order in which rank 0 will ask for them.
 *
 *   parameters and buffers   PyTorch's names, in the order of state_dict(): a BatchNorm's running_mean,
 *                            running_var and num_batches_tracked behind its parameters
 *   optimizer state          optimizer.momentum_buffer.NAME (sgd with momentum), optimizer.exp_avg.NAME and
 *                            optimizer.exp_avg_sq.NAME (adam, adamw), in the order of the parameters
 *
 * Data lie in the order of the list, but for num_batches_tracked: 64-bit integers come first, so that every
 * tensor is aligned to its elements. */
#ifndef COMMON_CHECKPOINT_CONTENTS_H
#define COMMON_CHECKPOINT_CONTENTS_H

#include "common/nn/model.h"
#include "common/optim/optimizer.h"

enum { CHECKPOINT_NAME_MAX = NN_NAME_MAX + 32 };

typedef enum checkpoint_kind {
    CHECKPOINT_PARAM,   /* model->params[index] */
    CHECKPOINT_BUFFER,  /* model->buffers[index] */
    CHECKPOINT_BATCHES, /* num_batches_tracked of the BatchNorm model->layers[index], int64 */
    CHECKPOINT_STATE    /* optimizer state arena `state`, at model->params[index] */
} checkpoint_kind;

typedef struct checkpoint_tensor {
    char name[CHECKPOINT_NAME_MAX];
    checkpoint_kind kind;
    int index, state;
    dtype type;
    shape shape; /* PyTorch's */
    int64_t elements;
    int64_t begin, bytes; /* from the start of the data */
} checkpoint_tensor;

typedef struct checkpoint_contents {
    checkpoint_tensor *tensors;
    int count;
    int64_t data_bytes;
    int64_t largest_elements; /* of a tensor */
} checkpoint_contents;

/* `type`, float32 or float64, is that of parameters, buffers and state; `optimizer` NULL: no state. */
status checkpoint_contents_make(const nn_model *model, dtype type, const optimizer_options *optimizer,
                                checkpoint_contents *out);
void checkpoint_contents_free(checkpoint_contents *contents);

#endif
