/* Jobs. The compute thread posts them, waits for them, and adds up their times. The agent pops them in the
 * order of posting, posts them to the collectives, and advances the fence when they are done. */
#include "common/base/clock.h"
#include "common/sync/anatomy.h"
#include "common/sync/staging.h"
#include "ring/engine/engine_impl.h"

#include <assert.h>

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

/* ---- the compute thread posts -------------------------------------------------------------------- */

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

/* The times of a job that is done; NULL: another job's have replaced them. */
static const ring_job_times *times_of(const ring_engine *e, uint64_t ticket)
{
    const ring_job_times *t = &e->shared.times[ticket & e->shared.times_mask];
    return t->ticket == ticket ? t : NULL;
}

static void account_job(ring_engine *e, uint64_t ticket)
{
    const ring_job_times *t = times_of(e, ticket);
    int64_t id = e->compute.record_of[ticket & e->shared.times_mask];
    if (id == 0 || !t) return;
    ring_bucket_record *r = ring_record(e, id);
    r->launched_ns =
        t->launched_ns > r->ready_ns ? t->launched_ns : r->ready_ns; /* the agent's clock may be older */
    r->started_ns = t->started_ns;
    r->finished_ns = t->finished_ns;
}

/* Reads the times of the jobs that are done into the records. */
static void account(ring_engine *e)
{
    while (e->compute.accounted < e->compute.posted &&
           device_fence_reached(e->shared.done, e->compute.accounted + 1))
        account_job(e, ++e->compute.accounted);
}

/* ---- the compute thread waits ------------------------------------------------------------------ */

static void trace_bucket(const ring_engine *e, const ring_bucket_record *r)
{
    trace *t = e->base.context.trace;
    if (!trace_is_on(t)) return;
    int64_t taken_ns = r->finished_ns > r->wait_begin_ns ? r->finished_ns : r->wait_begin_ns;
    trace_async(t, "bucket", r->bucket, r->id, r->launched_ns, r->finished_ns);
    trace_slice(t, TRACE_COMMUNICATION, "all_reduce of bucket", r->bucket, r->started_ns, r->finished_ns);
    trace_flow(t, TRACE_FLOW_BEGIN, TRACE_COMPUTE, r->id, r->ready_ns);
    trace_flow(t, TRACE_FLOW_STEP, TRACE_COMMUNICATION, r->id, r->started_ns);
    trace_flow(t, TRACE_FLOW_END, TRACE_COMPUTE, r->id,
               taken_ns < r->wait_end_ns ? taken_ns : r->wait_end_ns);
}

/* Before its peers had posted the job, the lane waited for the last of them. */
static void name_wait(const ring_engine *e, const ring_wait *w)
{
    const ring_job_times *t = times_of(e, w->ticket);
    if (!t || t->last_rank == e->base.context.rank) return;
    anatomy_name_wait(e->base.context.anatomy, w->number, (anatomy_sent){t->started_ns, t->last_rank});
}

void ring_end_step(sync_engine *base)
{
    ring_engine *e = ring_of(base);
    const sync_context *c = &base->context;
    account(e);
    for (const ring_wait *w = e->compute.waits; w < e->compute.waits + e->compute.wait_count; w++) {
        anatomy_span time = anatomy_wait_time(c->anatomy, w->number);
        name_wait(e, w);
        if (w->record == 0) continue;
        ring_bucket_record *r = ring_record(e, w->record);
        r->wait_begin_ns = time.begin_ns;
        r->wait_end_ns = time.end_ns;
        trace_bucket(e, r);
    }
    e->compute.wait_count = 0;
}

/* Whether the agent may launch kernels for the first time in this step. A kernel is loaded when it is first
 * launched, and loading may wait for all streams of the GPU (CUDA C++ Programming Guide, "Lazy Loading"). A
 * stream that waits for the agent at that moment would be a deadlock, so the host waits instead. */
static bool agent_loads(const ring_engine *e)
{
    bool factors_begin =
        e->settings.hook == RING_HOOK_POWERSGD && e->compute.step.index == e->settings.powersgd_start;
    return !e->compute.first_done || factors_begin;
}

