/* What the host of a virtual job takes per step, part by part: loader workers, the thread that pins, and
 * DataParallel's main thread. They work side by side on different steps, so the slowest is what a steady step
 * takes. */
#ifndef HARNESS_SIM_VIRTUAL_HOST_H
#define HARNESS_SIM_VIRTUAL_HOST_H

#include "common/sim/simulation.h"
#include "harness/train/trainer.h"

#include <jansson.h>

typedef struct virtual_host {
    const trainer *trainer; /* rank 0's */
    const simulation *simulation;
    int64_t before_ns[STEP_PHASE_COUNT]; /* what the thread had spent before the measured steps */
    int64_t steps;                       /* measured */
    int workers;                         /* of each process's loader; 0: no loader */
    double samples, bytes;               /* that a process loads per step */
    int replicas;                        /* threads of one process; 0: not under dp */
    int parameters;
} virtual_host;

/* Before the measured steps. */
void virtual_host_begin(virtual_host *h, const trainer *t);

/* `host_costs` of a job (docs/results.md), the caller's; NULL: nothing to report, or no memory. */
json_t *virtual_host_to_json(const virtual_host *h);

#endif
