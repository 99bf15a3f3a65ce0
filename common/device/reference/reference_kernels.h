/* What the reference kernels share. For this folder only: device_reference.c opens the device and holds the table of
 * kernels; matmul.c has the loops of convolutions and linear layers; the *_reference.c hold one kind of layer each. */
#ifndef COMMON_DEVICE_REFERENCE_REFERENCE_KERNELS_H
#define COMMON_DEVICE_REFERENCE_REFERENCE_KERNELS_H

#include "common/device/host/host.h"

/* One entry per operation, in OP_LIST's order in the table: reference_conv2d_forward, ... */
#define REFERENCE_ENTRY(name, class) extern const host_kernel_entry reference_##name;
OP_LIST(REFERENCE_ENTRY)
#undef REFERENCE_ENTRY

/* Whether gradients of parameters are added to the existing ones. */
static inline bool reference_accumulates(const op_desc *op, const op_scalars *scalars)
{
    return op->accumulate || (scalars && scalars->accumulate);
}

/* The rows in use of `most`. */
static inline int64_t reference_rows(const op_scalars *scalars, int64_t most)
{
    return scalars && scalars->rows > 0 ? scalars->rows : most;
}

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
