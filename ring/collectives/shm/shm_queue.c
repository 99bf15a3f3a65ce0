/* A call from start to end: queued, arriving, then round by round. */
#include "common/base/clock.h"
#include "common/base/text.h"
#include "ring/collectives/shm/shm_internal.h"

#include <stdio.h>

enum { PEER_CHECK_NS = 1000000 }; /* how often a blocked world checks its peers */

static uint64_t position_of(uint64_t sequence, uint64_t step)
{
    return sequence << SHM_STEP_BITS | step;
}

static shm_queued *queued(const shm_queue *q, uint64_t sequence)
{
    return &q->calls[sequence % (uint64_t)q->capacity];
}

static shm_world *world_of(const shm_queue *q)
{
    return (shm_world *)q->group->base.world;
}

/* ---- steps ------------------------------------------------------------------------------------ */

void shm_publish(shm_queue *q, int64_t steps, uint64_t whom)
{
    q->step += (uint64_t)steps;
    atomic_store_explicit(&q->members[q->me].slot->position, position_of(q->completed + 1, q->step),
                          memory_order_seq_cst);
    for (int m = 0; m < q->size; m++)
        if (whom >> m & 1) shm_ring_bell(world_of(q), q->members[m].rank);
}

void shm_await(shm_queue *q, uint64_t step, uint64_t whom)
{
    q->target = position_of(q->completed + 1, step);
    q->charged = false;
    q->unmet = whom;
}

bool shm_queue_may_advance(shm_queue *q)
{
    uint64_t left = q->unmet;
    while (left) {
        int m = __builtin_ctzll(left);
        if (atomic_load_explicit(&q->members[m].slot->position, memory_order_seq_cst) < q->target) break;
        left &= left - 1;
    }
    q->unmet = left;
    return left == 0;
}

/* ---- errors ----------------------------------------------------------------------------------- */

static status check_same_call(const shm_queue *q)
{
    const shm_description *own = &q->members[q->me].slot->calls[(q->completed + 1) & 1];
    for (int m = 0; m < q->size; m++) {
        const shm_description *d = &q->members[m].slot->calls[(q->completed + 1) & 1];
        bool pair = q != &q->group->queues[0]; /* a send meets a receive */
        if ((pair || (d->kind == own->kind && d->root == own->root)) && d->op == own->op && d->type == own->type &&
            d->tag == own->tag && d->count == own->count)
            continue;
        char theirs[128], ours[128];
        collective_call other = {d->kind, d->op, d->type, d->root, d->tag, d->count, {0}, {0}};
        return fail(STATUS_PROTOCOL, "call %llu of group '%s': rank %d makes %s, rank %d makes %s",
                    (unsigned long long)q->completed + 1, q->group->base.name, q->members[m].rank,
                    collective_call_format(&other, theirs, sizeof theirs), q->members[q->me].rank,
                    collective_call_format(q->call, ours, sizeof ours));
    }
    return STATUS_OK;
}

/* The ranks that are furthest behind: in a ring a rank may wait for one that itself waits. */
static void name_late_ranks(const shm_queue *q, char *text, size_t size)
{
    uint64_t positions[SHM_MAX_RANKS], last = UINT64_MAX;
    size_t used = 0;
    for (int m = 0; m < q->size; m++) {
        positions[m] = atomic_load_explicit(&q->members[m].slot->position, memory_order_acquire);
        if (m != q->me && positions[m] < last) last = positions[m];
    }
    text[0] = '\0';
    for (int m = 0; m < q->size && used < size; m++)
        if (m != q->me && positions[m] == last)
            used += (size_t)snprintf(text + used, size - used, "%s%d", used ? ", " : "", q->members[m].rank);
}

static status stalled(const shm_queue *q)
{
    char call[128], limit[32], late[256];
    int64_t timeout_ns = q->group->base.world->config.stall_timeout_ns;
    name_late_ranks(q, late, sizeof late);
    return fail(STATUS_PEER, "%s (call %llu of group '%s'): no progress for %s, rank %d waits for rank %s",
                collective_call_format(q->call, call, sizeof call), (unsigned long long)q->completed + 1,
                q->group->base.name, text_format_duration(limit, sizeof limit, (double)timeout_ns),
                q->members[q->me].rank, late);
}

/* ---- a call ----------------------------------------------------------------------------------- */

static void begin_call(shm_queue *q)
{
    int64_t now_ns = clock_now_ns(); /* a call may have been posted since the caller read its clock */
    uint64_t sequence = q->completed + 1;
    q->call = &queued(q, sequence)->call;
    q->in = piece_buffer_of(&q->call->in, q->call->type);
    q->out = piece_buffer_of(&q->call->out, q->call->type);
    q->step = 0;
    q->since_ns = now_ns;
    q->algorithm = world_of(q)->choose(q, q->call);
    shm_place_own_part(q);
    q->mode = shm_fits_inline(q) ? SHM_INLINE : SHM_STAGED;
    if (q->mode == SHM_INLINE) {
        shm_first_round(q);
        shm_copy_in(q);
    }
    q->members[q->me].slot->calls[sequence & 1] = shm_describe(q, now_ns);
    shm_publish(q, 1, shm_everyone(q));
    shm_await(q, 1, shm_everyone(q));
    q->phase = SHM_ARRIVING;
}

