#include "harness/run/overlap.h"

#include "harness/run/record.h"

#include <stdlib.h>

status overlap_open(overlap *o, int params)
{
    *o = (overlap){.capacity = params + 1};
    o->records = calloc((size_t)o->capacity, sizeof *o->records);
    return o->records ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for the lives of %d buckets", params);
}

void overlap_close(overlap *o)
{
    free(o->records);
    *o = (overlap){0};
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* What was hidden cannot have been waited for. */
static void hide(step_times *t, int64_t hidden)
{
    int64_t waited = t->exposed + t->waiting;
    t->hidden = smaller(hidden, t->communication);
    t->exposed = smaller(waited, t->communication - t->hidden);
    t->waiting = waited - t->exposed;
}

void overlap_take(overlap *o, const sync_engine *engine, step_result *result)
{
    step_times *t = &result->times;
    if (engine->type != &sync_ring) {
        t->hidden = t->communication - t->exposed;
        return;
    }
    int count = ring_bucket_records(engine, o->seen, o->records, o->capacity);
    if (count == 0) return;
    const ring_bucket_record *last = &o->records[count - 1];
    ring_overlap figures = ring_overlap_of(o->records, count, result->backward_end_ns);
    o->seen = last->id;
    o->last_bucket_bytes = last->bytes;
    hide(t, figures.hidden_ns);
    t->first_to_backward_end = figures.pytorch_ns;
    t->last_bucket = last->finished_ns - last->started_ns;
}

static json_t *positive_or_null(int64_t value)
{
    return value > 0 ? json_integer(value) : json_null();
}

void overlap_to_json(const overlap *o, const sync_engine *engine, json_t *rank)
{
    int64_t bound = engine->type == &sync_ring ? ring_link_bound_ns(engine, o->last_bucket_bytes) : 0;
    json_object_set_new(rank, "last_bucket_bytes", positive_or_null(o->last_bucket_bytes));
    json_object_set_new(rank, "last_bucket_bound_s", bound > 0 ? record_seconds(bound) : json_null());
}
