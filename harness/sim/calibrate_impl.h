/* What calibration is made of, for its own files: training steps on one rank, operation by operation. */
#ifndef HARNESS_SIM_CALIBRATE_IMPL_H
#define HARNESS_SIM_CALIBRATE_IMPL_H

#include "common/base/text.h"
#include "common/nn/instance.h"
#include "common/optim/optimizer.h"
#include "harness/sim/calibrate.h"
#include "models/models.h"

typedef struct calibration_workload {
    model_options model;
    int64_t batch;
} calibration_workload;

/* A model with the memory of its steps. Its inputs are whatever memory holds. */
typedef struct calibration_program {
    device *device; /* borrowed, and so is the stream */
    device_stream *stream;
    nn_model *model;
    nn_program *program;
    param_set *params;
    nn_instance *instance;
    nn_memory memory;
    device_memory input, target;
} calibration_program;

/* `kind` is that of parameters and gradients. Close it whatever comes back; what was never opened is all
 * zero. */
status calibration_program_open(calibration_program *p, device *d, device_stream *s,
                                const calibration_workload *w, device_memory_kind kind);
void calibration_program_close(calibration_program *p);

/* Forward and backward on the stream; `after_op` is called for every operation that was launched. */
status calibration_program_run(calibration_program *p, void (*after_op)(void *context, const nn_op *op),
                               void *context, ledger *l);

/* Over the operations of a class, by what binds them, the peak (0) or the memory (1): measured time, and what
 * a roofline of efficiency 1 gives. */
typedef struct calibration_sums {
    double measured_s[SIM_EFFICIENCIES][2], roofline_s[SIM_EFFICIENCIES][2], weight_bytes[SIM_EFFICIENCIES];
    double traffic_s[SIM_EFFICIENCIES]; /* of all operations of the class, whatever binds them */
} calibration_sums;

/* Adds an operation that took `s` seconds, of which `launch_us` are its launch. An operation that
 * the roofline gives less than `least_us` is left out: its time shows how long a kernel takes to begin and
 * end, not how fast the memory is. */
void calibration_add_op(const op_desc *op, double s, double peak_tflops, double memory_gbs, double launch_us,
                        double least_us, calibration_sums *sums);

/* The median of times, which it sorts. */
double calibration_median(int64_t *values, int count);

/* Measured steps come in blocks, each after one that warms up: between blocks others take their turns. */
enum { CALIBRATION_MODELS = 2, CALIBRATION_WORKLOADS = 2 * CALIBRATION_MODELS };
enum { CALIBRATION_BLOCK = 3, CALIBRATION_REPEATS = 3 * CALIBRATION_BLOCK };

typedef enum calibration_setting {
    CALIBRATION_ALONE,
    CALIBRATION_BESIDE,
    CALIBRATION_SETTINGS
} calibration_setting;

/* A model with all that its steps need, on a CPU device of its own. */
typedef struct calibration_run {
    device *device;
    device_stream *stream;
    calibration_program work;
    optimizer *optimizer;
    ledger ledger;
    int64_t *times; /* [op_count][CALIBRATION_SETTINGS][CALIBRATION_REPEATS] ns */
    int64_t updates[CALIBRATION_SETTINGS]
                   [CALIBRATION_REPEATS]; /* ns, of the optimizer's pass over all parameters */
    calibration_setting setting;
    int repeat; /* < 0: warming up */
    int64_t since;
} calibration_run;

/* ResNet-18 (0) or a small BERT (1), or ResNet-18 with a quarter of the batch (2) or a BERT of few rows and
 * wide products (3), `threads` compute threads. Close it whatever comes back. */
status calibration_open(calibration_run *r, int workload, int threads);
void calibration_close(calibration_run *r);

/* Forward, backward, update; the times go to `repeat` of the setting. */
status calibration_step(calibration_run *r, calibration_setting setting, int repeat);

/* ns, the median of an operation's times, or of the update's, which are sorted. */
double calibration_op_ns(calibration_run *r, calibration_setting setting, int op);
double calibration_update_ns(calibration_run *r, calibration_setting setting);

/* To be called by a rank's thread before it works: binds it where ranks are to be bound. */
static inline status calibration_bind(const calibration *c, int rank)
{
    if (!c->sets || sched_setaffinity(0, sizeof *c->sets, &c->sets[rank]) == 0) return STATUS_OK;
    return fail_errno(STATUS_SYSTEM, "calibration: rank %d cannot be bound", rank);
}

/* calibrate_ops.c: fills peak, memory, efficiencies and launch. */
status calibrate_operations(calibration *c);

/* calibrate_pair.c: the slow-down of a rank by another, and what they pass to each other. */
status calibrate_pair(calibration *c);

/* calibrate_message.c: what a message and a wake-up cost. */
status calibrate_messages(calibration *c);

#endif