static void leave(shm_queue *q, int64_t now_ns)
{
    collective_times *times = &queued(q, q->completed + 1)->times;
    times->finished_ns = now_ns > times->started_ns ? now_ns : times->started_ns;
    shm_count_traffic(q);
    q->phase = SHM_IDLE;
    q->completed++;
}

static void end_call(shm_queue *q, int64_t now_ns)
{
    if (shm_charge_call(q, queued(q, q->completed + 1)->times.started_ns))
        q->phase = SHM_LEAVING;
    else
        leave(q, now_ns);
}

/* Copies in where staged; the round runs when all have. */
static void begin_round(shm_queue *q)
{
    q->phase = SHM_PREPARED;
    if (q->mode == SHM_IN_PLACE) return;
    shm_copy_in(q);
    shm_publish(q, 1, shm_everyone(q));
    shm_await(q, q->step, shm_everyone(q));
}

/* The same time on all ranks, however late one of them gets a processor to see it. */
static int64_t last_arrival_ns(const shm_queue *q)
{
    int64_t last = 0;
    for (int m = 0; m < q->size; m++) {
        int64_t arrived = q->members[m].slot->calls[(q->completed + 1) & 1].arrived_ns;
        if (arrived > last) last = arrived;
    }
    return last;
}

static status all_have_arrived(shm_queue *q, int64_t now_ns)
{
    TRY(check_same_call(q));
    queued(q, q->completed + 1)->times.started_ns = last_arrival_ns(q);
    if (q->mode == SHM_INLINE) {
        shm_run_inline(q);
        end_call(q, now_ns);
        return STATUS_OK;
    }
    if (shm_can_be_in_place(q)) q->mode = SHM_IN_PLACE;
    shm_first_round(q);
    begin_round(q);
    return STATUS_OK;
}

static void end_round(shm_queue *q, int64_t now_ns)
{
    if (q->mode == SHM_STAGED) q->algorithm->copy_out(q);
    if (shm_next_round(q))
        begin_round(q);
    else
        end_call(q, now_ns);
}

/* What was waited for has happened: continues up to the next wait. */
static status advance(shm_queue *q, int64_t now_ns)
{
    q->since_ns = now_ns;
    switch (q->phase) {
    case SHM_IDLE:
        begin_call(q);
        return STATUS_OK;
    case SHM_ARRIVING:
        return all_have_arrived(q, now_ns);
    case SHM_PREPARED:
        q->algorithm->begin_round(q);
        q->phase = SHM_RUNNING;
        return STATUS_OK;
    case SHM_RUNNING:
        if (q->algorithm->advance(q)) end_round(q, now_ns);
        return STATUS_OK;
    case SHM_LEAVING:
        leave(q, now_ns);
        return STATUS_OK;
    }
    return STATUS_OK;
}

/* ---- the interface ---------------------------------------------------------------------------- */

static int queue_index(const shm_group *g, const collective_call *call)
{
    if (call->kind == COLLECTIVE_SEND) return 1 + call->root;
    if (call->kind == COLLECTIVE_RECEIVE) return 1 + g->base.size + call->root;
    return 0;
}

status shm_queue_post(collective_group *group, const collective_call *call, collective_ticket *out)
{
    shm_group *g = (shm_group *)group;
    int index = queue_index(g, call);
    shm_queue *q = &g->queues[index];
    if (q->posted - q->completed == (uint64_t)q->capacity) return STATUS_AGAIN;
    *queued(q, ++q->posted) = (shm_queued){.call = *call};
    *out = (collective_ticket){index, q->posted};
    if (q->phase == SHM_IDLE) begin_call(q);
    return STATUS_OK;
}

bool shm_queue_done(const collective_group *group, collective_ticket ticket)
{
    return ((const shm_group *)group)->queues[ticket.queue].completed >= ticket.sequence;
}

collective_times shm_queue_times(const collective_group *group, collective_ticket ticket)
{
    return queued(&((const shm_group *)group)->queues[ticket.queue], ticket.sequence)->times;
}

static status progress_queue(shm_world *w, shm_queue *q, int64_t now_ns, bool look, int64_t *deadline_ns, bool *worked)
{
    if (q->completed == q->posted) return STATUS_OK;
    if (q->phase == SHM_IDLE || shm_queue_may_advance(q)) {
        if (!shm_is_due(q, now_ns)) {
            if (q->due_ns < *deadline_ns) *deadline_ns = q->due_ns;
            return STATUS_OK;
        }
        *worked = true;
        TRY(advance(q, now_ns));
        if (q->completed == q->posted) return STATUS_OK;
    } else if (look) {
        TRY(shm_check_peers(w, q));
        if (q->unmet && now_ns - q->since_ns >= w->base.config.stall_timeout_ns) return stalled(q);
    }
    int64_t deadline = collective_deadline(q->since_ns, w->base.config.stall_timeout_ns);
    if (deadline < *deadline_ns) *deadline_ns = deadline;
    return STATUS_OK;
}

status shm_queue_progress(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    shm_world *w = (shm_world *)world;
    unsigned rings = doorbell_rings(&w->bells[world->config.rank]->bell);
    bool look = rings != w->seen || now_ns - w->checked_ns >= PEER_CHECK_NS;
    w->seen = rings;
    if (look) w->checked_ns = now_ns;
    for (shm_queue *q = w->queues; q; q = q->next) TRY(progress_queue(w, q, now_ns, look, deadline_ns, worked));
    return STATUS_OK;
}