status ring_await(ring_engine *e, uint64_t ticket, int64_t record)
{
    const sync_context *c = &e->base.context;
    ring_wait w = {.ticket = ticket, .record = record};
    TRY(anatomy_begin_wait(c->anatomy));
    TRY(e->stream && agent_loads(e) ? sync_host_wait(c->compute, e->shared.done, ticket)
                                    : device_stream_wait(c->compute, e->shared.done, ticket));
    TRY(anatomy_end_wait(c->anatomy, &w.number));
    if (w.number >= 0 && e->compute.wait_count < RING_WAITS) e->compute.waits[e->compute.wait_count++] = w;
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

void ring_counters(sync_engine *base, sync_counters *out)
{
    ring_engine *e = ring_of(base);
    *out = (sync_counters){.agents_cpu_ns = sync_agent_cpu_ns(e->agent)};
    out->bytes_sent = atomic_load_explicit(&e->shared.bytes_sent, memory_order_relaxed);
    out->bytes_received = atomic_load_explicit(&e->shared.bytes_received, memory_order_relaxed);
    out->messages_sent = atomic_load_explicit(&e->shared.messages_sent, memory_order_relaxed);
    out->messages_received = atomic_load_explicit(&e->shared.messages_received, memory_order_relaxed);
    out->updates_skipped = optimizer_skipped(base->context.optimizer);
}

/* ---- the agent: what a job is to the status table and the collectives ------------------------- */

static rank_operation table_of(ring_job_kind kind)
{
#define TABLE_OF(name, operation, tag) [RING_JOB_##name] = RANK_##operation,
    static const rank_operation operations[] = {RING_JOB_LIST(TABLE_OF)};
#undef TABLE_OF
    return operations[kind];
}

static int tag_of(ring_job_kind kind)
{
#define TAG_OF(name, operation, tag) [RING_JOB_##name] = tag,
    static const int tags[] = {RING_JOB_LIST(TAG_OF)};
#undef TAG_OF
    return tags[kind];
}

/* ---- the agent's calls ------------------------------------------------------------------------- */

static collective_call in_place(collective_kind kind, dtype type, int64_t count, void *base)
{
    collective_buffer b = {.base = base};
    return (collective_call){.kind = kind, .type = type, .count = count, .in = b, .out = b};
}

static collective_call arena_broadcast(dtype type, void *data, const piece *pieces, int count)
{
    piece_list list = {pieces, count};
    collective_call call = in_place(COLLECTIVE_BROADCAST, type, piece_list_elements(list), data);
    call.in.pieces = call.out.pieces = list;
    return call;
}

static collective_call bucket_call(const ring_engine *e, int k)
{
    const bucket *b = &e->schedule.buckets[k];
    collective_call call = in_place(COLLECTIVE_ALL_REDUCE, e->wire, b->elements, ring_bucket_data(e, k));
    collective_buffer gradients = {e->base.context.params->grads.data, e->buckets[k].gradients};
    if (e->settings.bucket_view || ring_copies_back_in_flight(e)) call.out = gradients;
    if (e->settings.bucket_view) call.in = gradients;
    call.op = ring_means_in_flight(e) ? REDUCE_MEAN : REDUCE_SUM;
    call.tag = k;
    return call;
}

static bool is_compressed(const ring_engine *e, const ring_job *job)
{
    return job->kind == RING_JOB_BUCKET && ring_powersgd_active(e, job->step);
}

static collective_call plain_call(const ring_engine *e, const ring_job *job)
{
    const sync_context *c = &e->base.context;
    const param_set *set = c->params;
    const ring_memory *m = &e->memory;
    collective_call call = {.kind = COLLECTIVE_BARRIER};
    switch (job->kind) {
    case RING_JOB_BUCKET:
        return bucket_call(e, job->index);
    case RING_JOB_PARAMETERS:
        call = arena_broadcast(set->type, set->params.data, set->pieces, set->model->param_count);
        break;
    case RING_JOB_BUFFERS:
        call = arena_broadcast(set->type, set->buffers.data, set->buffer_pieces, set->model->buffer_count);
        call.root = job->index;
        break;
    case RING_JOB_ORDER:
        call = in_place(COLLECTIVE_BROADCAST, DTYPE_I32, set->model->param_count, m->order);
        break;
    case RING_JOB_ACTIVITY:
        call = in_place(COLLECTIVE_ALL_GATHER, DTYPE_I32, c->world, m->activity);
        call.in.base = m->activity + c->rank;
        break;
    case RING_JOB_GROUP_SUM:
        call = in_place(COLLECTIVE_ALL_REDUCE, DTYPE_F64, job->index, m->group);
        break;
    case RING_JOB_COUNT:
        break;
    }
    call.tag = tag_of(job->kind);
    call.control = true; /* --algorithm is of the buckets */
    return call;
}

static status call_of(ring_engine *e, const ring_job *job, collective_call *out)
{
    if (is_compressed(e, job)) return ring_powersgd_call(e, job->index, job->phase, out);
    *out = plain_call(e, job);
    return STATUS_OK;
}

/* ---- the agent's jobs -------------------------------------------------------------------------- */

static void show(ring_engine *e, int64_t now_ns)
{
    const ring_job *job = &e->agent_state.in_flight[e->agent_state.head % RING_IN_FLIGHT];
    rank_slot *slot = e->base.context.slot;
    if (e->agent_state.head == e->agent_state.tail)
        rank_slot_agent(slot, RANK_START, RANK_NO_BUCKET, now_ns);
    else
        rank_slot_agent(slot, table_of(job->kind), job->kind == RING_JOB_BUCKET ? job->index : RANK_NO_BUCKET,
                        now_ns);
}

static status begin_job(ring_engine *e, sync_event event, int64_t now_ns)
{
    ring_job *job = &e->agent_state.in_flight[e->agent_state.tail % RING_IN_FLIGHT];
    *job = (ring_job){.kind = (ring_job_kind)event.kind,
                      .index = event.index,
                      .ticket = e->agent_state.tail + 1,
                      .step = event.value,
                      .times = {.ticket = e->agent_state.tail + 1, .launched_ns = now_ns}};
    collective_call call;
    if (e->stream)
        TRY(device_stream_wait(e->stream, e->shared.posted,
                               job->ticket)); /* the GPU waits, the agent does not */
    if (job->kind == RING_JOB_BUCKET && ring_hook_has_function(e->settings.hook) &&
        device_get_info(e->base.context.device)->real)
        ring_hooks[e->settings.hook].compress(e->wire, ring_bucket_data(e, job->index),
                                              e->schedule.buckets[job->index].elements);
    TRY(call_of(e, job, &call));
    TRY(collective_post(e->agent_state.group, &call, &job->call));
    e->agent_state.tail++;
    if (e->agent_state.tail == e->agent_state.head + 1) show(e, now_ns);
    return STATUS_OK;
}

static void publish_traffic(ring_engine *e)
{
    collective_traffic t = collective_get_traffic(e->agent_state.world);
    atomic_store_explicit(&e->shared.bytes_sent, t.bytes_sent, memory_order_relaxed);
    atomic_store_explicit(&e->shared.bytes_received, t.bytes_received, memory_order_relaxed);
    atomic_store_explicit(&e->shared.messages_sent, t.messages_sent, memory_order_relaxed);
    atomic_store_explicit(&e->shared.messages_received, t.messages_received, memory_order_relaxed);
}

static void end_job(ring_engine *e, const ring_job *job, int64_t now_ns)
{
    uint64_t ticket = job->ticket;
    e->shared.times[ticket & e->shared.times_mask] = job->times;
    anatomy_add_span(e->base.context.anatomy, job->times.started_ns, job->times.finished_ns);
    if (job->kind != RING_JOB_BUCKET)
        trace_slice(e->base.context.trace, TRACE_COMMUNICATION, rank_operation_name(table_of(job->kind)),
                    TRACE_NO_INDEX, job->times.started_ns, job->times.finished_ns);
    publish_traffic(e);
    e->agent_state.head++;
    show(e, now_ns);
    device_fence_reach(e->shared.done, ticket); /* last: it publishes all of the above */
}

/* The oldest job's call is done: its next phase begins, or it ends. */
static status advance_job(ring_engine *e, int64_t now_ns)
{
    ring_job *job = &e->agent_state.in_flight[e->agent_state.head % RING_IN_FLIGHT];
    collective_times times = collective_get_times(e->agent_state.group, job->call);
    if (job->phase == 0) {
        job->times.started_ns = times.started_ns;
        job->times.last_rank = times.last_rank;
    }
    job->times.finished_ns = times.finished_ns;
    if (is_compressed(e, job) && job->phase == 0) {
        job->phase = 1;
        collective_call call;
        TRY(call_of(e, job, &call));
        return collective_post(e->agent_state.group, &call, &job->call);
    }
    if (is_compressed(e, job)) TRY(ring_powersgd_finish(e, job->index));
    end_job(e, job, now_ns);
    return STATUS_OK;
}

/* Whether another job may be posted: not after a job with a second phase, on any rank; and not before the
 * compute stream has passed it, unless the collectives run in stream order themselves. */
static bool has_room(const ring_engine *e)
{
    uint64_t head = e->agent_state.head, tail = e->agent_state.tail;
    if (tail - head == RING_IN_FLIGHT) return false;
    if (e->shared.posted && !e->stream && !device_fence_reached(e->shared.posted, tail + 1)) return false;
    return tail == head || !is_compressed(e, &e->agent_state.in_flight[(tail - 1) % RING_IN_FLIGHT]);
}

static status progress(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    ring_engine *e = context;
    sync_event event;
    if (atomic_load_explicit(&e->shared.given_up, memory_order_acquire)) {
        collective_abort(e->agent_state.world, &e->shared.failure);
        return error_adopt(&e->shared.failure);
    }
    TRY(collective_progress(e->agent_state.world, now_ns, deadline_ns, worked));
    while (e->agent_state.head != e->agent_state.tail &&
           collective_done(e->agent_state.group,
                           e->agent_state.in_flight[e->agent_state.head % RING_IN_FLIGHT].call)) {
        *worked = true;
        TRY(advance_job(e, now_ns));
    }
    while (has_room(e) &&
           sync_queue_pop(&e->shared.jobs, &event)) { /* after the progress: see collective_wait() */
        *worked = true;
        TRY(begin_job(e, event, now_ns));
    }
    return STATUS_OK;
}

static void wait_for_work(void *context, int64_t deadline_ns)
{
    collective_wait(((ring_engine *)context)->agent_state.world, deadline_ns);
}

static void wake(void *context)
{
    collective_wake(((ring_engine *)context)->agent_state.world);
}

static void failed(void *context, const error_record *error)
{
    ring_engine *e = context;
    collective_abort(e->agent_state.world, error);
    device_fence_fail(e->shared.done, error);
}

const sync_agent_ops ring_agent_ops = {
    .progress = progress, .wait = wait_for_work, .wake = wake, .failed = failed};
