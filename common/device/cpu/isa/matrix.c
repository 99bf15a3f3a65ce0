#include "common/device/cpu/isa/transpose.h"

/* A tile of c is kept in ROWS by VECTORS vector registers. VECTORS more registers hold b, and one holds a. */
#if VF == 16
enum { ROWS = 6, VECTORS = 4 };
#else
enum { ROWS = 6, VECTORS = 2 };
#endif

typedef struct small_gemm {
    const float *a, *b;
    float *c;
    int64_t k, row_stride, column_stride, b_stride, c_stride;
    bool add;
} small_gemm;

/* Multiplies a tile of `rows` by `vectors` vectors. The last vector has `count` columns. */
ALWAYS_INLINE void multiply_tile(const small_gemm *p, int rows, int vectors, int64_t count)
{
    vf sum[ROWS][VECTORS] = {{{0}}};
    const float *a = p->a, *b = p->b;
    for (int64_t k = 0; k < p->k; k++, a += p->column_stride, b += p->b_stride) {
        vf right[VECTORS];
        for (int v = 0; v < vectors; v++) right[v] = vf_load_some(b + v * VF, v == vectors - 1 ? count : VF);
        for (int i = 0; i < rows; i++) {
            vf left = vf_set(a[i * p->row_stride]);
            for (int v = 0; v < vectors; v++) sum[i][v] = vf_fma(left, right[v], sum[i][v]);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++) {
            float *c = p->c + i * p->c_stride + v * VF;
            int64_t width = v == vectors - 1 ? count : VF;
            vf_store_some(c, p->add ? vf_load_some(c, width) + sum[i][v] : sum[i][v], width);
        }
}

ALWAYS_INLINE void multiply_strip(small_gemm p, int64_t m, int vectors, int64_t count)
{
    for (int64_t i = 0; i < m;) {
        small_gemm tile = p;
        tile.a += i * p.row_stride;
        tile.c += i * p.c_stride;
        if (m - i >= ROWS) {
            multiply_tile(&tile, ROWS, vectors, count);
            i += ROWS;
        } else if (m - i >= 3) {
            multiply_tile(&tile, 3, vectors, count);
            i += 3;
        } else if (m - i == 2) {
            multiply_tile(&tile, 2, vectors, count);
            i += 2;
        } else {
            multiply_tile(&tile, 1, vectors, count);
            i++;
        }
    }
}

/* A strip of b is copied if its rows are so far apart that they evict each other from the L1 cache, and if
 * enough tiles use the strip. */
enum { STRIP_ROWS = 256, FAR_STRIDE = 256, ENOUGH_ROWS = 4 * ROWS };

ALWAYS_INLINE void copy_strip(const float *b, int64_t stride, int64_t rows, int vectors, float *to)
{
    for (int64_t i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++)
            vf_store(to + (i * vectors + v) * VF, vf_load(b + i * stride + v * VF));
}

ALWAYS_INLINE void multiply_strip_copied(small_gemm p, int64_t m, int vectors)
{
    _Alignas(64) float strip[STRIP_ROWS * VECTORS * VF];
    small_gemm part = p;
    part.b = strip;
    part.b_stride = vectors * VF;
    for (int64_t k = 0; k < p.k; k += STRIP_ROWS) {
        part.k = p.k - k < STRIP_ROWS ? p.k - k : STRIP_ROWS;
        copy_strip(p.b + k * p.b_stride, p.b_stride, part.k, vectors, strip);
        multiply_strip(part, m, vectors, VF);
        part.a += part.k * p.column_stride;
        part.add = true;
    }
}

static void multiply(int64_t m, int64_t n, int64_t k, const float *a, int64_t row_stride,
                     int64_t column_stride, const float *b, int64_t b_stride, bool add, float *c,
                     int64_t c_stride)
{
    small_gemm p = {.a = a,
                    .k = k,
                    .row_stride = row_stride,
                    .column_stride = column_stride,
                    .b_stride = b_stride,
                    .c_stride = c_stride,
                    .add = add};
    for (int64_t j = 0; j < n;) {
        int64_t left = n - j;
        p.b = b + j;
        p.c = c + j;
        if (left >= VECTORS * VF) {
            if (b_stride >= FAR_STRIDE && m >= ENOUGH_ROWS)
                multiply_strip_copied(p, m, VECTORS);
            else
                multiply_strip(p, m, VECTORS, VF);
            j += VECTORS * VF;
        } else if (VECTORS > 2 && left >= 2 * VF) {
            multiply_strip(p, m, 2, VF);
            j += 2 * VF;
        } else if (left >= VF) {
            multiply_strip(p, m, 1, VF);
            j += VF;
        } else {
            multiply_strip(p, m, 1, left);
            j = n;
        }
    }
}

/* ---- transposition ---------------------------------------------------------------------------- */

enum { BLOCK = VF == 16 ? 16 : 4 };

ALWAYS_INLINE void transpose_block(const float *x, int64_t x_stride, bool add, float *y, int64_t y_stride)
{
#if VF == 16
    transpose_16x16(x, x_stride, add, y, y_stride);
#else
    transpose_4x4(x, x_stride, add, y, y_stride);
#endif
}

ALWAYS_INLINE void transpose_all(const float *x, int64_t x_stride, int64_t rows, int64_t columns, bool add,
                                 float *y, int64_t y_stride)
{
    int64_t block_rows = rows / BLOCK * BLOCK, block_columns = columns / BLOCK * BLOCK;
    int64_t whole_rows = rows & ~INT64_C(3), whole_columns = columns & ~INT64_C(3);
    for (int64_t j = 0; j < block_columns; j += BLOCK)
        for (int64_t i = 0; i < block_rows; i += BLOCK)
            transpose_block(x + i * x_stride + j, x_stride, add, y + j * y_stride + i, y_stride);
    for (int64_t j = 0; j < whole_columns; j += 4)
        for (int64_t i = j < block_columns ? block_rows : 0; i < whole_rows; i += 4)
            transpose_4x4(x + i * x_stride + j, x_stride, add, y + j * y_stride + i, y_stride);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; j++) {
            float *to = y + j * y_stride + i;
            *to = (add ? *to : 0) + x[i * x_stride + j];
        }
}

static void transpose(const float *x, int64_t x_stride, int64_t rows, int64_t columns, bool add, float *y,
                      int64_t y_stride)
{
    if (add)
        transpose_all(x, x_stride, rows, columns, true, y, y_stride);
    else
        transpose_all(x, x_stride, rows, columns, false, y, y_stride);
}

const cpu_matrix KERNEL(cpu_matrix) = {.multiply = multiply, .transpose = transpose};
