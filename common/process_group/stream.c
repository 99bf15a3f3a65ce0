/* Runs calls in stream order. The compute thread enqueues calls, and streams wait for each other's marks. No
 * other host thread takes part between the last gradient of a bucket and the average. */
#include "common/process_group/process_group_impl.h"

static int ready_mark(uint64_t number)
{
    return PROCESS_GROUP_READY_MARK + (int)(number % PROCESS_GROUP_AHEAD);
}

static int end_mark(uint64_t number)
{
    return PROCESS_GROUP_END_MARK + (int)(number % PROCESS_GROUP_AHEAD);
}

static enqueued_call *enqueued_at(const process_group *g, uint64_t number)
{
    return &g->enqueued[number % PROCESS_GROUP_AHEAD];
}

/* Waits for the oldest call if too many are in flight. */
static status make_room(process_group *g)
{
    call_queue *q = first_queue(g);
    if (q->compute.posted - q->compute.accounted < PROCESS_GROUP_AHEAD) return STATUS_OK;
    TRY(device_mark_wait(g->stream, end_mark(q->compute.accounted + 1)));
    process_group_poll(g);
    return STATUS_OK;
}

status process_group_begin(process_group *g, const process_call *p)
{
    TRY(make_room(g));
    uint64_t number = process_group_number(first_queue(g), p);
    *enqueued_at(g, number) = (enqueued_call){.p = *p};
    TRY(device_mark(g->config.compute, ready_mark(number)));
    return device_stream_wait_mark(g->stream, g->config.compute, ready_mark(number));
}

static status enqueue(process_group *g, collective_group *group, const collective_call *call)
{
    enqueued_call *e = enqueued_at(g, first_queue(g)->compute.posted);
    collective_ticket ticket;
    TRY(collective_enqueue(group, call, g->stream, &ticket));
    if (e->calls++ == 0) e->first = ticket;
    return STATUS_OK;
}

status process_group_add(process_group *g, const collective_call *call)
{
    return enqueue(g, enqueued_at(g, first_queue(g)->compute.posted)->p.group, call);
}

status process_group_end(process_group *g, process_work *out)
{
    uint64_t number = first_queue(g)->compute.posted;
    *out = process_work_of(0, number);
    return device_mark(g->stream, end_mark(number));
}

/* Posts a call between two parts of a recorded pass, after the work recorded so far. The call itself is not
 * recorded, because its marks differ from step to step, and because an abort of NCCL waits for recorded
 * calls. */
status process_group_post_in_order(process_group *g, const process_call *p, process_work *out)
{
    const sync_context *recorded = g->config.recorded;
    if (recorded) TRY(sync_leave_record(recorded));
    TRY(process_group_begin(g, p));
    for (int phase = 0; phase < phases_of(p); phase++) {
        collective_call call;
        TRY(call_of(g, p, phase, &call));
        TRY(enqueue(g, p->group, &call));
    }
    TRY(process_group_finish(g, p));
    TRY(process_group_end(g, out));
    return recorded ? sync_enter_record(recorded) : STATUS_OK;
}

bool process_group_read_times(process_group *g, uint64_t number)
{
    const enqueued_call *e = enqueued_at(g, number);
    int64_t deadline_ns;
    bool worked;
    if (!device_mark_passed(g->stream, end_mark(number)) ||
        collective_progress(g->world, device_now_ns(g->config.device), &deadline_ns, &worked) != STATUS_OK)
        return false;
    process_times t = {.work = process_work_of(0, number),
                       .tag = e->p.tag,
                       .ready_ns = device_mark_ns(g->config.compute, ready_mark(number)),
                       .posted_ns = device_mark_ns(g->config.compute, ready_mark(number)),
                       .finished_ns = device_mark_ns(g->stream, end_mark(number)),
                       .last_rank = -1,
                       .empty = e->calls == 0};
    if (!t.empty) {
        collective_times first = collective_get_times(e->p.group, e->first);
        t.started_ns = t.traced_ns = first.started_ns;
        t.last_rank = first.last_rank;
        t.began_ns = first.began_ns;
        t.algorithm = first.algorithm;
    }
    process_group_ended(g, first_queue(g), &e->p, &t);
    return true;
}

device_stream *process_group_stream(const process_group *g)
{
    return g->stream;
}

status process_group_join_compute(process_group *g)
{
    TRY(device_mark(g->config.compute, PROCESS_GROUP_READY_MARK));
    return device_stream_wait_mark(g->stream, g->config.compute, PROCESS_GROUP_READY_MARK);
}

status process_group_wait_in_order(process_group *g, process_work w)
{
    return device_stream_wait_mark(g->config.compute, g->stream, end_mark(process_work_number(w)));
}
