#include "common/sim/topology.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

/* Costs of links. The costs make the cheapest path prefer NVLink to PCIe, and PCIe to the link between
 * sockets. */
static const int link_costs[] = {[SIM_LINK_PCIE] = 8, [SIM_LINK_NVLINK] = 1, [SIM_LINK_SOCKET] = 12};
enum { UNREACHED = 1 << 28 };

/* ---- resources -------------------------------------------------------------------------------- */

static int memory_of(const sim_topology *t, int socket)
{
    return 2 * t->w->link_count + socket;
}

static int adapter_of(const sim_topology *t, int nic, bool receives)
{
    return 2 * t->w->link_count + t->w->sockets + 2 * nic + receives;
}

static void set_capacities(sim_topology *t)
{
    const sim_profile *p = t->profile;
    for (int m = 0; m < t->machines; m++) {
        double *c = t->capacities + (size_t)m * (size_t)t->per_machine;
        for (int l = 0; l < t->w->link_count; l++) {
            const sim_link *link = &t->w->links[l];
            c[2 * l] = c[2 * l + 1] =
                link->count * sim_profile_get(p, sim_link_rates[link->kind]) * SIM_GB_PER_S;
        }
        for (int s = 0; s < t->w->sockets; s++)
            c[memory_of(t, s)] = sim_profile_get(p, SIM_HOST_MEMORY) * SIM_GB_PER_S;
        for (int n = 0; n < 2 * t->w->nics; n++)
            c[adapter_of(t, n / 2, n % 2)] = sim_profile_get(p, SIM_NIC) * SIM_GB_PER_S;
    }
    if (sim_topology_core(t) >= 0)
        t->capacities[sim_topology_core(t)] =
            t->machines * t->w->nics * sim_profile_get(p, SIM_NIC) * SIM_GB_PER_S / t->w->oversubscription;
}

static char *name_node(const sim_topology *t, int node, char *buffer, size_t size)
{
    snprintf(buffer, size, "%s%d", sim_node_names[t->w->nodes[node].kind], t->w->nodes[node].index);
    return buffer;
}

char *sim_topology_resource_name(const sim_topology *t, int32_t resource, char *buffer, size_t size)
{
    int index = resource % t->per_machine, links = 2 * t->w->link_count, memories = links + t->w->sockets;
    if (resource == sim_topology_core(t)) {
        snprintf(buffer, size, "core of the network");
    } else if (index < links) {
        const sim_link *l = &t->w->links[index / 2];
        char a[20], b[20];
        name_node(t, index % 2 ? l->b : l->a, a, sizeof a);
        snprintf(buffer, size, "%s -> %s", a, name_node(t, index % 2 ? l->a : l->b, b, sizeof b));
    } else if (index < memories) {
        snprintf(buffer, size, "memory of socket%d", index - links);
    } else {
        snprintf(buffer, size, "nic%d %s", (index - memories) / 2,
                 (index - memories) % 2 ? "receives" : "sends");
    }
    return buffer;
}

/* ---- paths in a machine ----------------------------------------------------------------------- */

static const sim_path_step *path(const sim_topology *t, int from, int to)
{
    return &t->steps[from * t->w->node_count + to];
}

static bool passes_through(const sim_wiring *w, int node)
{
    sim_node_kind kind = w->nodes[node].kind;
    return kind == SIM_NODE_SWITCH || kind == SIM_NODE_SOCKET || kind == SIM_NODE_NVSWITCH;
}

/* Finds the cheapest paths from `start` with Dijkstra's algorithm. Tries links in the order of the profile.
 * If paths have equal cost, keeps the path that was found first. */
static void find_paths(sim_topology *t, int start)
{
    const sim_wiring *w = t->w;
    sim_path_step *s = t->steps + start * w->node_count;
    bool done[SIM_NODES_MOST] = {false};
    for (int i = 0; i < w->node_count; i++)
        s[i] = (sim_path_step){.cost = i == start ? 0 : UNREACHED, .link = -1, .before = -1};
    for (int round = 0; round < w->node_count; round++) {
        int at = -1;
        for (int i = 0; i < w->node_count; i++)
            if (!done[i] && (at < 0 || s[i].cost < s[at].cost)) at = i;
        done[at] = true;
        if (s[at].cost >= UNREACHED || (at != start && !passes_through(w, at))) continue;
        for (int l = 0; l < w->link_count; l++) {
            const sim_link *link = &w->links[l];
            if (link->a != at && link->b != at) continue;
            int next = link->a == at ? link->b : link->a, cost = s[at].cost + link_costs[link->kind];
            if (cost < s[next].cost) s[next] = (sim_path_step){.cost = cost, .link = l, .before = at};
        }
    }
}

