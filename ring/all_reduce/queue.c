/* Runs a call of a queue. The call begins when all members have arrived, and then runs in rounds. */
#include "ring/all_reduce/shm.h"

#include <stdio.h>

enum { PEER_CHECK_NS = 1000000 }; /* Time between two checks of a blocked world's peers. */

static uint64_t position_of(uint64_t sequence, uint64_t step)
{
    return sequence << SHM_STEP_BITS | step;
}

static collective_queued *queued(const shm_queue *q)
{
    return collective_queued_at(&q->base, q->base.completed + 1);
}

/* ---- steps ------------------------------------------------------------------------------------ */

void shm_publish(shm_queue *q, int64_t steps, uint64_t whom)
{
    q->step += (uint64_t)steps;
    atomic_store_explicit(&q->members[q->me].slot->position, position_of(q->base.completed + 1, q->step),
                          memory_order_seq_cst);
    for (int m = 0; m < q->size; m++)
        if (whom >> m & 1) shm_ring_bell(shm_world_of(q), q->members[m].rank);
}

void shm_await(shm_queue *q, uint64_t step, uint64_t whom)
{
    q->target = position_of(q->base.completed + 1, step);
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
    const shm_description *own = shm_description_of(q, q->me);
    for (int m = 0; m < q->size; m++) {
        const shm_description *d = shm_description_of(q, m);
        bool pair = (const char *)q != q->base.group->queues; /* A send matches a receive. */
        if ((pair || (d->kind == own->kind && d->root == own->root)) && d->op == own->op &&
            d->type == own->type && d->tag == own->tag && d->count == own->count)
            continue;
        char theirs[128], ours[128];
        collective_call other = {d->kind, d->op, d->type, d->root, d->tag, d->count, {0}, {0}, false};
        return fail(STATUS_PROTOCOL, "call %llu of group '%s': rank %d makes %s, rank %d makes %s",
                    (unsigned long long)q->base.completed + 1, q->base.group->name, q->members[m].rank,
                    collective_call_format(&other, theirs, sizeof theirs), q->members[q->me].rank,
                    collective_call_format(q->call, ours, sizeof ours));
    }
    return STATUS_OK;
}

/* Writes the numbers of the late ranks, which are the ranks with the lowest position. The awaited rank need
 * not be one of them, because in a ring the awaited rank may wait for another rank. */
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
    char late[256], detail[320];
    name_late_ranks(q, late, sizeof late);
    snprintf(detail, sizeof detail, ", rank %d waits for rank %s", q->members[q->me].rank, late);
    return collective_stalled(&q->base, detail);
}

/* ---- a call ----------------------------------------------------------------------------------- */

static void begin_call(shm_queue *q)
{
    /* The caller of progress() may have read the clock before the call was posted. */
    int64_t now_ns = clock_now_ns();
    q->call = &queued(q)->call;
    q->in = piece_buffer_of(&q->call->in, q->call->type);
    q->out = piece_buffer_of(&q->call->out, q->call->type);
    q->step = 0;
    q->base.since_ns = now_ns;
    q->algorithm = shm_choose_algorithm(q, q->call);
    queued(q)->times.algorithm =
        q->algorithm == &shm_algorithm_ring ? COLLECTIVE_ALGORITHM_RING : COLLECTIVE_ALGORITHM_TWO_SHOT;
    shm_place_own_part(q);
    q->mode = shm_fits_inline(q) ? SHM_INLINE : SHM_STAGED;
    if (q->mode == SHM_INLINE) {
        shm_first_round(q);
        shm_copy_in(q);
    }
    *shm_description_of(q, q->me) = shm_describe(q, now_ns);
    shm_publish(q, 1, shm_everyone(q));
    shm_await(q, 1, shm_everyone(q));
    q->phase = SHM_ARRIVING;
}

/* Reads the clock again, because the caller read it before the last piece of work. */
static void leave(shm_queue *q)
{
    queued(q)->times.finished_ns = clock_now_ns();
    collective_count(q->base.group->world, shm_call_moved(q));
    q->phase = SHM_IDLE;
    q->base.completed++;
}

static void end_call(shm_queue *q)
{
    if (!shm_link_is_emulated(q) || q->algorithm == &shm_algorithm_ring) {
        leave(q);
        return;
    }
    shm_charge_call(q, queued(q)->times.started_ns);
    q->phase = SHM_LEAVING;
}

