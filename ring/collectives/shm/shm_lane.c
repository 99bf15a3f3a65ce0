/* The life of a call: queued, arriving, then round by round to its end. */
#include "common/base/clock.h"
#include "common/base/text.h"
#include "ring/collectives/shm/shm_internal.h"

#include <stdio.h>

enum { PEER_CHECK_NS = 1000000 }; /* how often a blocked world looks after its peers */

static uint64_t position_of(uint64_t sequence, uint64_t step)
{
    return sequence << SHM_STEP_BITS | step;
}

static shm_queued *queued(const shm_lane *lane, uint64_t sequence)
{
    return &lane->queue[sequence % (uint64_t)lane->queue_size];
}

static shm_world *world_of(const shm_lane *lane)
{
    return (shm_world *)lane->group->base.world;
}

/* ---- steps ------------------------------------------------------------------------------------ */

void shm_publish(shm_lane *lane, int64_t steps, uint64_t whom)
{
    lane->step += (uint64_t)steps;
    atomic_store_explicit(&lane->members[lane->me].slot->position,
                          position_of(lane->completed + 1, lane->step), memory_order_seq_cst);
    for (int m = 0; m < lane->size; m++)
        if (whom >> m & 1) shm_ring_bell(world_of(lane), lane->members[m].rank);
}

void shm_await(shm_lane *lane, uint64_t step, uint64_t whom)
{
    lane->target = position_of(lane->completed + 1, step);
    lane->charged = false;
    lane->unmet = whom;
}

bool shm_lane_may_advance(shm_lane *lane)
{
    uint64_t left = lane->unmet;
    while (left) {
        int m = __builtin_ctzll(left);
        if (atomic_load_explicit(&lane->members[m].slot->position, memory_order_seq_cst) < lane->target)
            break;
        left &= left - 1;
    }
    lane->unmet = left;
    return left == 0;
}

/* ---- errors ----------------------------------------------------------------------------------- */

static status check_same_call(const shm_lane *lane)
{
    const shm_description *own = &lane->members[lane->me].slot->calls[(lane->completed + 1) & 1];
    for (int m = 0; m < lane->size; m++) {
        const shm_description *d = &lane->members[m].slot->calls[(lane->completed + 1) & 1];
        bool pair = lane != &lane->group->lanes[0]; /* a send meets a receive */
        if ((pair || (d->kind == own->kind && d->root == own->root)) && d->op == own->op &&
            d->type == own->type && d->tag == own->tag && d->count == own->count)
            continue;
        char theirs[128], ours[128];
        collective_call other = {d->kind, d->op, d->type, d->root, d->tag, d->count, {0}, {0}};
        return fail(STATUS_PROTOCOL, "call %llu of group '%s': rank %d makes %s, rank %d makes %s",
                    (unsigned long long)lane->completed + 1, lane->group->base.name, lane->members[m].rank,
                    collective_call_format(&other, theirs, sizeof theirs), lane->members[lane->me].rank,
                    collective_call_format(lane->call, ours, sizeof ours));
    }
    return STATUS_OK;
}

/* Those furthest behind: in a ring a rank may wait for one that itself waits. */
static void name_late_ranks(const shm_lane *lane, char *text, size_t size)
{
    uint64_t positions[SHM_MAX_RANKS], last = UINT64_MAX;
    size_t used = 0;
    for (int m = 0; m < lane->size; m++) {
        positions[m] = atomic_load_explicit(&lane->members[m].slot->position, memory_order_acquire);
        if (m != lane->me && positions[m] < last) last = positions[m];
    }
    text[0] = '\0';
    for (int m = 0; m < lane->size && used < size; m++)
        if (m != lane->me && positions[m] == last)
            used +=
                (size_t)snprintf(text + used, size - used, "%s%d", used ? ", " : "", lane->members[m].rank);
}

static status stalled(const shm_lane *lane)
{
    char call[128], limit[32], late[256];
    int64_t timeout_ns = lane->group->base.world->config.stall_timeout_ns;
    name_late_ranks(lane, late, sizeof late);
    return fail(STATUS_PEER, "%s (call %llu of group '%s'): no progress for %s, rank %d waits for rank %s",
                collective_call_format(lane->call, call, sizeof call),
                (unsigned long long)lane->completed + 1, lane->group->base.name,
                text_format_duration(limit, sizeof limit, (double)timeout_ns), lane->members[lane->me].rank,
                late);
}

/* ---- a call ----------------------------------------------------------------------------------- */

static void begin_call(shm_lane *lane)
{
    int64_t now_ns = clock_now_ns(); /* a call may have been posted since the caller looked */
    uint64_t sequence = lane->completed + 1;
    lane->call = &queued(lane, sequence)->call;
    lane->in = view_of(&lane->call->in, lane->call->type);
    lane->out = view_of(&lane->call->out, lane->call->type);
    lane->step = 0;
    lane->since_ns = now_ns;
    lane->algorithm = world_of(lane)->choose(lane, lane->call);
    shm_place_own_part(lane);
    lane->mode = shm_fits_inline(lane) ? SHM_INLINE : SHM_STAGED;
    if (lane->mode == SHM_INLINE) {
        shm_first_round(lane);
        shm_copy_in(lane);
    }
    lane->members[lane->me].slot->calls[sequence & 1] = shm_describe(lane, now_ns);
    shm_publish(lane, 1, shm_everyone(lane));
    shm_await(lane, 1, shm_everyone(lane));
    lane->phase = SHM_ARRIVING;
}

