#include "common/base/clock.h"
#include "ring/collectives/shm/shm_internal.h"

#include <stdio.h>
#include <stdlib.h>

/* A member's segment: its slot of queue 0, then one for each rank that it sends to, then one for each that it receives
 * from (which has no areas: receivers expose nothing). */
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
    return segment_of(g, owner) + main_bytes() + g->base.size * send_bytes() + from * (int64_t)sizeof(shm_slot);
}

static int64_t limited(int64_t whole, int64_t limit)
{
    return limit > 0 && limit < whole ? limit : whole;
}

static status init_queue(shm_queue *q, shm_group *g, shm_member *members, int size, int me)
{
    bool pair = q != &g->queues[0];
    q->group = g;
    q->members = members;
    q->size = size;
    q->me = me;
    const collective_config *c = &g->base.world->config;
    q->area_bytes = pair ? SHM_PAIR_INLINE_BYTES : SHM_INLINE_BYTES;
    q->inline_bytes = limited(q->area_bytes, c->inline_bytes);
    q->staging_bytes = limited(pair ? SHM_PAIR_STAGING_BYTES : SHM_STAGING_BYTES, c->staging_bytes);
    q->capacity = pair ? SHM_PAIR_QUEUE : COLLECTIVE_QUEUE;
    q->calls = calloc((size_t)q->capacity, sizeof *q->calls);
    if (!q->calls) return fail(STATUS_SYSTEM, "no memory for a queue of collectives");
    return STATUS_OK;
}

static status init_queues(shm_group *g, const int *ranks)
{
    int n = g->base.size, me = g->base.rank;
    shm_member *next = g->members;
    for (int m = 0; m < n; m++) next[m] = member_at(ranks[m], segment_of(g, m), SHM_INLINE_BYTES);
    TRY(init_queue(&g->queues[0], g, next, n, me));
    next += n;
    for (int peer = 0; peer < n; peer++) {
        if (peer == me) continue;
        for (int sends = 0; sends < 2; sends++, next += 2) { /* the sender is member 0 */
            int from = sends ? me : peer, to = sends ? peer : me;
            next[0] = member_at(ranks[from], send_slot(g, from, to), SHM_PAIR_INLINE_BYTES);
            next[1] = member_at(ranks[to], receive_slot(g, to, from), SHM_PAIR_INLINE_BYTES);
            TRY(init_queue(&g->queues[1 + peer + (sends ? 0 : n)], g, next, 2, sends ? 0 : 1));
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
        .canceled = c->canceled,
        .context = c->canceled_context,
    };
    return shm_exchange(&options, g->peers);
}

static void link_queues(shm_world *w, shm_group *g)
{
    shm_queue **end = &w->queues;
    while (*end) end = &(*end)->next;
    for (int i = 0; i < g->queue_count; i++) {
        if (!g->queues[i].calls) continue;
        *end = &g->queues[i];
        end = &(*end)->next;
    }
}

static void unlink_queues(shm_world *w, const shm_group *g)
{
    for (shm_queue **at = &w->queues; *at;) {
        if ((*at)->group == g)
            *at = (*at)->next;
        else
            at = &(*at)->next;
    }
}

status shm_group_open(collective_world *world, const char *name, const int *ranks, int count, collective_group **out)
{
    shm_group *g = calloc(1, sizeof *g);
    if (!g) return fail(STATUS_SYSTEM, "no memory for group '%s'", name);
    g->base = (collective_group){.world = world, .size = count};
    for (int i = 0; i < count; i++)
        if (ranks[i] == world->config.rank) g->base.rank = i;
    status rc = STATUS_OK;
    g->queue_count = 1 + 2 * count;
    g->peers = calloc((size_t)count, sizeof *g->peers);
    g->queues = calloc((size_t)g->queue_count, sizeof *g->queues);
    g->members = calloc((size_t)(5 * count), sizeof *g->members);
    if (!g->peers || !g->queues || !g->members) {
        rc = fail(STATUS_SYSTEM, "no memory for group '%s'", name);
        goto failed;
    }
    TRY_GOTO(rc, exchange(g, name), failed);
    TRY_GOTO(rc, init_queues(g, ranks), failed);
    link_queues((shm_world *)world, g);
    *out = &g->base;
    return STATUS_OK;
failed:
    shm_group_close(&g->base);
    return rc;
}

void shm_group_close(collective_group *group)
{
    shm_group *g = (shm_group *)group;
    unlink_queues((shm_world *)group->world, g);
    for (int i = 0; g->queues && i < g->queue_count; i++) free(g->queues[i].calls);
    for (int m = 0; g->peers && m < group->size; m++) shm_close(&g->peers[m]);
    shm_close(&g->own);
    free(g->peers);
    free(g->queues);
    free(g->members);
    free(g);
}
