#include "common/memory/plan.h"

#include <stdlib.h>

typedef struct placed {
    int index;
    int64_t bytes;
} placed;

static int larger_first(const void *a, const void *b)
{
    const placed *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->index < y->index ? -1 : 1;
}

static int by_offset(const void *a, const void *b)
{
    const plan_range *const *x = a, *const *y = b;
    if ((*x)->offset != (*y)->offset) return (*x)->offset < (*y)->offset ? -1 : 1;
    return (*x)->bytes < (*y)->bytes ? -1 : (*x)->bytes > (*y)->bytes;
}

/* The lowest offset at which `range` fits among those already placed. */
static int64_t lowest_gap(const plan_range *range, plan_range *const *placed_ranges, int count,
                          const plan_range **scratch)
{
    int alive = 0;
    for (int i = 0; i < count; i++) {
        const plan_range *other = placed_ranges[i];
        if (other->first <= range->last && range->first <= other->last) scratch[alive++] = other;
    }
    qsort(scratch, (size_t)alive, sizeof *scratch, by_offset);
    int64_t at = 0, need = plan_align(range->bytes);
    for (int i = 0; i < alive; i++) {
        if (scratch[i]->offset - at >= need) break;
        int64_t end = scratch[i]->offset + plan_align(scratch[i]->bytes);
        if (end > at) at = end;
    }
    return at;
}

status plan_place(plan_range *ranges, int count, int64_t *total)
{
    status rc = STATUS_OK;
    *total = 0;
    size_t slots = count > 0 ? (size_t)count : 1;
    placed *order = calloc(slots, sizeof *order);
    plan_range **done = calloc(slots, sizeof *done);
    const plan_range **scratch = calloc(slots, sizeof *scratch);
    if (!order || !done || !scratch) {
        rc = fail(STATUS_SYSTEM, "no memory to plan %d buffers", count);
        goto out;
    }
    for (int i = 0; i < count; i++) order[i] = (placed){i, ranges[i].bytes};
    qsort(order, (size_t)count, sizeof *order, larger_first);
    int finished = 0;
    for (int i = 0; i < count; i++) {
        plan_range *range = &ranges[order[i].index];
        range->offset = 0;
        if (range->bytes == 0) continue;
        range->offset = lowest_gap(range, done, finished, scratch);
        done[finished++] = range;
        int64_t end = range->offset + plan_align(range->bytes);
        if (end > *total) *total = end;
    }
out:
    free(order);
    free(done);
    free(scratch);
    return rc;
}