/* Begins a round. Copies the operands to the staging area unless the mode is IN_PLACE. The algorithm runs
 * when all members have copied their operands. */
static void begin_round(shm_queue *q)
{
    q->phase = SHM_PREPARED;
    if (q->mode == SHM_IN_PLACE) return;
    shm_copy_in(q);
    shm_publish(q, 1, shm_everyone(q));
    shm_await(q, q->step, shm_everyone(q));
}

/* Finds the member that arrived last. All ranks find the same member and time, because every member has
 * stored its time of arrival in its slot. */
static void start_call(shm_queue *q)
{
    collective_times *times = &queued(q)->times;
    for (int m = 0; m < q->size; m++) {
        int64_t arrived = shm_description_of(q, m)->arrived_ns;
        if (arrived <= times->started_ns) continue;
        times->started_ns = arrived;
        times->last_rank = m;
    }
}

static status all_have_arrived(shm_queue *q)
{
    TRY(check_same_call(q));
    start_call(q);
    if (q->mode == SHM_INLINE) {
        shm_run_inline(q);
        end_call(q);
        return STATUS_OK;
    }
    if (shm_can_be_in_place(q)) q->mode = SHM_IN_PLACE;
    shm_first_round(q);
    begin_round(q);
    return STATUS_OK;
}

static void end_round(shm_queue *q)
{
    collective_kind kind = q->call->kind;
    /* For all other kinds, two-shot writes the results directly to `out`. */
    bool in_area =
        q->algorithm == &shm_algorithm_ring || kind == COLLECTIVE_ALL_REDUCE || kind == COLLECTIVE_REDUCE;
    if (q->mode == SHM_STAGED && in_area) shm_copy_out(q);
    if (shm_next_round(q))
        begin_round(q);
    else
        end_call(q);
}

/* Does the work between the end of a wait and the next wait. */
static status advance(shm_queue *q, int64_t now_ns)
{
    q->base.since_ns = now_ns;
    switch (q->phase) {
    case SHM_IDLE:
        begin_call(q);
        return STATUS_OK;
    case SHM_ARRIVING:
        return all_have_arrived(q);
    case SHM_PREPARED:
        q->algorithm->begin_round(q);
        q->phase = SHM_RUNNING;
        return STATUS_OK;
    case SHM_RUNNING:
        if (!q->algorithm->advance || q->algorithm->advance(q)) end_round(q);
        return STATUS_OK;
    case SHM_LEAVING:
        leave(q);
        return STATUS_OK;
    }
    return STATUS_OK;
}

/* ---- the interface ---------------------------------------------------------------------------- */

status shm_queue_post(collective_queue *queue)
{
    shm_queue *q = (shm_queue *)queue;
    if (q->phase == SHM_IDLE) begin_call(q);
    return STATUS_OK;
}

static status progress_queue(shm_world *w, shm_queue *q, int64_t now_ns, bool look, int64_t *deadline_ns,
                             bool *worked)
{
    if (q->base.completed == q->base.posted) return STATUS_OK;
    if (q->phase == SHM_IDLE || shm_queue_may_advance(q)) {
        if (q->charged && !shm_is_due(q, now_ns)) {
            if (q->due_ns < *deadline_ns) *deadline_ns = q->due_ns;
            return STATUS_OK;
        }
        *worked = true;
        TRY(advance(q, now_ns));
        if (q->base.completed == q->base.posted) return STATUS_OK;
    } else if (look) {
        TRY(shm_check_peers(w, q));
        if (q->unmet && collective_is_late(&q->base, now_ns)) return stalled(q);
    }
    int64_t deadline = collective_deadline(q->base.since_ns, w->base.config.stall_timeout_ns);
    if (deadline < *deadline_ns) *deadline_ns = deadline;
    return STATUS_OK;
}

status shm_queue_progress(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    shm_world *w = (shm_world *)world;
    unsigned rings = doorbell_rings(&w->bells[world->config.rank]->bell);
    bool look = rings != world->seen || now_ns - w->checked_ns >= PEER_CHECK_NS;
    world->seen = rings;
    if (look) w->checked_ns = now_ns;
    for (collective_group *g = world->groups; g; g = g->next) {
        shm_queue *queues = (shm_queue *)g->queues;
        for (shm_queue *q = queues; q < queues + g->queue_count; q++)
            TRY(progress_queue(w, q, now_ns, look, deadline_ns, worked));
    }
    return STATUS_OK;
}
