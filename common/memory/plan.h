/* Places buffers with known lifetimes in one range of memory.
 *
 * The algorithm takes the buffers from the largest to the smallest, and puts each buffer into the lowest gap
 * in which it fits (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020,
 * "greedy by size for offset calculation"). */
#ifndef COMMON_MEMORY_PLAN_H
#define COMMON_MEMORY_PLAN_H

#include "common/base/status.h"

#include <stdint.h>

typedef struct plan_range {
    int64_t bytes;   /* in: logical size; a range of size 0 takes no memory */
    int first, last; /* in: first and last step of the lifetime, inclusive */
    int64_t offset;  /* out: offset of the range, a multiple of PLAN_ALIGNMENT */
} plan_range;

enum { PLAN_ALIGNMENT = 64 }; /* bytes of a cache line, and of an AVX-512 vector */

static inline int64_t plan_align(int64_t bytes)
{
    return (bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
}

/* Sets the offset of every range. Ranges with overlapping lifetimes do not overlap. Sets *total to the number
 * of bytes that all ranges need. Fails with STATUS_SYSTEM if memory runs out. */
status plan_place(plan_range *ranges, int count, int64_t *total);

#endif
