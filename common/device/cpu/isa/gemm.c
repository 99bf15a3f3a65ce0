/* Large matrix products: tiles of c in registers, over strips of b that stay in the L1 cache and blocks of a
 * in the L2 cache (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008). Unlike
 * theirs, a is read where it lies: with pages of 2 MiB and an L2 cache of that size, copying it costs more than
 * its strides do. */
#include "common/device/cpu/isa/names.h"
#include "common/device/cpu/isa/vector.h"

/* A tile of c is kept in registers; 16 of them hold 4 x 3 vectors, 32 hold 12 x 2. */
enum {
    ROWS = VF == 16 ? 12 : 4,
    VECTORS = VF == 16 ? 2 : 3,
    COLUMNS = VECTORS * VF,
    STEP = 16,                  /* depth between two fetches of what is needed next */
    LINE = 64 / sizeof(float),  /* of a cache */
    CHUNK = 8                   /* rows of b copied at a time */
};

/* ---- packing ---------------------------------------------------------------------------------- */

/* Transposes the 4 x 4 blocks in the quarters (of 16 bytes) of four vectors. */
ALWAYS_INLINE void turn_quarters(vf x[4])
{
#if VF == 16
#define QUARTERS(a, b, i, j, k, l)                                                                           \
    __builtin_shufflevector(a, b, i, j, k, l, i + 4, j + 4, k + 4, l + 4, i + 8, j + 8, k + 8, l + 8, i + 12, \
                            j + 12, k + 12, l + 12)
#elif VF == 8
#define QUARTERS(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l, i + 4, j + 4, k + 4, l + 4)
#else
#define QUARTERS(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#endif
    vf ab_low = QUARTERS(x[0], x[1], 0, VF, 1, VF + 1), ab_high = QUARTERS(x[0], x[1], 2, VF + 2, 3, VF + 3);
    vf cd_low = QUARTERS(x[2], x[3], 0, VF, 1, VF + 1), cd_high = QUARTERS(x[2], x[3], 2, VF + 2, 3, VF + 3);
    x[0] = QUARTERS(ab_low, cd_low, 0, 1, VF, VF + 1);
    x[1] = QUARTERS(ab_low, cd_low, 2, 3, VF + 2, VF + 3);
    x[2] = QUARTERS(ab_high, cd_high, 0, 1, VF, VF + 1);
    x[3] = QUARTERS(ab_high, cd_high, 2, 3, VF + 2, VF + 3);
#undef QUARTERS
}

ALWAYS_INLINE void store_quarter(float *to, vf a, int quarter)
{
#if VF == 16
    __m128 part = quarter == 0   ? _mm512_extractf32x4_ps((__m512)a, 0)
                  : quarter == 1 ? _mm512_extractf32x4_ps((__m512)a, 1)
                  : quarter == 2 ? _mm512_extractf32x4_ps((__m512)a, 2)
                                 : _mm512_extractf32x4_ps((__m512)a, 3);
    _mm_storeu_ps(to, part);
#else
    memcpy(to, (const float *)&a + 4 * quarter, 4 * sizeof *to);
#endif
}

/* Four rows of x, VF columns of them: columns COLUMNS apart. */
ALWAYS_INLINE void turn_rows(const float *x, int64_t stride, float *to)
{
    vf rows[4] = {vf_load(x), vf_load(x + stride), vf_load(x + 2 * stride), vf_load(x + 3 * stride)};
    turn_quarters(rows);
    for (int quarter = 0; quarter < VF / 4; quarter++)
        for (int i = 0; i < 4; i++) store_quarter(to + (4 * quarter + i) * COLUMNS, rows[i], quarter);
}

