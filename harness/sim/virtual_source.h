/* Batches for virtual devices: how many samples a rank has in a step, and which of their positions have
 * targets, without any tensor. Inputs must not be read. */
#ifndef HARNESS_SIM_VIRTUAL_SOURCE_H
#define HARNESS_SIM_VIRTUAL_SOURCE_H

#include "common/data/batch_source.h"
#include "common/data/dataset.h"
#include "common/data/sampler.h"
#include "common/sim/simulation.h"

#include <stdbool.h>

/* `set` is borrowed; where its targets are masked they are drawn for the samples as they lie, so that their
 * number is right, and all count elsewhere. `whole`: the batches of all ranks. STATUS_CONFIG as
 * sampler_init(). */
status virtual_source_open(const dataset *set, const sampler_config *sampler, int rank, bool whole,
                           batch_source **out);

/* Batches come from `workers` loader processes and a thread that pins, at the profile's prices: the host of
 * `actor` waits for each until it is made. `source` is one of the above that has given no batch. */
void virtual_source_load(batch_source *source, sim_actor *actor, int workers);

#endif
