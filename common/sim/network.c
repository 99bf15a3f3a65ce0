#include "common/sim/network.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ----------------------------------------------------------------------------------- */

/* Resizes the array *array, whose elements may have any type, to `count` elements. If memory is short,
 * returns false and leaves *array unchanged. */
static bool resize(void *array, int32_t count, size_t size)
{
    void *old, *moved;
    memcpy(&old, array, sizeof old);
    moved = realloc(old, (size_t)count * size);
    if (moved) memcpy(array, &moved, sizeof moved);
    return moved;
}

static void put_in_bucket(sim_network *n, int32_t id)
{
    sim_bundle *b = &n->bundles[id];
    int32_t *first = &n->buckets[b->hash % (uint32_t)n->flow_capacity];
    b->next = *first;
    *first = id;
}

static status grow_flows(sim_network *n)
{
    int32_t c = n->flow_capacity ? n->flow_capacity * 2 : 64;
    if (!resize(&n->parts, c, sizeof *n->parts) || !resize(&n->fresh, c, sizeof *n->fresh) ||
        !resize(&n->known, c, sizeof *n->known) || !resize(&n->bundles, c, sizeof *n->bundles) ||
        !resize(&n->buckets, c, sizeof *n->buckets) || !resize(&n->free_ids, c, sizeof *n->free_ids))
        return fail(STATUS_SYSTEM, "no memory for %d flows", c);
    n->flow_capacity = c;
    for (int32_t i = 0; i < c; i++) n->buckets[i] = -1;
    for (int32_t i = 0; i < n->ids; i++)
        if (n->bundles[i].members > 0) put_in_bucket(n, i);
    return STATUS_OK;
}

static status grow_hops(sim_network *n, int32_t needed)
{
    int32_t c = n->hop_capacity ? n->hop_capacity : 256;
    while (c < needed) c *= 2;
    int32_t room = 3 * c + 4;
    if (!resize(&n->hops, c, sizeof *n->hops) || !resize(&n->members, c, sizeof *n->members) ||
        !resize(&n->bundle_ids, room, sizeof *n->bundle_ids) ||
        !resize(&n->other_bundle_ids, room, sizeof *n->other_bundle_ids))
        return fail(STATUS_SYSTEM, "no memory for flows over %d links", c);
    n->hop_capacity = c;
    n->id_room = room;
    return STATUS_OK;
}

status sim_network_init(sim_network *n, sim_queue *queue, const double *capacities, int32_t count)
{
    int32_t slots = count > 0 ? count : 1;
    *n = (sim_network){.queue = queue, .resource_count = count, .coarse_from = SIM_COARSE_BUNDLES};
    bool enough = resize(&n->resources, slots, sizeof *n->resources) &&
                  resize(&n->dirty, slots, sizeof *n->dirty) && resize(&n->part, slots, sizeof *n->part) &&
                  resize(&n->links, slots, sizeof *n->links) &&
                  resize(&n->filling, slots, sizeof *n->filling);
    for (int32_t i = 0; enough && i < count; i++)
        n->resources[i] = (sim_resource){.capacity = capacities[i], .place = -1};
    status rc = enough ? sim_event_init(queue, &n->solve, SIM_RANK_LAST, sim_network_solve, n)
                       : fail(STATUS_SYSTEM, "no memory for %d links", count);
    if (rc != STATUS_OK) sim_network_deinit(n);
    return rc;
}

void sim_network_deinit(sim_network *n)
{
    if (n->queue) sim_event_deinit(n->queue, &n->solve);
    free(n->resources);
    free(n->dirty);
    free(n->part);
    free(n->links);
    free(n->filling);
    free(n->fresh);
    free(n->parts);
    free(n->known);
    free(n->hops);
    free(n->members);
    free(n->bundle_ids);
    free(n->other_bundle_ids);
    free(n->bundles);
    free(n->buckets);
    free(n->free_ids);
    *n = (sim_network){0};
}

/* ---- membership ------------------------------------------------------------------------------- */

