/* Collectives in virtual time. The ranks' calls join a group of common/sim/group.h, which computes when data
 * move and when they have arrived. Tensors have no bytes. Only operands in host memory are copied, when all
 * members have joined. These operands are small, for example a list of the ranks that have data. */
#include "common/collectives/collective_impl.h"
#include "common/device/sim/device_sim.h"
#include "common/sim/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct sim_world {
    collective_world base;
    sim_actor *agent; /* Actor that made the last post. It is woken when a call is done. */
    bool moved;       /* True if a call has been completed since the last progress. */
} sim_world;

/* A queue that all members of a group share, or a queue for the sends from one member to another. */
typedef struct sim_calls {
    collective_queue base;
    sim_group *shared; /* The group in virtual time. NULL for a pair of ranks before its first call. */
    int member;
    bool joined; /* True if this member has joined call number completed + 1. */
    status failure;
} sim_calls;

static sim_world *world_of(const sim_calls *q)
{
    return (sim_world *)q->base.group->world;
}

static device *device_of(const sim_calls *q)
{
    return q->base.group->world->config.device;
}

static collective_queued *present(const sim_calls *q)
{
    return collective_queued_at(&q->base, q->base.completed + 1);
}

static simulation *simulation_of(const sim_calls *q)
{
    return sim_device_simulation(device_of(q));
}

/* ---- a call ----------------------------------------------------------------------------------- */

static bool in_host_memory(const collective_buffer *b)
{
    return b->base && !b->pieces.pieces && !sim_address(b->base);
}

/* Returns the running call of a member, or NULL if the simulation does not run this member's rank. */
static const collective_call *call_of(const sim_calls *q, int member)
{
    sim_calls *other = q->shared->members[member].told.context;
    return other ? &present(other)->call : NULL;
}

/* Copies operands in host memory. A rank that the simulation does not run has the same data as member 0. */
static void take_from(const collective_call *to, const collective_call *from, int64_t first, int64_t count)
{
    size_t size = (size_t)dtype_size(to->type);
    memmove((char *)to->out.base + (size_t)first * size, from->in.base, (size_t)count * size);
}

static void pass_on(const sim_calls *q)
{
    const collective_call *call = call_of(q, q->member), *from;
    int n = q->base.group->size;
    if (collective_is_pair(call->kind)) return;
    if (!in_host_memory(&call->out) || !in_host_memory(&call->in)) return;
    if (call->kind == COLLECTIVE_BROADCAST && (from = call_of(q, call->root)))
        take_from(call, from, 0, call->count);
    for (int r = 0; call->kind == COLLECTIVE_ALL_GATHER && r < n; r++) {
        from = call_of(q, r);
        take_from(call, from ? from : call_of(q, 0), collective_part_begin(call->count, n, r),
                  collective_part_count(call->count, n, r));
    }
}

/* Returns the load that the group's calls put on each GPU. */
static sim_load load_of(const sim_calls *q)
{
    const sim_rings *r = q->shared->rings;
    return sim_price_collective(simulation_of(q)->profile, r->channels, r->bus);
}

/* Converts the index of a member in a queue to the member's rank in the group. A queue has all ranks of the
 * group, or only a sender and a receiver. */
static int member_of(const sim_calls *q, int member)
{
    const collective_call *call = &present(q)->call;
    if (!collective_is_pair(call->kind)) return member;
    return member == q->member ? q->base.group->rank : call->root;
}

static void on_moving(void *context)
{
    sim_calls *q = context;
    present(q)->times.started_ns = sim_to_ns(simulation_now(simulation_of(q)));
    /* True if no other member joined later than this one. */
    bool late = q->shared->members[q->member].at == q->shared->at;
    present(q)->times.last_rank = member_of(q, late ? q->member : q->shared->last);
    pass_on(q);
    sim_device_begin_communication(device_of(q), load_of(q));
}

static status join_next(sim_calls *q, sim_time at);

/* For each kind, whether virtual time supports it, and the kind in NCCL's model. */
static const struct {
    bool possible;
    sim_collective as;
} kinds[COLLECTIVE_KIND_COUNT] = {[COLLECTIVE_BROADCAST] = {true, SIM_BROADCAST},
                                  [COLLECTIVE_REDUCE] = {true, SIM_REDUCE},
                                  [COLLECTIVE_ALL_GATHER] = {true, SIM_ALL_GATHER},
                                  [COLLECTIVE_REDUCE_SCATTER] = {true, SIM_REDUCE_SCATTER},
                                  [COLLECTIVE_ALL_REDUCE] = {true, SIM_ALL_REDUCE},
                                  [COLLECTIVE_SEND] = {true, SIM_BROADCAST}, /* a collective of two ranks */
                                  [COLLECTIVE_RECEIVE] = {true, SIM_BROADCAST},
                                  /* A collective without bytes. */
                                  [COLLECTIVE_BARRIER] = {true, SIM_ALL_REDUCE}};

static const collective_algorithm names[] = {[SIM_RING] = COLLECTIVE_ALGORITHM_RING,
                                             [SIM_TREE] = COLLECTIVE_ALGORITHM_TREE,
                                             [SIM_TWO_SHOT] = COLLECTIVE_ALGORITHM_TWO_SHOT,
                                             [SIM_HIERARCHICAL] = COLLECTIVE_ALGORITHM_HIERARCHICAL,
                                             [SIM_LIBRARY] = COLLECTIVE_ALGORITHM_LIBRARY};

