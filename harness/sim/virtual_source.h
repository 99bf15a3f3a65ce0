/* Batches for virtual devices: the number of samples and of counted targets, without tensors. Inputs must
 * not be read. */
#ifndef HARNESS_SIM_VIRTUAL_SOURCE_H
#define HARNESS_SIM_VIRTUAL_SOURCE_H

#include "common/data/batch_source.h"
#include "common/data/dataset.h"
#include "common/data/sampler.h"
#include "common/sim/simulation.h"

#include <stdbool.h>

/* Opens the batches of `rank`, or of all ranks if `whole`. If targets are masked, draws the mask of each
 * sample to count the targets that remain. If targets are not masked, all targets count. `set` is borrowed.
 * Returns the errors of sampler_init(). */
status virtual_source_open(const dataset *set, const sampler_config *sampler, int rank, bool whole,
                           batch_source **out);

/* Makes a new source load its batches with `workers` processes and a pinning thread, at the profile's
 * prices. `actor` waits until each batch is ready. Must be called before the first batch. */
void virtual_source_load(batch_source *source, sim_actor *actor, int workers);

#endif
