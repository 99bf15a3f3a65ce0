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

/* Sums over the operations of a class. Index 0 is for operations that the peak limits, and index 1 for
 * operations that the memory limits. roofline_s is the time at an efficiency of 1. */
typedef struct calibration_sums {
    double measured_s[SIM_EFFICIENCIES][2], roofline_s[SIM_EFFICIENCIES][2], weight_bytes[SIM_EFFICIENCIES];
    double traffic_s[SIM_EFFICIENCIES]; /* Time of all memory traffic of the class at memory_gbs. */
} calibration_sums;

/* Rates with which the times of operations are compared. */
typedef struct calibration_rates {
    double peak_tflops, memory_gbs;
    double launch_us; /* part of each time that belongs to the launch */
    double least_us;  /* operations with a shorter roofline time are ignored */
} calibration_rates;

/* Adds an operation that took `s` seconds. Ignores an operation whose roofline time is below least_us,
 * because the operation's time depends on the start and end of a kernel and not on the memory. */
void calibration_add_op(const op_desc *op, double s, const calibration_rates *rates, calibration_sums *sums);

static inline void keep_least(int64_t *best, int64_t ns)
{
    if (ns > 0 && (*best == 0 || ns < *best)) *best = ns;
}

/* Measures the rate of a copy by this thread, in bytes read and written. */
status calibration_copy_gbs(size_t bytes, double *gbs);

/* Measured steps come in blocks, each after a warm-up step. Workloads or ranks alternate between blocks. */
enum { CALIBRATION_MODELS = 2, CALIBRATION_WORKLOADS = 2 * CALIBRATION_MODELS };
enum { CALIBRATION_BLOCK = 3, CALIBRATION_REPEATS = 3 * CALIBRATION_BLOCK };

typedef enum calibration_setting {
    CALIBRATION_ALONE,
    CALIBRATION_BESIDE,
    CALIBRATION_SETTINGS
} calibration_setting;

/* A compiled model with all memory that a training step needs, and the times of its operations. The inputs
 * are not initialized. */
typedef struct calibration_run {
    device *device;
    device_stream *stream;
    nn_model *model;
    nn_program *program;
    param_set *params;
    nn_instance *instance;
    nn_memory memory;
    device_memory input, target;
    optimizer *optimizers[2]; /* SGD and Adam; Adam may be NULL */
    ledger ledger;
    /* [op_count + 2][CALIBRATION_SETTINGS][CALIBRATION_REPEATS] times of the operations, and of the
     * optimizers' updates of all parameters, in ns. */
    double *times;
} calibration_run;

/* Compiles the model and allocates all memory on a device. `kind` is the kind of memory for parameters and
 * gradients. Must be closed even after a failure. calibration_close() does not close device and stream. */
status calibration_open(calibration_run *r, device *d, device_stream *s, const calibration_workload *w,
                        device_memory_kind kind, bool adam);
void calibration_close(calibration_run *r);

/* Opens workload 0 (ResNet-18), 1 (a small BERT), 2 (ResNet-18 with a quarter of the batch) or 3 (a wide
 * BERT of few rows) on a separate CPU device with `threads` compute threads. */
status calibration_open_cpu(calibration_run *r, const calibration_workload *w, int threads);
extern const calibration_workload calibration_workloads[CALIBRATION_WORKLOADS];
void calibration_close_cpu(calibration_run *r);

/* Runs forward, backward and updates. The times are stored at index `repeat` of the setting, unless `repeat`
 * is negative. */
status calibration_step(calibration_run *r, calibration_setting setting, int repeat);

/* Returns the median time of operation `op`, or of the update by SGD if `op` is op_count, in ns. */
double calibration_op_ns(calibration_run *r, calibration_setting setting, int op);
/* Adds the operations and updates measured with the setting CALIBRATION_ALONE. */
void calibration_add_run(calibration_run *r, const calibration_rates *rates, calibration_sums *sums);

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

/* ---- GPUs ---- */

enum { GPU_BEGIN = 1, GPU_END = 2, GPU_TURNS = 9, GPU_MOST = 16 };

/* Waits for the stream and keeps the least time since mark GPU_BEGIN in *best. */
static inline status gpu_take_time(device_stream *s, int64_t *best)
{
    TRY(device_mark(s, GPU_END));
    TRY(device_stream_synchronize(s));
    keep_least(best, device_mark_ns(s, GPU_END) - device_mark_ns(s, GPU_BEGIN));
    return STATUS_OK;
}

/* Copies `count` float32 values with a kernel of the GPU several times, and keeps the least time. */
status gpu_time_copy(device_stream *s, void *to, const void *from, int64_t count, int64_t *best);

/* calibrate_gpu_peers.c: measures the links between GPUs. Does nothing if there is only one GPU. */
status calibrate_gpu_peers(gpu_calibration *c);

/* calibrate_gpu_ops.c: times all operations of training steps and sets the efficiencies. Needs the peak,
 * the memory bandwidth and kernel_us. */
status calibrate_gpu_operations(device *d, device_stream *s, gpu_calibration *c);

#endif
