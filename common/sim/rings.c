#include "common/sim/rings.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* The path of a ring in a machine. The ring enters the machine at position `start` of cycle number `cycle`,
 * and follows the cycle. */
typedef struct cut {
    int8_t cycle, start;
    bool reversed;
} cut;

/* The members of the group that are in one machine. The members have the numbers [first, first + count). */
typedef struct local_group {
    int first, count;
    sim_cycles cycles; /* cycles over the members; number 0 in a cycle is member `first` */
    /* `nvlink` is true if rings use NVLink. `mesh` is true if NVLinks connect pairs of GPUs directly. */
    bool nvlink, mesh;
    int links;
    cut cuts[SIM_CYCLES_MOST]; /* path of each ring in the machine */
    /* [near] Adapters at which rings may start. The first `own` adapters are the adapters that members own.
     * The other adapters are at the same distance from a member. */
    int8_t nics[SIM_NICS_MOST];
    int own, near;
} local_group;

static status no_memory(int ranks)
{
    return fail(STATUS_SYSTEM, "no memory for the rings of %d ranks", ranks);
}

static bool all_linked(const sim_topology *t, const sim_place *gpus, int count,
                       int8_t links[SIM_CYCLE_GPUS][SIM_CYCLE_GPUS])
{
    bool all = true;
    for (int a = 0; a < count; a++)
        for (int b = 0; b < count; b++) {
            links[a][b] = (int8_t)(a == b ? 0 : sim_topology_nvlinks(t, gpus[a].index, gpus[b].index));
            all = all && (a == b || links[a][b] > 0);
        }
    return all;
}

static void find_local_rings(const sim_topology *t, const sim_place *gpus, local_group *g)
{
    int8_t links[SIM_CYCLE_GPUS][SIM_CYCLE_GPUS] = {{0}};
    assert(g->count <= SIM_CYCLE_GPUS);
    g->cycles.count = 1;
    g->links = 1;
    for (int i = 0; i < g->count; i++) g->cycles.order[0][i] = (int8_t)i;
    if (g->count == 1) return;
    bool all = all_linked(t, gpus + g->first, g->count, links);
    /* If NCCL builds only one ring, the ring uses NVLink if all neighbors in the ring are linked. */
    if (sim_profile_get(t->profile, SIM_NCCL_RINGS_MOST) == 1) {
        g->nvlink = true;
        for (int i = 0; i < g->count; i++) g->nvlink = g->nvlink && links[i][(i + 1) % g->count] > 0;
        return;
    }
    if (t->w->nvswitches > 0) {
        g->nvlink = all;
        if (all) g->links = links[0][1];
        return;
    }
    sim_cycles found;
    sim_find_cycles(g->count, links, &found);
    if (found.count == 0) return;
    g->cycles = found;
    g->links = found.count;
    g->nvlink = g->mesh = true;
}

static int at_place(const local_group *g, cut c, int i)
{
    return g->cycles.order[c.cycle][(c.start + (c.reversed ? g->count - i : i)) % g->count];
}

/* Returns the total number of links between adapter `nic` and the two ends of a ring. */
static int distance(const sim_topology *t, sim_place first, sim_place last, int nic)
{
    sim_place other = {.machine = first.machine ? 0 : 1};
    sim_route out, in;
    sim_topology_route_over(t, last, nic, other, nic, &out);
    sim_topology_route_over(t, other, nic, first, nic, &in);
    return out.count + in.count;
}

static void add_nic(local_group *g, int nic)
{
    if (!memchr(g->nics, nic, (size_t)g->near)) g->nics[g->near++] = (int8_t)nic;
}

/* Lists the adapters at which NCCL's rings may start (src/graph/search.cc, ncclTopoSelectNets). The adapters
 * that GPUs own come first. If several adapters are equally near to a GPU, different GPUs own different
 * adapters (ncclTopoGetLocalNet). Other adapters at the same distance from the GPU follow. Adapters that are
 * farther away are not listed, because a ring does not cross to another socket to reach an adapter. */
static void list_nics(const sim_topology *t, const sim_place *gpus, local_group *g)
{
    for (int i = 0; i < g->count; i++) add_nic(g, t->gpu_nic[gpus[i].index]);
    g->own = g->near;
    for (int i = 0; i < g->count; i++)
        for (int nic = 0; nic < t->w->nics; nic++)
            if (sim_topology_is_near(t, gpus[i].index, nic)) add_nic(g, nic);
}

