#include "ring/engine/engine_impl.h"

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

const bucket_list *ring_buckets(const sync_engine *base)
{
    return &((const ring_engine *)base)->list;
}

const ring_settings *ring_engine_settings(const sync_engine *base)
{
    return &((const ring_engine *)base)->settings;
}
