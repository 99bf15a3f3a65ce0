/* What the stages are made of: posting jobs, waiting for them, ending in error. */
#include "common/base/clock.h"
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

uint64_t ring_post(ring_engine *e, ring_job_kind kind, int index, int64_t record)
{
    if (ring_plans(e)) return ++e->compute.posted;
    bool taken = event_queue_post(&e->jobs, (sync_event){(int32_t)kind, index, record});
    assert(taken);
    (void)taken;
    sync_agent_wake(e->agent);
    return ++e->compute.posted;
}

/* Adds up how long communication was in flight, job by job: intervals may overlap, and begin in order. */
static void account(ring_engine *e, uint64_t ticket)
{
    while (e->compute.accounted < ticket) {
        const ring_job_times *t = &e->times[++e->compute.accounted & e->times_mask];
        int64_t begin =
            t->started_ns > e->compute.last_finished_ns ? t->started_ns : e->compute.last_finished_ns;
        if (t->finished_ns > begin) e->compute.counters.total_ns += t->finished_ns - begin;
        if (t->finished_ns > e->compute.last_finished_ns) e->compute.last_finished_ns = t->finished_ns;
    }
}

status ring_await(ring_engine *e, uint64_t ticket)
{
    if (ring_plans(e)) return STATUS_OK;
    if (e->compute.wait_begin_ns == 0) e->compute.wait_begin_ns = ring_now(e);
    TRY(device_stream_wait(e->base.context.compute, e->done, ticket));
    e->compute.counters.exposed_ns += ring_now(e) - e->compute.wait_begin_ns;
    e->compute.wait_begin_ns = 0;
    account(e, ticket);
    return STATUS_OK;
}

/* Posts a job, once, and waits for it. */
status ring_run_job(ring_engine *e, ring_job_kind kind, int index)
{
    if (e->compute.waiting == 0) e->compute.waiting = ring_post(e, kind, index, 0);
    TRY(ring_await(e, e->compute.waiting));
    e->compute.waiting = 0;
    return STATUS_OK;
}
