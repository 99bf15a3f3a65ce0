/* When do two devices' results agree? */
#ifndef TESTS_COMMON_DEVICE_OP_COMPARE_H
#define TESTS_COMMON_DEVICE_OP_COMPARE_H

#include "common/device/device.h"

/* The error allowed in a result of `op` computed in `type`, as a fraction of the tensor's root mean square:
 * rounding errors of a sum grow with the magnitude of what was summed, not with what is left of it. */
double op_tolerance(const op_desc *op, dtype type);

/* The tolerance if products of `type` float32 are computed in `precision`. Matrix products and convolutions
 * may err by eight rounding units of TF32 (2^-10, since TF32 may truncate) or sixteen of bfloat16 (2^-9,
 * since factors are rounded, and also the results that cuDNN writes). All other operations have the tolerance
 * of float32. */
double op_tolerance_in(const op_desc *op, dtype type, device_precision precision);

/* A larger tolerance for operations that round intermediate results if activations are stored as bfloat16:
 * sums that LayerNorm stores and reads again, the gradient of BatchNorm's residual, and the factors in
 * attention. */
double op_tolerance_of_storage(const op_desc *op);

/* Returns the index of the first element of `found` whose distance from `expected` exceeds `tolerance` times
 * the root mean square of `expected` (at least SCALE_FLOOR), or -1 if there is none. NaN agrees with nothing.
 */
int64_t op_first_difference(const double *found, const double *expected, int64_t count, double tolerance);
/* Does the same, but allows each element an additional error of `relative` times its value: for bfloat16
 * 2^-8, a unit in the last place. */
int64_t op_first_difference_stored(const double *found, const double *expected, int64_t count,
                                   double tolerance, double relative);

#endif
