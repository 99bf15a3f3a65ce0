#include "common/device/cpu/sums.h"

#include "common/device/cpu/parallel.h"

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
