#include "common/device/cpu/isa/transpose.h"

/* The interpolation points are 0, +-a, +-b and infinity. N_p is the product of the differences between p and
 * each of the other finite points. The transform of weights divides a polynomial's value at p by N_p. */
#define A 0.625f
#define A2 (A * A)
#define A3 (A * A * A)
#define B 1.5f
#define B2 (B * B)
#define B3 (B * B * B)
#define OVER_N0 (1 / (A2 * B2))
#define OVER_NA (1 / (2 * A2 * (A2 - B2)))
#define OVER_NB (1 / (2 * B2 * (B2 - A2)))

enum {
    P = WINOGRAD_PATCH,
    T = WINOGRAD_TILE,
    TAPS = 3,
    GEMM_ROWS = VF == 16 ? 14 : 6, /* rows of the tile of m that is kept in registers */
    COLUMNS = 2 * VF,
    U_POINT = WINOGRAD_DEPTH * COLUMNS + WINOGRAD_PADDING,
    M_ROW = WINOGRAD_POINTS * COLUMNS + WINOGRAD_PADDING
};

ALWAYS_INLINE vf axpy(float a, vf x, vf y)
{
    return vf_fma(vf_set(a), x, y);
}

/* ---- in one dimension ------------------------------------------------------------------------- */

/* Computes the values of a polynomial at +p and -p from its even and its odd terms. */
ALWAYS_INLINE void image_pair(const vf d[P], float p, float other2, vf *plus, vf *minus)
{
    vf even = axpy(-other2, d[2], d[4]), odd = axpy(-other2, d[1], d[3]);
    *plus = axpy(p, odd, even);
    *minus = axpy(-p, odd, even);
}

ALWAYS_INLINE void image_line(const vf d[P], vf v[P])
{
    v[0] = axpy(A2 * B2, d[0], axpy(-(A2 + B2), d[2], d[4]));
    image_pair(d, A, B2, &v[1], &v[2]);
    image_pair(d, B, A2, &v[3], &v[4]);
    v[5] = axpy(A2 * B2, d[1], axpy(-(A2 + B2), d[3], d[5]));
}

ALWAYS_INLINE void weights_pair(const vf g[TAPS], float p, float over_n, vf *plus, vf *minus)
{
    vf even = axpy(p * p * over_n, g[2], vf_set(over_n) * g[0]);
    *plus = axpy(p * over_n, g[1], even);
    *minus = axpy(-p * over_n, g[1], even);
}

ALWAYS_INLINE void weights_line(const vf g[TAPS], vf u[P])
{
    u[0] = vf_set(OVER_N0) * g[0];
    weights_pair(g, A, OVER_NA, &u[1], &u[2]);
    weights_pair(g, B, OVER_NB, &u[3], &u[4]);
    u[5] = g[2];
}

ALWAYS_INLINE void output_line(const vf m[P], vf y[T])
{
    vf even_a = m[1] + m[2], odd_a = m[1] - m[2], even_b = m[3] + m[4], odd_b = m[3] - m[4];
    y[0] = m[0] + (even_a + even_b);
    y[1] = axpy(B, odd_b, vf_set(A) * odd_a);
    y[2] = axpy(B2, even_b, vf_set(A2) * even_a);
    y[3] = axpy(B3, odd_b, axpy(A3, odd_a, m[5]));
}

/* The transforms for the gradient with respect to weights: gradient_line() transforms four outputs to six
 * points, and taps_line() transforms six points back to three taps. */
ALWAYS_INLINE void gradient_pair(const vf g[T], float p, float over_n, vf *plus, vf *minus)
{
    vf even = axpy(p * p * over_n, g[2], vf_set(over_n) * g[0]);
    vf odd = axpy(p * p * p * over_n, g[3], vf_set(p * over_n) * g[1]);
    *plus = even + odd;
    *minus = even - odd;
}

ALWAYS_INLINE void gradient_line(const vf g[T], vf u[P])
{
    u[0] = vf_set(OVER_N0) * g[0];
    gradient_pair(g, A, OVER_NA, &u[1], &u[2]);
    gradient_pair(g, B, OVER_NB, &u[3], &u[4]);
    u[5] = g[3];
}

ALWAYS_INLINE void taps_line(const vf m[P], vf dw[TAPS])
{
    vf even_a = m[1] + m[2], even_b = m[3] + m[4];
    dw[0] = m[0] + (even_a + even_b);
    dw[1] = axpy(B, m[3] - m[4], vf_set(A) * (m[1] - m[2]));
    dw[2] = axpy(B2, even_b, axpy(A2, even_a, m[5]));
}

