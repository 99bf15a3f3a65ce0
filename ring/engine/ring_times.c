/* What jobs took: their times go to the buckets' records, the time line and the anatomy of the step. The
 * compute thread's. */
#include "common/sync/anatomy.h"
#include "ring/engine/engine_impl.h"

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
    if (e->stream) r->ready_ns = t->launched_ns; /* when the GPU was there */
    r->launched_ns =
        t->launched_ns > r->ready_ns ? t->launched_ns : r->ready_ns; /* the agent's clock may be older */
    r->started_ns = t->started_ns;
    r->finished_ns = t->finished_ns;
    r->algorithm = t->algorithm;
}

void ring_account(ring_engine *e)
{
    while (e->compute.accounted < e->compute.posted && ring_is_done(e, e->compute.accounted + 1))
        account_job(e, ++e->compute.accounted);
}

/* ---- waits ------------------------------------------------------------------------------------ */

static const char *const all_reduce_names[COLLECTIVE_ALGORITHM_COUNT] = {
    [COLLECTIVE_ALGORITHM_AUTO] = "all_reduce of bucket",
    [COLLECTIVE_ALGORITHM_TUNED] = "all_reduce of bucket",
    [COLLECTIVE_ALGORITHM_LIBRARY] = "all_reduce of bucket",
    [COLLECTIVE_ALGORITHM_RING] = "ring all_reduce of bucket",
    [COLLECTIVE_ALGORITHM_TWO_SHOT] = "two-shot all_reduce of bucket",
    [COLLECTIVE_ALGORITHM_TREE] = "tree all_reduce of bucket",
    [COLLECTIVE_ALGORITHM_HIERARCHICAL] = "hierarchical all_reduce of bucket"};

static void trace_bucket(const ring_engine *e, const ring_bucket_record *r, const ring_job_times *times)
{
    trace *t = e->base.context.trace;
    if (!trace_is_on(t)) return;
    int64_t from_ns = times ? times->traced_ns : r->started_ns;
    int64_t taken_ns = r->finished_ns > r->wait_begin_ns ? r->finished_ns : r->wait_begin_ns;
    trace_async(t, "bucket", r->bucket, r->id, r->launched_ns, r->finished_ns);
    const char *name = e->replicas            ? "all_reduce of shard"
                       : e->settings.sharding ? "reduce_scatter of bucket"
                                              : all_reduce_names[r->algorithm];
    trace_slice(t, TRACE_COMMUNICATION, name, r->bucket, from_ns, r->finished_ns);
    trace_flow(t, TRACE_FLOW_BEGIN, TRACE_COMPUTE, r->id, r->ready_ns);
    trace_flow(t, TRACE_FLOW_STEP, TRACE_COMMUNICATION, r->id, from_ns);
    trace_flow(t, TRACE_FLOW_END, TRACE_COMPUTE, r->id,
               taken_ns < r->wait_end_ns ? taken_ns : r->wait_end_ns);
}

/* Before its peers had posted the job, the lane waited for the last of them. */
static void name_wait(const ring_engine *e, const ring_wait *w)
{
    const ring_job_times *t = times_of(e, w->ticket);
    if (!t || t->last_rank == e->base.context.rank) return;
    anatomy_sent last = {.ns = t->started_ns, .rank = t->last_rank + e->base.context.first};
    if (t->last_rank < 0) last = (anatomy_sent){.ns = (int64_t)t->ticket, .rank = ANATOMY_CALL};
    anatomy_name_wait(e->base.context.anatomy, w->number, last);
}

static void end_wait(ring_engine *e, const ring_wait *w)
{
    anatomy_span time = anatomy_wait_time(e->base.context.anatomy, w->number);
    name_wait(e, w);
    if (w->record == 0) return;
    ring_bucket_record *r = ring_record(e, w->record);
    r->wait_begin_ns = time.begin_ns;
    r->wait_end_ns = time.end_ns;
    trace_bucket(e, r, times_of(e, w->ticket));
}

void ring_end_step(sync_engine *base)
{
    ring_engine *e = ring_of(base);
    const sync_context *c = &base->context;
    int later = 0;
    ring_account(e);
    for (int i = 0; i < e->compute.wait_count; i++) {
        ring_wait w = e->compute.waits[i];
        if (anatomy_ends(c->anatomy, w.number))
            end_wait(e, &w);
        else
            e->compute.waits[later++] = w;
    }
    e->compute.wait_count = later;
}

/* ---- totals ----------------------------------------------------------------------------------- */

void ring_counters(sync_engine *base, sync_counters *out)
{
    ring_engine *e = ring_of(base);
    *out = (sync_counters){.agents_cpu_ns = e->agent ? sync_agent_cpu_ns(e->agent) : 0};
    if (e->stream) ring_publish_traffic(e);
    out->bytes_sent = atomic_load_explicit(&e->shared.bytes_sent, memory_order_relaxed);
    out->bytes_received = atomic_load_explicit(&e->shared.bytes_received, memory_order_relaxed);
    out->messages_sent = atomic_load_explicit(&e->shared.messages_sent, memory_order_relaxed);
    out->messages_received = atomic_load_explicit(&e->shared.messages_received, memory_order_relaxed);
    out->updates_skipped = optimizer_skipped(base->context.optimizer);
}
