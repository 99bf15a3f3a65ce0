#include "common/sim/topology_impl.h"

#include <assert.h>

static void add_hop(const sim_topology *t, sim_route *r, int machine, int resource, double weight)
{
    assert(r->count < SIM_ROUTE_MAX);
    r->hops[r->count++] = (sim_hop_use){.resource = machine * t->per_machine + resource, .weight = weight};
}

static int sockets_between(const sim_topology *t, int from, int to)
{
    int sockets = 0;
    for (int at = to; at != from; at = topology_path(t, from, at)->before)
        sockets += t->w->nodes[at].kind == SIM_NODE_SOCKET;
    return sockets;
}

/* `pcie` is the weight of PCIe links. */
static void add_path(const sim_topology *t, sim_route *r, int machine, int from, int to, double pcie)
{
    for (int at = to; at != from;) {
        const topology_step *s = topology_path(t, from, at);
        assert(s->link >= 0);
        double weight = t->w->links[s->link].kind == SIM_LINK_PCIE ? pcie : 1;
        add_hop(t, r, machine, 2 * s->link + (t->w->links[s->link].b == s->before), weight);
        at = s->before;
    }
}

/* NCCL counts wire bytes for the packets into which a host bridge cuts traffic between its GPUs on the PCIe
 * links of paths through one bridge alone (src/graph/search.cc, followPath: PATH_PHB). */
static double peer_weight(const sim_topology *t, int from, int to)
{
    return sockets_between(t, from, to) == 1 ? sim_profile_get(t->profile, SIM_PEER_OVERHEAD) : 1;
}

static void route_gpus(const sim_topology *t, sim_route *r, int machine, int from, int to)
{
    int a = t->gpu_node[from], b = t->gpu_node[to];
    if (from == to) return;
    if (sim_topology_nvlinks(t, from, to)) {
        add_path(t, r, machine, a, b, 1);
    } else if (t->w->peer_access) {
        add_path(t, r, machine, a, b, peer_weight(t, a, b));
    } else {
        int socket = t->gpu_socket[from], s = t->socket_node[socket];
        add_path(t, r, machine, a, s, 1);
        add_hop(t, r, machine, topology_memory(t, socket), 2);
        add_path(t, r, machine, s, b, 1);
    }
}

static void route_hosts(const sim_topology *t, sim_route *r, int machine, int from, int to)
{
    if (from == to) {
        add_hop(t, r, machine, topology_memory(t, from), 2);
        return;
    }
    add_hop(t, r, machine, topology_memory(t, from), 1);
    add_path(t, r, machine, t->socket_node[from], t->socket_node[to], 1);
    add_hop(t, r, machine, topology_memory(t, to), 1);
}

static void route_within(const sim_topology *t, sim_route *r, sim_place from, sim_place to)
{
    int machine = from.machine;
    if (!from.host && !to.host) {
        route_gpus(t, r, machine, from.index, to.index);
    } else if (from.host && to.host) {
        route_hosts(t, r, machine, from.index, to.index);
    } else {
        int gpu = from.host ? to.index : from.index, socket = from.host ? from.index : to.index;
        int g = t->gpu_node[gpu], s = t->socket_node[socket];
        if (from.host)
            add_path(t, r, machine, s, g, 1);
        else
            add_path(t, r, machine, g, s, 1);
        add_hop(t, r, machine, topology_memory(t, socket), 1);
    }
    if (!from.host || !to.host) r->latency += sim_from_us(sim_profile_get(t->profile, SIM_COPY_LATENCY));
}

/* A link that leads to the adapter alone carries nothing but the adapter's traffic: where it is no narrower, it
 * never holds a flow back, and is left out. */
static void drop_link_of_nic(const sim_topology *t, sim_route *r, int first, int nic, int way)
{
    int links = 0;
    for (int i = 0; i < t->w->link_count; i++)
        links += t->w->links[i].a == t->nic_node[nic] || t->w->links[i].b == t->nic_node[nic];
    for (int i = first; i < r->count && links == 1; i++) {
        int link = r->hops[i].resource % t->per_machine / 2;
        bool its = link < t->w->link_count &&
                   (t->w->links[link].a == t->nic_node[nic] || t->w->links[link].b == t->nic_node[nic]);
        if (its && t->capacities[r->hops[i].resource] >= t->capacities[way]) r->hops[i--] = r->hops[--r->count];
    }
}

/* The part of a route that lies in one machine: between a place and an adapter. */
static void route_to_nic(const sim_topology *t, sim_route *r, sim_place place, int nic, bool receives)
{
    int node = place.host ? t->socket_node[place.index] : t->gpu_node[place.index], n = t->nic_node[nic];
    int first = r->count;
    if (place.host) add_hop(t, r, place.machine, topology_memory(t, place.index), 1);
    if (receives)
        add_path(t, r, place.machine, n, node, 1);
    else
        add_path(t, r, place.machine, node, n, 1);
    drop_link_of_nic(t, r, first, nic, topology_nic(t, nic, receives));
    add_hop(t, r, place.machine, topology_nic(t, nic, receives), 1);
}

static int nic_of(const sim_topology *t, sim_place p)
{
    return p.host ? t->socket_nic[p.index] : t->gpu_nic[p.index];
}

static void route_between(const sim_topology *t, sim_route *r, sim_place from, sim_place to, int nic_from,
                          int nic_to)
{
    assert(t->w->nics > 0);
    route_to_nic(t, r, from, nic_from, false);
    route_to_nic(t, r, to, nic_to, true);
    r->latency += sim_from_us(sim_profile_get(t->profile, SIM_NETWORK_LATENCY));
}

void sim_topology_route(const sim_topology *t, sim_place from, sim_place to, sim_route *out)
{
    out->count = 0;
    out->latency = 0;
    if (from.machine == to.machine)
        route_within(t, out, from, to);
    else
        route_between(t, out, from, to, nic_of(t, from), nic_of(t, to));
}

void sim_topology_route_over(const sim_topology *t, sim_place from, sim_place to, int nic, sim_route *out)
{
    out->count = 0;
    out->latency = 0;
    route_between(t, out, from, to, nic, nic);
}

int sim_topology_nvlinks(const sim_topology *t, int from, int to)
{
    int a = t->gpu_node[from], b = t->gpu_node[to];
    const topology_step *last = topology_path(t, a, b);
    if (last->link < 0 || t->w->links[last->link].kind != SIM_LINK_NVLINK) return 0;
    int first = b; /* the node behind the start */
    while (topology_path(t, a, first)->before != a) first = topology_path(t, a, first)->before;
    return t->w->links[topology_path(t, a, first)->link].count;
}

bool sim_topology_has_nvswitch(const sim_topology *t)
{
    return t->w->nvswitches > 0;
}
