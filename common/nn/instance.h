/* A program on one rank's device: prepared kernels and activation memory.
 *
 * The observer is called before an operation for each parameter that the pass uses there for the first time,
 * and after it for each gradient that it completes and each parameter that the pass has used for the last
 * time. Model and engine have no other connection. */
#ifndef COMMON_NN_INSTANCE_H
#define COMMON_NN_INSTANCE_H

#include "common/device/device.h"
#include "common/nn/params.h"
#include "common/nn/program.h"

typedef struct nn_instance nn_instance;

/* Called by a pass. `after_op` is for profiles and may be NULL. */
typedef struct nn_observer {
    void *context;
    status (*need)(void *context, int param);
    status (*ready)(void *context, int param);
    /* NULL where parameters stay in their place: then need() is called in the forward pass only. Called after
     * ready(). */
    status (*release)(void *context, int param);
    /* Sums `count` float64 over all ranks, in stream order. */
    status (*group_sum)(void *context, double *values, int count);
    void (*after_op)(void *context, const nn_op *op);
    bool recorded; /* nothing is launched: the operations are in a graph that is launched instead */
} nn_observer;

/* Memory that several programs of one rank share: they never run at the same time. */
typedef struct nn_memory {
    device_memory activations, workspace, loss;
    int64_t activation_bytes, workspace_bytes;
} nn_memory;

/* Prepares every operation of `program`. The instance borrows all its arguments. */
status nn_instance_open(device *d, device_stream *s, const nn_program *program, param_set *set,
                        nn_instance **out);
void nn_instance_close(nn_instance **instance);

size_t nn_instance_workspace(const nn_instance *instance);

/* Binds memory and batch buffers: all operand pointers are resolved here, once. */
typedef struct nn_bindings {
    nn_memory *memory;
    void *input, *target;
    void *index; /* int32; where the program is masked */
} nn_bindings;
status nn_instance_bind(nn_instance *instance, const nn_bindings *bindings);

typedef enum nn_pass { NN_FORWARD, NN_LOSS, NN_BACKWARD, NN_PASSES } nn_pass;

/* Runs the passes from `first` to `last`. */
status nn_run(nn_instance *instance, nn_pass first, nn_pass last, const nn_observer *observer,
              const op_scalars *scalars, ledger *l);

void *nn_instance_value(const nn_instance *instance, int value);
/* The two sums that the loss operation wrote (LOSS_SUMS), in device memory. */
double *nn_instance_loss_sums(const nn_instance *instance);

#endif
