#include "common/sim/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[] = {[SIM_ALL_REDUCE] = "all_reduce",
                                         [SIM_REDUCE_SCATTER] = "reduce_scatter",
                                         [SIM_ALL_GATHER] = "all_gather",
                                         [SIM_BROADCAST] = "broadcast",
                                         [SIM_REDUCE] = "reduce"};

static const char *const algorithm_names[] = {[SIM_RING] = "ring all_reduce",
                                              [SIM_TREE] = "tree all_reduce",
                                              [SIM_TWO_SHOT] = "two-shot all_reduce",
                                              [SIM_HIERARCHICAL] = "hierarchical all_reduce"};

static void start_phase(sim_group *g)
{
    const sim_phase *f = &g->plans[g->algorithm].phases[g->phase];
    const sim_phase_cost *c = &g->costs[g->phase];
    sim_flow_start(&g->flow, 0, f->uses, f->use_count, c->sent, c->limit, c->latency);
}

/* Starts the next phase or ends the call. Members may join the next call while other members are still being
 * notified. */
static void on_arrived(void *context)
{
    sim_group *g = context;
    g->ran = g->algorithm;
    if (++g->phase < g->plans[g->algorithm].count) {
        start_phase(g);
        return;
    }
    g->joined = 0;
    g->at = 0;
    g->calls++;
    g->bytes_sent += g->sent;
    for (int i = 0; i < g->present; i++) g->members[i].joined = false;
    for (int i = 0; i < g->present; i++) g->members[i].told.finished(g->members[i].told.context);
}

double sim_group_share(const sim_group *g, sim_collective kind, double bytes)
{
    sim_nccl_cost cost;
    if (g->count == 1) return 0;
    /* The ratio of the two bandwidths is the same for all protocols. */
    sim_nccl_cost_of(g->rings, kind, SIM_RING, SIM_SIMPLE, &cost);
    return bytes * (cost.bus / cost.bandwidth);
}

int64_t sim_group_messages(const sim_group *g, sim_collective kind)
{
    if (g->count < 2) return 0;
    if (kind != SIM_ALL_REDUCE) return g->count - 1;
    return g->ran == SIM_RING ? 2 * (g->count - 1) : sim_plan_messages(&g->plans[g->ran]);
}

/* Chooses ring or tree, whichever takes less time in NCCL's model. NCCL chooses in the same way. */
static void choose_algorithm(sim_group *g, sim_time ring)
{
    sim_time tree = SIM_NEVER;
    if (g->algorithm != SIM_LIBRARY) return;
    g->algorithm = SIM_RING;
    if (g->kind != SIM_ALL_REDUCE || g->count < 2) return;
    sim_nccl_choose(g->rings, g->kind, SIM_TREE, g->bytes, &tree);
    if (tree < ring) g->algorithm = SIM_TREE;
}

/* Starts the call that all members have joined. If the algorithm is ring, a rank sends bytes * bus bandwidth
 * / algorithm bandwidth. */
static void on_begin(void *context)
{
    sim_group *g = context;
    sim_nccl_cost cost;
    sim_time alone;
    sim_protocol protocol = sim_nccl_choose(g->rings, g->kind, SIM_RING, g->bytes, &alone);
    sim_nccl_cost_of(g->rings, g->kind, SIM_RING, protocol, &cost);
    g->sent = sim_group_share(g, g->kind, g->bytes);
    g->phase = 0;
    choose_algorithm(g, alone);
    g->flow.what = g->kind == SIM_ALL_REDUCE ? algorithm_names[g->algorithm] : kind_names[g->kind];
    for (int i = 0; i < g->present; i++) g->members[i].told.moving(g->members[i].told.context);
    if (g->plans[g->algorithm].count > 0) {
        sim_plan_cost(&g->plans[g->algorithm], g->bytes, g->costs);
        start_phase(g);
        return;
    }
    sim_flow_start(&g->flow, 0, g->rings->uses, g->rings->use_count, g->sent, cost.bus,
                   sim_nccl_latency(&cost, g->bytes));
}

/* Lets a group also use the part of the network's core that the groups of ranks use that are not simulated.
 * Each of these groups does the same at the same time. */
static void use_core_for_others(const sim_group *g, sim_hop_use *uses, int count)
{
    const simulation *s = g->simulation;
    double groups = (double)s->config.world * g->present / g->count / simulation_present(s);
    for (int i = 0; i < count; i++)
        if (uses[i].resource == sim_topology_core(s->topology)) uses[i].weight *= groups;
}

