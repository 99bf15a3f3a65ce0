#include "common/sim/topology_impl.h"

#include <stdlib.h>

/* Costs of a link, so that the cheapest path is the one that is taken: NVLink before PCIe, PCIe before the
 * link between sockets. */
static const int link_costs[] = {[SIM_LINK_PCIE] = 8, [SIM_LINK_NVLINK] = 1, [SIM_LINK_SOCKET] = 12};
static const sim_constant link_rates[] = {
    [SIM_LINK_PCIE] = SIM_PCIE, [SIM_LINK_NVLINK] = SIM_NVLINK, [SIM_LINK_SOCKET] = SIM_SOCKET_LINK};
enum { UNREACHED = 1 << 28 };

/* ---- resources -------------------------------------------------------------------------------- */

static void set_capacities(sim_topology *t)
{
    const sim_profile *p = t->profile;
    for (int m = 0; m < t->machines; m++) {
        double *c = t->capacities + (size_t)m * (size_t)t->per_machine;
        for (int l = 0; l < t->w->link_count; l++) {
            const sim_link *link = &t->w->links[l];
            c[2 * l] = c[2 * l + 1] = link->count * sim_profile_get(p, link_rates[link->kind]) * SIM_GB_PER_S;
        }
        for (int s = 0; s < t->w->sockets; s++)
            c[topology_memory(t, s)] = sim_profile_get(p, SIM_HOST_MEMORY) * SIM_GB_PER_S;
        for (int n = 0; n < 2 * t->w->nics; n++)
            c[topology_nic(t, n / 2, n % 2)] = sim_profile_get(p, SIM_NIC) * SIM_GB_PER_S;
    }
}

/* ---- paths in a machine ----------------------------------------------------------------------- */

static bool passes_through(const sim_wiring *w, int node)
{
    sim_node_kind kind = w->nodes[node].kind;
    return kind == SIM_NODE_SWITCH || kind == SIM_NODE_SOCKET || kind == SIM_NODE_NVSWITCH;
}

/* Dijkstra's algorithm from `start`; equal costs keep the path found first, in the order of the links. */
static void find_paths(sim_topology *t, int start)
{
    const sim_wiring *w = t->w;
    topology_step *s = t->steps + (size_t)start * (size_t)w->node_count;
    bool done[SIM_NODES_MOST] = {false};
    for (int i = 0; i < w->node_count; i++)
        s[i] = (topology_step){.cost = i == start ? 0 : UNREACHED, .link = -1, .before = -1};
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
            if (cost < s[next].cost) s[next] = (topology_step){.cost = cost, .link = l, .before = at};
        }
    }
}

/* Of the nodes `to` [count] the nearest to `from`; of equals number `turn`: they are shared out. */
static int nearest(const sim_topology *t, int from, const int *to, int count, int turn)
{
    int best = UNREACHED, equals = 0;
    for (int i = 0; i < count; i++) {
        int cost = topology_path(t, from, to[i])->cost;
        if (cost < best) {
            best = cost;
            equals = 0;
        }
        equals += cost == best;
    }
    for (int i = 0, seen = 0; i < count; i++)
        if (topology_path(t, from, to[i])->cost == best && seen++ == turn % equals) return i;
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
    for (int n = 0; n < w->nics; n++) t->nic_gpu[n] = nearest(t, t->nic_node[n], t->gpu_node, w->gpus, n);
}

/* ---- life ----------------------------------------------------------------------- */

static status allocate(sim_topology *t)
{
    const sim_wiring *w = t->w;
    size_t nodes = (size_t)w->node_count, nics = (size_t)w->nics + 1;
    t->per_machine = 2 * w->link_count + w->sockets + 2 * w->nics;
    t->capacities = calloc((size_t)t->machines * (size_t)t->per_machine, sizeof *t->capacities);
    t->steps = calloc(nodes * nodes, sizeof *t->steps);
    t->gpu_node = calloc((size_t)w->gpus, sizeof(int));
    t->gpu_socket = calloc((size_t)w->gpus, sizeof(int));
    t->gpu_nic = calloc((size_t)w->gpus, sizeof(int));
    t->socket_node = calloc((size_t)w->sockets, sizeof(int));
    t->socket_nic = calloc((size_t)w->sockets, sizeof(int));
    t->nic_node = calloc(nics, sizeof(int));
    t->nic_gpu = calloc(nics, sizeof(int));
    if (t->capacities && t->steps && t->gpu_node && t->gpu_socket && t->gpu_nic && t->socket_node &&
        t->socket_nic && t->nic_node && t->nic_gpu)
        return STATUS_OK;
    return fail(STATUS_SYSTEM, "no memory for %d machines", t->machines);
}

status sim_topology_open(const sim_profile *profile, int machines, sim_topology **out)
{
    *out = NULL;
    const sim_wiring *w = &profile->wiring;
    if (machines < 1 || machines > w->machines)
        return fail(STATUS_CONFIG, "profile %s: expected %s%d machine%s, got %d", profile->name,
                    w->machines > 1 ? "1 to " : "", w->machines, w->machines == 1 ? "" : "s", machines);
    sim_topology *t = calloc(1, sizeof *t);
    if (!t) return fail(STATUS_SYSTEM, "no memory for %d machines", machines);
    t->profile = profile;
    t->w = w;
    t->machines = machines;
    status rc = allocate(t);
    if (rc != STATUS_OK) {
        sim_topology_close(&t);
        return rc;
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
    free(t->gpu_node);
    free(t->gpu_socket);
    free(t->gpu_nic);
    free(t->socket_node);
    free(t->socket_nic);
    free(t->nic_node);
    free(t->nic_gpu);
    free(t);
    *topology = NULL;
}

const sim_profile *sim_topology_profile(const sim_topology *t)
{
    return t->profile;
}

int sim_topology_machines(const sim_topology *t)
{
    return t->machines;
}

const double *sim_topology_capacities(const sim_topology *t, int32_t *count)
{
    *count = t->machines * t->per_machine;
    return t->capacities;
}

int sim_topology_socket_of(const sim_topology *t, int gpu)
{
    return t->gpu_socket[gpu];
}

int sim_topology_gpu_of(const sim_topology *t, int nic)
{
    return t->nic_gpu[nic];
}
