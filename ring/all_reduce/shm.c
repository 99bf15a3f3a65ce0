/* Collectives over shared memory: worlds with their doorbells, groups with their slots, and the choice of
 * the algorithm of a call. */
#include "ring/all_reduce/shm.h"
#include "common/base/processor.h"
#include "common/collectives/tuning.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    /* Number of checks before the first yield. The number is small, because the awaited rank may need this
     * processor. */
    SPIN_ROUNDS = 20,
    YIELD_NS = 100000,    /* Time for which a waiting thread yields before its first sleep. */
    SLEEP_NS = 100000000, /* Longest sleep between two checks of the peers. */
};

/* ---- worlds ----------------------------------------------------------------------------------- */

/* Passes the segments of this rank to the other members of an exchange, and maps the segments of the other
 * members. */
static status exchange(const collective_config *c, shm_exchange_options options, shm_segment *peers)
{
    options.token = c->job_token;
    options.deadline_ns = collective_deadline(clock_now_ns(), c->connect_timeout_ns);
    options.canceled = c->canceled;
    options.context = c->canceled_context;
    return shm_exchange(&options, peers);
}

static void watch_processes(shm_world *w)
{
    for (int r = 0; r < w->base.config.world; r++) {
        pid_t pid = atomic_load_explicit(&w->bells[r]->pid, memory_order_acquire);
        if (pid != getpid()) w->death_fds[r] = (int)syscall(SYS_pidfd_open, pid, 0);
    }
}

static status shm_world_open(collective_world *world)
{
    shm_world *w = (shm_world *)world;
    const collective_config *c = &world->config;
    for (int r = 0; r < SHM_MAX_RANKS; r++) w->death_fds[r] = -1;
    if (c->world < 1 || c->world > SHM_MAX_RANKS)
        return fail(STATUS_CONFIG, "collectives over shared memory: expected 1 to %d ranks, got %d",
                    SHM_MAX_RANKS, c->world);
    if (c->window_count > COLLECTIVE_MAX_WINDOWS)
        return fail(STATUS_INTERNAL, "collectives over shared memory: %d windows", c->window_count);
    if (c->algorithm == COLLECTIVE_ALGORITHM_TUNED && !c->tuning)
        return fail(STATUS_INTERNAL, "collectives over shared memory: tuned without a table");
    w->adapter.link = c->link;
    w->peers = calloc((size_t)c->world * (size_t)(1 + c->window_count), sizeof *w->peers);
    if (!w->peers) return fail(STATUS_SYSTEM, "no memory for collectives");
    TRY(shm_create("ring bell", sizeof(shm_bell), &w->bell_segment));
    shm_bell *own = w->bell_segment.data;
    atomic_store_explicit(&own->pid, getpid(), memory_order_release);
    shm_segment segments[1 + COLLECTIVE_MAX_WINDOWS] = {w->bell_segment};
    for (int i = 0; i < c->window_count; i++) {
        w->windows[i] = c->windows[i];
        segments[1 + i] = (shm_segment){w->windows[i].fd, w->windows[i].data, w->windows[i].bytes};
    }
    char name[64];
    snprintf(name, sizeof name, "ring world %s", c->name);
    TRY(exchange(
        c,
        (shm_exchange_options){
            .name = name, .rank = c->rank, .world = c->world, .own = segments, .count = 1 + c->window_count},
        w->peers));
    for (int r = 0; r < c->world; r++)
        w->bells[r] = r == c->rank ? own : w->peers[r * (1 + c->window_count)].data;
    watch_processes(w);
    return STATUS_OK;
}

static void shm_world_close(collective_world *world)
{
    shm_world *w = (shm_world *)world;
    int count = world->config.world * (1 + world->config.window_count);
    for (int i = 0; w->peers && i < count; i++) shm_close(&w->peers[i]);
    for (int r = 0; r < SHM_MAX_RANKS; r++)
        if (w->death_fds[r] >= 0) close(w->death_fds[r]);
    shm_close(&w->bell_segment);
    free(w->peers);
}

/* ---- bells ------------------------------------------------------------------------------------ */

void shm_ring_bell(shm_world *world, int rank)
{
    doorbell *bell = &world->bells[rank]->bell;
    if (doorbell_has_sleepers(bell)) doorbell_ring(bell);
}

static void shm_world_wake(collective_world *world)
{
    doorbell_ring(&((shm_world *)world)->bells[world->config.rank]->bell);
}

/* Returns true if the doorbell has rung since the last call of progress, or if a call can advance. Sets *idle
 * to true if only the doorbell or the known arrival time of a transfer can end the wait. */
