#include "ring/hooks/powersgd.h"

#include "common/base/random.h"

#include <math.h>

/* Number of partial sums of a dot product. Separate partial sums let the compiler use vector instructions.
 * They are added in a fixed order. */
enum { LANES = 16 };

bool powersgd_pays(int64_t rows, int64_t cols, int rank)
{
    return (rows + cols) * rank * 2 < rows * cols;
}

void powersgd_start(const powersgd_matrix *x, int rank, const char *name)
{
    uint64_t start = random_start(UINT64_C(0x506f776572534744), random_fnv1a64(name));
    for (int64_t i = 0; i < rank * x->cols; i++) x->q[i] = (float)random_normal(start, (uint64_t)i);
    for (int64_t i = 0; i < x->rows * x->cols; i++) x->error[i] = 0;
}

static float dot(const float *a, const float *b, int64_t count)
{
    float sums[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int k = 0; k < LANES; k++) sums[k] += a[i + k] * b[i + k];
    for (int k = 0; i < count; i++, k++) sums[k] += a[i] * b[i];
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int k = 0; k < width; k++) sums[k] += sums[k + width];
    return sums[0];
}

/* y += factor x */
static void add_scaled(float *restrict y, const float *restrict x, float factor, int64_t count)
{
    for (int64_t i = 0; i < count; i++) y[i] += factor * x[i];
}

void powersgd_project(const powersgd_matrix *x, int rank)
{
    for (int64_t i = 0; i < x->rows; i++) {
        float *m = x->m + i * x->cols;
        const float *error = x->error + i * x->cols;
        for (int64_t j = 0; j < x->cols; j++) m[j] += error[j];
        for (int k = 0; k < rank; k++) x->p[k * x->rows + i] = dot(m, x->q + k * x->cols, x->cols);
    }
}

/* Modified Gram-Schmidt. If a column depends linearly on the preceding columns, its remainder is rounding
 * noise and is set to zero. */
static void orthonormalize(float *p, int rank, int64_t rows)
{
    for (int k = 0; k < rank; k++) {
        float *column = p + k * rows;
        float before = sqrtf(dot(column, column, rows));
        for (int l = 0; l < k; l++) add_scaled(column, p + l * rows, -dot(column, p + l * rows, rows), rows);
        float norm = sqrtf(dot(column, column, rows));
        float factor = norm > 1e-6f * before && norm > 0 ? 1 / norm : 0;
        for (int64_t i = 0; i < rows; i++) column[i] *= factor;
    }
}

void powersgd_back_project(const powersgd_matrix *x, int rank)
{
    orthonormalize(x->p, rank, x->rows);
    for (int64_t j = 0; j < rank * x->cols; j++) x->q[j] = 0;
    for (int64_t i = 0; i < x->rows; i++)
        for (int k = 0; k < rank; k++)
            add_scaled(x->q + k * x->cols, x->m + i * x->cols, x->p[k * x->rows + i], x->cols);
}

void powersgd_restore(const powersgd_matrix *x, int rank)
{
    for (int64_t i = 0; i < x->rows; i++) {
        float *m = x->m + i * x->cols, *error = x->error + i * x->cols;
        for (int64_t j = 0; j < x->cols; j++) error[j] = m[j];
        for (int64_t j = 0; j < x->cols; j++) m[j] = 0;
        for (int k = 0; k < rank; k++) add_scaled(m, x->q + k * x->cols, x->p[k * x->rows + i], x->cols);
        for (int64_t j = 0; j < x->cols; j++) error[j] -= m[j];
    }
}