/* Returns the index in `to` [count] of the node that is nearest to `from`. If several nodes are equally near,
 * `turn` selects one of these nodes, so that different callers get different nodes. */
static int nearest(const sim_topology *t, int from, const int *to, int count, int turn)
{
    int best = UNREACHED, equals = 0;
    for (int i = 0; i < count; i++) {
        int cost = path(t, from, to[i])->cost;
        if (cost < best) {
            best = cost;
            equals = 0;
        }
        equals += cost == best;
    }
    for (int i = 0, seen = 0; i < count; i++)
        if (path(t, from, to[i])->cost == best && seen++ == turn % equals) return i;
    return 0;
}

static void find_neighbors(sim_topology *t)
{
    const sim_wiring *w = t->w;
    for (int i = 0; i < w->node_count; i++) {
        int index = w->nodes[i].index;
        if (w->nodes[i].kind == SIM_NODE_GPU) t->gpu_node[index] = i;
        if (w->nodes[i].kind == SIM_NODE_SOCKET) t->socket_node[index] = i;
        if (w->nodes[i].kind == SIM_NODE_NIC) t->nic_node[index] = i;
    }
    for (int g = 0; g < w->gpus; g++) {
        t->gpu_socket[g] = nearest(t, t->gpu_node[g], t->socket_node, w->sockets, 0);
        if (w->nics) t->gpu_nic[g] = nearest(t, t->gpu_node[g], t->nic_node, w->nics, g);
    }
    for (int s = 0; s < w->sockets; s++)
        if (w->nics) t->socket_nic[s] = nearest(t, t->socket_node[s], t->nic_node, w->nics, 0);
}

/* ---- opening ---------------------------------------------------------------------------------- */

status sim_topology_open(const sim_profile *profile, int machines, sim_topology **out)
{
    *out = NULL;
    const sim_wiring *w = &profile->wiring;
    if (machines < 1 || machines > w->machines)
        return fail(STATUS_CONFIG, "profile %s: expected %s%d machine%s, got %d", profile->name,
                    w->machines > 1 ? "1 to " : "", w->machines, w->machines == 1 ? "" : "s", machines);
    sim_topology *t = calloc(1, sizeof *t);
    if (!t) return fail(STATUS_SYSTEM, "no memory for %d machines", machines);
    *t = (sim_topology){.profile = profile,
                        .w = w,
                        .machines = machines,
                        .per_machine = 2 * w->link_count + w->sockets + 2 * w->nics};
    t->resource_count = machines * t->per_machine + (sim_topology_core(t) >= 0);
    t->capacities = calloc((size_t)t->resource_count, sizeof *t->capacities);
    t->steps = calloc((size_t)(w->node_count * w->node_count), sizeof *t->steps);
    if (!t->capacities || !t->steps) {
        sim_topology_close(&t);
        return fail(STATUS_SYSTEM, "no memory for %d machines", machines);
    }
    set_capacities(t);
    for (int i = 0; i < w->node_count; i++) find_paths(t, i);
    find_neighbors(t);
    *out = t;
    return STATUS_OK;
}

void sim_topology_close(sim_topology **topology)
{
    sim_topology *t = *topology;
    if (!t) return;
    free(t->capacities);
    free(t->steps);
    free(t);
    *topology = NULL;
}

/* ---- routes ----------------------------------------------------------------------------------- */

static void add_hop(const sim_topology *t, sim_route *r, int machine, int resource, double weight)
{
    assert(r->count < SIM_ROUTE_MAX);
    r->hops[r->count++] = (sim_hop_use){.resource = machine * t->per_machine + resource, .weight = weight};
}

static int sockets_between(const sim_topology *t, int from, int to)
{
    int sockets = 0;
    for (int at = to; at != from; at = path(t, from, at)->before)
        sockets += t->w->nodes[at].kind == SIM_NODE_SOCKET;
    return sockets;
}

/* Adds a path to a route. `pcie` is the weight of PCIe links. */
static void add_path(const sim_topology *t, sim_route *r, int machine, int from, int to, double pcie)
{
    for (int at = to; at != from;) {
        const sim_path_step *s = path(t, from, at);
        assert(s->link >= 0);
        double weight = t->w->links[s->link].kind == SIM_LINK_PCIE ? pcie : 1;
        add_hop(t, r, machine, 2 * s->link + (t->w->links[s->link].b == s->before), weight);
        at = s->before;
    }
}