/* Numbers of rings that enter the machine at each member, that leave the machine at each member, and that
 * follow each cycle. */
typedef struct cut_uses {
    int enters[SIM_CYCLE_GPUS], leaves[SIM_CYCLE_GPUS], cycles[SIM_CYCLES_MOST];
} cut_uses;

static cut best_cut(const sim_topology *t, const sim_place *gpus, const local_group *g, int nic,
                    const cut_uses *uses)
{
    cut best = {0, 0, false};
    int least = INT_MAX;
    for (int k = 0; k < g->cycles.count; k++)
        for (int i = 0; i < g->count * (g->mesh ? 1 : 2); i++) {
            cut c = {(int8_t)k, (int8_t)(i % g->count), i >= g->count};
            int first = at_place(g, c, 0), last = at_place(g, c, g->count - 1);
            int taken = uses->enters[first] + uses->leaves[last] + uses->cycles[k];
            int cost = 3 * SIM_CYCLES_MOST * distance(t, gpus[first], gpus[last], nic) + taken;
            if (cost >= least) continue;
            least = cost;
            best = c;
        }
    return best;
}

/* For every adapter, chooses a cycle and the position at which the cycle is opened, so that both ends of the
 * path are near the adapter. If several positions are equally near, prefers GPUs at which fewer rings enter
 * and leave, then cycles that fewer rings follow. */
static void cut_rings(const sim_topology *t, const sim_place *gpus, local_group *g)
{
    cut_uses uses = {{0}, {0}, {0}};
    for (int ring = 0; ring < g->near; ring++) {
        cut c = g->cuts[ring] = best_cut(t, gpus, g, g->nics[ring], &uses);
        uses.enters[at_place(g, c, 0)]++;
        uses.leaves[at_place(g, c, g->count - 1)]++;
        uses.cycles[c.cycle]++;
    }
}

static void lay_ring(sim_rings *r, const local_group *groups, int ring)
{
    size_t at = (size_t)ring * (size_t)r->ranks;
    for (int m = 0; m < r->machines; m++)
        for (int i = 0; i < groups[m].count; i++, at++) {
            r->order[at] = groups[m].first + at_place(&groups[m], groups[m].cuts[ring], i);
            r->nics[at] = groups[m].nics[ring];
        }
}

static int split_by_machine(const sim_place *gpus, int ranks, local_group *groups)
{
    int count = 0;
    for (int i = 0; i < ranks; i++) {
        if (i == 0 || gpus[i].machine != gpus[i - 1].machine) groups[count++] = (local_group){.first = i};
        groups[count - 1].count++;
    }
    return count;
}

/* Returns true if two machines have members at the same GPUs. The machines then have the same rings. */
static bool same_places(const sim_place *gpus, const local_group *a, const local_group *b)
{
    if (a->count != b->count) return false;
    for (int i = 0; i < a->count; i++)
        if (gpus[a->first + i].index != gpus[b->first + i].index) return false;
    return true;
}

static void find_groups(sim_rings *r, local_group *groups)
{
    r->machines = split_by_machine(r->places, r->ranks, groups);
    r->nvlink = true;
    for (int m = 0; m < r->machines; m++) {
        int first = groups[m].first;
        if (m > 0 && same_places(r->places, &groups[m], &groups[m - 1])) {
            groups[m] = groups[m - 1];
            groups[m].first = first;
        } else {
            find_local_rings(r->topology, r->places, &groups[m]);
            for (int k = 0; k < groups[m].cycles.count; k++) groups[m].cuts[k] = (cut){.cycle = (int8_t)k};
            if (r->machines > 1) {
                list_nics(r->topology, r->places + first, &groups[m]);
                cut_rings(r->topology, r->places + first, &groups[m]);
            }
        }
        r->nvlink = r->nvlink && groups[m].nvlink;
    }
}

status sim_rings_uses(const sim_topology *t, const double *load, sim_hop_use **uses, int *count, double *bus)
{
    *bus = INFINITY;
    *count = 0;
    for (int32_t i = 0; i < t->resource_count; i++) {
        if (load[i] == 0) continue;
        ++*count;
        if (t->capacities[i] / load[i] < *bus) *bus = t->capacities[i] / load[i];
    }
    *uses = calloc((size_t)*count + 1, sizeof **uses);
    if (!*uses) return fail(STATUS_SYSTEM, "no memory for %d links", *count);
    for (int32_t i = 0, at = 0; i < t->resource_count; i++)
        if (load[i] > 0) (*uses)[at++] = (sim_hop_use){.resource = i, .weight = load[i]};
    return STATUS_OK;
}

