#include "harness/report/statistics.h"

#include <stdlib.h>

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

statistics statistics_of(int64_t *values, int64_t count)
{
    if (count == 0) return (statistics){0};
    qsort(values, (size_t)count, sizeof *values, ascending);
    statistics s = {.count = count,
                    .minimum = (double)values[0],
                    .p25 = quantile(values, count, 0.25),
                    .median = quantile(values, count, 0.5),
                    .p75 = quantile(values, count, 0.75),
                    .p95 = quantile(values, count, 0.95),
                    .maximum = (double)values[count - 1]};
    if (s.median > 0) s.spread = (s.p75 - s.p25) / s.median;
    return s;
}
