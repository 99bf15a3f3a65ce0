/* What calibration is made of, for its own files: training steps on one rank, operation by operation. */
#ifndef HARNESS_SIM_CALIBRATE_IMPL_H
#define HARNESS_SIM_CALIBRATE_IMPL_H

#include "common/optim/optimizer.h"
#include "harness/sim/calibrate.h"
#include "harness/sim/calibrate_program.h"

enum { CALIBRATION_MODELS = 2, CALIBRATION_REPEATS = 15 };

/* A model with all that its steps need, on a CPU device of its own. */
typedef struct calibration_run {
    device *device;
    device_stream *stream;
    calibration_program work;
    optimizer *optimizer;
    ledger ledger;
    int64_t *times;                      /* [op_count][CALIBRATION_REPEATS] ns */
    int64_t updates[CALIBRATION_REPEATS]; /* ns, of the optimizer's pass over all parameters */
    int repeat;                          /* < 0: warming up */
    int64_t since;
} calibration_run;

/* ResNet-18 (0) or a small BERT (1), `threads` compute threads. Close it whatever comes back. */
status calibration_open(calibration_run *r, int model, int threads);
void calibration_close(calibration_run *r);

/* Forward, backward, update; the times go to `repeat`. */
status calibration_step(calibration_run *r, int repeat);

/* The model alone; nn_model_free it. */
status calibration_model(int model, nn_model **out);

/* ns, the median of an operation's times, which are sorted. */
double calibration_op_ns(calibration_run *r, int op);

/* calibrate_ops.c: fills peak, memory, efficiencies and launch. */
status calibrate_operations(calibration *c);

/* calibrate_pair.c: what becomes of a rank beside another, and what they pass to each other. */
status calibrate_pair(calibration *c);

/* calibrate_message.c: what a message and a wake-up cost. */
status calibrate_messages(calibration *c);

#endif
