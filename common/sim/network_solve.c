/* Computes max-min fair rates by progressive filling, only in the part of the network whose rates may have
 * changed.
 *
 * Rates are max-min fair if every flow runs at its limit, or uses a full resource on which no flow is faster
 * (Bertsekas and Gallager, section 6.5.2). The solution starts with a region of the network. The region
 * consists of the new flows, the resources that flows have left, and all flows on these resources. The rates
 * of the region are computed, and all other rates stay unchanged. A resource at the edge of the region has
 * flows inside and outside of the region. A resource at the edge joins the region in two cases, after which
 * the rates of the region are computed again:
 *
 *   the resource was full, and rates on it have changed
 *   the resource is full now, limits a flow of the region, and a flow outside of the region is faster */
#include "common/sim/network.h"

#include <math.h>

/* Sizes of the region. The fields are the numbers of entries in n->links, n->part, n->parts and n->hops, and
 * the number of bundles with a limit. */
typedef struct part {
    int32_t links, filling, bundles, hops, limited;
    int32_t seen; /* number of entries of n->dirty whose flows have been gathered */
} part;

/* Two shares or rates count as equal if their ratio is at most SAME_LEVEL, because they then differ only by
 * rounding. */
#define SAME_LEVEL (1 + 1e-12)

static bool has_new_rate(const sim_part_bundle *f)
{
    return f->new_rate > f->rate * SAME_LEVEL || f->rate > f->new_rate * SAME_LEVEL;
}

/* Returns the factor by which shares that count as equal may differ. */
static double tolerance(const sim_network *n, double coarse)
{
    return sim_network_is_coarse(n) ? 1 + coarse : SAME_LEVEL;
}

static sim_resource *resource_of(const sim_network *n, const sim_part_link *l)
{
    return &n->resources[l->resource];
}

/* ---- the part --------------------------------------------------------------------------------- */

static int32_t visit_resource(sim_network *n, part *p, int32_t index)
{
    sim_resource *r = &n->resources[index];
    if (r->place >= 0) return r->place;
    r->place = p->links++;
    n->links[r->place] = (sim_part_link){.resource = index, .free = r->capacity - r->used};
    return r->place;
}

static void visit_bundle(sim_network *n, part *p, int32_t id)
{
    sim_bundle *b = &n->bundles[id];
    const sim_hop_use *hops = sim_bundle_hops(b);
    b->visited = true;
    n->parts[p->bundles++] = (sim_part_bundle){.rate = b->rate,
                                               .limit = b->limit,
                                               .flows = b->flows,
                                               .id = id,
                                               .has_new_flows = b->rated < b->members,
                                               .first_hop = p->hops,
                                               .hop_count = b->hop_count};
    p->limited += !isinf(b->limit);
    for (int32_t i = 0; i < b->hop_count; i++) {
        double weight = hops[i].weight * b->members;
        int32_t place = visit_resource(n, p, hops[i].resource);
        sim_part_link *l = &n->links[place];
        n->hops[p->hops++] = (sim_part_hop){weight, place};
        l->free += b->rate * hops[i].weight * b->rated;
        l->load += weight;
        l->inside++;
    }
}

/* Adds the bundles of a resource to the region, the newest first. Skips bundles that have been added because
 * of another resource. Bundles are scattered in memory, so the loop prefetches them. */
static void visit_bundles(sim_network *n, part *p, int32_t resource)
{
    const sim_resource *r = &n->resources[resource];
    const int32_t *ids = n->bundle_ids + r->first;
    int32_t place = visit_resource(n, p, resource);
    for (int32_t i = r->bundle_count - 1; i >= 0 && n->links[place].inside < r->bundle_count; i--) {
        if (i >= 4) __builtin_prefetch(&n->bundles[ids[i - 4]]);
        if (!n->bundles[ids[i]].visited) visit_bundle(n, p, ids[i]);
    }
}

/* Adds to the region the bundles with new flows, the bundles of the region's resources (n->dirty), and all
 * resources that these bundles use. Skips resources that an earlier round has added. */
static void gather(sim_network *n, part *p)
{
    for (int32_t i = 0; i < n->fresh_count && p->seen == 0; i++)
        if (!n->bundles[n->fresh[i]].visited) visit_bundle(n, p, n->fresh[i]);
    for (; p->seen < n->dirty_count; p->seen++) visit_bundles(n, p, n->dirty[p->seen]);
}

/* Lists the bundles of every link in n->members, from the bundle that was added last to the bundle that was
 * added first. */