/* ---- images ----------------------------------------------------------------------------------- */

ALWAYS_INLINE vf patch_vector(const float *x, const cpu_patch *patch, bool whole, int i, int j)
{
    if (!whole && (i < patch->top || i >= patch->bottom || j < patch->left || j >= patch->right))
        return (vf){0};
    return vf_load(x + patch->origin + i * patch->row_stride + j * patch->pixel_stride);
}

ALWAYS_INLINE bool is_whole(const cpu_patch *patch, int size)
{
    return patch->top == 0 && patch->bottom == size && patch->left == 0 && patch->right == size;
}

ALWAYS_INLINE void image_vector(const float *x, const cpu_patch *patch, bool whole, float *v)
{
    vf columns[P][P]; /* columns after their transform: [column][point] */
    for (int j = 0; j < P; j++) {
        vf d[P];
        for (int i = 0; i < P; i++) d[i] = patch_vector(x, patch, whole, i, j);
        image_line(d, columns[j]);
    }
    for (int i = 0; i < P; i++) {
        vf row[P], out[P];
        for (int j = 0; j < P; j++) row[j] = columns[j][i];
        image_line(row, out);
        for (int j = 0; j < P; j++) vf_store(v + (i * P + j) * WINOGRAD_DEPTH, out[j]);
    }
}

static void input_transform(const float *x, const cpu_patch *patch, int64_t channels, float *v)
{
    bool whole = is_whole(patch, P);
    for (int64_t c = 0; c < channels; c += VF)
        if (whole)
            image_vector(x + c, patch, true, v + c);
        else
            image_vector(x + c, patch, false, v + c);
}

/* ---- weights ---------------------------------------------------------------------------------- */

enum { MAX_BLOCK = 16 };

static void flip_weights(const float *w, int64_t block, float *to)
{
    for (int tap = 0; tap < TAPS * TAPS; tap++)
        for (int64_t i = 0; i < block; i += 4)
            for (int64_t j = 0; j < block; j += 4)
                transpose_4x4(w + (tap * block + i) * block + j, block, false,
                              to + ((TAPS * TAPS - 1 - tap) * block + j) * block + i, block);
}

ALWAYS_INLINE void weights_vector(const float *w, int64_t tap_stride, float *u)
{
    vf columns[TAPS][P];
    for (int s = 0; s < TAPS; s++) {
        vf g[TAPS];
        for (int r = 0; r < TAPS; r++) g[r] = vf_load(w + (r * TAPS + s) * tap_stride);
        weights_line(g, columns[s]);
    }
    for (int i = 0; i < P; i++) {
        vf out[P];
        weights_line((vf[TAPS]){columns[0][i], columns[1][i], columns[2][i]}, out);
        for (int j = 0; j < P; j++) vf_store(u + (i * P + j) * U_POINT, out[j]);
    }
}

static void weights_transform(const float *w, const float *next, int64_t block, bool flip, float *u)
{
    _Alignas(64) float flipped[TAPS * TAPS * MAX_BLOCK * MAX_BLOCK];
    if (flip) flip_weights(w, block, flipped);
    const float *from = flip ? flipped : w;
    for (int64_t row = 0; row < block; row++, next += TAPS * TAPS * block) {
        for (int line = 0; line < TAPS * TAPS; line++) __builtin_prefetch(next + line * block, 0, 2);
        for (int64_t column = 0; column < block; column += VF)
            weights_vector(from + row * block + column, block * block, u + row * COLUMNS + column);
    }
}

/* ---- outputs ---------------------------------------------------------------------------------- */

ALWAYS_INLINE void output_vector(const float *m, vf bias, float *y, const cpu_patch *patch)
{
    vf columns[P][T];
    for (int j = 0; j < P; j++) {
        vf line[P];
        for (int i = 0; i < P; i++) line[i] = vf_load(m + (i * P + j) * COLUMNS);
        output_line(line, columns[j]);
    }
    for (int i = patch->top; i < patch->bottom; i++) {
        vf line[P], out[T];
        for (int j = 0; j < P; j++) line[j] = columns[j][i];
        output_line(line, out);
        float *to = y + patch->origin + i * patch->row_stride;
        for (int j = 0; j < T; j++)
            if (j >= patch->left && j < patch->right) vf_store(to + j * patch->pixel_stride, out[j] + bias);
    }
}

