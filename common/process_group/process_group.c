#include "common/process_group/process_group_impl.h"

#include <stdlib.h>

enum { FEWEST_RECORDS = 64, RECORDS_PER_POST = 4 };

/* Returns the times of a call, or NULL if a later call has overwritten the record of the call. */
static const process_times *times_of(const process_group *g, process_work w)
{
    const process_times *t = &record_at(queue_of(g, w), process_work_number(w))->times;
    return t->work == w ? t : NULL;
}

status process_group_finish(const process_group *g, const process_call *p)
{
    return g->config.ops->finish ? g->config.ops->finish(g->config.context, p) : STATUS_OK;
}

void process_group_ended(const process_group *g, const call_record *c)
{
    if (g->config.ops->ended) g->config.ops->ended(g->config.context, &c->p, &c->times);
}

/* ---- post and wait ------------------------------------------------------------------------------ */

call_record *process_group_enter(process_group *g, call_queue *q, const process_call *p)
{
    uint64_t number = q->posted + 1;
    call_record *c = record_at(q, number);
    *c = (call_record){.p = *p,
                       .sequence = ++g->sequence,
                       .times = {.work = process_work_of((int)(q - g->queues), number),
                                 .tag = p->tag,
                                 .ready_ns = p->ready_ns}};
    return c;
}

status process_group_post(process_group *g, const process_call *p, process_work *out)
{
    call_queue *q = &g->queues[p->queue];
    if (g->stream) return process_group_post_in_order(g, p, out);
    if (q->posted > q->mask && !device_fence_reached(q->done, q->posted - q->mask))
        return fail(STATUS_INTERNAL, "%s%stoo many calls of one kind", g->config.who ? g->config.who : "",
                    g->config.who ? ": " : "");
    *out = process_group_enter(g, q, p)->times.work;
    /* The agent checks this fence when it sees the call, so the signal must be enqueued first. */
    if (g->passed) TRY(device_stream_signal(g->config.compute, g->passed, g->sequence));
    q->posted++;
    sync_agent_wake(g->agent);
    return STATUS_OK;
}

bool process_group_done(process_group *g, process_work w)
{
    if (!g->stream) return device_fence_reached(queue_of(g, w)->done, process_work_number(w));
    return process_work_number(w) <= g->queues->accounted ||
           process_group_read_times(g, process_work_number(w));
}

static status wait_for(process_group *g, process_work w, int64_t tag, anatomy *a)
{
    call_wait wait = {.work = w, .tag = tag};
    TRY(anatomy_begin_wait(a));
    TRY(g->stream ? process_group_wait_in_order(g, w)
                  : device_stream_wait(g->config.compute, queue_of(g, w)->done, process_work_number(w)));
    TRY(anatomy_end_wait(a, &wait.number));
    if (wait.number >= 0 && g->wait_count < PROCESS_GROUP_WAITS) g->waits[g->wait_count++] = wait;
    return STATUS_OK;
}

/* Waits for the calls of queue 0 before call `number`, one by one, so that the anatomy shows for each call
 * which rank delayed it. */
static status wait_for_each(process_group *g, uint64_t number, anatomy *a)
{
    call_queue *q = g->queues;
    for (; q->awaited + 1 < number; q->awaited++)
        if (!device_fence_reached(q->done, q->awaited + 1))
            TRY(wait_for(g, process_work_of(0, q->awaited + 1), 0, a));
    return STATUS_OK;
}

status process_group_wait(process_group *g, process_work w, anatomy *a)
{
    call_queue *q = queue_of(g, w);
    uint64_t number = process_work_number(w);
    process_work after = record_at(q, number)->p.after;
    bool first = q == g->queues;
    if (g->config.waits_for_each && !g->stream)
        TRY(wait_for_each(g, first ? number : after ? process_work_number(after) + 1 : 0, a));
    TRY(wait_for(g, w, record_at(q, number)->p.tag, a));
    if (first && number > q->awaited) q->awaited = number;
    return STATUS_OK;
}

/* ---- times -------------------------------------------------------------------------------------- */

void process_group_poll(process_group *g)
{
    for (int i = 0; i < g->config.queues; i++) {
        call_queue *q = &g->queues[i];
        while (q->accounted < q->posted && process_group_done(g, process_work_of(i, q->accounted + 1))) {
            const process_times *t = times_of(g, process_work_of(i, ++q->accounted));
            if (t && g->config.ops->accounted) g->config.ops->accounted(g->config.context, t);
        }
    }
}

uint64_t process_group_posted(const process_group *g, int queue)
{
    return g->queues[queue].posted;
}

void process_group_skip(process_group *g)
{
    for (int i = 0; i < g->config.queues; i++) g->queues[i].accounted = g->queues[i].posted;
}

