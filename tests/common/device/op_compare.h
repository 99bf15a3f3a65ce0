/* Decides whether the results of two devices agree. */
#ifndef TESTS_COMMON_DEVICE_OP_COMPARE_H
#define TESTS_COMMON_DEVICE_OP_COMPARE_H

#include "common/device/device.h"

/* Returns the error that is allowed in a result of `op` computed in `type`, as a fraction of the tensor's
 * root mean square. The rounding errors of a sum grow with the magnitude of the terms, even if the sum is
 * small. */
double op_tolerance(const op_desc *op, dtype type);

/* Returns the tolerance if products of `type` float32 are computed in `precision`. Matrix products and
 * convolutions may err by eight rounding units of TF32 (2^-10, since TF32 may truncate), or by sixteen of
 * bfloat16 (2^-9, since factors and the results that cuDNN writes are rounded). All other operations have the
 * tolerance of float32. */
double op_tolerance_in(const op_desc *op, dtype type, device_precision precision);

/* Returns a larger tolerance for operations that round intermediate results when activations are stored as
 * bfloat16. LayerNorm stores sums and reads them again, BatchNorm stores the gradient of its residual, and
 * attention rounds its factors. */
double op_tolerance_of_storage(const op_desc *op);

/* Returns the index of the first element of `found` whose distance from `expected` exceeds `tolerance` times
 * the root mean square of `expected` (at least SCALE_FLOOR), or -1 if all elements agree. NaN agrees with no
 * value. */
int64_t op_first_difference(const double *found, const double *expected, int64_t count, double tolerance);
/* Does the same, but allows each element an additional error of `relative` times its value. For bfloat16 this
 * is 2^-8, a unit in the last place. */
int64_t op_first_difference_stored(const double *found, const double *expected, int64_t count,
                                   double tolerance, double relative);

#endif
