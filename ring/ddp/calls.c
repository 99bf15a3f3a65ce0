/* The jobs of the ring engine, which are calls of the process group. */
#include "common/sync/anatomy.h"
#include "ring/engine_impl.h"

bool ring_has_buffers(const ring_engine *e)
{
    return e->base.context.params->model->buffer_count > 0 && e->base.context.world > 1;
}

/* ---- jobs as collective calls -------------------------------------- */

#define JOB_ROW(name, operation, tag) [RING_JOB_##name] = {RANK_##operation, tag},
static const struct {
    rank_operation operation;
    int tag;
} jobs[] = {RING_JOB_LIST(JOB_ROW)};
#undef JOB_ROW

static collective_call arena_broadcast(dtype type, void *data, const piece *pieces, int count)
{
    piece_list list = {pieces, count};
    collective_call call = collective_in_place(COLLECTIVE_BROADCAST, type, piece_list_elements(list), data);
    call.in.pieces = call.out.pieces = list;
    return call;
}

static collective_call bucket_call(const ring_engine *e, int k)
{
    const bucket *b = &e->schedule.buckets[k];
    collective_call call =
        collective_in_place(COLLECTIVE_ALL_REDUCE, e->wire, b->elements, ring_bucket_data(e, k));
    collective_buffer gradients = {e->base.context.params->grads.data, e->buckets[k].gradients};
    if (e->settings.options.bucket_view || ring_copies_back_in_flight(e)) call.out = gradients;
    if (e->settings.options.bucket_view) call.in = gradients;
    call.op = ring_means_in_flight(e) ? REDUCE_MEAN : REDUCE_SUM;
    call.tag = k;
    return call;
}

static collective_call ring_call_of(const ring_engine *e, ring_job_kind kind, int index)
{
    const sync_context *c = &e->base.context;
    const param_set *set = c->params;
    const ring_memory *m = &e->memory;
    collective_call call = {.kind = COLLECTIVE_BARRIER};
    switch (kind) {
    case RING_JOB_BUCKET:
        return bucket_call(e, index);
    case RING_JOB_SCATTER:
        return ring_scatter_call(e, index);
    case RING_JOB_REPLICAS:
        return ring_replicas_call(e, index);
    case RING_JOB_PARAMETERS:
        call = arena_broadcast(set->type, set->params.data, set->pieces, set->model->param_count);
        break;
    case RING_JOB_BUFFERS:
        call = arena_broadcast(set->type, set->buffers.data, set->buffer_pieces, set->model->buffer_count);
        call.root = index;
        break;
    case RING_JOB_ORDER:
        call = collective_in_place(COLLECTIVE_BROADCAST, DTYPE_I32, set->model->param_count, m->sent_order);
        break;
    case RING_JOB_ACTIVITY:
        call = collective_in_place(COLLECTIVE_ALL_GATHER, DTYPE_I32, c->world, m->activity);
        call.in.base = m->activity + c->rank;
        break;
    case RING_JOB_GROUP_SUM:
    case RING_JOB_NORM:
        call = collective_in_place(COLLECTIVE_ALL_REDUCE, DTYPE_F64, index, m->group);
        break;
    case RING_JOB_GATHER:
        call = ring_gather_call(e, index);
        call.tag = jobs[kind].tag - index;
        return call;
    case RING_JOB_COUNT:
        break;
    }
    call.tag = jobs[kind].tag;
    call.control = true; /* --algorithm does not apply to small calls. */
    return call;
}

static collective_group *group_of(const ring_engine *e, ring_job_kind kind)
{
    if (kind == RING_JOB_REPLICAS) return e->replicas;
    bool of_shards = kind == RING_JOB_SCATTER || kind == RING_JOB_GATHER || kind == RING_JOB_NORM;
    return of_shards ? e->shard_group : e->group;
}

/* ---- for the process group ---------------------------------------------------------------------- */

/* Returns true if the job all-reduces a bucket with PowerSGD, which takes two phases. */
static bool is_compressed(const process_call *job)
{
    return job->later_phases > 0;
}

static status call_of(void *engine, const process_call *job, int phase, collective_call *out)
{
    ring_engine *e = engine;
    if (is_compressed(job)) return ring_powersgd_call(e, job->index, phase, out);
    if (job->kind == RING_JOB_BUCKET && e->compress)
        e->compress(e->wire, ring_bucket_data(e, job->index), e->schedule.buckets[job->index].elements);
    *out = ring_call_of(e, (ring_job_kind)job->kind, job->index);
    return STATUS_OK;
}

static status finish(void *engine, const process_call *job)
{
    return is_compressed(job) ? ring_powersgd_finish(engine, job->index) : STATUS_OK;
}

