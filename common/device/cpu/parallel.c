#include "common/device/cpu/cpu_impl.h"

#include <omp.h>

/* The OpenMP library is not instrumented for ThreadSanitizer, which has to be told that a parallel region
 * begins behind what came before it and ends before what follows. */
#if defined(__SANITIZE_THREAD__)
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#else
#define __tsan_acquire(address) (void)(address)
#define __tsan_release(address) (void)(address)
#endif

static int64_t boundary(int64_t count, int64_t grain, int64_t blocks, int part, int parts)
{
    int64_t at = blocks * part / parts * grain;
    return at < count ? at : count;
}

int cpu_parallel(int threads, int64_t count, int64_t grain, cpu_part_function run, const void *job)
{
    int64_t blocks = (count + grain - 1) / grain;
    int parts = blocks < threads ? (int)blocks : threads;
    if (parts <= 1) {
        if (count > 0) run(job, 0, 0, count);
        return 1;
    }
    char begin, end;
    __tsan_release(&begin);
#pragma omp parallel num_threads(parts)
    {
        __tsan_acquire(&begin);
        int team = omp_get_num_threads();
        for (int part = omp_get_thread_num(); part < parts; part += team)
            run(job, part, boundary(count, grain, blocks, part, parts),
                boundary(count, grain, blocks, part + 1, parts));
        __tsan_release(&end);
    }
    __tsan_acquire(&end);
    return parts;
}

void cpu_sums_reduce(double *sums, int parts, int64_t count)
{
    for (int part = 1; part < parts; part++)
        for (int64_t i = 0; i < count; i++) sums[i] += sums[part * count + i];
}

void cpu_sums_store(const double *sums, int64_t count, bool add, float *gradient)
{
    for (int64_t i = 0; i < count; i++) gradient[i] = (float)(add ? gradient[i] + sums[i] : sums[i]);
}

typedef struct column_job {
    const cpu_isa *isa;
    const float *x;
    int64_t columns;
    double *sums;
} column_job;

static void column_part(const void *context, int part, int64_t first, int64_t end)
{
    const column_job *job = context;
    double *sums = job->sums + part * job->columns;
    for (int64_t i = 0; i < job->columns; i++) sums[i] = 0;
    job->isa->elementwise->column_sums(job->x + first * job->columns, job->columns, end - first, job->columns,
                                       sums);
}

void cpu_column_sums(const host_kernel *kernel, const float *x, int64_t rows, int64_t columns, double *sums)
{
    column_job job = {cpu_isa_of(kernel), x, columns, sums};
    int parts = cpu_parallel(kernel->threads, rows, cpu_row_grain(columns), column_part, &job);
    cpu_sums_reduce(sums, parts, columns);
}
