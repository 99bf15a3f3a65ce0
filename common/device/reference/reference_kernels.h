/* Functions shared by the reference kernels. device_reference.c opens the device and holds the table of
 * kernels. matmul.c has the loops of convolutions and linear layers. Each *_reference.c holds one kind of
 * layer. */
#ifndef COMMON_DEVICE_REFERENCE_REFERENCE_KERNELS_H
#define COMMON_DEVICE_REFERENCE_REFERENCE_KERNELS_H

#include "common/device/host/host.h"

#define DECLARE_KERNEL(name, class) void reference_##name(const host_call *call);
OP_LIST(DECLARE_KERNEL)
#undef DECLARE_KERNEL
#define reference_gather_rows host_gather_rows
#define reference_scatter_rows host_scatter_rows
#define reference_concat_forward host_concat
#define reference_concat_backward host_concat

/* Number of outputs whose weights reference_linear_forward() transposes in the workspace at a time. */
enum { REFERENCE_PANEL = 64 };

/* Stores `sums` in `gradient` [count], or adds `sums` to `gradient` if `add`. */
void reference_store_sums(const double *sums, int64_t count, bool add, double *gradient);

/* Stores the column sums of x [rows, columns] in `gradient` [columns], or adds the sums to `gradient` if
 * `add`. */
void reference_column_sums(const double *x, int64_t rows, int64_t columns, bool add, double *gradient);

/* ---- activation functions of one value ----------------------------------------------------------- */

double reference_activate(activation act, double x);

/* Returns dy * act'(x). `kept` is the tensor that backward operations receive: y for RELU, and x for other
 * activations. */
double reference_activate_backward(activation act, double kept, double dy);

/* ---- the loops of convolutions and linear layers --------------------------------------------------- */

/* Element (i, k) is at[i * row + k * column]. */
typedef struct matrix_view {
    const double *at;
    int64_t row, column;
} matrix_view;

/* Computes c (m, n) += a (m, k) * b (k, n). Each row of b and c is contiguous. Rows of b are b_row elements
 * apart, and rows of c are c_row elements apart. c must not overlap a or b. Each element of c is summed in
 * ascending k, as in the plain triple loop. */
void reference_matmul(int64_t m, int64_t n, int64_t k, matrix_view a, const double *b, int64_t b_row,
                      double *c, int64_t c_row);

#endif