static bool something_happened(shm_world *w, bool *idle)
{
    *idle = true;
    if (doorbell_rings(&w->bells[w->base.config.rank]->bell) != w->base.seen) return true;
    for (collective_group *g = w->base.groups; g; g = g->next) {
        shm_queue *queues = (shm_queue *)g->queues;
        for (shm_queue *q = queues; q < queues + g->queue_count; q++) {
            if (q->base.completed == q->base.posted) continue;
            if (q->charged && q->due_ns > 0) continue; /* The arrival time is known. */
            *idle = false;
            if (shm_queue_may_advance(q)) return true;
        }
    }
    return false;
}

static void sleep_on_bell(shm_world *w, int64_t deadline_ns)
{
    doorbell *own = &w->bells[w->base.config.rank]->bell;
    bool idle;
    doorbell_enter(own);
    if (!something_happened(w, &idle)) {
        int64_t check_ns = clock_now_ns() + SLEEP_NS;
        doorbell_sleep(own, w->base.seen, deadline_ns < check_ns ? deadline_ns : check_ns);
    }
    doorbell_leave(own);
}

static void shm_world_wait(collective_world *world, int64_t deadline_ns)
{
    shm_world *w = (shm_world *)world;
    bool idle;
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (something_happened(w, &idle)) return;
        if (idle) break;
        processor_pause();
    }
    /* Waits are long if a link is emulated, so the thread then sleeps instead of yielding. Another program
     * may keep the processor for 4 ms after a yield, but not after a sleep. */
    bool yields = !net_link_is_emulated(&w->adapter.link);
    for (int64_t until = clock_now_ns() + YIELD_NS; yields && !idle && clock_now_ns() < until;) {
        if (something_happened(w, &idle)) return;
        sched_yield();
    }
    sleep_on_bell(w, deadline_ns);
}

/* ---- peers ------------------------------------------------------------------------------------ */

static void shm_world_abort(collective_world *world, const error_record *why)
{
    shm_world *w = (shm_world *)world;
    shm_bell *own = w->bells[world->config.rank];
    own->code = (int32_t)why->code;
    snprintf(own->message, sizeof own->message, "%s", why->message);
    atomic_store_explicit(&own->gave_up, true, memory_order_release);
    for (int r = 0; r < world->config.world; r++)
        if (r != world->config.rank) doorbell_ring(&w->bells[r]->bell);
}

static bool is_dead(const shm_world *w, int rank)
{
    if (w->death_fds[rank] < 0) return false;
    struct pollfd fd = {.fd = w->death_fds[rank], .events = POLLIN};
    return poll(&fd, 1, 0) == 1;
}

static status peer_gave_up(const shm_bell *bell, int rank)
{
    int code = bell->code > STATUS_OK && bell->code < STATUS_COUNT ? bell->code : STATUS_PEER;
    return fail((status)code, "rank %d gave up: %.*s", rank, (int)sizeof bell->message - 1, bell->message);
}

status shm_check_peers(shm_world *w, shm_queue *q)
{
    for (int m = 0; m < q->size; m++) {
        if (!(q->unmet >> m & 1)) continue;
        int rank = q->members[m].rank;
        shm_bell *bell = w->bells[rank];
        bool gave_up = atomic_load_explicit(&bell->gave_up, memory_order_acquire);
        if (!gave_up && !is_dead(w, rank)) continue;
        /* The peer published the awaited step before it gave up or died. */
        if (shm_queue_may_advance(q)) return STATUS_OK;
        if (!(q->unmet >> m & 1)) continue;
        if (gave_up) return peer_gave_up(bell, rank);
        char text[128];
        return fail(STATUS_PEER, "rank %d (process %d) is gone; rank %d waits for it in %s", rank,
                    atomic_load_explicit(&bell->pid, memory_order_relaxed), w->base.config.rank,
                    collective_call_format(q->call, text, sizeof text));
    }
    return STATUS_OK;
}

/* ---- groups ----------------------------------------------------------------------------------- */

/* A member's segment contains the member's slot of queue 0, then a slot for each rank to which it can send,
 * then a slot for each rank from which it can receive. A receiver exposes no operand, so its slot has no
 * areas. */
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

static char *segment_of(const shm_group *g, int member)
{
    return member == g->base.rank ? g->own.data : g->peers[member].data;
}

/* Returns the slot of `owner` in the queue for its sends to `to`. receive_slot() returns the slot of `owner`
 * in the queue for its receives from `from`. */
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

