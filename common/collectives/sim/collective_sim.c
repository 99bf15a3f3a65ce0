/* Collectives in virtual time: the calls of the ranks of one simulation meet in a group of
 * common/sim/group.h, which computes when data move and when they have arrived. Tensors have no bytes; what
 * is in host memory (an order, which ranks have data) is small and is really copied, when all have joined. */
#include "common/device/sim/device_sim.h"
#include "common/sim/group.h"
#include "common/collectives/collective_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct sim_world {
    collective_world base;
    sim_actor *agent; /* the last to post; woken when a call is done */
    bool moved;       /* since the last progress */
} sim_world;

typedef struct sim_members_group {
    collective_group base;
    sim_group *shared; /* by all members */
    bool joined;    /* call number completed + 1 */
    status failure; /* of a join */
} sim_members_group;

static sim_world *world_of(const sim_members_group *g)
{
    return (sim_world *)g->base.world;
}

static device *device_of(const sim_members_group *g)
{
    return g->base.world->config.device;
}

static collective_queued *present(const sim_members_group *g)
{
    const collective_queue *q = collective_queue_at(&g->base, 0);
    return collective_queued_at(q, q->completed + 1);
}

static simulation *simulation_of(const sim_members_group *g)
{
    return sim_device_simulation(device_of(g));
}

/* ---- a call ----------------------------------------------------------------------------------- */

static bool in_host_memory(const collective_buffer *b)
{
    return b->base && !b->pieces.pieces && !sim_address(b->base);
}

/* The running call of a member; NULL: its rank is not present. */
static const collective_call *call_of(const sim_members_group *g, int member)
{
    sim_members_group *other = g->shared->members[member].told.context;
    return other ? &present(other)->call : NULL;
}

static void take_from(const collective_call *to, const collective_call *from, int64_t first, int64_t count)
{
    size_t size = (size_t)dtype_size(to->type);
    const char *source = from->in.base;
    char *target = (char *)to->out.base + (size_t)first * size;
    if (source != target) memmove(target, source, (size_t)count * size);
}

/* Members that are not present are copies of the first. */
static void pass_on(const sim_members_group *g)
{
    const collective_call *call = call_of(g, g->base.rank), *from;
    int n = g->base.size;
    if (!in_host_memory(&call->out) || !in_host_memory(&call->in)) return;
    if (call->kind == COLLECTIVE_BROADCAST && (from = call_of(g, call->root)))
        take_from(call, from, 0, call->count);
    for (int r = 0; call->kind == COLLECTIVE_ALL_GATHER && r < n; r++) {
        from = call_of(g, r);
        take_from(call, from ? from : call_of(g, 0), collective_part_begin(call->count, n, r),
                  collective_part_count(call->count, n, r));
    }
}

/* What the calls of the group take of each GPU. */
static sim_load load_of(const sim_members_group *g)
{
    const sim_rings *r = g->shared->rings;
    return sim_price_collective(simulation_of(g)->profile, r->channels, r->bus);
}

static void on_moving(void *context)
{
    sim_members_group *g = context;
    present(g)->times.started_ns = sim_to_ns(simulation_now(simulation_of(g)));
    bool late = g->shared->members[g->base.rank].at == g->shared->at; /* as late as any other */
    present(g)->times.last_rank = late ? g->base.rank : g->shared->last;
    pass_on(g);
    sim_device_begin_communication(device_of(g), load_of(g));
}

static status join_next(sim_members_group *g, sim_time at);

static void count_traffic(collective_traffic *t, double bytes, int64_t steps)
{
    t->bytes_sent += (int64_t)bytes;
    t->bytes_received += (int64_t)bytes;
    t->messages_sent += steps;
    t->messages_received += steps;
}

/* What a call is to NCCL's model; it does not have the kinds that are not listed. */
static const struct {
    bool possible;
    sim_collective as;
} kinds[COLLECTIVE_KIND_COUNT] = {[COLLECTIVE_BROADCAST] = {true, SIM_BROADCAST},
                                  [COLLECTIVE_REDUCE] = {true, SIM_REDUCE},
                                  [COLLECTIVE_ALL_GATHER] = {true, SIM_ALL_GATHER},
                                  [COLLECTIVE_REDUCE_SCATTER] = {true, SIM_REDUCE_SCATTER},
                                  [COLLECTIVE_ALL_REDUCE] = {true, SIM_ALL_REDUCE},
                                  [COLLECTIVE_BARRIER] = {true, SIM_ALL_REDUCE}}; /* of nothing */

static sim_collective kind_of(const collective_call *call)
{
    return kinds[call->kind].as;
}