/* Records the cause of the wait, which is the rank that posted the call after all other ranks. */
static void name_wait(const process_group *g, const call_wait *w, anatomy *a)
{
    const process_times *t = times_of(g, w->work);
    if (!t || t->empty || t->last_rank == g->config.rank) return;
    anatomy_sent last = {.ns = t->started_ns, .rank = t->last_rank + g->config.first_rank};
    if (t->last_rank < 0) last = (anatomy_sent){.ns = (int64_t)t->work, .rank = ANATOMY_CALL};
    anatomy_name_wait(a, w->number, last);
}

void process_group_end_step(process_group *g, anatomy *a)
{
    int later = 0;
    process_group_poll(g);
    for (int i = 0; i < g->wait_count; i++) {
        call_wait w = g->waits[i];
        if (!anatomy_ends(a, w.number)) {
            g->waits[later++] = w;
            continue;
        }
        name_wait(g, &w, a);
        if (w.tag && g->config.ops->waited)
            g->config.ops->waited(g->config.context, w.tag, anatomy_wait_time(a, w.number),
                                  times_of(g, w.work));
    }
    g->wait_count = later;
}

void process_group_counters(const process_group *g, sync_counters *out)
{
    if (!g->world) return;
    collective_traffic t = collective_get_traffic(g->world);
    out->agents_cpu_ns += sync_agent_cpu_ns(g->agent);
    out->bytes_sent += t.bytes_sent;
    out->bytes_received += t.bytes_received;
    out->messages_sent += t.messages_sent;
    out->messages_received += t.messages_received;
}

status process_group_give_up(process_group *g, status code)
{
    error_copy(&g->failure);
    atomic_store_explicit(&g->given_up, true, memory_order_release);
    if (g->agent) sync_agent_wake(g->agent);
    return code;
}

/* ---- open and close ----------------------------------------------------------------------------- */

collective_config process_group_collectives(const sync_context *c, const char *name)
{
    return (collective_config){
        .rank = c->rank,
        .world = c->world,
        .job_token = c->job_token,
        .name = name,
        .device = c->device,
        .share_gpu = c->share_gpu,
        .slot = c->slot,
        .table = c->table,
        .lost = c->lost,
        .lost_context = c->lost_context,
        .canceled = c->canceled,
        .canceled_context = c->canceled_context,
        .stall_timeout_ns = c->stall_timeout_ns,
        .connect_timeout_ns = c->connect_timeout_ns > 0 ? c->connect_timeout_ns : c->stall_timeout_ns,
        .link = c->link,
    };
}

static status open_queue(process_group *g, call_queue *q, int most)
{
    uint64_t records = g->config.stream_order ? PROCESS_GROUP_AHEAD : FEWEST_RECORDS;
    while (records < RECORDS_PER_POST * (uint64_t)most) records *= 2;
    q->mask = records - 1;
    q->calls = calloc(records, sizeof *q->calls);
    if (!q->calls) return fail(STATUS_SYSTEM, "no memory for a process group");
    return g->config.stream_order ? STATUS_OK : device_fence_open(g->config.device, &q->done);
}

static status open_all(process_group *g)
{
    const process_group_config *c = &g->config;
    g->queues = calloc((size_t)c->queues, sizeof *g->queues);
    g->waits = calloc(PROCESS_GROUP_WAITS, sizeof *g->waits);
    if (!g->queues || !g->waits) return fail(STATUS_SYSTEM, "no memory for a process group");
    for (int i = 0; i < c->queues; i++) TRY(open_queue(g, &g->queues[i], c->most[i]));
    if (c->follows_compute) TRY(device_fence_open(c->device, &g->passed));
    return c->stream_order ? device_stream_open(c->device, DEVICE_STREAM_COMMUNICATION, &g->stream)
                           : STATUS_OK;
}

status process_group_open(const process_group_config *config, process_group **out)
{
    process_group *g = calloc(1, sizeof *g);
    *out = g;
    if (!g) return fail(STATUS_SYSTEM, "no memory for a process group");
    g->config = *config;
    status rc = open_all(g);
    if (rc != STATUS_OK) process_group_close(out);
    return rc;
}

void process_group_stop(process_group *g)
{
    if (!g) return;
    if (g->agent) sync_agent_close(&g->agent);
    if (g->world && atomic_load_explicit(&g->given_up, memory_order_relaxed))
        collective_abort(g->world, &g->failure);
    g->world = NULL;
}

void process_group_close(process_group **pointer)
{
    process_group *g = *pointer;
    if (!g) return;
    process_group_stop(g);
    for (int i = 0; g->queues && i < g->config.queues; i++) {
        device_fence_close(&g->queues[i].done);
        free(g->queues[i].calls);
    }
    device_fence_close(&g->passed);
    device_stream_close(&g->stream);
    free(g->queues);
    free(g->waits);
    free(g);
    *pointer = NULL;
}
