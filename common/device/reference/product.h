/* The one loop nest that convolutions and linear layers share. */
#ifndef COMMON_DEVICE_REFERENCE_PRODUCT_H
#define COMMON_DEVICE_REFERENCE_PRODUCT_H

#include <stdint.h>

/* Element (i, k) lies at at[i * row + k * column]. */
typedef struct matrix_view {
    const double *at;
    int64_t row, column;
} matrix_view;

/* c (m, n) += a (m, k) * b (k, n). Rows of b and c are contiguous and b_row and c_row apart; c shares
 * memory with neither. Each element of c is summed in ascending k, as by the plain triple loop. */
void reference_product(int64_t m, int64_t n, int64_t k, matrix_view a, const double *b, int64_t b_row,
                       double *c, int64_t c_row);

#endif
