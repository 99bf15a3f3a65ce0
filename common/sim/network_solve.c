/* Progressive filling over the connected parts of the network in which something changed. */
#include "common/sim/network_impl.h"

/* A part: its resources in n->part, its flows in n->flows. */
typedef struct part {
    int32_t resources, flows;
} part;

static void visit_resource(sim_network *n, part *p, int32_t index)
{
    sim_resource *r = &n->resources[index];
    if (r->visit == n->visit) return;
    r->visit = n->visit;
    r->left = r->capacity;
    r->weight = 0;
    r->unfixed = 0;
    n->part[p->resources++] = index;
}

static void visit_flow(sim_network *n, part *p, sim_flow *f)
{
    if (f->visit == n->visit) return;
    f->visit = n->visit;
    f->fixed = false;
    n->flows[p->flows++] = f;
    for (int32_t i = 0; i < f->hop_count; i++) {
        sim_resource *r = &n->resources[f->hops[i].resource];
        visit_resource(n, p, f->hops[i].resource);
        r->weight += f->hops[i].weight;
        r->unfixed++;
    }
}

/* Everything that is connected with resource `start` through flows. */
static part gather(sim_network *n, int32_t start)
{
    part p = {0, 0};
    visit_resource(n, &p, start);
    for (int32_t i = 0; i < p.resources; i++)
        for (sim_hop *hop = n->resources[n->part[i]].flows; hop; hop = hop->next) visit_flow(n, &p, hop->flow);
    return p;
}

static void fix(sim_network *n, sim_flow *f, double rate)
{
    f->fixed = true;
    f->new_rate = rate;
    for (int32_t i = 0; i < f->hop_count; i++) {
        sim_resource *r = &n->resources[f->hops[i].resource];
        r->left -= rate * f->hops[i].weight;
        r->weight -= f->hops[i].weight;
        r->unfixed--;
    }
}

/* What a resource gives to each of its flows that are not fixed. */
static double share_of(const sim_resource *r)
{
    return r->left > 0 ? r->left / r->weight : 0;
}

/* Fixes the flows that cannot rise above `level` because of a limit of their own. */
static int32_t fix_limited(sim_network *n, int32_t flows, double level)
{
    int32_t fixed = 0;
    for (int32_t i = 0; i < flows; i++) {
        sim_flow *f = n->flows[i];
        if (f->fixed || f->limit > level) continue;
        fix(n, f, f->limit);
        fixed++;
    }
    return fixed;
}

static int32_t fix_on(sim_network *n, int32_t resource, double level)
{
    int32_t fixed = 0;
    for (sim_hop *hop = n->resources[resource].flows; hop; hop = hop->next) {
        if (hop->flow->fixed) continue;
        fix(n, hop->flow, level);
        fixed++;
    }
    return fixed;
}

/* The resource that is full first as the rates of all flows that are not fixed rise together. */
static int32_t find_tightest(const sim_network *n, int32_t resources, double *level)
{
    int32_t tightest = -1;
    *level = INFINITY;
    for (int32_t i = 0; i < resources; i++) {
        const sim_resource *r = &n->resources[n->part[i]];
        if (r->unfixed == 0 || share_of(r) >= *level) continue;
        *level = share_of(r);
        tightest = n->part[i];
    }
    return tightest;
}

/* All rates rise together until a resource is full; its flows keep that rate, the others rise on. */
static void fill(sim_network *n, part p)
{
    for (int32_t left = p.flows; left > 0;) {
        double level;
        int32_t tightest = find_tightest(n, p.resources, &level);
        int32_t limited = fix_limited(n, p.flows, level);
        left -= limited > 0 ? limited : fix_on(n, tightest, level);
    }
}

static void apply(sim_network *n, sim_flow *f)
{
    sim_queue *q = n->queue;
    if (f->new_rate == f->rate) return;
    f->remaining -= f->rate * (double)(q->now - f->since);
    f->since = q->now;
    f->rate = f->new_rate;
    sim_time duration = f->remaining > 0 ? sim_duration(f->remaining, f->rate) : 0;
    sim_event_schedule(q, &f->event, duration == SIM_NEVER ? SIM_NEVER : q->now + duration);
}

void sim_network_solve(void *context)
{
    sim_network *n = context;
    n->visit++;
    for (int32_t i = 0; i < n->dirty_count; i++) {
        n->resources[n->dirty[i]].dirty = false;
        if (n->resources[n->dirty[i]].visit == n->visit) continue;
        part p = gather(n, n->dirty[i]);
        fill(n, p);
        for (int32_t j = 0; j < p.flows; j++) apply(n, n->flows[j]);
        n->solved += p.flows;
    }
    n->dirty_count = 0;
}
