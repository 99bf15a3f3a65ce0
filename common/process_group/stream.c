/* Runs calls in stream order. The compute thread enqueues calls, and the compute stream and the communication
 * stream wait for each other's marks. No other host thread is needed to reduce a bucket. */
#include "common/process_group/process_group_impl.h"

static int ready_mark(uint64_t number)
{
    return PROCESS_GROUP_READY_MARK + (int)(number % PROCESS_GROUP_AHEAD);
}

static int end_mark(uint64_t number)
{
    return PROCESS_GROUP_END_MARK + (int)(number % PROCESS_GROUP_AHEAD);
}

/* Returns the record of the call that is being posted. */
static call_record *present(const process_group *g)
{
    return record_at(g->queues, g->queues->posted);
}

/* If too many calls are in flight, waits for the oldest call. */
static status make_room(process_group *g)
{
    call_queue *q = g->queues;
    if (q->posted - q->accounted < PROCESS_GROUP_AHEAD) return STATUS_OK;
    TRY(device_mark_wait(g->stream, end_mark(q->accounted + 1)));
    process_group_poll(g);
    return STATUS_OK;
}

status process_group_begin(process_group *g, const process_call *p)
{
    TRY(make_room(g));
    process_group_enter(g, g->queues, p);
    uint64_t number = ++g->queues->posted;
    TRY(device_mark(g->config.compute, ready_mark(number)));
    return device_stream_wait_mark(g->stream, g->config.compute, ready_mark(number));
}

status process_group_add(process_group *g, const collective_call *call)
{
    call_record *c = present(g);
    collective_ticket ticket;
    TRY(collective_enqueue(c->p.group, call, g->stream, &ticket));
    if (c->phase++ == 0) c->ticket = ticket;
    return STATUS_OK;
}

status process_group_end(process_group *g, process_work *out)
{
    *out = present(g)->times.work;
    return device_mark(g->stream, end_mark(g->queues->posted));
}

/* Posts a call. While a pass is recorded (device_record_begin()), the mark on the compute stream ends the
 * current CUDA graph. The call itself is not recorded, for two reasons: the marks of the call differ from
 * step to step, and an abort of NCCL would wait for recorded calls. */
status process_group_post_in_order(process_group *g, const process_call *p, process_work *out)
{
    TRY(process_group_begin(g, p));
    for (int phase = 0; phase <= p->later_phases; phase++) {
        collective_call call;
        TRY(g->config.ops->call(g->config.context, p, phase, &call));
        TRY(process_group_add(g, &call));
    }
    TRY(process_group_finish(g, p));
    return process_group_end(g, out);
}

bool process_group_read_times(process_group *g, uint64_t number)
{
    call_record *c = record_at(g->queues, number);
    process_times *t = &c->times;
    int64_t deadline_ns;
    bool worked;
    if (!device_mark_passed(g->stream, end_mark(number)) ||
        collective_progress(g->world, device_now_ns(g->config.device), &deadline_ns, &worked) != STATUS_OK)
        return false;
    t->ready_ns = t->posted_ns = device_mark_ns(g->config.compute, ready_mark(number));
    t->finished_ns = device_mark_ns(g->stream, end_mark(number));
    t->last_rank = -1;
    t->empty = c->phase == 0;
    if (!t->empty) {
        collective_times first = collective_get_times(c->p.group, c->ticket);
        t->started_ns = t->traced_ns = first.started_ns;
        t->last_rank = first.last_rank;
        t->began_ns = first.began_ns;
        t->algorithm = first.algorithm;
    }
    process_group_ended(g, c);
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
