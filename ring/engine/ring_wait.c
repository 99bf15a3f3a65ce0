/* The compute thread's side of jobs: posting them, waiting for them, and what their times add up to. */
#include "common/base/clock.h"
#include "common/sync/staging.h"
#include "ring/engine/engine_impl.h"

#include <assert.h>
#include <string.h>

int64_t ring_now(const ring_engine *e)
{
    return device_now_ns(e->base.context.device);
}

status ring_give_up(ring_engine *e, status code)
{
    error_copy(&e->shared.failure);
    atomic_store_explicit(&e->shared.given_up, true, memory_order_release);
    sync_agent_wake(e->agent);
    return code;
}

bool ring_has_buffers(const ring_engine *e)
{
    return e->base.context.params->model->buffer_count > 0 && e->base.context.world > 1;
}

ring_bucket_record *ring_record(ring_engine *e, int64_t id)
{
    return &e->compute.records[(id - 1) % RING_RECORDS];
}

/* ---- jobs ------------------------------------------------------------------------------------- */

/* The number differs from step to step, so the signal is not part of a recorded pass; it follows what was
 * recorded before. */
static status signal_job(ring_engine *e, uint64_t ticket)
{
    TRY(sync_leave_record(&e->base.context));
    TRY(device_stream_signal(e->base.context.compute, e->shared.posted, ticket));
    return sync_enter_record(&e->base.context);
}

status ring_post(ring_engine *e, ring_job_kind kind, int index, int64_t record, uint64_t *ticket)
{
    *ticket = ++e->compute.posted;
    e->compute.record_of[*ticket & e->shared.times_mask] = record;
    if (e->shared.posted) TRY(signal_job(e, *ticket)); /* before the agent lets its stream wait for it */
    bool taken = sync_queue_push(&e->shared.jobs, &(sync_event){(int32_t)kind, index, e->compute.step.index});
    assert(taken);
    (void)taken;
    sync_agent_wake(e->agent);
    return STATUS_OK;
}

/* Intervals may overlap, but they begin in order. */
static void account_job(ring_engine *e, uint64_t ticket)
{
    ring_compute *c = &e->compute;
    const ring_job_times *t = &e->shared.times[ticket & e->shared.times_mask];
    int64_t begin = t->started_ns > c->last_finished_ns ? t->started_ns : c->last_finished_ns;
    if (t->finished_ns > begin) c->counters.total_ns += t->finished_ns - begin;
    if (t->finished_ns > c->last_finished_ns) c->last_finished_ns = t->finished_ns;
    int64_t id = c->record_of[ticket & e->shared.times_mask];
    if (id == 0) return;
    ring_bucket_record *r = ring_record(e, id);
    r->launched_ns = t->launched_ns > r->ready_ns ? t->launched_ns : r->ready_ns; /* the agent's clock may be older */
    r->started_ns = t->started_ns;
    r->finished_ns = t->finished_ns;
}

void ring_account(ring_engine *e)
{
    while (e->compute.accounted < e->compute.posted && device_fence_reached(e->shared.done, e->compute.accounted + 1))
        account_job(e, ++e->compute.accounted);
}

/* ---- waits ------------------------------------------------------------------------------------ */

static void trace_bucket(const ring_engine *e, const ring_bucket_record *r)
{
    trace *t = e->base.context.trace;
    if (!trace_is_on(t)) return;
    int64_t taken_ns = r->finished_ns > r->wait_begin_ns ? r->finished_ns : r->wait_begin_ns;
    trace_async(t, "bucket", r->bucket, r->id, r->launched_ns, r->finished_ns);
    trace_slice(t, TRACE_COMMUNICATION, "all_reduce of bucket", r->bucket, r->started_ns, r->finished_ns);
    trace_flow(t, TRACE_FLOW_BEGIN, TRACE_COMPUTE, r->id, r->ready_ns);
    trace_flow(t, TRACE_FLOW_STEP, TRACE_COMMUNICATION, r->id, r->started_ns);
    trace_flow(t, TRACE_FLOW_END, TRACE_COMPUTE, r->id, taken_ns < r->wait_end_ns ? taken_ns : r->wait_end_ns);
}

/* The compute thread or its stream has waited for a job; `record` is the bucket's, or 0. */
static void end_wait(ring_engine *e, int64_t record, int64_t begin_ns, int64_t end_ns)
{
    e->compute.counters.exposed_ns += end_ns - begin_ns;
    if (record == 0) return;
    ring_account(e);
    ring_bucket_record *r = ring_record(e, record);
    r->wait_begin_ns = begin_ns;
    r->wait_end_ns = end_ns;
    trace_bucket(e, r);
}

static int mark_of(int wait)
{
    return SYNC_MARK_ENGINE + 2 * wait;
}

void ring_collect_waits(ring_engine *e)
{
    device_stream *s = e->base.context.compute;
    for (int i = 0; i < e->compute.wait_count; i++)
        end_wait(e, e->compute.wait_records[i], device_mark_ns(s, mark_of(i)), device_mark_ns(s, mark_of(i) + 1));
    e->compute.wait_count = 0;
}