/* A strip [k][COLUMNS] of `count` columns, whose elements lie one behind the other; zeros behind them. */
static void turn_strip(const float *from, int64_t stride, int64_t k, int64_t count, float *to)
{
    int64_t whole = count / 4 * 4, whole_k = k / VF * VF;
    for (int64_t i = 0; i < whole_k; i += VF)
        for (int64_t j = 0; j < whole; j += 4) turn_rows(from + j * stride + i, stride, to + i * COLUMNS + j);
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = i < whole_k ? whole : 0; j < COLUMNS; j++)
            to[i * COLUMNS + j] = j < count ? from[j * stride + i] : 0;
}

static void copy_strip(const float *from, int64_t stride, int64_t k, int64_t count, float *to)
{
    for (int64_t i = 0; i < k; i++, from += stride, to += COLUMNS)
        for (int64_t j = 0; j < COLUMNS; j += VF) {
            vf a = vf_set(0);
            if (j < count) a = vf_load_some(from + j, count - j);
            vf_store(to + j, a);
        }
}

static void pack(const float *b, int64_t stride, bool transpose, int64_t n, int64_t k, float *to)
{
    int64_t chunk = transpose ? k : CHUNK;
    for (int64_t p = 0; p < k; p += chunk)
        for (int64_t j = 0; j < n; j += COLUMNS) {
            int64_t count = n - j < COLUMNS ? n - j : COLUMNS, some = k - p < chunk ? k - p : chunk;
            if (transpose)
                turn_strip(b + j * stride, stride, k, count, to + j * k);
            else if (count == COLUMNS)
                copy_strip(b + p * stride + j, stride, some, COLUMNS, to + j * k + p * COLUMNS);
            else
                copy_strip(b + p * stride + j, stride, some, count, to + j * k + p * COLUMNS);
        }
}

/* ---- multiplying ------------------------------------------------------------------------------ */

/* What a tile fetches into the L2 cache for every STEP of its depth, without a branch: a few lines at a time, since
 * many at once would hold up the loads of a and b, and a row of each for a step. What lies behind the last row or
 * strip may be fetched as well. */
typedef struct ahead {
    const float *strip; /* the next of b */
    const float *row;   /* of the next a: as many lines of a row as it takes to have all behind the last strip */
    int64_t stride, lines;
} ahead;

ALWAYS_INLINE void fetch_ahead(ahead *f, const float **store, int64_t c_stride)
{
    for (int v = 0; v < VECTORS; v++) {
        __builtin_prefetch(*store + v * VF, 0, 2);
        __builtin_prefetch(f->strip + v * VF, 0, 2);
    }
    for (int64_t i = 0; i < f->lines; i++) __builtin_prefetch(f->row + i * LINE, 0, 2);
    *store += c_stride;
    f->strip += COLUMNS;
    f->row += f->stride;
}

/* A whole tile is stored without a branch. */
ALWAYS_INLINE void store_tile(float *c, int64_t stride, int rows, int64_t columns, bool add, vf sum[ROWS][VECTORS])
{
    for (int i = 0; columns >= COLUMNS && i < rows; i++)
        for (int v = 0; v < VECTORS; v++) {
            float *to = c + i * stride + v * VF;
            vf_store(to, add ? vf_load(to) + sum[i][v] : sum[i][v]);
        }
    for (int i = 0; columns < COLUMNS && i < rows; i++)
        for (int v = 0; v < VECTORS && v * VF < columns; v++) {
            float *to = c + i * stride + v * VF;
            int64_t width = columns - v * VF;
            vf_store_some(to, add ? vf_load_some(to, width) + sum[i][v] : sum[i][v], width);
        }
}

/* Depth `count` of a tile. Rows of a are named from every third one, as an address takes up to twice the stride; the
 * pointers are hidden from the compiler, which would keep an offset for each address in more registers than there
 * are. */