static status prepare(sim_group *g, sim_algorithm wanted)
{
    sim_algorithm algorithm = wanted == SIM_LIBRARY ? SIM_TREE : wanted;
    sim_plan *p = &g->plans[algorithm];
    if (p->rings || algorithm == SIM_RING || g->count < 2) return STATUS_OK;
    TRY(sim_plan_open(g->rings, algorithm, p));
    int hops = g->hops;
    for (int i = 0; i < p->count; i++) {
        use_core_for_others(g, p->phases[i].uses, p->phases[i].use_count);
        if (p->phases[i].use_count > hops) hops = p->phases[i].use_count;
    }
    if (hops == g->hops) return STATUS_OK;
    sim_flow_deinit(&g->flow);
    g->hops = hops;
    return sim_flow_init(&g->simulation->network, &g->flow, g->ranks[0], hops, NULL, on_arrived, g);
}

static status open_all(sim_group *g, const int *ranks)
{
    size_t slots = (size_t)g->count;
    g->members = calloc(slots, sizeof *g->members);
    g->ranks = calloc(slots, sizeof *g->ranks);
    sim_place *gpus = calloc(slots, sizeof *gpus);
    bool enough = g->members && g->ranks && gpus;
    status rc = enough ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for a group of %d ranks", g->count);
    for (int i = 0; enough && i < g->count; i++) {
        g->ranks[i] = ranks[i];
        gpus[i] = simulation_gpu(g->simulation, ranks[i]);
        if (ranks[i] < simulation_present(g->simulation)) g->present++;
    }
    if (rc == STATUS_OK) rc = sim_rings_open(g->simulation->topology, gpus, g->count, &g->rings);
    free(gpus);
    TRY(rc);
    use_core_for_others(g, g->rings->uses, g->rings->use_count);
    TRY(sim_event_init(&g->simulation->queue, &g->begin, ranks[0], on_begin, g));
    g->hops = g->rings->use_count;
    return sim_flow_init(&g->simulation->network, &g->flow, ranks[0], g->hops, NULL, on_arrived, g);
}

status sim_group_open(simulation *s, const char *name, const int *ranks, int count, sim_group **out)
{
    *out = s->groups;
    while (name && *out && strcmp((*out)->name, name) != 0) *out = (*out)->next;
    if (name && *out) {
        (*out)->holders++;
        return STATUS_OK;
    }
    sim_group *g = *out = calloc(1, sizeof *g);
    if (!g) return fail(STATUS_SYSTEM, "no memory for a group of %d ranks", count);
    *g = (sim_group){.simulation = s, .count = count, .holders = 1, .next = s->groups};
    snprintf(g->name, sizeof g->name, "%s", name ? name : "");
    s->groups = g;
    status rc = open_all(g, ranks);
    if (rc != STATUS_OK) sim_group_close(out);
    return rc;
}

void sim_group_close(sim_group **group)
{
    sim_group *g = *group;
    *group = NULL;
    if (!g || --g->holders > 0) return;
    sim_group **at = &g->simulation->groups;
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    sim_flow_deinit(&g->flow);
    sim_event_deinit(&g->simulation->queue, &g->begin);
    for (int a = 0; a < SIM_ALGORITHM_COUNT; a++) sim_plan_close(&g->plans[a]);
    sim_rings_close(&g->rings);
    free(g->members);
    free(g->ranks);
    free(g);
}

status sim_group_join(sim_group *g, int member, sim_time at, sim_collective kind, sim_algorithm algorithm,
                      double bytes, const sim_group_member *told)
{
    struct sim_joined *m = &g->members[member];
    if (m->joined)
        return fail(STATUS_PROTOCOL, "rank %d makes a call (%s) before its last one is done",
                    g->ranks[member], kind_names[kind]);
    if (g->joined > 0 && (kind != g->kind || bytes != g->bytes))
        return fail(STATUS_PROTOCOL, "rank %d makes %s of %.0f bytes, others %s of %.0f", g->ranks[member],
                    kind_names[kind], bytes, kind_names[g->kind], g->bytes);
    if (g->joined == 0) {
        TRY(prepare(g, algorithm));
        g->algorithm = algorithm;
    }
    m->told = *told;
    m->joined = true;
    m->at = at;
    g->kind = kind;
    g->bytes = bytes;
    if (g->joined == 0 || at > g->at) g->last = member;
    g->at = sim_later(g->at, at);
    if (++g->joined == g->present) sim_event_schedule(&g->simulation->queue, &g->begin, g->at);
    return STATUS_OK;
}