static void ended(void *engine, const process_call *job, const process_times *t)
{
    const ring_engine *e = engine;
    anatomy *a = e->base.context.anatomy;
    if (t->last_rank < 0)
        anatomy_add_call(a, t->work, t->began_ns, t->finished_ns);
    else
        anatomy_add_span(a, t->started_ns, t->finished_ns);
    if (!ring_ends_bucket(e, (ring_job_kind)job->kind))
        trace_slice(e->base.context.trace, TRACE_COMMUNICATION, rank_operation_name(job->operation),
                    TRACE_NO_INDEX, t->traced_ns, t->finished_ns);
}

/* The compute thread calls accounted() and waited(). accounted() writes the times of a job to the record of
 * its bucket. waited() adds the time of the wait to the record, and writes the record to the trace. */

static void accounted(void *engine, const process_times *t)
{
    ring_engine *e = engine;
    if (t->tag == 0) return;
    ring_bucket_record *r = ring_record(e, t->tag);
    r->ready_ns = t->ready_ns;
    /* The agent's time may be too early, because the agent may have read the clock before the bucket was
     * ready. */
    r->launched_ns = t->posted_ns > r->ready_ns ? t->posted_ns : r->ready_ns;
    r->started_ns = t->started_ns;
    r->finished_ns = t->finished_ns;
    r->algorithm = t->algorithm;
}

static const char *const all_reduce_names[COLLECTIVE_ALGORITHM_COUNT] = {
    [COLLECTIVE_ALGORITHM_RING] = "ring all_reduce of bucket",
    [COLLECTIVE_ALGORITHM_TWO_SHOT] = "two-shot all_reduce of bucket",
    [COLLECTIVE_ALGORITHM_TREE] = "tree all_reduce of bucket",
    [COLLECTIVE_ALGORITHM_HIERARCHICAL] = "hierarchical all_reduce of bucket"};

static void trace_bucket(const ring_engine *e, const ring_bucket_record *r, const process_times *times)
{
    trace *t = e->base.context.trace;
    if (!trace_is_on(t)) return;
    int64_t from_ns = times ? times->traced_ns : r->started_ns;
    int64_t taken_ns = r->finished_ns > r->wait_begin_ns ? r->finished_ns : r->wait_begin_ns;
    trace_async(t, "bucket", r->bucket, r->id, r->launched_ns, r->finished_ns);
    const char *name = e->replicas                      ? "all_reduce of shard"
                       : e->settings.policy.sharding    ? "reduce_scatter of bucket"
                       : all_reduce_names[r->algorithm] ? all_reduce_names[r->algorithm]
                                                        : "all_reduce of bucket";
    trace_slice(t, TRACE_COMMUNICATION, name, r->bucket, from_ns, r->finished_ns);
    trace_flow(t, TRACE_FLOW_BEGIN, TRACE_COMPUTE, r->id, r->ready_ns);
    trace_flow(t, TRACE_FLOW_STEP, TRACE_COMMUNICATION, r->id, from_ns);
    trace_flow(t, TRACE_FLOW_END, TRACE_COMPUTE, r->id,
               taken_ns < r->wait_end_ns ? taken_ns : r->wait_end_ns);
}

static void waited(void *engine, int64_t record, anatomy_span wait, const process_times *t)
{
    ring_bucket_record *r = ring_record(engine, record);
    r->wait_begin_ns = wait.begin_ns;
    r->wait_end_ns = wait.end_ns;
    trace_bucket(engine, r, t);
}

static const process_group_ops ops = {
    .call = call_of, .finish = finish, .ended = ended, .accounted = accounted, .waited = waited};

enum { QUEUE_RANKS, QUEUE_REPLICAS, QUEUES, SPARE_JOBS = 64 };

/* On a GPU, jobs run in stream order, and one launch packs a whole bucket. */
status ring_open_process_group(ring_engine *e)
{
    const sync_context *c = &e->base.context;
    const device_info *info = device_get_info(c->device);
    int most = ring_params(e) + SPARE_JOBS;
    process_group_config config = {.ops = &ops,
                                   .context = e,
                                   .name = "ring-agent",
                                   .device = c->device,
                                   .compute = c->compute,
                                   .slot = c->slot,
                                   .first_rank = c->first,
                                   .rank = c->rank,
                                   .stream_order = info->real && !info->host_addressable,
                                   .follows_compute = !info->real && !info->host_addressable,
                                   .waits_for_each = true,
                                   .inline_progress = c->inline_progress,
                                   .queues = e->settings.group > 0 ? QUEUES : 1,
                                   .most = {most, most}};
    if (ring_hook_has_function(e->settings.options.hook) && info->real)
        e->compress = ring_hooks[e->settings.options.hook].compress;
    TRY(process_group_open(&config, &e->calls));
    e->stream = process_group_stream(e->calls);
    e->packs_whole_buckets = e->stream != NULL;
    return STATUS_OK;
}

