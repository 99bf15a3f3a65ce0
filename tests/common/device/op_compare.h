/* When do two devices' results agree? */
#ifndef TESTS_COMMON_DEVICE_OP_COMPARE_H
#define TESTS_COMMON_DEVICE_OP_COMPARE_H

#include "common/device/device.h"

/* The error allowed in a result of `op` computed in `type`, as a fraction of the tensor's root mean square:
 * rounding errors of a sum grow with the magnitude of what was summed, not with what is left of it. */
double op_tolerance(const op_desc *op, dtype type);

/* The same where matrix multiplications of `type` float32 multiply in `precision`: matrix products and
 * convolutions get eight rounding units of TF32 (2^-10: it may cut off) or sixteen of bfloat16 (2^-9: factors
 * are rounded, and with them what cuDNN writes), all other operations what they have in float32. */
double op_tolerance_in(const op_desc *op, dtype type, device_precision precision);

/* More, where activations are stored as bfloat16 and the operation rounds on its way: sums that LayerNorm
 * stores and reads again, the gradient of BatchNorm's residual, attention's factors. */
double op_tolerance_of_storage(const op_desc *op);

/* The first element of `found` that is further than `tolerance` times the root mean square of `expected`
 * (at least SCALE_FLOOR) from it, -1 if there is none. NaN agrees with nothing. */
int64_t op_first_difference(const double *found, const double *expected, int64_t count, double tolerance);
/* Likewise, with `relative` of each element allowed besides: 2^-8, a unit in the last place, for bfloat16. */
int64_t op_first_difference_stored(const double *found, const double *expected, int64_t count,
                                   double tolerance, double relative);

#endif
