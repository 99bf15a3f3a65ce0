/* Progressive filling over the part of the network whose rates a change may have changed.
 *
 * Rates are max-min fair if every flow has a resource that is full and none of whose flows is faster (Bertsekas and
 * Gallager, section 6.5.2), or runs at its limit. A region, of flows that have come and of resources that flows have
 * left, is solved with the others' rates as they are. The rest still is as it should be, unless a resource that it
 * shares with the region was full and rates on it have changed, or is full now and holds back a flow of the region
 * for a faster one outside: such a resource joins the region, and that is solved again. */
#include "common/sim/network_impl.h"

/* A part: its resources in n->touched and n->part, its flows in n->flows, how many of them have a limit of their own. */
typedef struct part {
    int32_t touched, resources, flows, limited;
    int32_t seen; /* of n->dirty */
} part;

/* Resources whose shares differ by no more than rounding are full together, and rates are the same. */
#define SAME_LEVEL (1 + 1e-12)

static bool differs(const sim_flow *f)
{
    return f->new_rate > f->rate * SAME_LEVEL || f->rate > f->new_rate * SAME_LEVEL;
}

/* ---- the part --------------------------------------------------------------------------------- */

static void visit_resource(sim_network *n, part *p, int32_t index)
{
    sim_resource *r = &n->resources[index];
    if (r->visit == n->visit) return;
    r->visit = n->visit;
    r->free = r->capacity - r->used;
    r->load = 0;
    r->inside = 0;
    r->flows_inside = NULL;
    n->touched[p->touched++] = index;
}

static void visit_flow(sim_network *n, part *p, sim_flow *f)
{
    n->marks[f->id] = n->visit << 1;
    n->flows[p->flows++] = f;
    p->limited += !isinf(f->limit);
    for (int32_t i = 0; i < f->hop_count; i++) {
        sim_hop *hop = &f->hops[i];
        sim_resource *r = &n->resources[hop->resource];
        visit_resource(n, p, hop->resource);
        hop->next_inside = r->flows_inside;
        r->flows_inside = hop;
        r->free += f->rate * hop->weight;
        r->load += hop->weight;
        r->inside++;
    }
}

/* Flows of a resource that have not been visited by way of another one; often all have. */
static void visit_flows(sim_network *n, part *p, const sim_resource *r)
{
    for (sim_hop *hop = r->flows; hop && r->inside < r->flow_count; hop = hop->next)
        if (n->marks[hop->id] >> 1 != n->visit) visit_flow(n, p, hop->flow);
}

/* The flows that are new and those of the region's resources, n->dirty, and all resources that they use: those
 * that have not been gathered in an earlier round. */
static void gather(sim_network *n, part *p)
{
    for (int32_t i = 0; i < n->fresh_count && p->seen == 0; i++)
        if (n->marks[n->fresh[i]->id] >> 1 != n->visit) visit_flow(n, p, n->fresh[i]);
    for (; p->seen < n->dirty_count; p->seen++) {
        visit_resource(n, p, n->dirty[p->seen]);
        visit_flows(n, p, &n->resources[n->dirty[p->seen]]);
    }
}

/* No rate is known. */
static void start_round(sim_network *n, part *p)
{
    n->round++;
    for (int32_t i = 0; i < p->flows; i++) n->marks[n->flows[i]->id] = n->visit << 1;
    for (int32_t i = 0; i < p->touched; i++) {
        sim_resource *r = &n->resources[n->touched[i]];
        r->left = r->inside == r->flow_count ? r->capacity : r->free; /* all: without rounding */
        r->weight = r->load;
        r->unfixed = r->inside;
        n->part[i] = n->touched[i];
    }
    p->resources = p->touched;
}

/* ---- filling ---------------------------------------------------------------------------------- */

static void fix(sim_network *n, sim_flow *f, double rate)
{
    n->marks[f->id] |= 1;
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
    for (sim_hop *hop = r->flows_inside; hop && r->unfixed; hop = hop->next_inside) {
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
        if (r->unfixed == 0 || share_of(r) > level * SAME_LEVEL) continue;
        r->filled = n->round;
        r->level = level;
        fixed += fix_on(n, p, r, level);
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

/* ---- what is outside -------------------------------------------------------------------------- */

static void mark_changes(sim_network *n, const part *p)
{
    for (int32_t i = 0; i < p->flows; i++) {
        const sim_flow *f = n->flows[i];
        for (int32_t k = 0; k < f->hop_count && differs(f); k++) n->resources[f->hops[k].resource].changed = n->round;
    }
}

static bool has_faster_outside(const sim_network *n, sim_resource *r)
{
    double level = r->level * SAME_LEVEL;
    if (r->fastest <= level) return false;
    for (const sim_hop *hop = r->flows; hop; hop = hop->next)
        if (n->marks[hop->id] >> 1 != n->visit && hop->flow->rate > level) return true;
    r->fastest = level;
    return false;
}

/* Adds resources to the region that the rest of the network needs it to have; whether there were any. */
static bool grow(sim_network *n, const part *p)
{
    int32_t before = n->dirty_count;
    mark_changes(n, p);
    for (int32_t i = 0; i < p->touched; i++) {
        sim_resource *r = &n->resources[n->touched[i]];
        if (r->inside == r->flow_count) continue;
        bool changes = r->full && r->changed == n->round;
        if (!changes && !(r->filled == n->round && has_faster_outside(n, r))) continue;
        r->dirty = true;
        n->dirty[n->dirty_count++] = n->touched[i];
    }
    return n->dirty_count > before;
}

/* ---- result ----------------------------------------------------------------------------------- */

static void apply(sim_network *n, sim_flow *f)
{
    sim_queue *q = n->queue;
    if (!differs(f)) return;
    for (int32_t i = 0; i < f->hop_count; i++) {
        sim_resource *r = &n->resources[f->hops[i].resource];
        r->used += (f->new_rate - f->rate) * f->hops[i].weight;
        if (f->new_rate > r->fastest) r->fastest = f->new_rate;
    }
    f->remaining -= f->rate * (double)(q->now - f->since);
    f->since = q->now;
    f->rate = f->new_rate;
    sim_time duration = f->remaining > 0 ? sim_duration(f->remaining, f->rate) : 0;
    sim_event_schedule(q, &f->event, duration == SIM_NEVER ? SIM_NEVER : q->now + duration);
}

static void settle(sim_network *n, const part *p)
{
    for (int32_t i = 0; i < p->flows; i++) apply(n, n->flows[i]);
    for (int32_t i = 0; i < p->touched; i++) {
        sim_resource *r = &n->resources[n->touched[i]];
        bool filled = r->filled == n->round, all = r->inside == r->flow_count;
        r->full = filled || (r->full && !all);
        if (all) r->used = r->capacity - r->left; /* what rounding has added up goes */
    }
    for (int32_t i = 0; i < n->dirty_count; i++) n->resources[n->dirty[i]].dirty = false;
    n->dirty_count = n->fresh_count = 0;
}

void sim_network_solve(void *context)
{
    sim_network *n = context;
    part p = {0};
    n->visit++;
    do {
        gather(n, &p);
        start_round(n, &p);
        fill(n, p);
        n->solved += p.flows;
    } while (grow(n, &p));
    settle(n, &p);
}
