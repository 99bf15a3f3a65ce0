/* The matrix products of Winograd's filtering. */
#include "common/device/cpu/isa/names.h"
#include "common/device/cpu/isa/vector.h"

enum {
#if VF == 16
    ROWS = 14,
#else
    ROWS = 6,
#endif
    COLUMNS = 2 * VF,
    U_POINT = WINOGRAD_DEPTH * COLUMNS + WINOGRAD_PADDING,
    M_ROW = WINOGRAD_POINTS * COLUMNS + WINOGRAD_PADDING
};

/* A tile of m is kept in registers. The strides are constants, so that all of a step's addresses are one
 * register's. */
ALWAYS_INLINE void product_tile(int rows, int row_stride, int depth_stride, int64_t depth, const float *v,
                                const float *u, bool add, float *m)
{
    vf left[ROWS], right[ROWS];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        left[i] = add ? vf_load(m + i * M_ROW) : (vf){0};
        right[i] = add ? vf_load(m + i * M_ROW + VF) : (vf){0};
    }
    for (int64_t d = 0; d < depth; d++, v += depth_stride, u += COLUMNS) {
        vf first = vf_load(u), second = vf_load(u + VF);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            vf a = vf_set(v[i * row_stride]);
            left[i] = vf_fma(a, first, left[i]);
            right[i] = vf_fma(a, second, right[i]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        vf_store(m + i * M_ROW, left[i]);
        vf_store(m + i * M_ROW + VF, right[i]);
    }
}

#define CASE(n)                                                                                              \
    case n:                                                                                                  \
        product_tile(n, row_stride, depth_stride, depth, v, u, add, m);                                      \
        break;

ALWAYS_INLINE void product_rows(int64_t rows, int row_stride, int depth_stride, int64_t depth, const float *v,
                                const float *u, bool add, float *m)
{
    switch (rows) {
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
#if VF == 16
        CASE(7)
        CASE(8)
        CASE(9)
        CASE(10)
        CASE(11)
        CASE(12)
        CASE(13)
        CASE(14)
#endif
    }
}
#undef CASE

/* Rows in groups of like size. */
ALWAYS_INLINE void product_matrix(int64_t rows, int row_stride, int depth_stride, int64_t depth,
                                  const float *v, const float *u, bool add, float *m)
{
    int64_t groups = (rows + ROWS - 1) / ROWS;
    for (int64_t g = 0; g < groups; g++) {
        int64_t first = rows * g / groups, end = rows * (g + 1) / groups;
        product_rows(end - first, row_stride, depth_stride, depth, v + first * row_stride, u, add,
                     m + first * M_ROW);
    }
}

void KERNEL(winograd_product)(cpu_winograd_rows kind, int64_t rows, int64_t depth, const float *v,
                              const float *u, bool add, float *m)
{
    for (int point = 0; point < WINOGRAD_POINTS; point++, v += WINOGRAD_DEPTH, u += U_POINT, m += COLUMNS)
        if (kind == WINOGRAD_ROWS_TILES)
            product_matrix(rows, WINOGRAD_V_TILE, 1, depth, v, u, add, m);
        else
            product_matrix(rows, 1, WINOGRAD_V_TILE, depth, v, u, add, m);
}