/* Whether the agent may launch kernels for the first time in this step. A kernel is loaded when it is first
 * launched, and loading may wait for all streams of the GPU (CUDA C++ Programming Guide, "Lazy Loading"). A
 * stream that waits for the agent at that moment would be a deadlock, so the host waits instead. */
static bool agent_loads(const ring_engine *e)
{
    bool factors_begin = e->settings.hook == RING_HOOK_POWERSGD && e->compute.step.index == e->settings.powersgd_start;
    return !e->compute.first_done || factors_begin;
}

/* Only the stream waits, between two marks. */
static status await_in_stream(ring_engine *e, uint64_t ticket, int64_t record)
{
    device_stream *s = e->base.context.compute;
    if (e->compute.wait_count == RING_WAITS) ring_collect_waits(e);
    int wait = e->compute.wait_count;
    TRY(device_mark(s, mark_of(wait)));
    TRY(agent_loads(e) ? sync_host_wait(s, e->shared.done, ticket) : device_stream_wait(s, e->shared.done, ticket));
    TRY(device_mark(s, mark_of(wait) + 1));
    e->compute.wait_records[e->compute.wait_count++] = record;
    return STATUS_OK;
}

status ring_await(ring_engine *e, uint64_t ticket, int64_t record)
{
    ring_compute *c = &e->compute;
    if (e->stream) return await_in_stream(e, ticket, record);
    if (c->wait_begin_ns == 0) c->wait_begin_ns = ring_now(e);
    TRY(device_stream_wait(e->base.context.compute, e->shared.done, ticket));
    int64_t end_ns = ring_now(e);
    trace_slice(e->base.context.trace, TRACE_COMPUTE, "wait", TRACE_NO_INDEX, c->wait_begin_ns, end_ns);
    end_wait(e, record, c->wait_begin_ns, end_ns);
    c->wait_begin_ns = 0;
    return STATUS_OK;
}

/* The host reads the result of such a job. */
static bool is_read_by_host(ring_job_kind kind)
{
    return kind == RING_JOB_ORDER || kind == RING_JOB_ACTIVITY;
}

status ring_run_job(ring_engine *e, ring_job_kind kind, int index)
{
    if (e->compute.waiting == 0) TRY(ring_post(e, kind, index, 0, &e->compute.waiting));
    TRY(ring_await(e, e->compute.waiting, 0));
    if (e->shared.posted && is_read_by_host(kind)) TRY(device_stream_synchronize(e->base.context.compute));
    e->compute.waiting = 0;
    return STATUS_OK;
}

/* ---- figures ---------------------------------------------------------------------------------- */

int ring_bucket_records(const sync_engine *base, int64_t after, ring_bucket_record *out, int capacity)
{
    const ring_engine *e = (const ring_engine *)base;
    int64_t last = e->compute.record_count, oldest = last > RING_RECORDS ? last - RING_RECORDS + 1 : 1;
    int count = 0;
    for (int64_t id = after + 1 > oldest ? after + 1 : oldest; id <= last && count < capacity; id++)
        out[count++] = e->compute.records[(id - 1) % RING_RECORDS];
    return count;
}

/* Of [begin, end), what lies before `limit`. */
static int64_t part_before(int64_t begin, int64_t end, int64_t limit)
{
    if (end > limit) end = limit;
    return end > begin ? end - begin : 0;
}

ring_overlap ring_overlap_of(const ring_bucket_record *records, int count, int64_t backward_end_ns)
{
    ring_overlap o = {0};
    int64_t covered = 0; /* up to here time has been counted */
    for (int i = 0; i < count; i++) {
        const ring_bucket_record *r = &records[i];
        int64_t begin = r->started_ns > covered ? r->started_ns : covered;
        o.communication_ns += part_before(begin, r->finished_ns, INT64_MAX);
        o.hidden_ns += part_before(begin, r->finished_ns, backward_end_ns);
        o.exposed_ns += r->wait_end_ns - r->wait_begin_ns;
        if (r->finished_ns > covered) covered = r->finished_ns;
    }
    if (count > 0) o.pytorch_ns = part_before(records[0].started_ns, backward_end_ns, INT64_MAX);
    return o;
}

const bucket_schedule *ring_buckets(const sync_engine *base)
{
    return &((const ring_engine *)base)->schedule;
}

/* 2(n-1)/n of the bytes through every rank's adapter, in 2(n-1) steps around a ring, in two otherwise. */
int64_t ring_link_bound_ns(const sync_engine *base, int64_t bytes)
{
    const ring_engine *e = (const ring_engine *)base;
    const net_link *link = &base->context.link;
    int n = base->context.world;
    if (n == 1 || !net_link_is_emulated(link)) return 0;
    int steps = strcmp(e->settings.collective, "ring") == 0 ? 2 * (n - 1) : 2;
    return steps * link->latency_ns + net_link_occupied_ns(link, 2 * (n - 1) * bytes / n);
}
