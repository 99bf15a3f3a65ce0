/* Runs calls on an agent. The agent takes calls in the order in which they were posted, and posts them to the
 * collective library. When a call has ended, the agent advances the fence of the call's queue. */
#include "common/process_group/process_group_impl.h"

#include <stdio.h>

static bool is_idle(const process_group *g)
{
    for (int i = 0; i < g->config.queues; i++)
        if (g->queues[i].ended != g->queues[i].taken) return false;
    return true;
}

/* Shows the oldest running call in the status table. */
static void show(process_group *g, int64_t now_ns)
{
    const call_record *oldest = NULL;
    if (!g->config.slot) return;
    for (int i = 0; i < g->config.queues; i++) {
        const call_queue *q = &g->queues[i];
        const call_record *c = q->ended == q->taken ? NULL : record_at(q, q->ended + 1);
        if (c && (!oldest || c->times.posted_ns < oldest->times.posted_ns)) oldest = c;
    }
    rank_slot_agent(g->config.slot, oldest ? oldest->p.operation : RANK_START,
                    oldest ? oldest->p.bucket : RANK_NO_BUCKET, now_ns);
}

/* Returns true if the agent may take the next call of the queue. A call with several phases must end before
 * the agent takes the next call, because all ranks must run the phases in the same order. */
static bool may_take(const process_group *g, const call_queue *q)
{
    if (q->taken == q->posted || q->taken - q->ended == PROCESS_GROUP_IN_FLIGHT) return false;
    if (q->taken != q->ended && record_at(q, q->taken)->p.later_phases > 0) return false;
    return !g->passed || device_fence_reached(g->passed, record_at(q, q->taken + 1)->sequence);
}

static void take_calls(process_group *g, call_queue *q, int64_t now_ns)
{
    while (may_take(g, q)) {
        bool idle = is_idle(g);
        record_at(q, ++q->taken)->times.posted_ns = now_ns;
        if (idle) show(g, now_ns);
    }
}

static status begin_phase(process_group *g, call_record *c)
{
    collective_call call;
    TRY(g->config.ops->call(g->config.context, &c->p, c->phase, &call));
    return collective_post(c->p.group, &call, &c->ticket);
}

static status begin_calls(process_group *g, call_queue *q, bool *worked)
{
    for (; q->begun != q->taken; q->begun++) {
        call_record *c = record_at(q, q->begun + 1);
        if (c->p.after && queue_of(g, c->p.after)->ended < process_work_number(c->p.after)) return STATUS_OK;
        status rc = begin_phase(g, c);
        if (rc == STATUS_AGAIN) return STATUS_OK; /* The group's queue in the collective library is full. */
        TRY(rc);
        *worked = true;
    }
    return STATUS_OK;
}

static void place_on_time_line(process_group *g, process_times *t)
{
    t->traced_ns = t->started_ns > g->traced_until_ns ? t->started_ns : g->traced_until_ns;
    if (t->finished_ns > g->traced_until_ns) g->traced_until_ns = t->finished_ns;
}

/* Handles the end of a phase of the queue's oldest call. Begins the next phase, or ends the call after the
 * last phase. */
static status advance_call(process_group *g, call_queue *q, int64_t now_ns)
{
    call_record *c = record_at(q, q->ended + 1);
    collective_times times = collective_get_times(c->p.group, c->ticket);
    if (c->phase == 0) {
        c->times.started_ns = times.started_ns;
        c->times.last_rank = collective_group_world_rank(c->p.group, times.last_rank);
        c->times.began_ns = times.began_ns;
        c->times.algorithm = times.algorithm;
    }
    c->times.finished_ns = times.finished_ns;
    if (c->phase < c->p.later_phases) {
        c->phase++;
        return begin_phase(g, c);
    }
    TRY(process_group_finish(g, &c->p));
    place_on_time_line(g, &c->times);
    process_group_ended(g, c);
    q->ended++;
    show(g, now_ns);
    /* The fence publishes all writes above, so this is the last statement. */
    device_fence_reach(q->done, q->ended);
    return STATUS_OK;
}

/* Returns the queue whose oldest call ended first, or NULL if no call has ended. */
static call_queue *queue_done_first(const process_group *g)
{
    call_queue *first = NULL;
    int64_t first_ns = INT64_MAX;
    for (int i = 0; i < g->config.queues; i++) {
        call_queue *q = &g->queues[i];
        if (q->ended == q->begun) continue;
        const call_record *c = record_at(q, q->ended + 1);
        if (!collective_done(c->p.group, c->ticket)) continue;
        int64_t ns = collective_get_times(c->p.group, c->ticket).finished_ns;
        if (ns >= first_ns) continue;
        first = q;
        first_ns = ns;
    }
    return first;
}

static status progress(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    process_group *g = context;
    if (atomic_load_explicit(&g->given_up, memory_order_acquire)) {
        collective_abort(g->world, &g->failure);
        return error_adopt(&g->failure);
    }
    TRY(collective_progress(g->world, now_ns, deadline_ns, worked));
    for (call_queue *q; (q = queue_done_first(g)) != NULL;) {
        *worked = true;
        TRY(advance_call(g, q, now_ns));
    }
    /* This loop must follow collective_progress(). In the reverse order, collective_wait() could miss a call
     * that was posted between the two. */
    for (int i = 0; i < g->config.queues; i++) take_calls(g, &g->queues[i], now_ns);
    for (int i = 0; i < g->config.queues; i++) TRY(begin_calls(g, &g->queues[i], worked));
    return STATUS_OK;
}

static void wait_for_work(void *context, int64_t deadline_ns)
{
    collective_wait(((process_group *)context)->world, deadline_ns);
}

static void wake(void *context)
{
    collective_wake(((process_group *)context)->world);
}

static void failed(void *context, const error_record *error)
{
    process_group *g = context;
    error_record named = *error;
    if (g->config.who) {
        int used = snprintf(named.message, sizeof named.message, "%s: ", g->config.who);
        snprintf(named.message + used, sizeof named.message - (size_t)used, "%s", error->message);
    }
    collective_abort(g->world, error);
    for (int i = 0; i < g->config.queues; i++) device_fence_fail(g->queues[i].done, &named);
}

static const sync_agent_ops agent_ops = {
    .progress = progress, .wait = wait_for_work, .wake = wake, .failed = failed};

status process_group_start(process_group *g, collective_world *world)
{
    const process_group_config *c = &g->config;
    g->world = world;
    if (c->stream_order) return STATUS_OK;
    sync_agent_config config = {.ops = &agent_ops,
                                .context = g,
                                .device = c->device,
                                .name = c->name,
                                .inline_progress = c->inline_progress};
    return sync_agent_open(&config, &g->agent);
}
