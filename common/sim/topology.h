/* The machines of a simulation as resources of its network, and the routes between places.
 *
 * Per machine: both directions of every link of the profile's topology, one memory per socket (one resource
 * for reading and writing), both directions of every network adapter. The network between the adapters never
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

/* How a node is reached from another on the cheapest path. */
typedef struct sim_path_step {
    int cost;
    int link, before; /* the last link and the node before it; -1: the start */
} sim_path_step;

typedef struct sim_topology {
    const sim_profile *profile;
    const sim_wiring *w; /* the profile's */
    int machines;
    double *capacities; /* [resource_count] of all machines, for sim_network_init */
    int32_t resource_count;
    int per_machine; /* resources: of link l, 2 l from a to b and 2 l + 1 back; memories; adapters both ways
                      */
    sim_path_step *steps; /* [node_count * node_count], from, to */
    int gpu_node[SIM_GPUS_MOST], socket_node[SIM_NODES_MOST], nic_node[SIM_NICS_MOST];
    int gpu_socket[SIM_GPUS_MOST]; /* the nearest, as below */
    int gpu_nic[SIM_GPUS_MOST], socket_nic[SIM_NODES_MOST];
} sim_topology;

/* `machines` of them. STATUS_CONFIG: more than the profile has. */
status sim_topology_open(const sim_profile *profile, int machines, sim_topology **out);
void sim_topology_close(sim_topology **topology);

/* From one place to another, the way that a copy takes: over NVLink where there is one, else over PCIe,
 * through the host's memory where GPUs have no access to each other, over the nearest adapters between
 * machines. A copy within a socket's memory reads and writes it; one within a GPU costs nothing here. */
void sim_topology_route(const sim_topology *t, sim_place from, sim_place to, sim_route *out);

/* As above between GPUs of two machines, over the adapters given. */
void sim_topology_route_over(const sim_topology *t, sim_place from, int nic_from, sim_place to, int nic_to,
                             sim_route *out);

/* Whether no adapter is nearer to the GPU. */
bool sim_topology_is_near(const sim_topology *t, int gpu, int nic);

/* "gpu0 -> switch0", "memory of socket0", "nic1 sends": a resource of any machine, which is resource /
 * per_machine. Returns `buffer`; 64 bytes are enough. */
char *sim_topology_resource_name(const sim_topology *t, int32_t resource, char *buffer, size_t size);

/* NVLinks from one GPU to another; to an NVSwitch, where both are on one, those of the first. 0: none. */
int sim_topology_nvlinks(const sim_topology *t, int from, int to);

#endif
