/* Messages between the virtual ranks of a simulation: flows over the links between the places where the
 * tensors lie, one message of a link after another, and a fixed time for each at both ends. No bytes move. */
#ifndef COMMON_NET_SIM_TRANSPORT_SIM_H
#define COMMON_NET_SIM_TRANSPORT_SIM_H

#include "common/net/transport.h"
#include "common/sim/simulation.h"

extern const transport_type transport_sim;

/* The hub of the ranks of `s`. Close it after all transports. */
status transport_sim_hub_open(simulation *s, transport_hub **out);

/* The simulation has ended: nobody can be reached any more, and goodbyes are not said. */
void transport_sim_hub_stop(transport_hub *hub);

#endif