static void list_members(sim_network *n, const part *p)
{
    int32_t end = 0;
    for (int32_t l = 0; l < p->links; l++) {
        /* `first_member` serves as the insertion position of the link, and is reset afterwards. */
        n->filling[l].first_member = end;
        end += n->links[l].inside;
    }
    for (int32_t f = p->bundles - 1; f >= 0; f--)
        for (int32_t h = 0; h < n->parts[f].hop_count; h++)
            n->members[n->filling[n->hops[n->parts[f].first_hop + h].link].first_member++] = f;
    for (int32_t l = 0; l < p->links; l++) n->filling[l].first_member -= n->links[l].inside;
}

static void start_round(sim_network *n, part *p)
{
    list_members(n, p);
    for (int32_t i = 0; i < p->bundles; i++) n->known[i] = false;
    for (int32_t i = 0; i < p->links; i++) {
        sim_part_link *l = &n->links[i];
        const sim_resource *r = resource_of(n, l);
        sim_filling *f = &n->filling[i];
        /* If all flows of the resource are in the region, the whole capacity is left. It has no rounding
         * error, unlike `free`. */
        f->left = l->inside == r->bundle_count ? r->capacity : l->free;
        f->weight = l->load;
        f->share = -1;
        f->unfixed = l->inside;
        l->filled = l->changed = false;
        n->part[i] = i;
    }
    p->filling = p->links;
}

/* ---- filling ---------------------------------------------------------------------------------- */

static void fix(sim_network *n, int32_t flow, double rate)
{
    sim_part_bundle *f = &n->parts[flow];
    n->known[flow] = true;
    f->new_rate = rate;
    for (const sim_part_hop *hop = n->hops + f->first_hop, *end = hop + f->hop_count; hop < end; hop++) {
        sim_filling *l = &n->filling[hop->link];
        l->left -= rate * hop->weight;
        l->weight -= hop->weight;
        l->share = -1;
        l->unfixed--;
    }
}

/* Returns the rate at which a link becomes full if all flows without a known rate get this rate. */
static double share_of(sim_filling *l)
{
    if (l->share < 0) l->share = l->left > 0 ? l->left / l->weight : 0;
    return l->share;
}

/* Returns the common rate at which the first link becomes full if all unknown rates rise together. Removes
 * links from the list if all rates on the link are known. */
static double find_level(sim_network *n, part *p)
{
    double level = INFINITY;
    int32_t kept = 0;
    for (int32_t i = 0; i < p->filling; i++) {
        sim_filling *l = &n->filling[n->part[i]];
        if (l->unfixed == 0) continue;
        n->part[kept++] = n->part[i];
        double share = share_of(l);
        if (share < level) level = share;
    }
    p->filling = kept;
    return level;
}

/* Fixes the rates of flows whose limit is at most `level`. */
static int32_t fix_limited(sim_network *n, part *p, double level)
{
    int32_t fixed = 0;
    for (int32_t i = 0; i < p->bundles && p->limited; i++) {
        if (n->known[i] || n->parts[i].limit > level) continue;
        fix(n, i, n->parts[i].limit);
        fixed++;
    }
    p->limited -= fixed;
    return fixed;
}

/* Returns the highest rate that the limit of a flow and all links of its route allow. */
static double least_share(sim_network *n, int32_t flow)
{
    const sim_part_bundle *f = &n->parts[flow];
    double least = f->limit;
    for (int32_t h = 0; h < f->hop_count; h++)
        least = fmin(least, share_of(&n->filling[n->hops[f->first_hop + h].link]));
    return least;
}

static int32_t fix_on(sim_network *n, part *p, int32_t link, double level)
{
    sim_filling *l = &n->filling[link];
    bool coarse = sim_network_is_coarse(n);
    int32_t fixed = 0;
    for (const int32_t *member = n->members + l->first_member; l->unfixed; member++) {
        if (n->known[*member]) continue;
        p->limited -= !isinf(n->parts[*member].limit);
        fix(n, *member, coarse ? least_share(n, *member) : level);
        fixed++;
    }
    return fixed;
}

static int32_t fix_full(sim_network *n, part *p, double level)
{
    int32_t fixed = 0;
    double same = tolerance(n, SIM_UNUSED);
    for (int32_t i = 0; i < p->filling; i++) {
        int32_t link = n->part[i];
        sim_filling *l = &n->filling[link];
        if (l->unfixed == 0 || share_of(l) > level * same) continue;
        n->links[link].filled = true;
        n->links[link].level = level;
        fixed += fix_on(n, p, link, level);
    }
    return fixed;
}

/* Raises all rates together until a link is full. The flows on the full link keep the rate that they have
 * reached. Then the rates of the other flows rise further, until all rates are known. */
