#include "common/sim/algorithms.h"

#include <stdlib.h>

/* ---- what routes take of the links -------------------------------------------------------------- */

static status begin_phase(sim_plan *p)
{
    p->loads = calloc((size_t)p->rings->topology->resource_count, sizeof *p->loads);
    return p->loads ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for the links of a collective");
}

enum { ALL_MACHINES = -1 };

/* Adds the part of a route that lies in `machine`, with weight `weight`. */
static void add_route(sim_plan *p, const sim_route *route, int machine, double weight)
{
    for (int h = 0; h < route->count; h++) {
        int32_t resource = route->hops[h].resource;
        if (machine == ALL_MACHINES || resource / p->rings->topology->per_machine == machine)
            p->loads[resource] += route->hops[h].weight * weight;
    }
}

static status end_phase(sim_plan *p, sim_phase phase)
{
    status rc = sim_rings_uses(p->rings->topology, p->loads, &phase.uses, &phase.use_count, &phase.bus);
    free(p->loads);
    p->loads = NULL;
    p->phases[p->count++] = phase;
    return rc;
}

/* ---- tree --------------------------------------------------------------------------------------- */

/* Returns the parent of member x > 0 in a binary tree over m members, whose root is 0. The parent is x with
 * its lowest set bit cleared and the next higher bit set. If this number is not below m, the next higher bit
 * is left unchanged. */
static int parent_of(int x, int m)
{
    int low = x & -x, up = (x & ~low) | (low << 1);
    return up < m ? up : x & ~low;
}

/* Returns the number of member x in the second tree. The numbers of the second tree are in reverse order if m
 * is even, and shifted by one if m is odd. Therefore the leaves of the first tree are inner nodes of the
 * second tree. */
static int other_number(int x, int m)
{
    return m % 2 == 0 ? m - 1 - x : (x + 1) % m;
}

/* A member of a tree, and the adapter that connects its machine with the other machines. */
typedef struct tree_member {
    sim_place place;
    int nic;
} tree_member;

static void add_both_ways(sim_plan *p, tree_member a, tree_member b, double weight)
{
    const sim_topology *t = p->rings->topology;
    sim_route there, back;
    if (a.place.machine == b.place.machine) {
        sim_topology_route(t, a.place, b.place, &there);
        sim_topology_route(t, b.place, a.place, &back);
    } else {
        sim_topology_route_over(t, a.place, a.nic, b.place, b.nic, &there);
        sim_topology_route_over(t, b.place, b.nic, a.place, a.nic, &back);
    }
    add_route(p, &there, ALL_MACHINES, weight);
    add_route(p, &back, ALL_MACHINES, weight);
}

/* Adds the tree that belongs to one ring. The bytes are divided evenly among the trees of all rings. Within a
 * machine the tree is a chain along the ring. The chain starts at the root of the machine, which is the
 * member at which the ring enters the machine. Two binary trees connect the roots of all machines. `roots`
 * has room for all machines. */
static void add_tree(sim_plan *p, int ring, tree_member *roots)
{
    const sim_rings *r = p->rings;
    double weight = 1.0 / r->count;
    size_t first = (size_t)ring * (size_t)r->ranks;
    tree_member before = {.nic = -1};
    int m = 0;
    for (int i = 0; i < r->ranks; i++) {
        tree_member here = {r->places[r->order[first + (size_t)i]], r->nics[first + (size_t)i]};
        if (i > 0 && here.place.machine == before.place.machine)
            add_both_ways(p, before, here, weight);
        else
            roots[m++] = here;
        before = here;
    }
    for (int x = 1; x < m; x++) {
        int up = parent_of(x, m);
        add_both_ways(p, roots[x], roots[up], weight / 2);
        add_both_ways(p, roots[other_number(x, m)], roots[other_number(up, m)], weight / 2);
    }
}

static status plan_tree(sim_plan *p)
{
    int machines = p->rings->machines;
    TRY(begin_phase(p));
    tree_member *roots = calloc((size_t)machines, sizeof *roots);
    if (!roots) return fail(STATUS_SYSTEM, "no memory for a tree of %d machines", machines);
    for (int ring = 0; ring < p->rings->count; ring++) add_tree(p, ring, roots);
    free(roots);
    return end_phase(p, (sim_phase){.share = 1});
}

/* ---- two-shot ----------------------------------------------------------------------------------- */

/* A rank exchanges 1 / (n - 1) of its bytes with every peer. All machines are alike. Therefore the part of a
 * route that lies in the rank's machine is the same for every other machine. */
static status plan_two_shot(sim_plan *p)
{
    const sim_rings *r = p->rings;
    const sim_topology *t = r->topology;
    double weight = 1.0 / (r->ranks - 1);
    TRY(begin_phase(p));
    for (int i = 0; i < r->ranks; i++) {
        sim_place here = r->places[i], far = {.machine = here.machine ? 0 : 1};
        sim_route route;
        int peers = 0;
        for (int j = 0; j < r->ranks; j++) {
            if (r->places[j].machine != here.machine || i == j) continue;
            sim_topology_route(t, here, r->places[j], &route);
            add_route(p, &route, ALL_MACHINES, weight);
            peers++;
        }
        double others = r->ranks - 1 - peers;
        if (others == 0) continue;
        sim_topology_route(t, here, far, &route);
        add_route(p, &route, here.machine, others * weight);
        add_route(p, &route, t->machines, others * weight); /* the core of the network */
        sim_topology_route(t, far, here, &route);
        add_route(p, &route, here.machine, others * weight);
    }
    bool crosses = r->machines > 1;
    return end_phase(p, (sim_phase){.share = 2.0 * (r->ranks - 1) / r->ranks,
                                    .hops = crosses ? 0 : 2,
                                    .outer_hops = crosses ? 2 : 0});
}

