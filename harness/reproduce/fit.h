/* A profile's compute is fitted to a published row of one GPU: all efficiencies by one factor. */
#ifndef HARNESS_REPRODUCE_FIT_H
#define HARNESS_REPRODUCE_FIT_H

#include "harness/sim/virtual_measure.h"

enum { FIT_CONSTANTS = SIM_OPTIMIZER - SIM_CONVOLUTION_FORWARD + 1 };

typedef struct compute_fit {
    double factor;
    sim_override overrides[FIT_CONSTANTS];
} compute_fit;

/* Finds the factor with which the workload's step takes `step_ms`, to 0.01 %. STATUS_CONFIG where none does.
 */
status compute_fit_find(const virtual_workload *one_gpu, double step_ms, virtual_figures *scratch,
                        compute_fit *out);

/* Puts the fit in force. The fit must stay. */
void compute_fit_apply(const compute_fit *fit, virtual_workload *w);

#endif
