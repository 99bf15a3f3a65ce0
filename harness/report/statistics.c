#include "harness/report/statistics.h"

#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Interpolates linearly between order statistics (numpy's default, type 7 of Hyndman and Fan 1996). */
static double quantile(const int64_t *sorted, int64_t count, double q)
{
    double at = q * (double)(count - 1);
    int64_t below = (int64_t)at;
    if (below + 1 >= count) return (double)sorted[count - 1];
    double part = at - (double)below;
    return (double)sorted[below] * (1 - part) + (double)sorted[below + 1] * part;
}

status statistics_of(const int64_t *values, int64_t count, statistics *out)
{
    *out = (statistics){.count = count};
    if (count == 0) return STATUS_OK;
    int64_t *sorted = malloc((size_t)count * sizeof *sorted);
    if (!sorted) return fail(STATUS_SYSTEM, "no memory for %lld measurements", (long long)count);
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, ascending);
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (double)sorted[i];
    *out = (statistics){.count = count,
                        .minimum = (double)sorted[0],
                        .p25 = quantile(sorted, count, 0.25),
                        .median = quantile(sorted, count, 0.5),
                        .p75 = quantile(sorted, count, 0.75),
                        .p95 = quantile(sorted, count, 0.95),
                        .maximum = (double)sorted[count - 1],
                        .mean = sum / (double)count};
    if (out->median > 0) out->spread = (out->p75 - out->p25) / out->median;
    free(sorted);
    return STATUS_OK;
}
