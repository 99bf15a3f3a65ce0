#include "common/memory/plan.h"

#include <stdbool.h>
#include <stdlib.h>

/* Compares for a sort by size, largest first. Ranges of equal size keep the order of the array. */
static int larger_first(const void *a, const void *b)
{
    const plan_range *x = *(plan_range *const *)a, *y = *(plan_range *const *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x < y ? -1 : 1;
}

static int by_offset(const void *a, const void *b)
{
    const plan_range *const *x = a, *const *y = b;
    if ((*x)->offset != (*y)->offset) return (*x)->offset < (*y)->offset ? -1 : 1;
    return (*x)->bytes < (*y)->bytes ? -1 : (*x)->bytes > (*y)->bytes;
}

/* Returns the lowest offset at which `range` fits among the placed ranges. */
static int64_t lowest_gap(const plan_range *range, plan_range *const *placed, int count,
                          const plan_range **scratch)
{
    int alive = 0;
    for (int i = 0; i < count; i++) {
        const plan_range *other = placed[i];
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
    *total = 0;
    plan_range **order = calloc((size_t)count + 1, sizeof *order);
    const plan_range **scratch = calloc((size_t)count + 1, sizeof *scratch);
    bool enough = order && scratch;
    for (int i = 0; enough && i < count; i++) order[i] = &ranges[i];
    if (enough) qsort(order, (size_t)count, sizeof *order, larger_first);
    for (int i = 0; enough && i < count; i++) {
        plan_range *range = order[i];
        range->offset = range->bytes > 0 ? lowest_gap(range, order, i, scratch) : 0;
        int64_t end = range->offset + plan_align(range->bytes);
        if (end > *total) *total = end;
    }
    free(order);
    free(scratch);
    return enough ? STATUS_OK : fail(STATUS_SYSTEM, "no memory to plan %d buffers", count);
}
