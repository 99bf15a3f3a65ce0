/* Jobs. The compute thread posts them and waits for them. The agent pops them in the order of posting, posts
 * them to the collectives, and advances the fence of their queue when they are done. With NCCL there is no
 * agent: ring_enqueue.c. */
#include "common/sync/anatomy.h"
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
    if (e->agent) sync_agent_wake(e->agent);
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

status ring_post(ring_engine *e, ring_job_kind kind, int index, int64_t record, uint64_t *ticket)
{
    *ticket = ++e->compute.posted;
    e->compute.record_of[*ticket & e->shared.times_mask] = record;
    if (e->stream)
        return ring_enqueue(
            e, &(ring_job){.kind = kind, .index = index, .step = e->compute.step.index, .ticket = *ticket});
    if (e->shared.posted) /* before the agent looks for it */
        TRY(device_stream_signal(e->base.context.compute, e->shared.posted, *ticket));
    bool taken = sync_queue_push(&e->shared.jobs, &(sync_event){(int32_t)kind, index, e->compute.step.index});
    assert(taken);
    (void)taken;
    sync_agent_wake(e->agent);
    return STATUS_OK;
}

/* Between groups only buckets are reduced, whose records end there. */
static ring_queue queue_of(const ring_engine *e, uint64_t ticket)
{
    return e->replicas && e->compute.record_of[ticket & e->shared.times_mask] != 0 ? RING_QUEUE_REPLICAS
                                                                                   : RING_QUEUE_RANKS;
}

bool ring_is_done(ring_engine *e, uint64_t ticket)
{
    if (e->stream) return ring_enqueued_done(e, ticket);
    return device_fence_reached(e->shared.done[queue_of(e, ticket)], ticket);
}

/* ---- the compute thread waits ------------------------------------------------------------------ */

void ring_add_span(const ring_engine *e, const ring_job_times *t)
{
    anatomy *a = e->base.context.anatomy;
    if (t->last_rank < 0)
        anatomy_add_call(a, t->ticket, t->began_ns, t->finished_ns);
    else
        anatomy_add_span(a, t->started_ns, t->finished_ns);
}

static status await_job(ring_engine *e, uint64_t ticket, int64_t record)
{
    const sync_context *c = &e->base.context;
    ring_wait w = {.ticket = ticket, .record = record};
    TRY(anatomy_begin_wait(c->anatomy));
    TRY(e->stream ? ring_await_in_stream(e, ticket)
                  : device_stream_wait(c->compute, e->shared.done[queue_of(e, ticket)], ticket));
    TRY(anatomy_end_wait(c->anatomy, &w.number));
    if (w.number >= 0 && e->compute.wait_count < RING_WAITS) e->compute.waits[e->compute.wait_count++] = w;
    return STATUS_OK;
}

/* Jobs of a queue end one after another, and an all-reduce between groups follows those within. Each that is
 * still under way is waited for by itself: which rank was waited for differs from job to job. */
static status await_those_before(ring_engine *e, uint64_t ticket)
{
    for (; e->compute.awaited + 1 < ticket; e->compute.awaited++) {
        uint64_t before = e->compute.awaited + 1;
        if (queue_of(e, before) != RING_QUEUE_RANKS) continue;
        if (!device_fence_reached(e->shared.done[RING_QUEUE_RANKS], before)) TRY(await_job(e, before, 0));
    }
    return STATUS_OK;
}

status ring_await(ring_engine *e, uint64_t ticket, int64_t record)
{
    if (!e->stream) TRY(await_those_before(e, ticket));
    TRY(await_job(e, ticket, record));
    if (ticket > e->compute.awaited && queue_of(e, ticket) == RING_QUEUE_RANKS) e->compute.awaited = ticket;
    return STATUS_OK;
}

status ring_run_job(ring_engine *e, ring_job_kind kind, int index)
{
    uint64_t ticket;
    TRY(ring_post(e, kind, index, 0, &ticket));
    return ring_await(e, ticket, 0);
}