/* Adds up the load that the edges of all rings put on every link, and finds the link that becomes full
 * first. */
static status measure(sim_rings *r)
{
    int32_t resources = r->topology->resource_count;
    double *load = calloc((size_t)resources, sizeof *load);
    if (!load) return no_memory(r->ranks);
    for (int ring = 0; ring < r->count; ring++)
        for (int i = 0; i < r->ranks; i++) {
            sim_route route;
            sim_rings_edge(r, ring, i, &route);
            for (int h = 0; h < route.count; h++)
                load[route.hops[h].resource] += route.hops[h].weight / r->count;
        }
    status rc = sim_rings_uses(r->topology, load, &r->uses, &r->use_count, &r->bus);
    free(load);
    return rc;
}

static void forget_rings(sim_rings *r)
{
    free(r->order);
    free(r->nics);
    free(r->uses);
    r->order = NULL;
    r->nics = NULL;
    r->uses = NULL;
}

static status lay_rings(sim_rings *r, const local_group *groups, int count)
{
    size_t slots = (size_t)count * (size_t)r->ranks;
    forget_rings(r);
    r->count = count;
    r->channels = r->machines > 1 ? count : groups[0].links;
    r->order = calloc(slots, sizeof *r->order);
    r->nics = calloc(slots, sizeof *r->nics);
    if (!r->order || !r->nics) return no_memory(r->ranks);
    for (int ring = 0; ring < count; ring++) lay_ring(r, groups, ring);
    return measure(r);
}

/* Builds one ring for each adapter that members own. If machines differ in the number of these adapters,
 * builds the smallest of the numbers. Then adds further rings as long as each of them adds bandwidth. */
static status lay_rings_between(sim_rings *r, const local_group *groups)
{
    int own = SIM_NICS_MOST, near = SIM_NICS_MOST;
    for (int m = 0; m < r->machines; m++) {
        if (groups[m].own < own) own = groups[m].own;
        if (groups[m].near < near) near = groups[m].near;
    }
    TRY(lay_rings(r, groups, own));
    for (int count = own + 1; count <= near; count++) {
        double bus = r->bus;
        TRY(lay_rings(r, groups, count));
        if (r->bus <= bus * (1 + 1e-9)) return lay_rings(r, groups, count - 1);
    }
    return STATUS_OK;
}

status sim_rings_open(const sim_topology *t, const sim_place *gpus, int ranks, sim_rings **out)
{
    sim_rings *r = *out = calloc(1, sizeof *r);
    local_group *groups = calloc((size_t)ranks, sizeof *groups);
    status rc = STATUS_OK;
    if (r) r->places = calloc((size_t)ranks, sizeof *r->places);
    if (!r || !groups || !r->places) {
        rc = no_memory(ranks);
        goto out;
    }
    r->topology = t;
    r->ranks = ranks;
    memcpy(r->places, gpus, (size_t)ranks * sizeof *gpus);
    find_groups(r, groups);
    rc = r->machines > 1 ? lay_rings_between(r, groups) : lay_rings(r, groups, groups[0].cycles.count);
out:
    free(groups);
    if (rc != STATUS_OK) sim_rings_close(out);
    return rc;
}

void sim_rings_close(sim_rings **rings)
{
    sim_rings *r = *rings;
    if (!r) return;
    forget_rings(r);
    free(r->places);
    free(r);
    *rings = NULL;
}

static size_t slot(const sim_rings *r, int ring, int i)
{
    return (size_t)ring * (size_t)r->ranks + (size_t)(i % r->ranks);
}

static sim_place member(const sim_rings *r, int ring, int i)
{
    return r->places[r->order[slot(r, ring, i)]];
}

bool sim_rings_crosses(const sim_rings *r, int ring, int i)
{
    return member(r, ring, i).machine != member(r, ring, i + 1).machine;
}

void sim_rings_edge(const sim_rings *r, int ring, int i, sim_route *out)
{
    sim_place from = member(r, ring, i), to = member(r, ring, i + 1);
    if (sim_rings_crosses(r, ring, i))
        sim_topology_route_over(r->topology, from, r->nics[slot(r, ring, i)], to,
                                r->nics[slot(r, ring, i + 1)], out);
    else
        sim_topology_route(r->topology, from, to, out);
}