static void leave(shm_lane *lane, int64_t now_ns)
{
    collective_times *times = &queued(lane, lane->completed + 1)->times;
    times->finished_ns = now_ns > times->started_ns ? now_ns : times->started_ns;
    shm_count_traffic(lane);
    lane->phase = SHM_IDLE;
    lane->completed++;
}

static void end_call(shm_lane *lane, int64_t now_ns)
{
    if (shm_charge_call(lane, queued(lane, lane->completed + 1)->times.started_ns))
        lane->phase = SHM_LEAVING;
    else
        leave(lane, now_ns);
}

/* Copies in where staged; the round runs when all have. */
static void begin_round(shm_lane *lane)
{
    lane->phase = SHM_PREPARED;
    if (lane->mode == SHM_IN_PLACE) return;
    shm_copy_in(lane);
    shm_publish(lane, 1, shm_everyone(lane));
    shm_await(lane, lane->step, shm_everyone(lane));
}

/* The same moment on all ranks, however late one of them gets a processor to notice it. */
static int64_t last_arrival_ns(const shm_lane *lane)
{
    int64_t last = 0;
    for (int m = 0; m < lane->size; m++) {
        int64_t arrived = lane->members[m].slot->calls[(lane->completed + 1) & 1].arrived_ns;
        if (arrived > last) last = arrived;
    }
    return last;
}

static status all_have_arrived(shm_lane *lane, int64_t now_ns)
{
    TRY(check_same_call(lane));
    queued(lane, lane->completed + 1)->times.started_ns = last_arrival_ns(lane);
    if (lane->mode == SHM_INLINE) {
        shm_run_inline(lane);
        end_call(lane, now_ns);
        return STATUS_OK;
    }
    if (shm_can_be_in_place(lane)) lane->mode = SHM_IN_PLACE;
    shm_first_round(lane);
    begin_round(lane);
    return STATUS_OK;
}

static void end_round(shm_lane *lane, int64_t now_ns)
{
    if (lane->mode == SHM_STAGED) lane->algorithm->copy_out(lane);
    if (shm_next_round(lane))
        begin_round(lane);
    else
        end_call(lane, now_ns);
}

/* The last wait is over: goes on to the next. */
static status advance(shm_lane *lane, int64_t now_ns)
{
    lane->since_ns = now_ns;
    switch (lane->phase) {
    case SHM_IDLE:
        begin_call(lane);
        return STATUS_OK;
    case SHM_ARRIVING:
        return all_have_arrived(lane, now_ns);
    case SHM_PREPARED:
        lane->algorithm->begin_round(lane);
        lane->phase = SHM_RUNNING;
        return STATUS_OK;
    case SHM_RUNNING:
        if (lane->algorithm->advance(lane)) end_round(lane, now_ns);
        return STATUS_OK;
    case SHM_LEAVING:
        leave(lane, now_ns);
        return STATUS_OK;
    }
    return STATUS_OK;
}

/* ---- the interface ---------------------------------------------------------------------------- */

static int lane_index(const shm_group *g, const collective_call *call)
{
    if (call->kind == COLLECTIVE_SEND) return 1 + call->root;
    if (call->kind == COLLECTIVE_RECEIVE) return 1 + g->base.size + call->root;
    return 0;
}

status shm_lane_post(collective_group *group, const collective_call *call, collective_ticket *out)
{
    shm_group *g = (shm_group *)group;
    int index = lane_index(g, call);
    shm_lane *lane = &g->lanes[index];
    if (lane->posted - lane->completed == (uint64_t)lane->queue_size) return STATUS_AGAIN;
    *queued(lane, ++lane->posted) = (shm_queued){.call = *call};
    *out = (collective_ticket){index, lane->posted};
    if (lane->phase == SHM_IDLE) begin_call(lane);
    return STATUS_OK;
}

bool shm_lane_done(const collective_group *group, collective_ticket ticket)
{
    return ((const shm_group *)group)->lanes[ticket.lane].completed >= ticket.sequence;
}

collective_times shm_lane_times(const collective_group *group, collective_ticket ticket)
{
    return queued(&((const shm_group *)group)->lanes[ticket.lane], ticket.sequence)->times;
}

static status progress_lane(shm_world *w, shm_lane *lane, int64_t now_ns, bool look, int64_t *deadline_ns,
                            bool *worked)
{
    if (lane->completed == lane->posted) return STATUS_OK;
    if (lane->phase == SHM_IDLE || shm_lane_may_advance(lane)) {
        if (!shm_is_due(lane, now_ns)) {
            if (lane->due_ns < *deadline_ns) *deadline_ns = lane->due_ns;
            return STATUS_OK;
        }
        *worked = true;
        TRY(advance(lane, now_ns));
        if (lane->completed == lane->posted) return STATUS_OK;
    } else if (look) {
        TRY(shm_check_peers(w, lane));
        if (lane->unmet && now_ns - lane->since_ns >= w->base.config.stall_timeout_ns) return stalled(lane);
    }
    int64_t deadline = collective_deadline(lane->since_ns, w->base.config.stall_timeout_ns);
    if (deadline < *deadline_ns) *deadline_ns = deadline;
    return STATUS_OK;
}

status shm_lane_progress(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    shm_world *w = (shm_world *)world;
    unsigned word = atomic_load_explicit(&w->bells[world->config.rank]->word, memory_order_seq_cst);
    bool look = word != w->seen || now_ns - w->checked_ns >= PEER_CHECK_NS;
    w->seen = word;
    if (look) w->checked_ns = now_ns;
    for (shm_lane *lane = w->lanes; lane; lane = lane->next)
        TRY(progress_lane(w, lane, now_ns, look, deadline_ns, worked));
    return STATUS_OK;
}
