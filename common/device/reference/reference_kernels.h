/* What the reference kernels share. For this folder only: device_reference.c opens the device and holds the
 * table of kernels; matmul.c has the loops of convolutions and linear layers; the *_reference.c hold one kind
 * of layer each. */
#ifndef COMMON_DEVICE_REFERENCE_REFERENCE_KERNELS_H
#define COMMON_DEVICE_REFERENCE_REFERENCE_KERNELS_H

#include "common/device/host/host.h"

/* One function per operation: reference_conv2d_forward(), ... */
#define DECLARE_KERNEL(name, class) void reference_##name(const host_call *call);
OP_LIST(DECLARE_KERNEL)
#undef DECLARE_KERNEL
#define reference_gather_rows host_gather_rows
#define reference_scatter_rows host_scatter_rows
#define reference_concat_forward host_concat
#define reference_concat_backward host_concat

/* reference_linear_forward() transposes the weights of so many outputs at a time, in the workspace. */
enum { REFERENCE_PANEL = 64 };

/* gradient [count] = or += sums */
void reference_store_sums(const double *sums, int64_t count, bool add, double *gradient);

/* gradient [columns] = or += columns of x [rows, columns] */
void reference_column_sums(const double *x, int64_t rows, int64_t columns, bool add, double *gradient);

/* ---- activation functions of one value ----------------------------------------------------------- */

double reference_activate(activation act, double x);

/* dy * act'(x). `kept` is what backward operations are handed: y for RELU, x for the others. */
double reference_activate_backward(activation act, double kept, double dy);

/* ---- the loops that convolutions and linear layers share ------------------------------------------ */

/* Element (i, k) is at[i * row + k * column]. */
typedef struct matrix_view {
    const double *at;
    int64_t row, column;
} matrix_view;

/* c (m, n) += a (m, k) * b (k, n). Rows of b and c are contiguous and b_row and c_row apart; c shares
 * memory with neither. Each element of c is summed in ascending k, as by the plain triple loop. */
void reference_matmul(int64_t m, int64_t n, int64_t k, matrix_view a, const double *b, int64_t b_row,
                      double *c, int64_t c_row);

#endif
