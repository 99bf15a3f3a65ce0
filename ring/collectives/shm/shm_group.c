#include "common/base/clock.h"
#include "ring/collectives/shm/shm_internal.h"

#include <stdio.h>
#include <stdlib.h>

/* A member's segment: its slot of the lane of all, then one for each rank that it sends to, then one for
 * each that it receives from (which has no areas: receivers expose nothing). */
static int64_t main_bytes(void)
{
    return (int64_t)sizeof(shm_slot) + 2 * SHM_INLINE_BYTES + SHM_STAGING_BYTES;
}

static int64_t send_bytes(void)
{
    return (int64_t)sizeof(shm_slot) + 2 * SHM_PAIR_INLINE_BYTES + SHM_PAIR_STAGING_BYTES;
}

static int64_t segment_bytes(int size)
{
    return main_bytes() + size * (send_bytes() + (int64_t)sizeof(shm_slot));
}

static shm_member member_at(int rank, char *at, int64_t inline_bytes)
{
    char *areas = at + sizeof(shm_slot);
    return (shm_member){
        .rank = rank, .slot = (shm_slot *)at, .inline_area = areas, .staging = areas + 2 * inline_bytes};
}

static char *segment_of(const shm_group *g, int member)
{
    return member == g->base.rank ? g->own.data : g->peers[member].data;
}

/* The slot in which `owner` sends to `to`, or receives from `from`. */
static char *send_slot(const shm_group *g, int owner, int to)
{
    return segment_of(g, owner) + main_bytes() + to * send_bytes();
}

static char *receive_slot(const shm_group *g, int owner, int from)
{
    return segment_of(g, owner) + main_bytes() + g->base.size * send_bytes() +
           from * (int64_t)sizeof(shm_slot);
}

static int64_t limited(int64_t whole, int64_t limit)
{
    return limit > 0 && limit < whole ? limit : whole;
}

static status init_lane(shm_lane *lane, shm_group *g, shm_member *members, int size, int me)
{
    bool pair = lane != &g->lanes[0];
    lane->group = g;
    lane->members = members;
    lane->size = size;
    lane->me = me;
    const collective_config *c = &g->base.world->config;
    lane->area_bytes = pair ? SHM_PAIR_INLINE_BYTES : SHM_INLINE_BYTES;
    lane->inline_bytes = limited(lane->area_bytes, c->inline_bytes);
    lane->staging_bytes = limited(pair ? SHM_PAIR_STAGING_BYTES : SHM_STAGING_BYTES, c->staging_bytes);
    lane->queue_size = pair ? SHM_PAIR_QUEUE : COLLECTIVE_QUEUE;
    lane->queue = calloc((size_t)lane->queue_size, sizeof *lane->queue);
    if (!lane->queue) return fail(STATUS_SYSTEM, "no memory for a queue of collectives");
    return STATUS_OK;
}

static status init_lanes(shm_group *g, const int *ranks)
{
    int n = g->base.size, me = g->base.rank;
    shm_member *next = g->members;
    for (int m = 0; m < n; m++) next[m] = member_at(ranks[m], segment_of(g, m), SHM_INLINE_BYTES);
    TRY(init_lane(&g->lanes[0], g, next, n, me));
    next += n;
    for (int peer = 0; peer < n; peer++) {
        if (peer == me) continue;
        for (int sends = 0; sends < 2; sends++, next += 2) { /* the sender is member 0 */
            int from = sends ? me : peer, to = sends ? peer : me;
            next[0] = member_at(ranks[from], send_slot(g, from, to), SHM_PAIR_INLINE_BYTES);
            next[1] = member_at(ranks[to], receive_slot(g, to, from), SHM_PAIR_INLINE_BYTES);
            TRY(init_lane(&g->lanes[1 + peer + (sends ? 0 : n)], g, next, 2, sends ? 0 : 1));
        }
    }
    return STATUS_OK;
}

static status exchange(shm_group *g, const char *group_name)
{
    const collective_config *c = &g->base.world->config;
    char name[96];
    snprintf(name, sizeof name, "ring group %s %s", c->name, group_name);
    TRY(shm_create("ring group", segment_bytes(g->base.size), &g->own));
    shm_exchange_options options = {
        .name = name,
        .token = c->job_token,
        .rank = g->base.rank,
        .world = g->base.size,
        .own = &g->own,
        .count = 1,
        .deadline_ns = collective_deadline(clock_now_ns(), c->connect_timeout_ns),
        .cancelled = c->cancelled,
        .context = c->cancelled_context,
    };
    return shm_exchange(&options, g->peers);
}

static void link_lanes(shm_world *w, shm_group *g)
{
    shm_lane **end = &w->lanes;
    while (*end) end = &(*end)->next;
    for (int i = 0; i < g->lane_count; i++) {
        if (!g->lanes[i].queue) continue;
        *end = &g->lanes[i];
        end = &(*end)->next;
    }
}

static void unlink_lanes(shm_world *w, const shm_group *g)
{
    for (shm_lane **at = &w->lanes; *at;) {
        if ((*at)->group == g)
            *at = (*at)->next;
        else
            at = &(*at)->next;
    }
}

status shm_group_open(collective_world *world, const char *name, const int *ranks, int count,
                      collective_group **out)
{
    shm_group *g = calloc(1, sizeof *g);
    if (!g) return fail(STATUS_SYSTEM, "no memory for group '%s'", name);
    g->base = (collective_group){.world = world, .size = count};
    for (int i = 0; i < count; i++)
        if (ranks[i] == world->config.rank) g->base.rank = i;
    status rc = STATUS_OK;
    g->lane_count = 1 + 2 * count;
    g->peers = calloc((size_t)count, sizeof *g->peers);
    g->lanes = calloc((size_t)g->lane_count, sizeof *g->lanes);
    g->members = calloc((size_t)(5 * count), sizeof *g->members);
    if (!g->peers || !g->lanes || !g->members) {
        rc = fail(STATUS_SYSTEM, "no memory for group '%s'", name);
        goto failed;
    }
    TRY_GOTO(rc, exchange(g, name), failed);
    TRY_GOTO(rc, init_lanes(g, ranks), failed);
    link_lanes((shm_world *)world, g);
    *out = &g->base;
    return STATUS_OK;
failed:
    shm_group_close(&g->base);
    return rc;
}

void shm_group_close(collective_group *group)
{
    shm_group *g = (shm_group *)group;
    unlink_lanes((shm_world *)group->world, g);
    for (int i = 0; g->lanes && i < g->lane_count; i++) free(g->lanes[i].queue);
    for (int m = 0; g->peers && m < group->size; m++) shm_close(&g->peers[m]);
    shm_close(&g->own);
    free(g->peers);
    free(g->lanes);
    free(g->members);
    free(g);
}
