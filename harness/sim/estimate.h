/* Estimates how long a run on processors takes, before it begins. */
#ifndef HARNESS_SIM_ESTIMATE_H
#define HARNESS_SIM_ESTIMATE_H

#include "harness/plan/plan.h"

/* Returns the time of all jobs in seconds, from a training step of a few samples that is measured in a
 * separate process. Ignores communication and the loader. Returns NaN for short runs, without measuring, and
 * if the step cannot run. */
double run_estimate_s(const run_config *config, const run_plan *plan);

#endif
