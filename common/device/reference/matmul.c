#include "common/device/reference/reference_kernels.h"

#include "common/base/least.h"

/* Size of a block of b. A block stays in the cache while it is multiplied with all rows of `a`. */
enum { BLOCK_K = 64, BLOCK_N = 512 };

/* Computes c (n) += a (k) * b (k, n), four rows of b per pass, so that c is loaded and stored a quarter as
 * often. */
static void add_rows(int64_t n, int64_t k, matrix_view a, const double *restrict b, int64_t b_row,
                     double *restrict c)
{
    int64_t i = 0;
    for (; i + 4 <= k; i += 4) {
        const double *b0 = b + i * b_row, *b1 = b0 + b_row, *b2 = b1 + b_row, *b3 = b2 + b_row;
        double a0 = a.at[i * a.column], a1 = a.at[(i + 1) * a.column];
        double a2 = a.at[(i + 2) * a.column], a3 = a.at[(i + 3) * a.column];
        for (int64_t j = 0; j < n; j++) c[j] = c[j] + a0 * b0[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j];
    }
    for (; i < k; i++)
        for (int64_t j = 0; j < n; j++) c[j] += a.at[i * a.column] * b[i * b_row + j];
}

void reference_matmul(int64_t m, int64_t n, int64_t k, matrix_view a, const double *b, int64_t b_row,
                      double *c, int64_t c_row)
{
    for (int64_t j = 0; j < n; j += BLOCK_N)
        for (int64_t l = 0; l < k; l += BLOCK_K)
            for (int64_t i = 0; i < m; i++) {
                matrix_view part = {a.at + i * a.row + l * a.column, a.row, a.column};
                add_rows(least(BLOCK_N, n - j), least(BLOCK_K, k - l), part, b + l * b_row + j, b_row,
                         c + i * c_row + j);
            }
}

void reference_store_sums(const double *sums, int64_t count, bool add, double *gradient)
{
    for (int64_t i = 0; i < count; i++) gradient[i] = (add ? gradient[i] : 0) + sums[i];
}

void reference_column_sums(const double *x, int64_t rows, int64_t columns, bool add, double *gradient)
{
    for (int64_t j = 0; j < columns; j++) {
        double sum = 0;
        for (int64_t i = 0; i < rows; i++) sum += x[i * columns + j];
        reference_store_sums(&sum, 1, add, gradient + j);
    }
}
