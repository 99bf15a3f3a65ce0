#include "ring/ddp/buckets.h"

#include <stdlib.h>

#define RULE_NAME(name, text) [BUCKET_##name] = text,
const char *const bucket_rule_names[] = {BUCKET_RULE_LIST(RULE_NAME)};
#undef RULE_NAME

#define ORDER_NAME(name, text) [BUCKET_ORDER_##name] = text,
const char *const bucket_order_names[] = {BUCKET_ORDER_LIST(ORDER_NAME)};
#undef ORDER_NAME

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
