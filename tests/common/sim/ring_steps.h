/* A ring all-reduce step by step through the links: every member sends a chunk to the next as soon as it has
 * received the one before and its link is free, 2 (n - 1) times, on all rings side by side.
 *
 * It costs O(n^2) events and memory for 2 n flows: for small groups, and to check the closed form (nccl.h)
 * with. */
#ifndef TESTS_COMMON_SIM_RING_STEPS_H
#define TESTS_COMMON_SIM_RING_STEPS_H

#include "common/sim/nccl.h"

typedef struct sim_ring_steps sim_ring_steps;

/* Returns "LL", "LL128" or "Simple". */
const char *sim_protocol_name(sim_protocol p);

/* Returns the time of a ring's call without its hops. */
sim_time sim_nccl_base(const sim_rings *r, sim_protocol p);

/* Opens a ring. `done` is called when the last member has received its last chunk. `network` holds the links
 * of the topology on which the rings lie. Borrows `network` and `rings`. */
status sim_ring_steps_open(sim_network *network, const sim_rings *rings, sim_protocol protocol,
                           void (*done)(void *context), void *context, sim_ring_steps **out);
void sim_ring_steps_close(sim_ring_steps **steps);

/* Begins a call now. Only one call may run at a time. `bytes` is the size of the whole buffer. */
status sim_ring_steps_start(sim_ring_steps *steps, double bytes);

#endif
