/* What the stages are made of: posting jobs, waiting for them, ending in error. */
#include "common/base/clock.h"
#include "common/sync/handover.h"
#include "ring/engine/engine_impl.h"

#include <assert.h>

int64_t ring_now(const ring_engine *e)
{
    return device_now_ns(e->base.context.device);
}

/* Tells the peers, through the agent, that this rank ends; returns the code of the present error. */
status ring_give_up(ring_engine *e, status code)
{
    error_copy(&e->failure);
    atomic_store_explicit(&e->given_up, true, memory_order_release);
    sync_agent_wake(e->agent);
    return code;
}

bool ring_has_buffers(const ring_engine *e)
{
    return e->base.context.params->model->buffer_count > 0 && e->base.context.world > 1;
}

/* ---- jobs ------------------------------------------------------------------------------------- */

/* The number is another in every step: it stands outside of a recorded pass, behind what came before it. */
static status signal_job(ring_engine *e, uint64_t ticket)
{
    TRY(sync_leave_record(&e->base.context));
    TRY(device_stream_signal(e->base.context.compute, e->posted, ticket));
    return sync_enter_record(&e->base.context);
}

status ring_post(ring_engine *e, ring_job_kind kind, int index, int64_t record, uint64_t *ticket)
{
    if (ring_plans(e)) {
        *ticket = ++e->compute.posted;
        return STATUS_OK;
    }
    *ticket = ++e->compute.posted;
    if (e->posted) TRY(signal_job(e, *ticket)); /* before the agent lets its stream wait for it */
    bool taken = event_queue_post(&e->jobs, (sync_event){(int32_t)kind, index, record});
    assert(taken);
    (void)taken;
    sync_agent_wake(e->agent);
    return STATUS_OK;
}

/* How long communication was in flight, job by job: intervals may overlap, and begin in order. */
void ring_account(ring_engine *e)
{
    while (e->compute.accounted < e->compute.posted &&
           device_fence_reached(e->done, e->compute.accounted + 1)) {
        const ring_job_times *t = &e->times[++e->compute.accounted & e->times_mask];
        int64_t begin =
            t->started_ns > e->compute.last_finished_ns ? t->started_ns : e->compute.last_finished_ns;
        if (t->finished_ns > begin) e->compute.counters.total_ns += t->finished_ns - begin;
        if (t->finished_ns > e->compute.last_finished_ns) e->compute.last_finished_ns = t->finished_ns;
    }
}

/* ---- waits that the host does not see --------------------------------------------------------- */

static int mark_of(int wait)
{
    return SYNC_MARK_ENGINE + 2 * wait;
}

void ring_collect_waits(ring_engine *e)
{
    device_stream *s = e->base.context.compute;
    for (int i = 0; i < e->compute.wait_count; i++) {
        int64_t begin = device_mark_ns(s, mark_of(i)), end = device_mark_ns(s, mark_of(i) + 1);
        e->compute.counters.exposed_ns += end - begin;
        if (e->compute.waits[i].record == 0) continue;
        ring_bucket_record *record = ring_record(e, e->compute.waits[i].record);
        record->wait_begin_ns = begin;
        record->wait_end_ns = end;
        ring_trace_bucket(e, record);
    }
    e->compute.wait_count = 0;
}

void ring_note_wait(ring_engine *e, int64_t record)
{
    if (e->compute.wait_count > 0) e->compute.waits[e->compute.wait_count - 1].record = record;
}

/* Whether the agent may launch kernels for the first time in this step. A kernel is loaded when it is first
 * launched, and loading may wait for all streams of the GPU (CUDA C++ Programming Guide, "Lazy Loading"): one
 * that waited for the agent meanwhile would wait for ever. So the host waits then, and the stream does not.
 */
static bool agent_loads(const ring_engine *e)
{
    bool factors_begin =
        e->settings.hook == RING_HOOK_POWERSGD && e->compute.step.index == e->settings.powersgd_start;
    return !e->compute.first_done || factors_begin;
}

static status await_in_stream(ring_engine *e, uint64_t ticket)
{
    device_stream *s = e->base.context.compute;
    if (e->compute.wait_count == RING_WAITS) ring_collect_waits(e);
    int wait = e->compute.wait_count;
    TRY(device_mark(s, mark_of(wait)));
    TRY(agent_loads(e) ? sync_host_wait(s, e->done, ticket) : device_stream_wait(s, e->done, ticket));
    TRY(device_mark(s, mark_of(wait) + 1));
    e->compute.waits[wait] = (ring_stream_wait){0};
    e->compute.wait_count++;
    return STATUS_OK;
}

status ring_await(ring_engine *e, uint64_t ticket)
{
    if (ring_plans(e)) return STATUS_OK;
    if (e->stream) return await_in_stream(e, ticket);
    if (e->compute.wait_begin_ns == 0) e->compute.wait_begin_ns = ring_now(e);
    TRY(device_stream_wait(e->base.context.compute, e->done, ticket));
    int64_t end_ns = ring_now(e);
    trace_slice(e->base.context.trace, TRACE_COMPUTE, "wait", TRACE_NO_INDEX, e->compute.wait_begin_ns,
                end_ns);
    e->compute.counters.exposed_ns += end_ns - e->compute.wait_begin_ns;
    e->compute.wait_begin_ns = 0;
    return STATUS_OK;
}

/* The host reads what such a job brings. */
static bool is_read_by_host(ring_job_kind kind)
{
    return kind == RING_JOB_ORDER || kind == RING_JOB_ACTIVITY;
}

/* Posts a job, once, and waits for it. */
status ring_run_job(ring_engine *e, ring_job_kind kind, int index)
{
    if (e->compute.waiting == 0) TRY(ring_post(e, kind, index, 0, &e->compute.waiting));
    TRY(ring_await(e, e->compute.waiting));
    if (e->posted && is_read_by_host(kind)) TRY(device_stream_synchronize(e->base.context.compute));
    e->compute.waiting = 0;
    return STATUS_OK;
}
