/* Placing buffers whose lifetimes are known into one range of memory.
 *
 * Greedy by size, lowest fitting gap (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
 * Net Inference", 2020, algorithm "greedy by size for offset calculation"). */
#ifndef COMMON_MEMORY_PLAN_H
#define COMMON_MEMORY_PLAN_H

#include "common/base/status.h"

#include <stdint.h>

typedef struct plan_range {
    int64_t bytes;   /* in: logical size; 0 needs no place */
    int first, last; /* in: the steps of its lifetime, inclusive */
    int64_t offset;  /* out: multiple of PLAN_ALIGNMENT */
} plan_range;

enum { PLAN_ALIGNMENT = 64 }; /* bytes: a cache line and an AVX-512 vector */

static inline int64_t plan_align(int64_t bytes)
{
    return (bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
}

/* Sets every offset such that no two ranges that live in the same step overlap; *total becomes the
 * bytes needed. STATUS_SYSTEM without memory. */
status plan_place(plan_range *ranges, int count, int64_t *total);

#endif
