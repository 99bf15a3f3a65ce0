/* DDP's bucket schedule: which gradients share an all-reduce, when the all-reduce is launched, and when a
 * rank waits for it.
 *
 * The backward pass produces the last layer's gradients first. Therefore gradients are put into buckets in
 * reverse order of registration, or in the order in which the gradients became ready on rank 0 in the first
 * step. Rank 0 sends this order to all ranks, because gradients may become ready in another order on other
 * ranks. Some older policies use the order of registration. A bucket closes when it reaches its limit. In the
 * example the model has six parameters of 10 MiB each. DistributedDataParallel limits the first bucket to 1
 * MiB, and every other bucket to 25 MiB.
 *
 *     ready in the order     5   4  3  2   1  0
 *     buckets               [0] [   1   ] [ 2  ]
 *
 *     compute         |5 |4 |3 |2 |1 |0 |  wait 0, 1, 2 | optimizer
 *     communication      [ 0 ]   [    1    ][  2  ]
 *
 * Every rank makes the same all-reduces in the same order, because
 *
 *     the assignment depends only on sizes, types, order and limits, which are the same on all ranks;
 *     a bucket is launched when all its gradients are ready and all buckets before it have been launched;
 *     a rank waits for buckets in the same order, while later buckets are still being reduced. */
#include "ring/ddp/buckets.h"

#include "common/memory/piece.h"

#include <assert.h>

/* ---- assignment ------------------------------------------------------------------------------- */

/* The bucket that is being filled. There is one for each element type. */
typedef struct open_bucket {
    int id; /* Number of the bucket in order of opening, or BUCKET_NONE. */
    list_cut cut;
} open_bucket;

static list_cut first_cut(const bucket_plan *plan)
{
    const int64_t limits[BUCKET_RULE_COUNT] = {[BUCKET_REACH_BYTES] = plan->first_limit,
                                               [BUCKET_REACH_ELEMENTS] = plan->first_limit,
                                               [BUCKET_WITHIN_BYTES] = plan->limit,
                                               [BUCKET_ONE] = INT64_MAX};
    return (list_cut){.limit = limits[plan->rule], .within = plan->rule == BUCKET_WITHIN_BYTES};
}

/* Returns the i-th tensor in the order in which tensors are put into buckets. */
static int tensor_at(const bucket_plan *plan, const int *ready, int count, int i)
{
    if (plan->order == BUCKET_ORDER_READY) return ready[i];
    return plan->order == BUCKET_ORDER_REVERSE ? count - 1 - i : i;
}

static void add(bucket *b, const bucket_tensor *t)
{
    b->count++;
    b->elements += t->elements;
    b->bytes += t->elements * dtype_size(t->type);
}

/* Returns the position of bucket `id` in the order of launches. `opened` is the number of buckets, and
 * `closed` is the bucket's position in the order of closing. buckets.h describes the orders. */
static int launch_position(const bucket_plan *plan, int id, int opened, int closed)
{
    if (plan->order == BUCKET_ORDER_REGISTRATION) return id;
    return plan->order == BUCKET_ORDER_LAST_FIRST ? opened - 1 - id : closed;
}

/* Numbers buckets in the order in which they open. Sets bucket_of[tensor] to the number of the tensor's
 * bucket, and closed[number] to the position of the bucket in the order of closing. Returns the number of
 * buckets. */
static int fill_buckets(const bucket_plan *plan, const bucket_tensor *tensors, int count, const int *ready,
                        int *bucket_of, int *closed)
{
    open_bucket open[DTYPE_COUNT];
    int opened = 0, closings = 0;
    bool before, after;
    for (int t = 0; t < DTYPE_COUNT; t++) open[t] = (open_bucket){.id = BUCKET_NONE, .cut = first_cut(plan)};
    for (int i = 0; i < count; i++) {
        int tensor = tensor_at(plan, ready, count, i);
        const bucket_tensor *added = &tensors[tensor];
        open_bucket *o = &open[added->type];
        int64_t each = plan->rule == BUCKET_REACH_ELEMENTS ? 1 : dtype_size(added->type);
        list_cut_add(&o->cut, added->elements * each, &before, &after);
        if (before) {
            closed[o->id] = closings++;
            o->id = BUCKET_NONE;
        }
        if (o->id == BUCKET_NONE) {
            o->id = opened++;
            closed[o->id] = BUCKET_NONE;
        }
        bucket_of[tensor] = o->id;
        if (!after) continue;
        closed[o->id] = closings++;
        o->id = BUCKET_NONE;
        if (plan->rule != BUCKET_EACH) o->cut.limit = plan->limit;
    }
    for (int id = 0; id < opened; id++) /* buckets that did not reach the limit come last */
        if (closed[id] == BUCKET_NONE) closed[id] = closings++;
    return opened;
}

/* Does the same as fill_buckets() for BUCKET_UNITS. A bucket opens at the first tensor of a unit, and closes
 * at the last tensor of the unit. */
static int fill_units(const bucket_plan *plan, const bucket_tensor *tensors, int count, const int *ready,
                      int *bucket_of, int *closed)
{
    int opened = 0, closings = 0;
    for (int i = 0; i < count; i++) {
        int tensor = tensor_at(plan, ready, count, i), other = i;
        while (--other >= 0 && tensors[tensor_at(plan, ready, count, other)].unit != tensors[tensor].unit) {
        }
        bucket_of[tensor] = other < 0 ? opened++ : bucket_of[tensor_at(plan, ready, count, other)];
        for (other = i + 1; other < count; other++)
            if (tensors[tensor_at(plan, ready, count, other)].unit == tensors[tensor].unit) break;
        if (other == count) closed[bucket_of[tensor]] = closings++;
    }
    return opened;
}

void bucket_assign(const bucket_plan *plan, const bucket_tensor *tensors, int count, const int *ready,
                   bucket_schedule *out)
{
    assert(out->capacity >= count);
    /* out->tensors is not filled yet. It is large enough, because each bucket has at least one tensor. */
    int *closed = out->tensors;
    out->count = (plan->rule == BUCKET_UNITS ? fill_units : fill_buckets)(plan, tensors, count, ready,
                                                                          out->bucket_of, closed);
    for (int k = 0; k < out->count; k++) out->buckets[k] = (bucket){0};
    for (int i = 0; i < count; i++) {
        int id = out->bucket_of[i];
        out->bucket_of[i] = launch_position(plan, id, out->count, closed[id]);
        add(&out->buckets[out->bucket_of[i]], &tensors[i]);
    }
    for (int k = 0, first = 0; k < out->count; first += out->buckets[k++].count)
        out->buckets[k].first = first;
    for (int i = 0; i < count; i++) {
        int tensor = tensor_at(plan, ready, count, i);
        bucket *b = &out->buckets[out->bucket_of[tensor]];
        out->tensors[b->first + b->pending++] = tensor;
    }
    bucket_begin_step(out);
}

/* ---- one step --------------------------------------------------------------------------------- */

void bucket_begin_step(bucket_schedule *s)
{
    s->next_launch = s->next_wait = 0;
    for (int k = 0; k < s->count; k++) s->buckets[k].pending = s->buckets[k].count;
}

bool bucket_gradient_ready(bucket_schedule *s, int tensor)
{
    return --s->buckets[s->bucket_of[tensor]].pending == 0;
}

/* Buckets are launched strictly in order. A bucket that is complete before its predecessor is launched after
 * the predecessor. */
int bucket_take_complete(bucket_schedule *s)
{
    if (s->next_launch == s->count || s->buckets[s->next_launch].pending > 0) return BUCKET_NONE;
    return s->next_launch++;
}
