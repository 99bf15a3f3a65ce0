/* Simulates a ring all-reduce step by step through the links. Every member sends a chunk to the next member 2
 * (n - 1) times. It sends a chunk when it has received the previous one and its link is free. All rings run
 * at the same time.
 *
 * The simulation takes O(n^2) events, and memory for 2 n flows. Use it for small groups, and to check the
 * closed form (nccl.h). */
#ifndef TESTS_COMMON_SIM_RING_STEPS_H
#define TESTS_COMMON_SIM_RING_STEPS_H

#include "common/sim/nccl.h"

typedef struct sim_ring_steps sim_ring_steps;

/* Returns "LL", "LL128" or "Simple". */
const char *sim_protocol_name(sim_protocol p);

/* Returns the time of a call on a ring without its hops. */
sim_time sim_nccl_base(const sim_rings *r, sim_protocol p);

/* Opens a ring. `network` has the links of the topology for which the rings were made. `done` is called when
 * the last member has received its last chunk. Borrows `network` and `rings`. */
status sim_ring_steps_open(sim_network *network, const sim_rings *rings, sim_protocol protocol,
                           void (*done)(void *context), void *context, sim_ring_steps **out);
void sim_ring_steps_close(sim_ring_steps **steps);

/* Begins a call now. Only one call may run at a time. `bytes` is the size of the whole buffer. */
status sim_ring_steps_start(sim_ring_steps *steps, double bytes);

#endif
