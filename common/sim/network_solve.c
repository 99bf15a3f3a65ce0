/* Progressive filling over the connected parts of the network in which something changed. */
#include "common/sim/network_impl.h"

/* A part: its resources in n->part, its flows in n->flows, how many of them have a limit of their own. */
typedef struct part {
    int32_t resources, flows, limited;
} part;

/* Resources whose shares differ by no more than rounding are full together. */
#define SAME_LEVEL (1 + 1e-12)

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
    n->marks[f->id] = n->visit << 1;
    n->flows[p->flows++] = f;
    p->limited += !isinf(f->limit);
    for (int32_t i = 0; i < f->hop_count; i++) {
        sim_resource *r = &n->resources[f->uses[i].resource];
        visit_resource(n, p, f->uses[i].resource);
        r->weight += f->uses[i].weight;
        r->unfixed++;
    }
}

/* Flows of a resource that have not been visited by way of another one; often all have. */
static void visit_flows(sim_network *n, part *p, const sim_resource *r)
{
    for (sim_hop *hop = r->flows; hop && r->unfixed < r->flow_count; hop = hop->next)
        if (n->marks[hop->id] >> 1 != n->visit) visit_flow(n, p, hop->flow);
}

/* Everything that is connected with resource `start` through flows. */
static part gather(sim_network *n, int32_t start)
{
    part p = {0, 0, 0};
    visit_resource(n, &p, start);
    for (int32_t i = 0; i < p.resources; i++) visit_flows(n, &p, &n->resources[n->part[i]]);
    return p;
}

static void fix(sim_network *n, sim_flow *f, double rate)
{
    n->marks[f->id] |= 1;
    f->new_rate = rate;
    for (int32_t i = 0; i < f->hop_count; i++) {
        sim_resource *r = &n->resources[f->uses[i].resource];
        r->left -= rate * f->uses[i].weight;
        r->weight -= f->uses[i].weight;
        r->unfixed--;
    }
}

/* What a resource gives to each of its flows that are not fixed. */
static double share_of(const sim_resource *r)
{
    return r->left > 0 ? r->left / r->weight : 0;
}

/* The rate at which the first resources are full, as all rates that are not fixed rise together. Resources whose
 * flows all are fixed leave the part. */
static double find_level(sim_network *n, part *p)
{
    double level = INFINITY;
    int32_t kept = 0;
    for (int32_t i = 0; i < p->resources; i++) {
        const sim_resource *r = &n->resources[n->part[i]];
        if (r->unfixed == 0) continue;
        n->part[kept++] = n->part[i];
        if (share_of(r) < level) level = share_of(r);
    }
    p->resources = kept;
    return level;
}

/* Fixes the flows that cannot rise above `level` because of a limit of their own. */
static int32_t fix_limited(sim_network *n, part *p, double level)
{
    int32_t fixed = 0;
    for (int32_t i = 0; i < p->flows && p->limited; i++) {
        sim_flow *f = n->flows[i];
        if ((n->marks[f->id] & 1) || f->limit > level) continue;
        fix(n, f, f->limit);
        fixed++;
    }
    p->limited -= fixed;
    return fixed;
}

/* Fixes the flows of a resource that is full. */
static int32_t fix_on(sim_network *n, part *p, sim_resource *r, double level)
{
    int32_t fixed = 0;
    for (sim_hop *hop = r->flows; hop && r->unfixed; hop = hop->next) {
        if (n->marks[hop->id] & 1) continue;
        p->limited -= !isinf(hop->flow->limit);
        fix(n, hop->flow, level);
        fixed++;
    }
    return fixed;
}

static int32_t fix_full(sim_network *n, part *p, double level)
{
    int32_t fixed = 0;
    for (int32_t i = 0; i < p->resources; i++) {
        sim_resource *r = &n->resources[n->part[i]];
        if (r->unfixed && share_of(r) <= level * SAME_LEVEL) fixed += fix_on(n, p, r, level);
    }
    return fixed;
}

/* All rates rise together until resources are full; their flows keep that rate, the others rise on. */
static void fill(sim_network *n, part p)
{
    for (int32_t left = p.flows; left > 0;) {
        double level = find_level(n, &p);
        int32_t limited = fix_limited(n, &p, level);
        left -= limited > 0 ? limited : fix_full(n, &p, level);
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
