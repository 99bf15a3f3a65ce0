/* Statistics of repeated measurements. docs/measuring.md defines each statistic. */
#ifndef HARNESS_REPORT_STATISTICS_H
#define HARNESS_REPORT_STATISTICS_H

#include <stdint.h>

typedef struct statistics {
    int64_t count;
    double minimum, p25, median, p75, p95, maximum;
    double spread; /* (p75 - p25) / median: if 0.02, the middle half of the values spans 2 % of the median */
} statistics;

/* Returns the statistics of `count` values, all zero if there are none. Sorts the values. */
statistics statistics_of(int64_t *values, int64_t count);

#endif
