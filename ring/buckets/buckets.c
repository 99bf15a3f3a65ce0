#include "ring/buckets/buckets.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const char *bucket_rule_name(bucket_rule rule)
{
#define RULE_NAME(name, text, meaning) [BUCKET_##name] = text,
    static const char *const names[] = {BUCKET_RULE_LIST(RULE_NAME)};
#undef RULE_NAME
    return names[rule];
}

const char *bucket_rule_meaning(bucket_rule rule)
{
#define RULE_MEANING(name, text, meaning) [BUCKET_##name] = meaning,
    static const char *const meanings[] = {BUCKET_RULE_LIST(RULE_MEANING)};
#undef RULE_MEANING
    return meanings[rule];
}

const char *bucket_order_name(bucket_order order)
{
#define ORDER_NAME(name, text) [BUCKET_ORDER_##name] = text,
    static const char *const names[] = {BUCKET_ORDER_LIST(ORDER_NAME)};
#undef ORDER_NAME
    return names[order];
}

status bucket_list_open(int capacity, bucket_list *out)
{
    size_t room = capacity > 0 ? (size_t)capacity : 1;
    *out = (bucket_list){.capacity = capacity};
    out->buckets = calloc(room, sizeof *out->buckets);
    out->tensors = calloc(room, sizeof *out->tensors);
    out->scratch = calloc(room, sizeof *out->scratch);
    if (out->buckets && out->tensors && out->scratch) return STATUS_OK;
    bucket_list_close(out);
    return fail(STATUS_SYSTEM, "no memory for buckets of %d tensors", capacity);
}

void bucket_list_close(bucket_list *list)
{
    free(list->buckets);
    free(list->tensors);
    free(list->scratch);
    *list = (bucket_list){0};
}

/* The i-th tensor to be put into a bucket. */
static int tensor_at(const bucket_plan *plan, const int *ready, int count, int i)
{
    if (plan->order == BUCKET_ORDER_READY) return ready[i];
    return plan->order == BUCKET_ORDER_REVERSE ? count - 1 - i : i;
}

/* The bucket of a type that is still open. */
typedef struct open_bucket {
    int index;      /* NONE: there is none */
    bool had_first; /* a bucket of this type has closed */
} open_bucket;

enum { NONE = -1, MOST = 1 << 30 };

static int64_t measure(const bucket_plan *plan, const bucket_tensor *t)
{
    return plan->rule == BUCKET_REACH_ELEMENTS ? t->elements : t->elements * dtype_size(t->type);
}

static int64_t filled(const bucket_plan *plan, const bucket *b)
{
    return plan->rule == BUCKET_REACH_ELEMENTS ? b->elements : b->bytes;
}

static bool is_full(const bucket_plan *plan, const bucket *b, const open_bucket *open)
{
    int64_t limit = open->had_first ? plan->limit : plan->first_limit;
    switch (plan->rule) {
    case BUCKET_REACH_BYTES:
    case BUCKET_REACH_ELEMENTS:
        return filled(plan, b) >= limit;
    case BUCKET_EACH:
        return true;
    default:
        return false;
    }
}

static bool would_exceed(const bucket_plan *plan, const bucket *b, const bucket_tensor *t)
{
    return plan->rule == BUCKET_WITHIN_BYTES && filled(plan, b) > 0 &&
           b->bytes + measure(plan, t) > plan->limit;
}

/* While buckets are made `first` is the rank by which they are sorted at the end. */
static void make_buckets(const bucket_plan *plan, const bucket_tensor *tensors, int count, const int *ready,
                         bucket_list *out)
{
    open_bucket open[DTYPE_COUNT];
    bool by_first = plan->order != BUCKET_ORDER_READY && plan->order != BUCKET_ORDER_REVERSE;
    int closed = 0;
    for (int t = 0; t < DTYPE_COUNT; t++) open[t] = (open_bucket){.index = NONE};
    out->count = 0;
    for (int i = 0; i < count; i++) {
        int tensor = tensor_at(plan, ready, count, i);
        const bucket_tensor *t = &tensors[tensor];
        open_bucket *o = &open[t->type];
        if (o->index != NONE && would_exceed(plan, &out->buckets[o->index], t)) {
            if (!by_first) out->buckets[o->index].first = closed++;
            o->index = NONE;
        }
        if (o->index == NONE) {
            o->index = out->count++;
            out->buckets[o->index] = (bucket){.type = t->type, .first = by_first ? i : MOST + i};
        }
        bucket *b = &out->buckets[o->index];
        b->count++;
        b->elements += t->elements;
        b->bytes += t->elements * dtype_size(t->type);
        out->scratch[tensor] = o->index;
        if (!is_full(plan, b, o)) continue;
        if (!by_first) b->first = closed++;
        *o = (open_bucket){.index = NONE, .had_first = true};
    }
}

/* Places in which the buckets stand: a permutation, by the rank in `first`; ranks differ. */
static int place_of(const bucket_list *list, const bucket_plan *plan, int index)
{
    int place = 0;
    for (int k = 0; k < list->count; k++) place += list->buckets[k].first < list->buckets[index].first;
    return plan->order == BUCKET_ORDER_LAST_FIRST ? list->count - 1 - place : place;
}

static void sort_buckets(const bucket_plan *plan, int count, bucket_list *list)
{
    int *places = list->tensors; /* not filled yet, and there are no more buckets than tensors */
    for (int k = 0; k < list->count; k++) places[k] = place_of(list, plan, k);
    for (int i = 0; i < count; i++) list->scratch[i] = places[list->scratch[i]];
    for (int k = 0; k < list->count;) { /* follows each cycle of the permutation */
        int to = places[k];
        if (to == k) {
            k++;
            continue;
        }
        bucket moved = list->buckets[to];
        list->buckets[to] = list->buckets[k];
        list->buckets[k] = moved;
        places[k] = places[to];
        places[to] = to;
    }
}

void bucket_assign(const bucket_plan *plan, const bucket_tensor *tensors, int count, const int *ready,
                   bucket_list *out)
{
    assert(out->capacity >= count);
    make_buckets(plan, tensors, count, ready, out);
    sort_buckets(plan, count, out);
    int at = 0;
    for (int k = 0; k < out->count; k++) {
        out->buckets[k].first = at;
        at += out->buckets[k].count;
        out->buckets[k].count = 0;
    }
    for (int i = 0; i < count; i++) {
        int tensor = tensor_at(plan, ready, count, i);
        bucket *b = &out->buckets[out->scratch[tensor]];
        out->tensors[b->first + b->count++] = tensor;
    }
}