static void output_transform(const float *m, const float *bias, float *y, const cpu_patch *patch)
{
    for (int c = 0; c < COLUMNS; c += VF)
        output_vector(m + c, bias ? vf_load(bias + c) : (vf){0}, y + c, patch);
}

/* ---- the gradient with respect to weights ----------------------------------------------------- */

ALWAYS_INLINE void gradient_vector(const float *dy, const cpu_patch *patch, bool whole, float *u)
{
    vf columns[T][P];
    for (int j = 0; j < T; j++) {
        vf g[T];
        for (int i = 0; i < T; i++) g[i] = patch_vector(dy, patch, whole, i, j);
        gradient_line(g, columns[j]);
    }
    for (int i = 0; i < P; i++) {
        vf row[T], out[P];
        for (int j = 0; j < T; j++) row[j] = columns[j][i];
        gradient_line(row, out);
        for (int j = 0; j < P; j++) vf_store(u + (i * P + j) * U_POINT, out[j]);
    }
}

static void output_gradient_transform(const float *dy, const cpu_patch *patch, float *u)
{
    bool whole = is_whole(patch, T);
    for (int64_t k = 0; k < COLUMNS; k += VF)
        if (whole)
            gradient_vector(dy + k, patch, true, u + k);
        else
            gradient_vector(dy + k, patch, false, u + k);
}

ALWAYS_INLINE void taps_vector(const float *m, bool add, float *dw, int64_t tap_stride)
{
    vf columns[P][TAPS];
    for (int j = 0; j < P; j++) {
        vf line[P];
        for (int i = 0; i < P; i++) line[i] = vf_load(m + (i * P + j) * COLUMNS);
        taps_line(line, columns[j]);
    }
    for (int r = 0; r < TAPS; r++) {
        vf line[P], out[TAPS];
        for (int j = 0; j < P; j++) line[j] = columns[j][r];
        taps_line(line, out);
        for (int s = 0; s < TAPS; s++) {
            float *to = dw + (r * TAPS + s) * tap_stride;
            vf_store(to, add ? vf_load(to) + out[s] : out[s]);
        }
    }
}

static void weights_gradient_transform(const float *m, int64_t block, bool add, float *dw)
{
    for (int64_t row = 0; row < block; row++)
        for (int64_t column = 0; column < block; column += VF)
            taps_vector(m + row * M_ROW + column, add, dw + row * block + column, block * block);
}

/* ---- the matrix products ------------------------------------------------------------------- */

/* Multiplies one tile of m, which is kept in registers. The strides are constants, so that one register
 * serves all addresses of a step. */
ALWAYS_INLINE void gemm_tile(int rows, int row_stride, int depth_stride, int64_t depth, const float *v,
                             const float *u, bool add, float *m)
{
    vf left[GEMM_ROWS], right[GEMM_ROWS];
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
        gemm_tile(n, row_stride, depth_stride, depth, v, u, add, m);                                         \
        break;

ALWAYS_INLINE void gemm_rows(int64_t rows, int row_stride, int depth_stride, int64_t depth, const float *v,
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

ALWAYS_INLINE void gemm_matrix(int64_t rows, int row_stride, int depth_stride, int64_t depth, const float *v,
                               const float *u, bool add, float *m)
{
    int64_t groups = (rows + GEMM_ROWS - 1) / GEMM_ROWS;
    for (int64_t g = 0; g < groups; g++) {
        int64_t first = rows * g / groups, end = rows * (g + 1) / groups;
        gemm_rows(end - first, row_stride, depth_stride, depth, v + first * row_stride, u, add,
                  m + first * M_ROW);
    }
}

static void gemm(cpu_winograd_rows kind, int64_t rows, int64_t depth, const float *v, const float *u,
                 bool add, float *m)
{
    for (int point = 0; point < WINOGRAD_POINTS; point++, v += WINOGRAD_DEPTH, u += U_POINT, m += COLUMNS)
        if (kind == WINOGRAD_ROWS_TILES)
            gemm_matrix(rows, WINOGRAD_V_TILE, 1, depth, v, u, add, m);
        else
            gemm_matrix(rows, 1, WINOGRAD_V_TILE, depth, v, u, add, m);
}

const cpu_winograd KERNEL(cpu_winograd) = {.columns = COLUMNS,
                                           .input_transform = input_transform,
                                           .weights_transform = weights_transform,
                                           .gemm = gemm,
                                           .output_transform = output_transform,
                                           .output_gradient_transform = output_gradient_transform,
                                           .weights_gradient_transform = weights_gradient_transform};