/* Returns the algorithm of a call. --algorithm applies only to the all-reduce of buckets. */
static sim_algorithm algorithm_of(const sim_calls *q, const collective_call *call)
{
    int a = SIM_LIBRARY;
    if (call->kind != COLLECTIVE_ALL_REDUCE || call->control) return SIM_RING;
    while (a > SIM_RING && names[a] != q->base.group->world->config.algorithm) a--;
    return (sim_algorithm)a;
}

static void on_finished(void *context)
{
    sim_calls *q = context;
    sim_world *w = world_of(q);
    sim_time now = simulation_now(simulation_of(q));
    collective_queued *slot = present(q);
    sim_device_end_communication(device_of(q), load_of(q));
    slot->times.finished_ns = sim_to_ns(now);
    slot->times.algorithm = names[q->shared->ran];
    sim_collective kind = kinds[slot->call.kind].as;
    collective_count_call(&w->base, slot->call.kind,
                          (int64_t)sim_group_share(q->shared, kind, (double)collective_bytes(&slot->call)),
                          sim_group_messages(q->shared, kind));
    q->base.completed++;
    q->joined = false;
    w->moved = true;
    q->failure = join_next(q, now);
    sim_actor_wake(w->agent, now);
}

static status join_next(sim_calls *q, sim_time at)
{
    if (q->joined || q->base.completed == q->base.posted) return STATUS_OK;
    sim_group_member told = {.moving = on_moving, .finished = on_finished, .context = q};
    const collective_call *call = &present(q)->call;
    q->joined = true;
    return sim_group_join(q->shared, q->member, at, kinds[call->kind].as, algorithm_of(q, call),
                          (double)collective_bytes(call), &told);
}

/* Returns the number that rank 0 of the world has in the simulation. */
static int first_rank(const collective_world *world)
{
    return sim_device_host(world->config.device)->rank - world->config.rank;
}

/* Opens the group of a sender and a receiver. Both ranks compute the same name, and find the group by this
 * name. */
static status open_pair(sim_calls *q, const collective_call *call)
{
    const collective_group *g = q->base.group;
    int first = first_rank(g->world), own = first + g->ranks[g->rank], peer = first + g->ranks[call->root];
    int from = call->kind == COLLECTIVE_SEND ? own : peer, to = call->kind == COLLECTIVE_SEND ? peer : own;
    int ranks[2] = {from < to ? from : to, from < to ? to : from};
    char key[2 * COLLECTIVE_NAME_MAX];
    snprintf(key, sizeof key, "%s: %d to %d", g->world->name, from, to);
    q->member = own == ranks[1];
    return sim_group_open(simulation_of(q), key, ranks, 2, &q->shared);
}

static status sim_post(collective_queue *queue)
{
    sim_calls *q = (sim_calls *)queue;
    sim_world *w = world_of(q);
    const collective_call *call = &collective_queued_at(queue, queue->posted)->call;
    collective_kind kind = call->kind;
    bool own_queue = queue != collective_queue_at(queue->group, 0);
    if (!kinds[kind].possible || collective_is_pair(call->kind) != own_queue)
        return fail(STATUS_UNAVAILABLE,
                    "collectives in virtual time: expected a reduction, broadcast, all_gather, send, receive "
                    "or barrier, got %s",
                    collective_kind_name(kind));
    if (!q->shared) TRY(open_pair(q, call));
    sim_device_spend_launch(device_of(q));
    w->agent = sim_device_actor(device_of(q));
    return join_next(q, w->agent->time);
}

/* ---- groups ----------------------------------------------------------------------------------- */

static status sim_group_of_ranks(collective_group *group)
{
    sim_calls *all = (sim_calls *)collective_queue_at(group, 0);
    int first = first_rank(group->world);
    char key[2 * COLLECTIVE_NAME_MAX + 16];
    int *ranks = calloc((size_t)group->size, sizeof *ranks);
    if (!ranks) return fail(STATUS_SYSTEM, "no memory for a group of %d ranks", group->size);
    for (int i = 0; i < group->size; i++) ranks[i] = first + group->ranks[i];
    snprintf(key, sizeof key, "%s/%s/%d", group->world->name, group->name, first);
    all->member = group->rank;
    status rc = sim_group_open(simulation_of(all), key, ranks, group->size, &all->shared);
    free(ranks);
    return rc;
}

static void sim_group_leave(collective_group *group)
{
    for (int i = 0; i < group->queue_count; i++) {
        sim_calls *q = (sim_calls *)collective_queue_at(group, i);
        if (q->shared) sim_group_close(&q->shared);
    }
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

/* Events resume the ranks, so waits and wake-ups do nothing. If a rank ends early, no more events happen.
 * Then the simulation reports which rank waits for which other rank. */
const collective_type collective_sim = {
    .name = "sim",
    .algorithms = COLLECTIVE_HAS(RING) | COLLECTIVE_HAS(TWO_SHOT) | COLLECTIVE_HAS(TREE) |
                  COLLECTIVE_HAS(HIERARCHICAL) | COLLECTIVE_HAS(LIBRARY),
    .algorithm = COLLECTIVE_ALGORITHM_LIBRARY,
    .world_bytes = sizeof(sim_world),
    .group_bytes = sizeof(collective_group),
    .queue_bytes = sizeof(sim_calls),
    .pairs = true,
    .pairs_on_request = true,
    .open = sim_world_open,
    .group_open = sim_group_of_ranks,
    .group_close = sim_group_leave,
    .post = sim_post,
    .progress = sim_progress,
};
