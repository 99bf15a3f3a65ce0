/* Sums that every part of a job keeps for itself, in double precision. */
#ifndef COMMON_DEVICE_CPU_SUMS_H
#define COMMON_DEVICE_CPU_SUMS_H

#include "common/device/cpu/kernel.h"

/* [threads][count] doubles. */
static inline size_t cpu_sums_bytes(int threads, int64_t count)
{
    return (size_t)threads * (size_t)count * sizeof(double);
}

/* Adds parts 1.. of sums [parts][count] to part 0, in order. */
void cpu_sums_reduce(double *sums, int parts, int64_t count);

/* gradient [count] = or += sums, rounded once. */
void cpu_sums_store(const double *sums, int64_t count, bool add, float *gradient);

/* sums [columns] = columns of x [rows, columns]; `sums` has cpu_sums_bytes(threads, columns). */
void cpu_column_sums(const host_kernel *kernel, const float *x, int64_t rows, int64_t columns, double *sums);

#endif