void ring_publish_traffic(ring_engine *e)
{
    collective_traffic t = collective_get_traffic(e->world);
    atomic_store_explicit(&e->shared.bytes_sent, t.bytes_sent, memory_order_relaxed);
    atomic_store_explicit(&e->shared.bytes_received, t.bytes_received, memory_order_relaxed);
    atomic_store_explicit(&e->shared.messages_sent, t.messages_sent, memory_order_relaxed);
    atomic_store_explicit(&e->shared.messages_received, t.messages_received, memory_order_relaxed);
}

/* ---- what a job is to the status table and the collectives -------------------------------------- */

rank_operation ring_operation_of(ring_job_kind kind)
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

collective_call ring_bucket_call(const ring_engine *e, int k)
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

bool ring_is_compressed(const ring_engine *e, const ring_job *job)
{
    return job->kind == RING_JOB_BUCKET && ring_powersgd_active(e, job->step);
}

int ring_phases(const ring_engine *e, const ring_job *job)
{
    return ring_is_compressed(e, job) ? 2 : 1;
}

collective_group *ring_group_of(const ring_engine *e, ring_job_kind kind)
{
    if (kind == RING_JOB_REPLICAS) return e->replicas;
    bool of_shards = kind == RING_JOB_SCATTER || kind == RING_JOB_GATHER || kind == RING_JOB_NORM;
    return of_shards ? e->shard_group : e->group;
}

/* The rank of a member of the group that takes part in the job; -1, which is none, stays. */
static int rank_of_member(const ring_engine *e, const ring_job *job, int member)
{
    const collective_group *group = ring_group_of(e, job->kind);
    int rank = e->base.context.rank, each = e->settings.group;
    if (member < 0 || group == e->group) return member;
    return group == e->replicas ? rank % each + member * each : rank - rank % each + member;
}

static collective_call plain_call(const ring_engine *e, const ring_job *job)
{
    const sync_context *c = &e->base.context;
    const param_set *set = c->params;
    const ring_memory *m = &e->memory;
    collective_call call = {.kind = COLLECTIVE_BARRIER};
    switch (job->kind) {
    case RING_JOB_BUCKET:
        return ring_bucket_call(e, job->index);
    case RING_JOB_SCATTER:
        return ring_scatter_call(e, job->index);
    case RING_JOB_REPLICAS:
        return ring_replicas_call(e, job->index);
    case RING_JOB_PARAMETERS:
        call = arena_broadcast(set->type, set->params.data, set->pieces, set->model->param_count);
        break;
    case RING_JOB_BUFFERS:
        call = arena_broadcast(set->type, set->buffers.data, set->buffer_pieces, set->model->buffer_count);
        call.root = job->index;
        break;
    case RING_JOB_ORDER:
        call = in_place(COLLECTIVE_BROADCAST, DTYPE_I32, set->model->param_count,
                        e->stream ? m->device_order : m->order);
        break;
    case RING_JOB_ACTIVITY:
        call = in_place(COLLECTIVE_ALL_GATHER, DTYPE_I32, c->world, m->activity);
        call.in.base = m->activity + c->rank;
        break;
    case RING_JOB_GROUP_SUM:
    case RING_JOB_NORM:
        call = in_place(COLLECTIVE_ALL_REDUCE, DTYPE_F64, job->index, m->group);
        break;
    case RING_JOB_GATHER:
        call = ring_gather_call(e, job->index);
        call.tag = tag_of(job->kind) - job->index;
        return call;
    case RING_JOB_COUNT:
        break;
    }
    call.tag = tag_of(job->kind);
    call.control = true; /* --algorithm is of the buckets */
    return call;
}

status ring_call_of(ring_engine *e, const ring_job *job, collective_call *out)
{
    if (ring_is_compressed(e, job)) return ring_powersgd_call(e, job->index, job->phase, out);
    *out = plain_call(e, job);
    return STATUS_OK;
}

