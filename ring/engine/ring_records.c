#include "ring/engine/engine_impl.h"

#include <string.h>

void ring_trace_bucket(const ring_engine *e, const ring_bucket_record *r)
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

ring_bucket_record *ring_record(ring_engine *e, int64_t id)
{
    return &e->records[(id - 1) % RING_RECORDS];
}

int ring_bucket_records(const sync_engine *base, int64_t after, ring_bucket_record *out, int capacity)
{
    const ring_engine *e = (const ring_engine *)base;
    int64_t last = e->compute.records, oldest = last > RING_RECORDS ? last - RING_RECORDS + 1 : 1;
    int count = 0;
    for (int64_t id = after + 1 > oldest ? after + 1 : oldest; id <= last && count < capacity; id++)
        out[count++] = e->records[(id - 1) % RING_RECORDS];
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

const ring_settings *ring_engine_settings(const sync_engine *base)
{
    return &((const ring_engine *)base)->settings;
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
