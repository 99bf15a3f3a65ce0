/* Splits work among the threads of the host. */
#ifndef COMMON_DEVICE_CPU_PARALLEL_H
#define COMMON_DEVICE_CPU_PARALLEL_H

#include <stdint.h>

/* Runs part `part` of a job: items [first, end). */
typedef void (*cpu_part_function)(const void *job, int part, int64_t first, int64_t end);

/* Splits `count` items into contiguous parts at multiples of `grain`, at most one part per thread, and runs
 * the parts. A single part runs on the calling thread. Returns the number of parts, which depends only on the
 * arguments. */
int cpu_parallel(int threads, int64_t count, int64_t grain, cpu_part_function run, const void *job);

#endif