static void have_solved(sim_network *n)
{
    if (!sim_event_scheduled(&n->solve)) sim_event_schedule(n->queue, &n->solve, n->queue->now);
}

static void make_dirty(sim_network *n, int32_t resource)
{
    if (n->resources[resource].dirty) return;
    n->resources[resource].dirty = true;
    n->dirty[n->dirty_count++] = resource;
    have_solved(n);
}

/* Returns true if a flow with the same route and limit has just left. Flow `f` then takes over the rate of
 * the flow that has left, so that no other rate changes. */
static bool takes_place(sim_flow *f)
{
    sim_network *n = f->network;
    const sim_flow *left = n->left;
    n->left = NULL;
    if (!left || left->hop_count != f->hop_count || left->limit != f->limit || left->rate <= 0) return false;
    for (int32_t i = 0; i < f->hop_count; i++)
        if (left->hops[i].resource != f->hops[i].resource || left->hops[i].weight != f->hops[i].weight)
            return false;
    while (n->dirty_count > n->left_dirty) n->resources[n->dirty[--n->dirty_count]].dirty = false;
    f->rate = left->rate;
    return true;
}

/* Copies the bundle ids of all resources to the spare array, without gaps, and swaps the two arrays. */
static void pack_ids(sim_network *n)
{
    int32_t *packed = n->other_bundle_ids, used = 0;
    for (int32_t i = 0; i < n->resource_count; i++) {
        sim_resource *r = &n->resources[i];
        for (int32_t k = 0; k < r->bundle_count; k++) packed[used + k] = n->bundle_ids[r->first + k];
        r->first = used;
        r->room = r->bundle_count;
        used += r->bundle_count;
    }
    n->other_bundle_ids = n->bundle_ids;
    n->bundle_ids = packed;
    n->used_ids = used;
}

/* Makes room for one more bundle id of a resource by moving the ids of the resource to a range that is twice
 * as large. All resources together have at most hop_capacity ids. Therefore an array of 3 * hop_capacity ids
 * has room for all ids and for the new range. */
static void make_room(sim_network *n, sim_resource *r)
{
    int32_t room = 2 * r->bundle_count + 4;
    if (n->used_ids + room > n->id_room) pack_ids(n);
    for (int32_t k = 0; k < r->bundle_count; k++)
        n->bundle_ids[n->used_ids + k] = n->bundle_ids[r->first + k];
    r->first = n->used_ids;
    r->room = room;
    n->used_ids += room;
}

static void remove_id(sim_network *n, sim_resource *r, int32_t id)
{
    int32_t *ids = n->bundle_ids + r->first, at = 0;
    while (ids[at] != id) at++;
    r->bundle_count--;
    memmove(ids + at, ids + at + 1, (size_t)(r->bundle_count - at) * sizeof *ids);
}

/* ---- bundles ---------------------------------------------------------------------------------- */

