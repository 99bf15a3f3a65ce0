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

#endif
