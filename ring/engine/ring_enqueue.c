/* Jobs with NCCL: the compute thread enqueues, and streams wait for each other's marks. No host thread takes
 * part in what happens between the last gradient of a bucket and its average. */
#include "common/base/clock.h"
#include "ring/engine/engine_impl.h"

static int ready_mark(uint64_t ticket)
{
    return RING_READY_MARK + (int)(ticket % RING_AHEAD);
}

static int end_mark(uint64_t ticket)
{
    return RING_END_MARK + (int)(ticket % RING_AHEAD);
}

/* ---- enqueued --------------------------------------------------------------------------------- */

/* Where too much is in flight the host waits for the oldest job. */
static status make_room(ring_engine *e, uint64_t ticket)
{
    uint64_t oldest = e->compute.accounted + 1;
    if (ticket - oldest < RING_AHEAD) return STATUS_OK;
    TRY(device_mark_wait(e->stream, end_mark(oldest)));
    ring_account(e);
    return STATUS_OK;
}

static status enqueue_phases(ring_engine *e, ring_job *job)
{
    int phases = ring_phases(e, job);
    e->compute.enqueued[job->ticket % RING_AHEAD].kind = job->kind;
    for (job->phase = 0; job->phase < phases; job->phase++) {
        collective_call call;
        collective_ticket ticket;
        TRY(ring_call_of(e, job, &call));
        TRY(collective_enqueue(ring_group_of(e, job->kind), &call, e->stream, &ticket));
        if (job->phase == 0) e->compute.enqueued[job->ticket % RING_AHEAD].first = ticket;
    }
    return ring_is_compressed(e, job) ? ring_powersgd_finish(e, job->index) : STATUS_OK;
}

/* The marks differ from step to step, and an abort of NCCL waits for recorded calls: none of this is part of
 * a recorded pass; it follows what was recorded before. */
status ring_enqueue(ring_engine *e, const ring_job *posted)
{
    ring_job job = *posted;
    device_stream *compute = e->base.context.compute;
    TRY(sync_leave_record(&e->base.context));
    TRY(make_room(e, job.ticket));
    TRY(device_mark(compute, ready_mark(job.ticket)));
    TRY(device_stream_wait_mark(e->stream, compute, ready_mark(job.ticket)));
    TRY(enqueue_phases(e, &job));
    TRY(device_mark(e->stream, end_mark(job.ticket)));
    return sync_enter_record(&e->base.context);
}

/* ---- done ------------------------------------------------------------------------------------- */

status ring_await_in_stream(ring_engine *e, uint64_t ticket)
{
    return device_stream_wait_mark(e->base.context.compute, e->stream, end_mark(ticket));
}

bool ring_enqueued_done(ring_engine *e, uint64_t ticket)
{
    int64_t deadline_ns;
    bool worked;
    ring_job_kind kind = e->compute.enqueued[ticket % RING_AHEAD].kind;
    if (!device_mark_passed(e->stream, end_mark(ticket)) ||
        collective_progress(e->world, clock_now_ns(), &deadline_ns, &worked) != STATUS_OK)
        return false;
    collective_times first =
        collective_get_times(ring_group_of(e, kind), e->compute.enqueued[ticket % RING_AHEAD].first);
    ring_job_times t = {.ticket = ticket,
                        .launched_ns = device_mark_ns(e->base.context.compute, ready_mark(ticket)),
                        .started_ns = first.started_ns,
                        .traced_ns = first.started_ns,
                        .finished_ns = device_mark_ns(e->stream, end_mark(ticket)),
                        .last_rank = first.last_rank,
                        .began_ns = first.began_ns,
                        .algorithm = first.algorithm};
    e->shared.times[ticket & e->shared.times_mask] = t;
    ring_add_span(e, &t);
    if (!ring_ends_bucket(e, kind))
        trace_slice(e->base.context.trace, TRACE_COMMUNICATION, rank_operation_name(ring_operation_of(kind)),
                    TRACE_NO_INDEX, t.started_ns, t.finished_ns);
    return true;
}

/* ---- warm-up ---------------------------------------------------------------------------------- */

static status warm_up_in(ring_engine *e, collective_group *group, collective_call call)
{
    collective_ticket ticket;
    return call.count > 0 ? collective_enqueue(group, &call, e->stream, &ticket) : STATUS_OK;
}

static status warm_up_call(ring_engine *e, collective_call call)
{
    return warm_up_in(e, e->group, call);
}

/* PowerSGD keeps its factors from step to step: other memory stands in for them. */
static status warm_up_bucket(ring_engine *e, int k)
{
    if (e->settings.sharding) {
        collective_call call = ring_scatter_call(e, k);
        collective_buffer shard = call.out;
        TRY(warm_up_in(e, e->shard_group, call));
        /* The other way round: gradients stand in for parameters, which may still differ between ranks. */
        call.kind = COLLECTIVE_ALL_GATHER;
        call.out = call.in;
        call.in = shard;
        TRY(warm_up_in(e, e->shard_group, call));
        return e->replicas ? warm_up_in(e, e->replicas, ring_replicas_call(e, k)) : STATUS_OK;
    }
    TRY(warm_up_call(e, ring_bucket_call(e, k)));
    if (e->settings.hook != RING_HOOK_POWERSGD) return STATUS_OK;
    const ring_factors *f = &e->powersgd.factors[k];
    collective_buffer stand_in = {.base = ring_bucket_data(e, k)};
    collective_call call = {.kind = COLLECTIVE_ALL_REDUCE,
                            .op = REDUCE_MEAN,
                            .type = DTYPE_F32,
                            .tag = k,
                            .in = stand_in,
                            .out = stand_in};
    call.count = f->p_count;
    TRY(warm_up_call(e, call));
    call.count = f->q_count;
    return warm_up_call(e, call);
}

status ring_warm_up(ring_engine *e)
{
    device_stream *compute = e->base.context.compute;
    TRY(device_mark(compute, RING_READY_MARK));
    TRY(device_stream_wait_mark(e->stream, compute, RING_READY_MARK));
    for (int k = 0; k < e->schedule.count; k++) TRY(warm_up_bucket(e, k));
    collective_buffer group = {.base = e->memory.group};
    TRY(warm_up_call(e, (collective_call){.kind = COLLECTIVE_ALL_REDUCE,
                                          .type = DTYPE_F64,
                                          .tag = -5,
                                          .count = e->memory.group_capacity,
                                          .in = group,
                                          .out = group}));
    TRY(device_stream_synchronize(e->stream));
    e->compute.warm = true;
    return STATUS_OK;
}
