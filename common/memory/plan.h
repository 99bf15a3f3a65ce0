/* Places buffers with known lifetimes in one range of memory.
 *
 * Greedy by size, lowest fitting gap (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
 * Net Inference", 2020, algorithm "greedy by size for offset calculation"). */
#ifndef COMMON_MEMORY_PLAN_H
#define COMMON_MEMORY_PLAN_H

#include "common/base/status.h"

#include <stdint.h>

typedef struct plan_range {
    int64_t bytes;   /* in: logical size; 0 takes no memory */
    int first, last; /* in: first and last step of its lifetime, inclusive */
    int64_t offset;  /* out: multiple of PLAN_ALIGNMENT */
} plan_range;

enum { PLAN_ALIGNMENT = 64 }; /* bytes: a cache line and an AVX-512 vector */

static inline int64_t plan_align(int64_t bytes)
{
    return (bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
}

/* Sets every offset such that ranges with overlapping lifetimes do not overlap; *total becomes the number of
 * bytes needed. STATUS_SYSTEM: out of memory. */
status plan_place(plan_range *ranges, int count, int64_t *total);

#endif
