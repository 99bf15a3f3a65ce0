/* Enters the times of jobs in the buckets' records, the trace and the anatomy of the step.
 *
 * The thread that runs the jobs calls ring_job_ended(). The compute thread calls all other functions of this
 * file. */
#include "common/sync/anatomy.h"
#include "ring/engine/engine_impl.h"

void ring_job_accounted(void *engine, const process_times *t)
{
    ring_engine *e = engine;
    if (t->tag == 0) return;
    ring_bucket_record *r = ring_record(e, t->tag);
    r->ready_ns = t->ready_ns;
    r->launched_ns =
        t->posted_ns > r->ready_ns ? t->posted_ns : r->ready_ns; /* The agent's clock may be older. */
    r->started_ns = t->started_ns;
    r->finished_ns = t->finished_ns;
    r->algorithm = t->algorithm;
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

static void trace_bucket(const ring_engine *e, const ring_bucket_record *r, const process_times *times)
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

void ring_job_waited(void *engine, int64_t record, anatomy_span wait, const process_times *t)
{
    ring_bucket_record *r = ring_record(engine, record);
    r->wait_begin_ns = wait.begin_ns;
    r->wait_end_ns = wait.end_ns;
    trace_bucket(engine, r, t);
}

void ring_end_step(sync_engine *base)
{
    process_group_end_step(ring_of(base)->calls, base->context.anatomy);
}

/* ---- totals ----------------------------------------------------------------------------------- */

void ring_counters(sync_engine *base, sync_counters *out)
{
    *out = (sync_counters){0};
    process_group_counters(ring_of(base)->calls, out);
    out->updates_skipped = optimizer_skipped(base->context.optimizer);
}
