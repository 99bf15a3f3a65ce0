/* Work on several threads. */
#ifndef COMMON_DEVICE_CPU_PARALLEL_H
#define COMMON_DEVICE_CPU_PARALLEL_H

#include <stdint.h>

/* Part `part` of a job: its items [first, end). */
typedef void (*cpu_part_function)(const void *job, int part, int64_t first, int64_t end);

/* Cuts `count` items into contiguous parts, at most one a thread, at multiples of `grain`, and runs them;
 * with one part it is a plain call. Returns the number of parts, which depends on the arguments alone. */
int cpu_parallel(int threads, int64_t count, int64_t grain, cpu_part_function run, const void *job);

/* Elements of an elementwise operation below which a second thread does not pay. */
enum { CPU_GRAIN = 16384 };

/* A grain of rows of `columns` elements. */
static inline int64_t cpu_row_grain(int64_t columns)
{
    return columns >= CPU_GRAIN ? 1 : CPU_GRAIN / columns;
}

#endif
