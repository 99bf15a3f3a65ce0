#include "ring/buckets/buckets.h"

#include <stdlib.h>

const char *bucket_rule_name(bucket_rule rule)
{
#define RULE_NAME(name, text) [BUCKET_##name] = text,
    static const char *const names[] = {BUCKET_RULE_LIST(RULE_NAME)};
#undef RULE_NAME
    return names[rule];
}

const char *bucket_order_name(bucket_order order)
{
#define ORDER_NAME(name, text) [BUCKET_ORDER_##name] = text,
    static const char *const names[] = {BUCKET_ORDER_LIST(ORDER_NAME)};
#undef ORDER_NAME
    return names[order];
}

status bucket_schedule_open(int capacity, bucket_schedule *out)
{
    size_t room = capacity > 0 ? (size_t)capacity : 1;
    *out = (bucket_schedule){.capacity = capacity};
    out->buckets = calloc(room, sizeof *out->buckets);
    out->tensors = calloc(room, sizeof *out->tensors);
    out->bucket_of = calloc(room, sizeof *out->bucket_of);
    if (out->buckets && out->tensors && out->bucket_of) return STATUS_OK;
    bucket_schedule_close(out);
    return fail(STATUS_SYSTEM, "no memory for buckets of %d tensors", capacity);
}

void bucket_schedule_close(bucket_schedule *s)
{
    free(s->buckets);
    free(s->tensors);
    free(s->bucket_of);
    *s = (bucket_schedule){0};
}

/* ---- what closes a bucket ---------------------------------------------------------------------- */

bool bucket_is_full(const bucket_plan *plan, const bucket *b, bool is_first)
{
    int64_t limit = is_first ? plan->first_limit : plan->limit;
    switch (plan->rule) {
    case BUCKET_REACH_BYTES:
        return b->bytes >= limit;
    case BUCKET_REACH_ELEMENTS:
        return b->elements >= limit;
    case BUCKET_EACH:
        return true;
    default:
        return false;
    }
}

bool bucket_would_exceed(const bucket_plan *plan, const bucket *b, const bucket_tensor *next)
{
    return plan->rule == BUCKET_WITHIN_BYTES && b->bytes > 0 &&
           b->bytes + next->elements * dtype_size(next->type) > plan->limit;
}
