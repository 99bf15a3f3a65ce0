/* Measures one row of a published table on GPUs: ranks are threads of this process, a GPU each. */
#ifndef HARNESS_REPRODUCE_GPU_ROW_H
#define HARNESS_REPRODUCE_GPU_ROW_H

#include "common/optim/optimizer.h"
#include "models/models.h"

typedef struct gpu_row {
    model_options model;
    int64_t batch; /* samples per rank */
    int gpus;
    const char *policy; /* of the ring engine; without meaning for one GPU */
    optimizer_options optimizer;
    int64_t steps, warmup; /* measured; before them */
} gpu_row;

/* Medians over the measured steps, the slowest rank's, in ms; the device is waited for between the phases. Inputs are
 * the same random numbers in every step. */
status gpu_row_measure(const gpu_row *row, double *forward_ms, double *backward_ms);

#endif
