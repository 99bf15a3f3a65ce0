#include "common/ops/tensor.h"

#include <inttypes.h>
#include <stdio.h>

const char *dtype_name(dtype type)
{
#define DTYPE_NAME(name, size, text) [DTYPE_##name] = text,
    static const char *const names[] = {DTYPE_LIST(DTYPE_NAME)};
#undef DTYPE_NAME
    return names[type];
}

int64_t shape_elements(shape s)
{
    int64_t count = 1;
    for (int i = 0; i < s.rank; i++)
        if (__builtin_mul_overflow(count, s.dims[i], &count) || count > SHAPE_MOST_ELEMENTS)
            return SHAPE_MOST_ELEMENTS + 1;
    return count;
}

int shape_equal(shape a, shape b)
{
    if (a.rank != b.rank) return 0;
    for (int i = 0; i < a.rank; i++)
        if (a.dims[i] != b.dims[i]) return 0;
    return 1;
}

char *shape_format(char *buffer, int size, shape s)
{
    int used = 0;
    buffer[0] = '\0';
    for (int i = 0; i < s.rank && used < size; i++)
        used += snprintf(buffer + used, (size_t)(size - used), "%s%" PRId64, i ? "x" : "", s.dims[i]);
    return buffer;
}
