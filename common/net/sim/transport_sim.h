/* Messages between the virtual ranks of a simulation. A message is a flow over the links between the sender's
 * memory and the receiver's memory. The sender and the receiver also spend a fixed time on each message. The
 * messages of a link leave one after another. No bytes are copied. */
#ifndef COMMON_NET_SIM_TRANSPORT_SIM_H
#define COMMON_NET_SIM_TRANSPORT_SIM_H

#include "common/net/transport.h"
#include "common/sim/simulation.h"

extern const transport_type transport_sim;

/* Opens the hub of the ranks of `s`. The hub must be closed after all transports. */
status transport_sim_hub_open(simulation *s, transport_hub **out);

/* Stops the hub at the end of the simulation. Afterwards no peer can be reached, so transports that are
 * closed send no goodbyes. */
void transport_sim_hub_stop(transport_hub *hub);

#endif
