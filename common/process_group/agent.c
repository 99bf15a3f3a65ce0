/* Runs calls on an agent. The agent pops calls in the order of posting and posts them to the collective
 * library. When a call has ended, the agent advances the fence of the call's queue. */
#include "common/process_group/process_group_impl.h"

#include <stdio.h>

static running_call *call_at(call_queue *q, uint64_t number)
{
    return &q->agent.calls[number % PROCESS_GROUP_IN_FLIGHT];
}

static bool is_idle(const process_group *g)
{
    for (int i = 0; i < g->config.queues; i++)
        if (g->queues[i].agent.head != g->queues[i].agent.tail) return false;
    return true;
}

/* Shows the oldest call in the status table. */
static void show(process_group *g, int64_t now_ns)
{
    const running_call *oldest = NULL;
    if (!g->config.slot) return;
    for (int i = 0; i < g->config.queues; i++) {
        call_queue *q = &g->queues[i];
        const running_call *c = q->agent.head == q->agent.tail ? NULL : call_at(q, q->agent.head);
        if (c && (!oldest || c->times.posted_ns < oldest->times.posted_ns)) oldest = c;
    }
    rank_slot_agent(g->config.slot, oldest ? oldest->p.operation : RANK_START,
                    oldest ? oldest->p.bucket : RANK_NO_BUCKET, now_ns);
}

/* Returns true if the next call of the queue may be taken. A call with several phases must end first,
 * because all ranks must run the calls in the same order. */
static bool has_room(const process_group *g, call_queue *q)
{
    uint64_t tail = q->agent.tail;
    if (tail - q->agent.head == PROCESS_GROUP_IN_FLIGHT) return false;
    if (tail != q->agent.head && phases_of(&call_at(q, tail - 1)->p) > 1) return false;
    return !g->passed || device_fence_reached(g->passed, q->agent.next.sequence);
}

static void take_calls(process_group *g, int queue, int64_t now_ns)
{
    call_queue *q = &g->queues[queue];
    for (;;) {
        if (!q->agent.has_next && !sync_queue_pop(&q->posts, &q->agent.next)) return;
        q->agent.has_next = true;
        if (!has_room(g, q)) return;
        bool idle = is_idle(g);
        const process_call *p = &q->agent.next.p;
        uint64_t number = q->agent.tail + 1;
        *call_at(q, q->agent.tail++) = (running_call){.p = *p,
                                                      .times = {.work = process_work_of(queue, number),
                                                                .tag = p->tag,
                                                                .ready_ns = p->ready_ns,
                                                                .posted_ns = now_ns}};
        q->agent.has_next = false;
        if (idle) show(g, now_ns);
    }
}

static status begin_phase(process_group *g, running_call *c)
{
    collective_call call;
    TRY(call_of(g, &c->p, c->phase, &call));
    return collective_post(c->p.group, &call, &c->ticket);
}

static status begin_calls(process_group *g, call_queue *q, bool *worked)
{
    for (; q->agent.begun != q->agent.tail; q->agent.begun++) {
        running_call *c = call_at(q, q->agent.begun);
        if (c->p.after && queue_of(g, c->p.after)->agent.head < process_work_number(c->p.after))
            return STATUS_OK;
        status rc = begin_phase(g, c);
        if (rc == STATUS_AGAIN) return STATUS_OK; /* the group's queue is full */
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

/* Handles the end of a phase of the queue's oldest call: begins the next phase, or ends the call. */
static status advance_call(process_group *g, call_queue *q, int64_t now_ns)
{
    running_call *c = call_at(q, q->agent.head);
    collective_times times = collective_get_times(c->p.group, c->ticket);
    if (c->phase == 0) {
        c->times.started_ns = times.started_ns;
        c->times.last_rank = collective_group_world_rank(c->p.group, times.last_rank);
        c->times.began_ns = times.began_ns;
        c->times.algorithm = times.algorithm;
    }
    c->times.finished_ns = times.finished_ns;
    if (c->phase + 1 < phases_of(&c->p)) {
        c->phase++;
        return begin_phase(g, c);
    }
    TRY(process_group_finish(g, &c->p));
    place_on_time_line(g, &c->times);
    process_group_ended(g, q, &c->p, &c->times);
    process_group_publish_traffic(g);
    uint64_t number = process_work_number(c->times.work);
    q->agent.head++;
    show(g, now_ns);
    device_fence_reach(q->done, number); /* last, because the fence publishes all writes above */
    return STATUS_OK;
}

/* Returns the queue whose oldest call ended first, or NULL if no call has ended. */
static call_queue *queue_done_first(const process_group *g)
{
    call_queue *first = NULL;
    int64_t first_ns = INT64_MAX;
    for (int i = 0; i < g->config.queues; i++) {
        call_queue *q = &g->queues[i];
        if (q->agent.head == q->agent.begun) continue;
        const running_call *c = call_at(q, q->agent.head);
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
    for (int i = 0; i < g->config.queues; i++)
        take_calls(g, i, now_ns); /* must follow collective_progress(); see collective_wait() */
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

status process_group_start_agent(process_group *g)
{
    const process_group_config *c = &g->config;
    sync_agent_config config = {.ops = &agent_ops,
                                .context = g,
                                .device = c->device,
                                .name = c->name,
                                .inline_progress = c->inline_progress};
    return sync_agent_open(&config, &g->agent);
}
