/* Time that the host of a virtual job spends per step, for each part: the loader's workers, the thread that
 * pins memory, and DataParallel's main thread. The parts work on different steps at the same time, so the
 * slowest part determines the time of a step. */
#ifndef HARNESS_SIM_VIRTUAL_HOST_H
#define HARNESS_SIM_VIRTUAL_HOST_H

#include "common/sim/simulation.h"
#include "harness/train/trainer.h"

#include <jansson.h>

typedef struct virtual_host {
    const trainer *trainer; /* Trainer of rank 0, borrowed. */
    const simulation *simulation;
    int64_t before_ns[STEP_PHASE_COUNT]; /* Time that the thread spent before the measured steps. */
    int64_t steps;                       /* Number of measured steps. */
    int workers;                         /* Loader workers per process, or 0 without a loader. */
    double samples, bytes;               /* Samples and bytes that a process loads per step. */
    int replicas;                        /* Replicas in the process under dp, else 0. */
    int parameters;                      /* Number of parameter tensors of the model. */
} virtual_host;

/* Begins the measurement. Called before the measured steps with the trainer of rank 0. */
void virtual_host_begin(virtual_host *h, const trainer *t);

/* Returns the `host_costs` of a job (docs/results.md), which the caller owns. Returns NULL if there is
 * nothing to report, or if out of memory. */
json_t *virtual_host_to_json(const virtual_host *h);

#endif