/* ---- hierarchical ------------------------------------------------------------------------------- */

static status plan_inside(sim_plan *p, int each)
{
    const sim_rings *r = p->rings;
    TRY(begin_phase(p));
    for (int m = 0; m < r->machines; m++) {
        sim_rings *inner;
        TRY(sim_rings_open(r->topology, r->places + m * each, each, &inner));
        for (int i = 0; i < inner->use_count; i++) p->loads[inner->uses[i].resource] += inner->uses[i].weight;
        sim_rings_close(&inner);
    }
    return end_phase(p, (sim_phase){.share = (double)(each - 1) / each, .hops = each - 1});
}

/* Plans a phase with one ring per local rank. Each ring connects the GPUs that have the same local rank on
 * all machines. */
static status plan_between(sim_plan *p, int each)
{
    const sim_rings *r = p->rings;
    TRY(begin_phase(p));
    for (int i = 0; i < r->ranks; i++) {
        sim_route route;
        sim_topology_route(r->topology, r->places[i], r->places[(i + each) % r->ranks], &route);
        add_route(p, &route, ALL_MACHINES, 1);
    }
    return end_phase(p, (sim_phase){.share = 2.0 * (r->machines - 1) / r->machines / each,
                                    .outer_hops = 2 * (r->machines - 1)});
}

static status plan_hierarchical(sim_plan *p)
{
    const sim_rings *r = p->rings;
    int each = r->ranks / r->machines;
    for (int i = 0; i < r->ranks; i++)
        if (r->ranks % r->machines || r->places[i].machine != r->places[i / each * each].machine)
            return fail(STATUS_CONFIG,
                        "--algorithm hierarchical: expected as many ranks on every machine, got %d on %d",
                        r->ranks, r->machines);
    if (each > 1) TRY(plan_inside(p, each));
    if (r->machines > 1) TRY(plan_between(p, each));
    return each > 1 ? plan_inside(p, each) : STATUS_OK;
}

/* ---- all ---------------------------------------------------------------------------------------- */

status sim_plan_open(const sim_rings *rings, sim_algorithm algorithm, sim_plan *out)
{
    *out = (sim_plan){.algorithm = algorithm, .rings = rings};
    /* These cases need no plan, because they use the rings directly. */
    if (rings->ranks < 2 || algorithm == SIM_RING) return STATUS_OK;
    status rc = algorithm == SIM_TREE       ? plan_tree(out)
                : algorithm == SIM_TWO_SHOT ? plan_two_shot(out)
                                            : plan_hierarchical(out);
    if (rc != STATUS_OK) sim_plan_close(out);
    return rc;
}

void sim_plan_close(sim_plan *plan)
{
    for (int i = 0; i < plan->count; i++) free(plan->phases[i].uses);
    free(plan->loads);
    *plan = (sim_plan){0};
}

static sim_time tree_cost(const sim_plan *plan, double bytes, sim_phase_cost *out)
{
    sim_time time;
    sim_protocol p = sim_nccl_choose(plan->rings, SIM_ALL_REDUCE, SIM_TREE, bytes, &time);
    sim_nccl_cost cost;
    sim_nccl_cost_of(plan->rings, SIM_ALL_REDUCE, SIM_TREE, p, &cost);
    sim_time latency = sim_nccl_latency(&cost, bytes);
    *out =
        (sim_phase_cost){bytes, bytes > 0 ? bytes / (double)(time - latency) : plan->phases[0].bus, latency};
    return time;
}

/* Returns the time of a call with one protocol, or SIM_NEVER if the protocol is not possible. The latency of
 * the first phase includes the latency of the call. */
static sim_time cost_with(const sim_plan *plan, sim_protocol protocol, double bytes, sim_phase_cost *costs)
{
    sim_nccl_link link;
    sim_time time = 0;
    if (!sim_nccl_link_of(plan->rings, protocol, &link)) return SIM_NEVER;
    for (int i = 0; i < plan->count; i++) {
        const sim_phase *f = &plan->phases[i];
        double us = (i == 0 ? link.base_us : 0) + f->hops * link.hop_us + f->outer_hops * link.outer_hop_us;
        costs[i] =
            (sim_phase_cost){bytes * f->share, sim_nccl_bus(plan->rings, protocol, f->bus), sim_from_us(us)};
        time += costs[i].latency + sim_duration(costs[i].sent, costs[i].limit);
    }
    return time;
}

sim_time sim_plan_cost(const sim_plan *plan, double bytes, sim_phase_cost costs[SIM_PHASES_MOST])
{
    if (plan->algorithm == SIM_TREE) return tree_cost(plan, bytes, costs);
    sim_time best = SIM_NEVER;
    for (int p = 0; p < SIM_PROTOCOL_COUNT; p++) {
        sim_phase_cost found[SIM_PHASES_MOST];
        sim_time time = cost_with(plan, (sim_protocol)p, bytes, found);
        if (time >= best) continue;
        best = time;
        for (int i = 0; i < plan->count; i++) costs[i] = found[i];
    }
    return best;
}

int64_t sim_plan_messages(const sim_plan *plan)
{
    const sim_rings *r = plan->rings;
    int each = r->ranks / r->machines;
    if (plan->algorithm == SIM_TREE)
        return 2; /* one message to the parent and, on average, one message to a child */
    return 2 * (plan->algorithm == SIM_HIERARCHICAL ? each - 1 + r->machines - 1 : r->ranks - 1);
}
