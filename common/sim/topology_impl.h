/* The inside of a topology, for topology*.c. */
#ifndef COMMON_SIM_TOPOLOGY_IMPL_H
#define COMMON_SIM_TOPOLOGY_IMPL_H

#include "common/sim/topology.h"

/* How a node is reached from another on the cheapest path. */
typedef struct topology_step {
    int cost;
    int link, before; /* the last link and the node before it; -1: the start */
} topology_step;

struct sim_topology {
    const sim_profile *profile;
    const sim_wiring *w;
    int machines;
    double *capacities;   /* [machines * per_machine] */
    int per_machine;      /* resources: links both ways, memories, adapters both ways */
    topology_step *steps; /* [node_count * node_count], from, to */
    int *gpu_node, *socket_node, *nic_node;
    int *gpu_socket, *socket_nic, *gpu_nic, *nic_gpu;
};

/* Resources of a machine: of link l, 2 l from a to b and 2 l + 1 back, then these. */
static inline int topology_memory(const sim_topology *t, int socket)
{
    return 2 * t->w->link_count + socket;
}

static inline int topology_nic(const sim_topology *t, int nic, bool receives)
{
    return 2 * t->w->link_count + t->w->sockets + 2 * nic + receives;
}

static inline const topology_step *topology_path(const sim_topology *t, int from, int to)
{
    return &t->steps[(size_t)from * (size_t)t->w->node_count + (size_t)to];
}

#endif