ALWAYS_INLINE void multiply_step(const float *third[], int64_t row_stride, const float *b, int rows, int64_t count,
                                 vf sum[ROWS][VECTORS])
{
#pragma GCC unroll 16
    for (int64_t k = 0; k < count; k++) {
        vf right[VECTORS];
        for (int v = 0; v < VECTORS; v++) right[v] = vf_load(b + k * COLUMNS + v * VF);
        for (int i = 0; i < rows; i++) {
            vf left = vf_set(third[i / 3][i % 3 * row_stride]);
            for (int v = 0; v < VECTORS; v++) sum[i][v] = vf_fma(left, right[v], sum[i][v]);
        }
        for (int i = 0; i < (rows + 2) / 3; i++) {
            third[i]++;
            __asm__("" : "+r"(third[i]));
        }
    }
}

ALWAYS_INLINE void multiply_tile(const cpu_gemm_block *block, const float *a, const float *b, float *c, int rows,
                                 int64_t columns, ahead *f)
{
    int64_t row_stride = block->a_stride, steps = block->k / STEP, rest = block->k % STEP;
    const float *third[(ROWS + 2) / 3];
    vf sum[ROWS][VECTORS];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < VECTORS; v++) sum[i][v] = vf_set(0);
    for (int i = 0; i < (rows + 2) / 3; i++) third[i] = a + 3 * i * row_stride;
    const float *store = c;
    for (int64_t step = 0; step < steps; step++, b += STEP * COLUMNS) {
        fetch_ahead(f, &store, block->c_stride);
        for (int i = 0; i < rows; i++) __builtin_prefetch(third[i / 3] + i % 3 * row_stride + STEP);
        multiply_step(third, row_stride, b, rows, STEP, sum);
    }
    for (int64_t k = 0; k < rest; k++, b += COLUMNS) multiply_step(third, row_stride, b, rows, 1, sum);
    if (block->add)
        store_tile(c, block->c_stride, rows, columns, true, sum);
    else
        store_tile(c, block->c_stride, rows, columns, false, sum);
}

/* Tiles of 12 and of 8 rows are as fast as each other, those of fewer rows slower. */
ALWAYS_INLINE int rows_of_tile(int64_t left)
{
    if (left < 4) return (int)left;
    if (ROWS == 4 || left < 8) return 4;
    return left < 12 || (left >= 16 && left < 20) ? 8 : ROWS;
}

static void multiply(const cpu_gemm_block *block)
{
    int64_t strips = (block->n + COLUMNS - 1) / COLUMNS, lines = (block->next_columns + LINE - 1) / LINE;
    bool fetches = block->next && block->next_rows > 0;
    ahead f = {.stride = block->next_stride, .lines = fetches ? (lines + strips - 1) / strips : 0};
    for (int64_t j = 0; j < block->n; j += COLUMNS) {
        int64_t columns = block->n - j < COLUMNS ? block->n - j : COLUMNS;
        const float *b = block->b + j * block->k;
        f.strip = b + COLUMNS * block->k;
        for (int64_t i = 0, rows; i < block->m; i += rows) {
            const float *a = block->a + i * block->a_stride;
            float *c = block->c + i * block->c_stride + j;
            f.row = fetches ? block->next + i * f.stride + j / COLUMNS * f.lines * LINE : a;
            rows = rows_of_tile(block->m - i);
            switch (rows) {
            case 1:
                multiply_tile(block, a, b, c, 1, columns, &f);
                break;
            case 2:
                multiply_tile(block, a, b, c, 2, columns, &f);
                break;
            case 3:
                multiply_tile(block, a, b, c, 3, columns, &f);
                break;
            case 4:
                multiply_tile(block, a, b, c, 4, columns, &f);
                break;
#if VF == 16
            case 8:
                multiply_tile(block, a, b, c, 8, columns, &f);
                break;
            default:
                multiply_tile(block, a, b, c, 12, columns, &f);
#endif
            }
        }
    }
}

const cpu_gemm_kernels KERNEL(cpu_gemm_kernels) = {
    .many_registers = VF == 16, .tile_columns = COLUMNS, .pack = pack, .multiply = multiply};