static uint32_t hash_of(const sim_flow *f)
{
    uint64_t hash = 0, word;
    for (int32_t i = 0; i < f->hop_count && f->hop_count <= SIM_BUNDLE_HOPS; i++) {
        memcpy(&word, &f->hops[i].weight, sizeof word);
        hash = (hash ^ (uint64_t)f->hops[i].resource ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return (uint32_t)hash;
}

static bool goes_along(const sim_flow *f, const sim_bundle *b)
{
    if (b->long_route || b->hop_count != f->hop_count || b->limit != f->limit) return false;
    for (int32_t i = 0; i < f->hop_count; i++)
        if (b->route[i].resource != f->hops[i].resource || b->route[i].weight != f->hops[i].weight)
            return false;
    return true;
}

static int32_t open_bundle(sim_network *n, const sim_flow *f, uint32_t hash)
{
    int32_t id = n->free_count > 0 ? n->free_ids[--n->free_count] : n->ids++;
    sim_bundle *b = &n->bundles[id];
    *b = (sim_bundle){.limit = f->limit, .hop_count = f->hop_count, .hash = hash};
    if (f->hop_count > SIM_BUNDLE_HOPS)
        b->long_route = f->hops;
    else
        memcpy(b->route, f->hops, (size_t)f->hop_count * sizeof *f->hops);
    put_in_bucket(n, id);
    for (int32_t i = 0; i < f->hop_count; i++) {
        sim_resource *r = &n->resources[f->hops[i].resource];
        if (r->bundle_count == r->room) make_room(n, r);
        n->bundle_ids[r->first + r->bundle_count++] = id;
    }
    return id;
}

static void close_bundle(sim_network *n, int32_t id)
{
    const sim_bundle *b = &n->bundles[id];
    const sim_hop_use *hops = sim_bundle_hops(b);
    int32_t *at = &n->buckets[b->hash % (uint32_t)n->flow_capacity];
    while (*at != id) at = &n->bundles[*at].next;
    *at = b->next;
    for (int32_t i = 0; i < b->hop_count; i++) remove_id(n, &n->resources[hops[i].resource], id);
    n->free_ids[n->free_count++] = id;
}

/* Adds a flow to the bundle of its route. If there is no bundle yet, opens one. */
static sim_bundle *join_bundle(sim_flow *f)
{
    sim_network *n = f->network;
    uint32_t hash = hash_of(f);
    int32_t id = f->hop_count > SIM_BUNDLE_HOPS ? -1 : n->buckets[hash % (uint32_t)n->flow_capacity];
    while (id >= 0 && !goes_along(f, &n->bundles[id])) id = n->bundles[id].next;
    f->bundle = id >= 0 ? id : open_bundle(n, f, hash);
    sim_bundle *b = &n->bundles[f->bundle];
    f->previous = NULL;
    f->next = b->flows;
    if (b->flows) b->flows->previous = f;
    b->flows = f;
    b->members++;
    return b;
}

static void leave_bundle(sim_flow *f)
{
    sim_network *n = f->network;
    sim_bundle *b = &n->bundles[f->bundle];
    if (f->next) f->next->previous = f->previous;
    *(f->previous ? &f->previous->next : &b->flows) = f->next;
    b->members--;
    b->rated -= f->rate > 0;
    for (int32_t i = 0; b->fresh && b->rated == b->members && i < n->fresh_count; i++)
        if (n->fresh[i] == f->bundle) {
            n->fresh[i] = n->fresh[--n->fresh_count];
            b->fresh = false;
        }
    if (b->members == 0) close_bundle(n, f->bundle);
}

/* Gives the flow what is unused on its route, if that is nearly an equal part of each resource. */
static bool takes_unused(sim_flow *f)
{
    const sim_network *n = f->network;
    double unused = f->limit, part = f->limit;
    if (!sim_network_is_coarse(n)) return false;
    for (int32_t i = 0; i < f->hop_count; i++) {
        const sim_resource *r = &n->resources[f->hops[i].resource];
        unused = fmin(unused, (r->capacity - r->used) / f->hops[i].weight);
        part = fmin(part, r->capacity / f->hops[i].weight / r->bundle_count);
    }
    if (unused < part * (1 - SIM_UNEQUAL)) return false;
    f->rate = fmin(unused, part);
    return true;
}

static void enter(sim_flow *f)
{
    sim_network *n = f->network;
    sim_bundle *b = join_bundle(f);
    if (takes_place(f) || takes_unused(f)) {
        b->rate = f->rate;
        b->rated++;
        for (int32_t i = 0; i < f->hop_count; i++)
            n->resources[f->hops[i].resource].used += f->rate * f->hops[i].weight;
        sim_event_schedule(n->queue, &f->event, n->queue->now + sim_duration(f->remaining, f->rate));
        return;
    }
    if (!b->fresh) n->fresh[n->fresh_count++] = f->bundle;
    b->fresh = true;
    have_solved(n);
}

static void leave(sim_flow *f)
{
    sim_network *n = f->network;
    leave_bundle(f);
    n->left = f;
    n->left_dirty = n->dirty_count;
    for (int32_t i = 0; i < f->hop_count; i++)
        n->resources[f->hops[i].resource].used -= f->rate * f->hops[i].weight;
    for (int32_t i = 0; i < f->hop_count; i++) {
        const sim_resource *r = &n->resources[f->hops[i].resource];
        bool nearly = sim_network_is_coarse(n) && r->capacity - r->used < SIM_UNUSED * r->capacity;
        if (r->bundle_count && r->full && !nearly) make_dirty(n, f->hops[i].resource);
    }
}

/* ---- flows ------------------------------------------------------------------------------------ */

static void arrive(sim_flow *f)
{
    f->on_the_way = false;
    f->arrived(f->context);
}

static void begin(sim_flow *f)
{
    sim_queue *q = f->network->queue;
    f->waiting = false;
    f->active = true;
    f->since = f->begun = q->now;
    if (f->hop_count)
        enter(f);
    else
        sim_event_schedule(q, &f->event,
                           q->now + (isinf(f->limit) ? 0 : sim_duration(f->remaining, f->limit)));
}

static void measure(const sim_flow *f)
{
    const sim_meter *m = &f->network->meter;
    for (int32_t i = 0; m->passed && i < f->hop_count; i++)
        m->passed(m->context, f->hops[i].resource, f->what ? f->what : "transfer", f->begun,
                  f->network->queue->now, f->bytes * f->hops[i].weight);
}

static void end(sim_flow *f)
{
    sim_queue *q = f->network->queue;
    f->active = false;
    f->on_the_way = true;
    measure(f);
    if (f->hop_count) leave(f);
    if (f->latency > 0) sim_event_schedule(q, &f->event, q->now + f->latency);
    if (f->left) f->left(f->context);
    f->network->left = NULL;
    if (f->latency == 0) arrive(f);
}

static void on_event(void *context)
{
    sim_flow *f = context;
    if (f->waiting)
        begin(f);
    else if (f->active)
        end(f);
    else
        arrive(f);
}

status sim_flow_init(sim_network *n, sim_flow *f, int rank, int32_t most_hops, void (*left)(void *context),
                     void (*arrived)(void *context), void *context)
{
    *f = (sim_flow){0};
    if (n->registered == n->flow_capacity) TRY(grow_flows(n));
    if (n->registered_hops + most_hops > n->hop_capacity) TRY(grow_hops(n, n->registered_hops + most_hops));
    f->hops = calloc((size_t)most_hops + 1, sizeof *f->hops);
    status rc = f->hops ? sim_event_init(n->queue, &f->event, rank, on_event, f)
                        : fail(STATUS_SYSTEM, "no memory for a route over %d links", most_hops);
    if (rc != STATUS_OK) {
        free(f->hops);
        *f = (sim_flow){0};
        return rc;
    }
    n->registered++;
    n->registered_hops += most_hops;
    f->network = n;
    f->hop_capacity = most_hops;
    f->left = left;
    f->arrived = arrived;
    f->context = context;
    return STATUS_OK;
}

void sim_flow_deinit(sim_flow *f)
{
    if (!f->network) return;
    if (f->active && f->hop_count) leave(f);
    if (f->network->left == f) f->network->left = NULL;
    sim_event_deinit(f->network->queue, &f->event);
    f->network->registered--;
    f->network->registered_hops -= f->hop_capacity;
    free(f->hops);
    *f = (sim_flow){0};
}

void sim_flow_start(sim_flow *f, sim_time at, const sim_hop_use *route, int32_t hops, double bytes,
                    double limit, sim_time latency)
{
    sim_queue *q = f->network->queue;
    assert(!sim_flow_busy(f) && bytes >= 0 && limit > 0 && latency >= 0 && hops <= f->hop_capacity);
    f->waiting = true;
    f->latency = latency;
    f->remaining = f->bytes = bytes;
    f->limit = limit;
    f->rate = 0;
    f->hop_count = bytes > 0 ? hops : 0;
    for (int32_t i = 0; i < f->hop_count; i++) {
        assert(route[i].resource >= 0 && route[i].resource < f->network->resource_count &&
               route[i].weight > 0);
        f->hops[i] = route[i];
    }
    if (at > q->now)
        sim_event_schedule(q, &f->event, at);
    else
        begin(f);
}
