/* The machines of a simulation as resources of its network, and the routes between places.
 *
 * Per machine: both directions of every link of the profile's topology, a memory a socket (one resource for
 * reading and writing), both directions of every network adapter. The network between the adapters never
 * blocks. Machines are alike: routes are found once, in one machine. */
#ifndef COMMON_SIM_TOPOLOGY_H
#define COMMON_SIM_TOPOLOGY_H

#include "common/sim/network.h"
#include "common/sim/profile.h"

/* Where bytes lie: in the memory of a GPU, or in that of a socket. */
typedef struct sim_place {
    int machine;
    bool host;
    int index; /* of the GPU or socket in its machine */
} sim_place;

enum { SIM_ROUTE_MAX = 32 };

typedef struct sim_route {
    sim_hop_use hops[SIM_ROUTE_MAX];
    int count;
    sim_time latency;
} sim_route;

typedef struct sim_topology sim_topology;

/* `machines` of them. STATUS_CONFIG: more than the profile has. */
status sim_topology_open(const sim_profile *profile, int machines, sim_topology **out);
void sim_topology_close(sim_topology **topology);

const sim_profile *sim_topology_profile(const sim_topology *t);
int sim_topology_machines(const sim_topology *t);

/* Resources of all machines, for sim_network_init; borrowed. */
const double *sim_topology_capacities(const sim_topology *t, int32_t *count);

/* The socket nearest to a GPU. */
int sim_topology_socket_of(const sim_topology *t, int gpu);

/* From one place to another, the way that a copy takes: over NVLink where there is one, else over PCIe,
 * through the host's memory where GPUs have no access to each other, over the nearest adapters between
 * machines. A copy within a socket's memory reads and writes it; one within a GPU costs nothing here. */
void sim_topology_route(const sim_topology *t, sim_place from, sim_place to, sim_route *out);

/* As above between GPUs of two machines, over adapter `nic` of each. */
void sim_topology_route_over(const sim_topology *t, sim_place from, sim_place to, int nic, sim_route *out);

/* The GPU nearest to an adapter. */
int sim_topology_gpu_of(const sim_topology *t, int nic);

/* NVLinks from one GPU to another; to an NVSwitch, where both are on one, those of the first. 0: none. */
int sim_topology_nvlinks(const sim_topology *t, int from, int to);
bool sim_topology_has_nvswitch(const sim_topology *t);

#endif