/* ---- the agent --------------------------------------------------------------------------------- */

static ring_job *job_at(ring_job_queue *queue, uint64_t number)
{
    return &queue->jobs[number % RING_IN_FLIGHT];
}

/* The status table shows the oldest job. */
static void show(ring_engine *e, int64_t now_ns)
{
    rank_slot *slot = e->base.context.slot;
    const ring_job *oldest = NULL;
    for (ring_queue q = 0; q < RING_QUEUES; q++) {
        ring_job_queue *queue = &e->agent_state.queues[q];
        const ring_job *job = queue->head == queue->tail ? NULL : job_at(queue, queue->head);
        if (job && (!oldest || job->ticket < oldest->ticket)) oldest = job;
    }
    if (oldest)
        rank_slot_agent(slot, ring_operation_of(oldest->kind),
                        ring_is_bucket(oldest->kind) ? oldest->index : RANK_NO_BUCKET, now_ns);
    else
        rank_slot_agent(slot, RANK_START, RANK_NO_BUCKET, now_ns);
}

static void take_job(ring_engine *e, sync_event event, int64_t now_ns)
{
    ring_agent_state *a = &e->agent_state;
    ring_job_queue *queue =
        &a->queues[event.kind == RING_JOB_REPLICAS ? RING_QUEUE_REPLICAS : RING_QUEUE_RANKS];
    uint64_t ticket = ++a->taken;
    bool idle = a->queues[0].head == a->queues[0].tail && a->queues[1].head == a->queues[1].tail;
    *job_at(queue, queue->tail++) = (ring_job){.kind = (ring_job_kind)event.kind,
                                               .index = event.index,
                                               .ticket = ticket,
                                               .step = event.value,
                                               .times = {.ticket = ticket, .launched_ns = now_ns}};
    if (idle) show(e, now_ns);
}

static status begin_job(ring_engine *e, ring_job *job)
{
    collective_call call;
    if (job->kind == RING_JOB_BUCKET && ring_hook_has_function(e->settings.hook) &&
        device_get_info(e->base.context.device)->real)
        ring_hooks[e->settings.hook].compress(e->wire, ring_bucket_data(e, job->index),
                                              e->schedule.buckets[job->index].elements);
    TRY(ring_call_of(e, job, &call));
    return collective_post(ring_group_of(e, job->kind), &call, &job->call);
}

/* A shard is reduced between groups when it has been within the group, by the job before. */
static status begin_jobs(ring_engine *e, bool *worked)
{
    for (ring_queue q = 0; q < RING_QUEUES; q++) {
        ring_job_queue *queue = &e->agent_state.queues[q];
        for (; queue->begun != queue->tail; queue->begun++) {
            ring_job *job = job_at(queue, queue->begun);
            if (q == RING_QUEUE_REPLICAS && e->agent_state.ended[RING_QUEUE_RANKS] + 1 < job->ticket) break;
            TRY(begin_job(e, job));
            *worked = true;
        }
    }
    return STATUS_OK;
}

static void end_job(ring_engine *e, ring_queue q, ring_job *job, int64_t now_ns)
{
    uint64_t ticket = job->ticket;
    int64_t *until_ns = &e->agent_state.traced_until_ns;
    job->times.traced_ns = job->times.started_ns > *until_ns ? job->times.started_ns : *until_ns;
    if (job->times.finished_ns > *until_ns) *until_ns = job->times.finished_ns;
    e->shared.times[ticket & e->shared.times_mask] = job->times;
    ring_add_span(e, &job->times);
    if (!ring_ends_bucket(e, job->kind))
        trace_slice(e->base.context.trace, TRACE_COMMUNICATION,
                    rank_operation_name(ring_operation_of(job->kind)), TRACE_NO_INDEX, job->times.traced_ns,
                    job->times.finished_ns);
    ring_publish_traffic(e);
    e->agent_state.queues[q].head++;
    e->agent_state.ended[q] = ticket;
    show(e, now_ns);
    device_fence_reach(e->shared.done[q], ticket); /* last: it publishes all of the above */
}

