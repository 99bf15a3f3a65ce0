/* Between network.c and network_solve.c. */
#ifndef COMMON_SIM_NETWORK_IMPL_H
#define COMMON_SIM_NETWORK_IMPL_H

#include "common/sim/network.h"

/* Gives every flow that is connected with a dirty resource its new rate and the time of its end. */
void sim_network_solve(void *network);

#endif