static const collective_algorithm names[] = {[SIM_RING] = COLLECTIVE_ALGORITHM_RING,
                                             [SIM_TREE] = COLLECTIVE_ALGORITHM_TREE,
                                             [SIM_TWO_SHOT] = COLLECTIVE_ALGORITHM_TWO_SHOT,
                                             [SIM_HIERARCHICAL] = COLLECTIVE_ALGORITHM_HIERARCHICAL,
                                             [SIM_LIBRARY] = COLLECTIVE_ALGORITHM_LIBRARY};

/* --algorithm governs buckets. */
static sim_algorithm algorithm_of(const sim_members_group *g, const collective_call *call)
{
    int a = SIM_LIBRARY;
    if (call->kind != COLLECTIVE_ALL_REDUCE || call->control) return SIM_RING;
    while (a > SIM_RING && names[a] != g->base.world->config.algorithm) a--;
    return (sim_algorithm)a;
}

static double bytes_of(const collective_call *call)
{
    return call->kind == COLLECTIVE_BARRIER ? 0 : (double)(call->count * dtype_size(call->type));
}

static void on_finished(void *context)
{
    sim_members_group *g = context;
    sim_world *w = world_of(g);
    sim_time now = simulation_now(simulation_of(g));
    collective_queued *slot = present(g);
    sim_device_end_communication(device_of(g), load_of(g));
    slot->times.finished_ns = sim_to_ns(now);
    slot->times.algorithm = names[g->shared->ran];
    sim_collective kind = kind_of(&slot->call);
    count_traffic(&w->base.traffic, sim_group_share(g->shared, kind, bytes_of(&slot->call)),
                  sim_group_messages(g->shared, kind));
    collective_queue_at(&g->base, 0)->completed++;
    g->joined = false;
    w->moved = true;
    g->failure = join_next(g, now);
    sim_actor_wake(w->agent, now);
}

static status join_next(sim_members_group *g, sim_time at)
{
    const collective_queue *q = collective_queue_at(&g->base, 0);
    if (g->joined || q->completed == q->posted) return STATUS_OK;
    sim_group_member told = {.moving = on_moving, .finished = on_finished, .context = g};
    const collective_call *call = &present(g)->call;
    g->joined = true;
    return sim_group_join(g->shared, g->base.rank, at, kind_of(call), algorithm_of(g, call), bytes_of(call), &told);
}

static status sim_post(collective_queue *q)
{
    sim_members_group *g = (sim_members_group *)q->group;
    sim_world *w = world_of(g);
    collective_kind kind = collective_queued_at(q, q->posted)->call.kind;
    if (!kinds[kind].possible)
        return fail(
            STATUS_UNAVAILABLE,
            "collectives in virtual time: expected a reduction, broadcast, all_gather or barrier, got %s",
            collective_kind_name(kind));
    sim_device_spend_launch(device_of(g));
    w->agent = sim_device_actor(device_of(g));
    return join_next(g, w->agent->time);
}

/* ---- groups ----------------------------------------------------------------------------------- */

static status sim_group_of_ranks(collective_group *group, const int *ranks)
{
    sim_members_group *g = (sim_members_group *)group;
    char key[2 * COLLECTIVE_NAME_MAX + 8];
    snprintf(key, sizeof key, "%s/%s", group->world->name, group->name);
    return sim_group_open(simulation_of(g), key, ranks, group->size, &g->shared);
}

static void sim_group_leave(collective_group *group)
{
    sim_members_group *g = (sim_members_group *)group;
    if (g->shared) sim_group_close(&g->shared);
}

/* ---- worlds ----------------------------------------------------------------------------------- */

static status sim_world_open(collective_world *world)
{
    bool virtual = world->config.device && sim_device_simulation(world->config.device);
    return virtual ? STATUS_OK : fail(STATUS_UNAVAILABLE, "collectives: sim is for virtual devices");
}

static status sim_progress(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    sim_world *w = (sim_world *)world;
    (void)now_ns;
    (void)deadline_ns;
    *worked = w->moved;
    w->moved = false;
    return STATUS_OK;
}

/* Virtual agents neither sleep nor are they woken here: events do that. An end is detected by the others: nothing more
 * will happen, and the simulation reports which rank waits for which. */
const collective_type collective_sim = {
    .name = "sim",
    .algorithms = COLLECTIVE_HAS(RING) | COLLECTIVE_HAS(TWO_SHOT) | COLLECTIVE_HAS(TREE) | COLLECTIVE_HAS(HIERARCHICAL) |
                  COLLECTIVE_HAS(LIBRARY),
    .algorithm = COLLECTIVE_ALGORITHM_LIBRARY,
    .world_bytes = sizeof(sim_world),
    .group_bytes = sizeof(sim_members_group),
    .queue_bytes = sizeof(collective_queue),
    .open = sim_world_open,
    .close = collective_default_close,
    .group_open = sim_group_of_ranks,
    .group_close = sim_group_leave,
    .post = sim_post,
    .progress = sim_progress,
    .wait = collective_default_wait,
    .wake = collective_default_wake,
    .abort = collective_default_abort,
};
