/* Out of a device's memory under `ps`: what the ranks would have held, since some hold more than others. */
#ifndef HARNESS_RUN_IMBALANCE_H
#define HARNESS_RUN_IMBALANCE_H

#include "harness/run/plan.h"

/* Adds to the failure at hand how much more the ranks with a server, or device 0 under `dp`, are planned to hold than
 * the others. Leaves it as it is where all ranks hold the same. `plan`: data set and model. */
void imbalance_tell(const run_config *config, const run_plan *plan, int engine);

#endif