/* ---- the compute thread posts and waits --------------------------------------------------------- */

status ring_post(ring_engine *e, ring_job_kind kind, int index, int64_t record, process_work *out)
{
    bool between = kind == RING_JOB_REPLICAS,
         compressed = kind == RING_JOB_BUCKET && ring_powersgd_active(e, e->compute.step.index);
    process_call job = {.group = group_of(e, kind),
                        /* An all-reduce between groups follows the reduce-scatter of its bucket. */
                        .after = between ? e->buckets[index].work : 0,
                        .tag = record,
                        .ready_ns = record ? ring_record(e, record)->ready_ns : 0,
                        .queue = between ? QUEUE_REPLICAS : QUEUE_RANKS,
                        .later_phases = compressed,
                        .kind = kind,
                        .index = index,
                        .operation = jobs[kind].operation,
                        .bucket = ring_is_bucket(kind) ? index : RANK_NO_BUCKET};
    return process_group_post(e->calls, &job, out);
}

status ring_run_job(ring_engine *e, ring_job_kind kind, int index)
{
    process_work job;
    TRY(ring_post(e, kind, index, 0, &job));
    return process_group_wait(e->calls, job, e->base.context.anatomy);
}

/* Gathers from all ranks whether they have data. If the library is NCCL, this all-gather uses host memory
 * instead of the GPU, because the next pass needs the result while the GPU is still busy with the previous
 * pass. */
status ring_gather_activity(ring_engine *e)
{
    if (!e->host_group) return ring_run_job(e, RING_JOB_ACTIVITY, 0);
    collective_call call = ring_call_of(e, RING_JOB_ACTIVITY, 0);
    return collective_run(e->host_group, &call);
}

/* ---- figures ----------------------------------------------------------------------------------- */

void ring_end_step(sync_engine *base)
{
    process_group_end_step(ring_of(base)->calls, base->context.anatomy);
}

void ring_counters(sync_engine *base, sync_counters *out)
{
    *out = (sync_counters){0};
    process_group_counters(ring_of(base)->calls, out);
    out->updates_skipped = optimizer_skipped(base->context.optimizer);
}

int ring_bucket_records(const sync_engine *base, int64_t after, ring_bucket_record *out, int capacity)
{
    const ring_engine *e = (const ring_engine *)base;
    int64_t last = e->compute.record_count, oldest = last > RING_RECORDS ? last - RING_RECORDS + 1 : 1;
    int count = 0;
    for (int64_t id = after + 1 > oldest ? after + 1 : oldest; id <= last && count < capacity; id++)
        out[count++] = e->compute.records[(id - 1) % RING_RECORDS];
    return count;
}

/* ---- warm-up ---------------------------------------------------------------------------------- */

static status warm_up(ring_engine *e, collective_group *group, collective_call call)
{
    collective_ticket ticket;
    return call.count > 0 ? collective_enqueue(group, &call, e->stream, &ticket) : STATUS_OK;
}

/* If the hook is PowerSGD, the calls use the memory of the bucket instead of the factors, because the factors
 * must keep their values between steps. */
static status warm_up_bucket(ring_engine *e, int k)
{
    if (e->settings.policy.sharding) {
        collective_call call = ring_scatter_call(e, k);
        collective_buffer shard = call.out;
        TRY(warm_up(e, e->shard_group, call));
        /* Gathers gradients instead of parameters, because parameters may still differ between ranks and must
         * not be overwritten. */
        call.kind = COLLECTIVE_ALL_GATHER;
        call.out = call.in;
        call.in = shard;
        TRY(warm_up(e, e->shard_group, call));
        return e->replicas ? warm_up(e, e->replicas, ring_replicas_call(e, k)) : STATUS_OK;
    }
    TRY(warm_up(e, e->group, bucket_call(e, k)));
    if (e->settings.options.hook != RING_HOOK_POWERSGD) return STATUS_OK;
    const ring_factors *f = &e->powersgd.factors[k];
    collective_call call =
        collective_in_place(COLLECTIVE_ALL_REDUCE, DTYPE_F32, f->counts[0], ring_bucket_data(e, k));
    call.op = REDUCE_MEAN;
    call.tag = k;
    TRY(warm_up(e, e->group, call));
    call.count = f->counts[1];
    return warm_up(e, e->group, call);
}

status ring_warm_up(ring_engine *e)
{
    if (!e->stream || e->compute.warm) return STATUS_OK;
    TRY(process_group_join_compute(e->calls));
    for (int k = 0; k < e->schedule.count; k++) TRY(warm_up_bucket(e, k));
    TRY(warm_up(e, e->group, ring_call_of(e, RING_JOB_GROUP_SUM, e->memory.group_capacity)));
    TRY(device_stream_synchronize(e->stream));
    e->compute.warm = true;
    return STATUS_OK;
}
