/* The steps of split models: a stage of a pipeline, stages on devices of one process, and a remote stage.
 * Each kind has a separate struct for its state. */
#ifndef HARNESS_TRAIN_STAGES_H
#define HARNESS_TRAIN_STAGES_H

#include "harness/train/trainer_impl.h"

/* ---- pipeline_step.c: a rank that has a stage of the model ---- */

struct trainer_pipeline {
    pipeline *messages;
    int64_t before;    /* number of micro-batches in all earlier steps */
    int64_t asked;     /* training inputs for which a receive was posted, over all steps */
    int64_t evaluated; /* number of inputs of evaluations; the messages of evaluations and of training are
                          numbered together */
};

/* Do nothing if the rank has the whole model. */
status trainer_pipeline_open(trainer *t);
void trainer_pipeline_close(trainer *t);
/* For evaluations: wait for the input from the previous stage, and send the output to the next stage. */
status trainer_receive_evaluated(trainer *t);
status trainer_send_evaluated(trainer *t);
/* Adds the gradient of the stage's output to the ledger. */
void trainer_hold_gradient(trainer *t);
/* Returns true if several stages have the parameter. The gradient is ready after the sum over these
 * stages. */
static inline bool trainer_is_shared(const nn_param *p)
{
    return (p->stages & (p->stages - 1)) != 0;
}
/* Runs a step. The functions below are also the parts of a step whose stages are on devices of one
 * process. */
status trainer_run_pipeline(trainer *t, batch_source *source, int64_t index, int64_t batch_step);
status trainer_stage_forward(trainer *t, batch_source *source, int64_t index, int64_t batch_step);
status trainer_stage_backward(trainer *t);
status trainer_stage_reduce(trainer *t);
/* Runs the optimizer after trainer_stage_reduce(). Calls add_norms_of_others() if the update needs the norm
 * of all stages. */
status trainer_stage_update(trainer *t, status (*add_norms_of_others)(trainer *t));

/* ---- devices_step.c: stages on devices of this process ---- */

/* Turns of the stages. One thread drives all stages, so a device waits for the other stages before each of
 * its turns. */
typedef enum trainer_turn {
    TURN_FORWARD,
    TURN_BACKWARD,
    TURN_REDUCE,
    TURN_UPDATE,
    TURN_END,
    TRAINER_TURNS
} trainer_turn;

struct trainer_devices {
    trainer *stages[NN_MOST_STAGES]; /* [count] all stages of the rank */
    int count;
    batch_source *source;
    int waits[TRAINER_TURNS]; /* number of the wait before each turn (anatomy.h), or -1 */
    double norm;              /* squared norm of the gradients of this trainer's stage */
    device_fence *passed;     /* signaled by the compute stream; streams of other devices wait for it */
    uint64_t passes;          /* last value of `passed` */
    device_memory arrived;    /* gradient of a shared parameter, copied from another stage */
};

status trainer_devices_open(trainer *t);
void trainer_devices_close(trainer *t);
status trainer_run_devices(trainer *first, batch_source *source, int64_t index, int64_t batch_step);
/* Copy data from a neighbor stage, if there is one: trainer_copy_input() copies the activations of the
 * previous stage, and trainer_copy_gradient() copies the gradient from the next stage. */
status trainer_copy_input(trainer *t);
status trainer_copy_gradient(trainer *t);
status trainer_copy_evaluated(trainer *t);
/* Sums the gradients of each parameter that several stages have, if this stage is the last of these
 * stages. */
status trainer_sum_shared(trainer *t);

/* ---- remote_step.c: a rank whose model has its second half in a remote stage ---- */

struct trainer_remote {
    remote_stage *stage;
    device_memory output, gradient; /* output of the second half for one batch, and its gradient */
};

/* Do nothing if the rank has no remote stage. */
status trainer_remote_open(trainer *t);
void trainer_remote_close(trainer *t);
/* Called in train_step(). trainer_remote_forward() sends the activations and waits for the output of the
 * second half. trainer_remote_backward() sends the gradient of the output and waits for the gradient of the
 * activations. */
status trainer_remote_forward(trainer *t);
status trainer_remote_backward(trainer *t);

#endif
