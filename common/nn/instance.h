/* An instance runs a program on the device of one rank. It has the prepared kernels and the memory of the
 * activations.
 *
 * During a pass, the instance calls the engine through an observer. Before an operation, need() is called for
 * each parameter that the pass has not used before. After the operation, ready() is called for each gradient
 * that the operation completes, and release() for each parameter that the pass has used for the last time. */
#ifndef COMMON_NN_INSTANCE_H
#define COMMON_NN_INSTANCE_H

#include "common/device/device.h"
#include "common/nn/params.h"
#include "common/nn/program.h"

typedef struct nn_instance nn_instance;

/* Functions that the instance calls during a pass. A function that is NULL is not called. */
typedef struct nn_observer {
    void *context;
    status (*need)(void *context, int param);
    status (*ready)(void *context, int param);
    /* Called after ready(). NULL if all parameters stay in memory. If release() is NULL, need() is called
     * only in the forward pass. */
    status (*release)(void *context, int param);
    /* Replaces `count` float64 values by their sums over all ranks, in stream order. NULL if there is only
     * one rank. */
    status (*group_sum)(void *context, double *values, int count);
    /* Called after each operation. Profilers use it. */
    void (*after_op)(void *context, const nn_op *op);
} nn_observer;

/* Memory that the programs of one rank share, because two programs never run at the same time. */
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
    void *index; /* int32 indices of the rows that have targets, used only if the program is masked */
} nn_bindings;
/* Computes the addresses of all operands. nn_run() uses these addresses. */
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
