/* A program on one rank's device: prepared kernels and the memory of activations.
 *
 * A pass calls the engine through an observer. Before an operation, need() is called for each parameter that
 * the pass has not used before. After the operation, ready() is called for each gradient that the operation
 * completes, and release() for each parameter that the pass has used for the last time. */
#ifndef COMMON_NN_INSTANCE_H
#define COMMON_NN_INSTANCE_H

#include "common/device/device.h"
#include "common/nn/params.h"
#include "common/nn/program.h"

typedef struct nn_instance nn_instance;

/* A function that is NULL is not called. */
typedef struct nn_observer {
    void *context;
    status (*need)(void *context, int param);
    status (*ready)(void *context, int param);
    /* Called after ready(). NULL if parameters never move. In that case need() is called only in the forward
     * pass. */
    status (*release)(void *context, int param);
    /* Sums `count` float64 values over all ranks, in stream order. NULL if there is only one rank. */
    status (*group_sum)(void *context, double *values, int count);
    /* Called after each operation, for profiles. */
    void (*after_op)(void *context, const nn_op *op);
} nn_observer;

/* Memory that the programs of one rank share. Two programs never run at the same time. */
typedef struct nn_memory {
    device_memory activations, workspace, loss;
    int64_t activation_bytes, workspace_bytes;
} nn_memory;

/* Prepares the kernel of every operation. The arguments must outlive the instance. */
status nn_instance_open(device *d, device_stream *s, const nn_program *program, param_set *set,
                        nn_instance **out);
void nn_instance_close(nn_instance **instance);

/* Returns the largest workspace of all kernels, in bytes. */
size_t nn_instance_workspace(const nn_instance *instance);

typedef struct nn_bindings {
    nn_memory *memory;
    void *input, *target;
    void *index; /* int32 rows that have targets, if the program is masked */
} nn_bindings;
/* Computes the address of every operand. The passes only read the computed addresses. */
status nn_instance_bind(nn_instance *instance, const nn_bindings *bindings);

typedef enum nn_pass { NN_FORWARD, NN_LOSS, NN_BACKWARD, NN_PASSES } nn_pass;

/* Runs the passes from `first` to `last`, both included. */
status nn_run(nn_instance *instance, nn_pass first, nn_pass last, const nn_observer *observer,
              const op_scalars *scalars, ledger *l);

/* Returns the address of a value in the activation memory. */
void *nn_instance_value(const nn_instance *instance, int value);
/* Returns the two sums that the loss operation wrote (LOSS_SUMS), in device memory. */
double *nn_instance_loss_sums(const nn_instance *instance);

#endif
