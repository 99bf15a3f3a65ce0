#ifndef COMMON_BASE_LEAST_H
#define COMMON_BASE_LEAST_H

#include <stdint.h>

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t greatest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Compares two doubles, or two structs whose first field is a double, for qsort() in ascending order. */
static inline int ascending_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#endif
