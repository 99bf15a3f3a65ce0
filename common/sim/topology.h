/* Describes the machines of a simulation as resources of a network, and finds the routes between places.
 *
 * The resources of a machine are the two directions of every link in the profile's topology, the memory of
 * every socket, and the two directions of every network adapter. Reads and writes of a memory share one
 * resource. If the network is oversubscribed, its core is one more resource, which all flows between machines
 * share. Otherwise the network between the adapters never limits a flow. All machines are alike, so paths are
 * computed for only one machine. */
#ifndef COMMON_SIM_TOPOLOGY_H
#define COMMON_SIM_TOPOLOGY_H

#include "common/sim/network.h"
#include "common/sim/profile.h"

/* The memory of a GPU or of a socket. */
typedef struct sim_place {
    int machine;
    bool host;
    int index;
} sim_place;

enum { SIM_ROUTE_MAX = 32 };

typedef struct sim_route {
    sim_hop_use hops[SIM_ROUTE_MAX];
    int count;
    sim_time latency;
} sim_route;

/* The last step of the cheapest path from one node to another node. */
typedef struct sim_path_step {
    int cost;
    /* last link of the path, and the node before this link; -1 for the path from a node to itself */
    int link, before;
} sim_path_step;

typedef struct sim_topology {
    const sim_profile *profile;
    const sim_wiring *w;
    int machines;
    /* [resource_count] capacities of the resources of all machines, for sim_network_init() */
    double *capacities;
    int32_t resource_count;
    /* Number of resources per machine. Resource 2 l is link l from a to b, and resource 2 l + 1 is link l
     * from b to a. The memories of the sockets follow the links, and both directions of the adapters follow
     * the memories. The core of the network follows the last machine. */
    int per_machine;
    sim_path_step *steps; /* [node_count * node_count] last step of the path, by start and end of the path */
    int gpu_node[SIM_GPUS_MOST], socket_node[SIM_NODES_MOST], nic_node[SIM_NICS_MOST];
    /* The three arrays hold the socket that is nearest to each GPU, the adapter that is nearest to each GPU,
     * and the adapter that is nearest to each socket. */
    int gpu_socket[SIM_GPUS_MOST];
    int gpu_nic[SIM_GPUS_MOST], socket_nic[SIM_NODES_MOST];
} sim_topology;

/* Opens a topology of `machines` machines. Returns STATUS_CONFIG if the profile has fewer machines. */
status sim_topology_open(const sim_profile *profile, int machines, sim_topology **out);
void sim_topology_close(sim_topology **topology);

/* Returns the resource that is the core of the network, or -1 if the core limits no flow. */
static inline int32_t sim_topology_core(const sim_topology *t)
{
    return t->w->oversubscription > 1 && t->machines > 1 ? t->machines * t->per_machine : -1;
}

/* Finds the route of a copy from one place to another. If NVLink connects the two GPUs, the route uses
 * NVLink, else PCIe. If GPUs cannot access each other's memory, the copy passes through host memory. A copy
 * between machines uses the adapter that is nearest to each place. A copy within the memory of a socket reads
 * and writes this memory. A copy within a GPU uses no resource. */
void sim_topology_route(const sim_topology *t, sim_place from, sim_place to, sim_route *out);

/* Finds the route between GPUs of two machines over the given adapters. */
void sim_topology_route_over(const sim_topology *t, sim_place from, int nic_from, sim_place to, int nic_to,
                             sim_route *out);

/* Returns true if no adapter is nearer to the GPU than `nic`. */
bool sim_topology_is_near(const sim_topology *t, int gpu, int nic);

/* Writes the name that a resource has in its machine, for example "gpu0 -> switch0", "memory of socket0"
 * or "nic1 sends". The number of the machine is resource / per_machine. Returns `buffer`; 64 bytes are
 * enough. */
char *sim_topology_resource_name(const sim_topology *t, int32_t resource, char *buffer, size_t size);

/* Returns the number of NVLinks that connect a GPU with another GPU, or with the NVSwitch that both GPUs
 * share. Returns 0 if there is none. */
int sim_topology_nvlinks(const sim_topology *t, int from, int to);

#endif