/* The call of a queue's oldest job is done: its next phase begins, or it ends. */
static status advance_job(ring_engine *e, ring_queue q, int64_t now_ns)
{
    ring_job *job = job_at(&e->agent_state.queues[q], e->agent_state.queues[q].head);
    collective_times times = collective_get_times(ring_group_of(e, job->kind), job->call);
    if (job->phase == 0) {
        job->times.started_ns = times.started_ns;
        job->times.last_rank = rank_of_member(e, job, times.last_rank);
        job->times.began_ns = times.began_ns;
        job->times.algorithm = times.algorithm;
    }
    job->times.finished_ns = times.finished_ns;
    if (job->phase + 1 < ring_phases(e, job)) {
        job->phase++;
        collective_call call;
        TRY(ring_call_of(e, job, &call));
        return collective_post(ring_group_of(e, job->kind), &call, &job->call);
    }
    if (ring_is_compressed(e, job)) TRY(ring_powersgd_finish(e, job->index));
    end_job(e, q, job, now_ns);
    return STATUS_OK;
}

/* The queue whose oldest job's call was done first; RING_QUEUES: none is. */
static ring_queue queue_done_first(ring_engine *e)
{
    ring_queue first = RING_QUEUES;
    int64_t first_ns = INT64_MAX;
    for (ring_queue q = 0; q < RING_QUEUES; q++) {
        ring_job_queue *queue = &e->agent_state.queues[q];
        if (queue->head == queue->begun) continue;
        const ring_job *job = job_at(queue, queue->head);
        const collective_group *group = ring_group_of(e, job->kind);
        if (!collective_done(group, job->call)) continue;
        int64_t ns = collective_get_times(group, job->call).finished_ns;
        if (ns >= first_ns) continue;
        first = q;
        first_ns = ns;
    }
    return first;
}

/* Whether another job may be taken: not after a job with a second phase, on any rank; and not before the
 * compute stream has passed it. */
static bool has_room(ring_engine *e)
{
    ring_agent_state *a = &e->agent_state;
    for (ring_queue q = 0; q < RING_QUEUES; q++)
        if (a->queues[q].tail - a->queues[q].head == RING_IN_FLIGHT) return false;
    if (e->shared.posted && !device_fence_reached(e->shared.posted, a->taken + 1)) return false;
    ring_job_queue *queue = &a->queues[RING_QUEUE_RANKS];
    return queue->tail == queue->head || !ring_is_compressed(e, job_at(queue, queue->tail - 1));
}

static status progress(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    ring_engine *e = context;
    sync_event event;
    if (atomic_load_explicit(&e->shared.given_up, memory_order_acquire)) {
        collective_abort(e->world, &e->shared.failure);
        return error_adopt(&e->shared.failure);
    }
    TRY(collective_progress(e->world, now_ns, deadline_ns, worked));
    for (ring_queue q; (q = queue_done_first(e)) < RING_QUEUES;) {
        *worked = true;
        TRY(advance_job(e, q, now_ns));
    }
    while (has_room(e) &&
           sync_queue_pop(&e->shared.jobs, &event)) /* after the progress: see collective_wait() */
        take_job(e, event, now_ns);
    return begin_jobs(e, worked);
}

static void wait_for_work(void *context, int64_t deadline_ns)
{
    collective_wait(((ring_engine *)context)->world, deadline_ns);
}

static void wake(void *context)
{
    collective_wake(((ring_engine *)context)->world);
}

static void failed(void *context, const error_record *error)
{
    ring_engine *e = context;
    collective_abort(e->world, error);
    for (ring_queue q = 0; q < RING_QUEUES; q++) device_fence_fail(e->shared.done[q], error);
}

const sync_agent_ops ring_agent_ops = {
    .progress = progress, .wait = wait_for_work, .wake = wake, .failed = failed};