static void fill(sim_network *n, part p)
{
    for (int32_t left = p.bundles; left > 0;) {
        double level = find_level(n, &p);
        int32_t limited = fix_limited(n, &p, level);
        left -= limited > 0 ? limited : fix_full(n, &p, level);
    }
}

/* ---- what is outside -------------------------------------------------------------------------- */

static void mark_changes(sim_network *n, const part *p)
{
    for (int32_t i = 0; i < p->bundles; i++) {
        const sim_part_bundle *f = &n->parts[i];
        if (!f->has_new_flows && !has_new_rate(f)) continue;
        for (int32_t h = 0; h < f->hop_count; h++) n->links[n->hops[f->first_hop + h].link].changed = true;
    }
}

static bool has_faster_outside(const sim_network *n, sim_resource *r, double full_at)
{
    double level = full_at * tolerance(n, SIM_UNEQUAL);
    if (r->fastest <= level) return false;
    for (const int32_t *id = n->bundle_ids + r->first, *end = id + r->bundle_count; id < end; id++)
        if (!n->bundles[*id].visited && n->bundles[*id].rate > level) return true;
    r->fastest = level;
    return false;
}

/* Adds the resources on which the new rates affect flows outside of the region. Returns true if a resource
 * was added. */
static bool grow(sim_network *n, const part *p)
{
    int32_t before = n->dirty_count;
    mark_changes(n, p);
    for (int32_t i = 0; i < p->links; i++) {
        const sim_part_link *l = &n->links[i];
        sim_resource *r = resource_of(n, l);
        if (l->inside == r->bundle_count) continue;
        bool nearly = sim_network_is_coarse(n) && n->filling[i].left < SIM_UNUSED * r->capacity;
        bool changes = r->full && l->changed && !nearly;
        if (!changes && !(l->filled && has_faster_outside(n, r, l->level))) continue;
        r->dirty = true;
        n->dirty[n->dirty_count++] = l->resource;
    }
    return n->dirty_count > before;
}

/* ---- result ----------------------------------------------------------------------------------- */

/* Gives a flow its new rate, and schedules its end. */
static void apply_to_flow(sim_flow *f, double rate)
{
    sim_queue *q = f->network->queue;
    f->remaining -= f->rate * (double)(q->now - f->since);
    f->since = q->now;
    f->rate = rate;
    sim_time duration = f->remaining > 0 ? sim_duration(f->remaining, f->rate) : 0;
    sim_event_schedule(q, &f->event, duration == SIM_NEVER ? SIM_NEVER : q->now + duration);
}

static void apply(sim_network *n, const sim_part_bundle *p)
{
    sim_bundle *b = &n->bundles[p->id];
    const sim_hop_use *hops = sim_bundle_hops(b);
    double rate = has_new_rate(p) ? p->new_rate : p->rate;
    if (rate == p->rate && !p->has_new_flows) return;
    for (int32_t i = 0; i < b->hop_count; i++) {
        sim_resource *r = &n->resources[hops[i].resource];
        r->used += (rate * b->members - p->rate * b->rated) * hops[i].weight;
        if (rate > r->fastest) r->fastest = rate;
    }
    b->rate = rate;
    b->rated = b->members;
    for (sim_flow *f = b->flows; f; f = f->next)
        if (f->rate != rate) apply_to_flow(f, rate);
}

static void settle(sim_network *n, const part *p)
{
    for (int32_t i = 0; i < p->bundles; i++) {
        if (i + 8 < p->bundles) __builtin_prefetch(n->parts[i + 8].flows);
        apply(n, &n->parts[i]);
        n->bundles[n->parts[i].id].visited = false;
    }
    for (int32_t i = 0; i < p->links; i++) {
        const sim_part_link *l = &n->links[i];
        sim_resource *r = resource_of(n, l);
        bool all = l->inside == r->bundle_count;
        r->full = l->filled || (r->full && !all);
        r->place = -1;
        if (all) r->used = r->capacity - n->filling[i].left; /* removes accumulated rounding errors */
    }
    for (int32_t i = 0; i < n->dirty_count; i++) n->resources[n->dirty[i]].dirty = false;
    for (int32_t i = 0; i < n->fresh_count; i++) n->bundles[n->fresh[i]].fresh = false;
    n->dirty_count = n->fresh_count = 0;
}

void sim_network_solve(void *context)
{
    sim_network *n = context;
    part p = {0};
    do {
        gather(n, &p);
        start_round(n, &p);
        fill(n, p);
        n->solved += p.bundles;
    } while (grow(n, &p));
    settle(n, &p);
}
