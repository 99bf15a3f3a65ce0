/* Training steps that calibration times operation by operation, on any device; and what its files have in common. */
#ifndef HARNESS_SIM_CALIBRATE_PROGRAM_H
#define HARNESS_SIM_CALIBRATE_PROGRAM_H

#include "common/base/text.h"
#include "common/nn/instance.h"
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

/* `kind` is that of parameters and gradients. Close it whatever comes back; what was never opened is all zero. */
status calibration_program_open(calibration_program *p, device *d, device_stream *s, const calibration_workload *w,
                                device_memory_kind kind);
void calibration_program_close(calibration_program *p);

/* Forward and backward on the stream; `after_op` is told of every operation that was launched. */
status calibration_program_run(calibration_program *p, void (*after_op)(void *context, const nn_op *op), void *context,
                               ledger *l);

/* The median of times, which it sorts. */
double calibration_median(int64_t *values, int count);

/* `file` where harness looks for a user's profiles. STATUS_CONFIG without a home. */
status calibration_file_path(const char *file, char *path, size_t size);

/* Makes the folders that lead to a file; whether they are there shows when it is opened. */
void calibration_make_folders(const char *path);

/* The whole file or none of it, and frees the text. STATUS_SYSTEM if it ran out of memory; STATUS_CANNOT_CREATE,
 * STATUS_IO. */
status calibration_file_write(text_buffer *text, const char *path);

#endif