static void route_gpus(const sim_topology *t, sim_route *r, int machine, int from, int to)
{
    int a = t->gpu_node[from], b = t->gpu_node[to];
    if (from == to) return;
    if (sim_topology_nvlinks(t, from, to)) {
        add_path(t, r, machine, a, b, 1);
    } else if (t->w->peer_access) {
        /* NCCL counts the packet overhead of a host bridge only on paths through exactly one bridge
         * (src/graph/search.cc, followPath: PATH_PHB). */
        bool one_bridge = sockets_between(t, a, b) == 1;
        add_path(t, r, machine, a, b, one_bridge ? sim_profile_get(t->profile, SIM_PEER_OVERHEAD) : 1);
    } else {
        int socket = t->gpu_socket[from], s = t->socket_node[socket];
        add_path(t, r, machine, a, s, 1);
        add_hop(t, r, machine, memory_of(t, socket), 2);
        add_path(t, r, machine, s, b, 1);
    }
}

static void route_hosts(const sim_topology *t, sim_route *r, int machine, int from, int to)
{
    if (from == to) {
        add_hop(t, r, machine, memory_of(t, from), 2);
        return;
    }
    add_hop(t, r, machine, memory_of(t, from), 1);
    add_path(t, r, machine, t->socket_node[from], t->socket_node[to], 1);
    add_hop(t, r, machine, memory_of(t, to), 1);
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
        add_path(t, r, machine, from.host ? s : g, from.host ? g : s, 1);
        add_hop(t, r, machine, memory_of(t, socket), 1);
    }
    if (!from.host || !to.host) r->latency += sim_from_us(sim_profile_get(t->profile, SIM_COPY_LATENCY));
}

/* One link of the route leads only to the adapter. If this link is not slower than the adapter, the link
 * never limits a flow, so this function removes the link from the route. */
static void drop_link_of_nic(const sim_topology *t, sim_route *r, int first, int nic, int way)
{
    int links = 0;
    for (int i = 0; i < t->w->link_count; i++)
        links += t->w->links[i].a == t->nic_node[nic] || t->w->links[i].b == t->nic_node[nic];
    for (int i = first; i < r->count && links == 1; i++) {
        int link = r->hops[i].resource % t->per_machine / 2;
        bool its = link < t->w->link_count &&
                   (t->w->links[link].a == t->nic_node[nic] || t->w->links[link].b == t->nic_node[nic]);
        if (its && t->capacities[r->hops[i].resource] >= t->capacities[way])
            r->hops[i--] = r->hops[--r->count];
    }
}

/* Adds the part of a route in one machine, between a place and an adapter. */
static void route_to_nic(const sim_topology *t, sim_route *r, sim_place place, int nic, bool receives)
{
    int node = place.host ? t->socket_node[place.index] : t->gpu_node[place.index], n = t->nic_node[nic];
    int first = r->count;
    if (place.host) add_hop(t, r, place.machine, memory_of(t, place.index), 1);
    add_path(t, r, place.machine, receives ? n : node, receives ? node : n, 1);
    drop_link_of_nic(t, r, first, nic, adapter_of(t, nic, receives));
    add_hop(t, r, place.machine, adapter_of(t, nic, receives), 1);
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
    if (sim_topology_core(t) >= 0) add_hop(t, r, 0, sim_topology_core(t), 1);
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

void sim_topology_route_over(const sim_topology *t, sim_place from, int nic_from, sim_place to, int nic_to,
                             sim_route *out)
{
    out->count = 0;
    out->latency = 0;
    route_between(t, out, from, to, nic_from, nic_to);
}

bool sim_topology_is_near(const sim_topology *t, int gpu, int nic)
{
    int from = t->gpu_node[gpu];
    return path(t, from, t->nic_node[nic])->cost == path(t, from, t->nic_node[t->gpu_nic[gpu]])->cost;
}

int sim_topology_nvlinks(const sim_topology *t, int from, int to)
{
    int a = t->gpu_node[from], b = t->gpu_node[to];
    const sim_path_step *last = path(t, a, b);
    if (last->link < 0 || t->w->links[last->link].kind != SIM_LINK_NVLINK) return 0;
    int first = b; /* the second node of the path */
    while (path(t, a, first)->before != a) first = path(t, a, first)->before;
    return t->w->links[path(t, a, first)->link].count;
}