static void init_queue(shm_queue *q, shm_member *members, int size, int me, bool pair)
{
    const collective_config *c = &q->base.group->world->config;
    q->members = members;
    q->size = size;
    q->me = me;
    q->area_bytes = pair ? SHM_PAIR_INLINE_BYTES : SHM_INLINE_BYTES;
    q->inline_bytes = limited(q->area_bytes, c->inline_bytes);
    q->staging_bytes = limited(pair ? SHM_PAIR_STAGING_BYTES : SHM_STAGING_BYTES, c->staging_bytes);
}

static void init_queues(shm_group *g)
{
    const int *ranks = g->base.ranks;
    int n = g->base.size, me = g->base.rank;
    shm_queue *queues = (shm_queue *)g->base.queues;
    shm_member *next = g->members;
    for (int m = 0; m < n; m++) next[m] = (shm_member){ranks[m], (shm_slot *)segment_of(g, m)};
    init_queue(queues, next, n, me, false);
    next += n;
    for (int peer = 0; peer < n; peer++) {
        if (peer == me) continue;
        for (int sends = 0; sends < 2; sends++, next += 2) { /* The sender is member 0. */
            int from = sends ? me : peer, to = sends ? peer : me;
            next[0] = (shm_member){ranks[from], (shm_slot *)send_slot(g, from, to)};
            next[1] = (shm_member){ranks[to], (shm_slot *)receive_slot(g, to, from)};
            init_queue(&queues[1 + peer + (sends ? 0 : n)], next, 2, sends ? 0 : 1, true);
        }
    }
}

static status shm_group_open(collective_group *group)
{
    shm_group *g = (shm_group *)group;
    const collective_config *c = &group->world->config;
    char name[96];
    g->peers = calloc((size_t)group->size, sizeof *g->peers);
    g->members = calloc((size_t)(5 * group->size), sizeof *g->members);
    if (!g->peers || !g->members) return fail(STATUS_SYSTEM, "no memory for group '%s'", group->name);
    snprintf(name, sizeof name, "ring group %s %s", c->name, group->name);
    TRY(shm_create("ring group", segment_bytes(group->size), &g->own));
    TRY(exchange(c,
                 (shm_exchange_options){.name = name,
                                        .rank = group->rank,
                                        .world = group->size,
                                        .numbers = group->ranks,
                                        .group = group->name,
                                        .own = &g->own,
                                        .count = 1},
                 g->peers));
    init_queues(g);
    return STATUS_OK;
}

static void shm_group_close(collective_group *group)
{
    shm_group *g = (shm_group *)group;
    for (int m = 0; g->peers && m < group->size; m++) shm_close(&g->peers[m]);
    shm_close(&g->own);
    free(g->peers);
    free(g->members);
}

/* ---- algorithms ------------------------------------------------------------------------------- */

const shm_algorithm *shm_choose_algorithm(const shm_queue *q, const collective_call *call)
{
#define ROW(upper, lower, name) [COLLECTIVE_ALGORITHM_##upper] = &shm_algorithm_##lower,
    static const shm_algorithm *const algorithms[COLLECTIVE_ALGORITHM_COUNT] = {COLLECTIVE_SHM_LIST(ROW)};
#undef ROW
    const collective_config *c = &q->base.group->world->config;
    collective_algorithm a = c->algorithm;
    if (call->control || q->size == 1) return &shm_algorithm_two_shot;
    if (a == COLLECTIVE_ALGORITHM_TUNED)
        a = collective_tuning_choose(c->tuning, q->size, collective_bytes(call));
    return algorithms[a]->kinds >> call->kind & 1 ? algorithms[a] : &shm_algorithm_two_shot;
}

#define HAS(upper, lower, name) | COLLECTIVE_HAS(upper)
const collective_type collective_shm = {
    .name = "shm",
    .algorithms = COLLECTIVE_HAS(TUNED) COLLECTIVE_SHM_LIST(HAS),
    .algorithm = COLLECTIVE_ALGORITHM_RING,
    .world_bytes = sizeof(shm_world),
    .group_bytes = sizeof(shm_group),
    .queue_bytes = sizeof(shm_queue),
    .pairs = true,
    .open = shm_world_open,
    .close = shm_world_close,
    .group_open = shm_group_open,
    .group_close = shm_group_close,
    .post = shm_queue_post,
    .progress = shm_queue_progress,
    .wait = shm_world_wait,
    .wake = shm_world_wake,
    .abort = shm_world_abort,
};
