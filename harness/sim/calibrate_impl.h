/* Internals of the calibration: training steps on one rank, timed operation by operation. */
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

/* A compiled model and all memory that a training step needs. The inputs are not initialized. */
typedef struct calibration_program {
    device *device; /* Borrowed, like the stream. */
    device_stream *stream;
    nn_model *model;
    nn_program *program;
    param_set *params;
    nn_instance *instance;
    nn_memory memory;
    device_memory input, target;
} calibration_program;

/* Compiles the model and allocates all memory. `kind` is the kind of memory for parameters and gradients.
 * Must be closed even after a failure; closing a zeroed program does nothing. */
status calibration_program_open(calibration_program *p, device *d, device_stream *s,
                                const calibration_workload *w, device_memory_kind kind);
void calibration_program_close(calibration_program *p);

/* Runs forward and backward on the stream. Calls `after_op` after every launched operation. */
status calibration_program_run(calibration_program *p, void (*after_op)(void *context, const nn_op *op),
                               void *context, ledger *l);

/* Sums over the operations of a class, by the limit of the roofline: the peak (0) or the memory (1).
 * roofline_s is the time of a roofline with efficiency 1. */
typedef struct calibration_sums {
    double measured_s[SIM_EFFICIENCIES][2], roofline_s[SIM_EFFICIENCIES][2], weight_bytes[SIM_EFFICIENCIES];
    double traffic_s[SIM_EFFICIENCIES]; /* Seconds of all operations of the class, whatever their limit. */
} calibration_sums;

/* Adds an operation that took `s` seconds, including launch_us for its launch. Ignores an operation whose
 * roofline time is less than least_us: its time depends on the start and end of a kernel and not on the
 * memory. */
void calibration_add_op(const op_desc *op, double s, double peak_tflops, double memory_gbs, double launch_us,
                        double least_us, calibration_sums *sums);

static inline void keep_least(int64_t *best, int64_t ns)
{
    if (ns > 0 && (*best == 0 || ns < *best)) *best = ns;
}

/* Measures the rate of a copy by this thread, in bytes read and written. */
status calibration_copy_gbs(size_t bytes, double *gbs);

/* Sorts the values and returns the median. */
double calibration_median(int64_t *values, int count);

/* Measured steps come in blocks, each after a warm-up step. Workloads or ranks alternate between blocks. */
enum { CALIBRATION_MODELS = 2, CALIBRATION_WORKLOADS = 2 * CALIBRATION_MODELS };
enum { CALIBRATION_BLOCK = 3, CALIBRATION_REPEATS = 3 * CALIBRATION_BLOCK };

typedef enum calibration_setting {
    CALIBRATION_ALONE,
    CALIBRATION_BESIDE,
    CALIBRATION_SETTINGS
} calibration_setting;

/* A compiled model with its memory, on a separate CPU device. */
typedef struct calibration_run {
    device *device;
    device_stream *stream;
    calibration_program work;
    optimizer *optimizer;
    ledger ledger;
    int64_t *times; /* [op_count][CALIBRATION_SETTINGS][CALIBRATION_REPEATS], in ns. */
    /* Times of the optimizer's pass over all parameters, in ns. */
    int64_t updates[CALIBRATION_SETTINGS][CALIBRATION_REPEATS];
    calibration_setting setting;
    int repeat; /* Negative during warm-up. */
    int64_t since;
} calibration_run;

/* Opens workload 0 (ResNet-18), 1 (a small BERT), 2 (ResNet-18 with a quarter of the batch) or 3 (a wide
 * BERT of few rows) with `threads` compute threads. Must be closed even after a failure. */
status calibration_open(calibration_run *r, int workload, int threads);
void calibration_close(calibration_run *r);

/* Runs forward, backward and update. The times are stored at index `repeat` of the setting. */
status calibration_step(calibration_run *r, calibration_setting setting, int repeat);

/* Return the median time of an operation, and of the update, in ns. Both sort the times. */
double calibration_op_ns(calibration_run *r, calibration_setting setting, int op);
double calibration_update_ns(calibration_run *r, calibration_setting setting);

/* Binds the calling thread of a rank, if ranks are to be bound. */
static inline status calibration_bind(const calibration *c, int rank)
{
    if (!c->sets || sched_setaffinity(0, sizeof *c->sets, &c->sets[rank]) == 0) return STATUS_OK;
    return fail_errno(STATUS_SYSTEM, "calibration: rank %d cannot be bound", rank);
}

/* calibrate_ops.c: measures peak, memory, efficiencies and launch time. */
status calibrate_operations(calibration *c);

/* calibrate_pair.c: measures how much two ranks slow each other, and their exchanges through memory. */
status calibrate_pair(calibration *c);

/* calibrate_message.c: measures a message and a wake-up. */
status calibrate_messages(calibration *c);

#endif
