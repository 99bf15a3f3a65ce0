/* Transposition of 4x4 blocks. */
#ifndef COMMON_DEVICE_CPU_ISA_TRANSPOSE_H
#define COMMON_DEVICE_CPU_ISA_TRANSPOSE_H

#include "common/device/cpu/isa/vector.h"

typedef float quad __attribute__((vector_size(16)));

ALWAYS_INLINE quad quad_load(const float *p)
{
    quad a;
    memcpy(&a, p, sizeof a);
    return a;
}

/* y = (or += where `add`) x^T */
ALWAYS_INLINE void transpose_4x4(const float *x, int64_t x_stride, bool add, float *y, int64_t y_stride)
{
    quad a = quad_load(x), b = quad_load(x + x_stride);
    quad c = quad_load(x + 2 * x_stride), d = quad_load(x + 3 * x_stride);
    quad ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5),
         ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    quad cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5),
         cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    quad rows[4] = {__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5),
                    __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
                    __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5),
                    __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)};
    for (int i = 0; i < 4; i++) {
        if (add) rows[i] += quad_load(y + i * y_stride);
        memcpy(y + i * y_stride, &rows[i], sizeof rows[i]);
    }
}

#endif
