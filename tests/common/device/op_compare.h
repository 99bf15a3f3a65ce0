/* When do two devices' results agree? */
#ifndef TESTS_COMMON_DEVICE_OP_COMPARE_H
#define TESTS_COMMON_DEVICE_OP_COMPARE_H

#include "common/ops/op.h"

/* The error allowed in a result of `op` computed in `type`, as a fraction of the tensor's root mean square:
 * rounding errors of a sum grow with the magnitude of what was summed, not with what is left of it. */
double op_tolerance(const op_desc *op, dtype type);

/* The first element of `found` that is further than `tolerance` times the root mean square of `expected`
 * (at least SCALE_FLOOR) from it, -1 if there is none. NaN agrees with nothing. */
int64_t op_first_difference(const double *found, const double *expected, int64_t count, double tolerance);

#endif
