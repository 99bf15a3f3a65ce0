/* Transposes blocks of 4x4, and of 16x16 if a vector has 16 floats. */
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

#if VF == 16
#define QUARTERS(a, b, i, j, k, l)                                                                           \
    (vf) _mm512_shuffle_f32x4((__m512)(a), (__m512)(b), (i) | (j) << 2 | (k) << 4 | (l) << 6)

/* Exchanges quarter j (of 16 bytes) of vector i with quarter i of vector j. */
ALWAYS_INLINE void exchange_quarters(vf x[4])
{
    vf ab_low = QUARTERS(x[0], x[1], 0, 1, 0, 1), ab_high = QUARTERS(x[0], x[1], 2, 3, 2, 3);
    vf cd_low = QUARTERS(x[2], x[3], 0, 1, 0, 1), cd_high = QUARTERS(x[2], x[3], 2, 3, 2, 3);
    x[0] = QUARTERS(ab_low, cd_low, 0, 2, 0, 2);
    x[1] = QUARTERS(ab_low, cd_low, 1, 3, 1, 3);
    x[2] = QUARTERS(ab_high, cd_high, 0, 2, 0, 2);
    x[3] = QUARTERS(ab_high, cd_high, 1, 3, 1, 3);
}
#undef QUARTERS

/* In each quarter, transposes the 4x4 block that the four vectors hold there. */
ALWAYS_INLINE void transpose_in_quarters(vf x[4])
{
    __m512 ab_low = _mm512_unpacklo_ps((__m512)x[0], (__m512)x[1]),
           ab_high = _mm512_unpackhi_ps((__m512)x[0], (__m512)x[1]);
    __m512 cd_low = _mm512_unpacklo_ps((__m512)x[2], (__m512)x[3]),
           cd_high = _mm512_unpackhi_ps((__m512)x[2], (__m512)x[3]);
    x[0] = (vf)_mm512_shuffle_ps(ab_low, cd_low, 0x44);
    x[1] = (vf)_mm512_shuffle_ps(ab_low, cd_low, 0xee);
    x[2] = (vf)_mm512_shuffle_ps(ab_high, cd_high, 0x44);
    x[3] = (vf)_mm512_shuffle_ps(ab_high, cd_high, 0xee);
}

/* Computes y = x^T, or y += x^T if `add`. */
ALWAYS_INLINE void transpose_16x16(const float *x, int64_t x_stride, bool add, float *y, int64_t y_stride)
{
    vf rows[4][4]; /* quarter q of [i][g] is column 4 q + i of rows 4 g to 4 g + 3 of x */
    for (int g = 0; g < 4; g++) {
        vf four[4];
        for (int i = 0; i < 4; i++) four[i] = vf_load(x + (4 * g + i) * x_stride);
        transpose_in_quarters(four);
        for (int i = 0; i < 4; i++) rows[i][g] = four[i];
    }
    for (int i = 0; i < 4; i++) {
        exchange_quarters(rows[i]);
        for (int q = 0; q < 4; q++) {
            float *to = y + (4 * q + i) * y_stride;
            vf_store(to, add ? vf_load(to) + rows[i][q] : rows[i][q]);
        }
    }
}
#endif

#endif
