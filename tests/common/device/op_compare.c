#include "tests/common/device/op_compare.h"

#include <math.h>

/* Tensors whose exact values are zero but for rounding (the gradient of a softmax over one element) are
 * measured against their inputs' magnitude, about 0.6. */
static const double SCALE_FLOOR = 0.05;

/* In float32, plain loops in ascending order (the reference's own code with float for double) stay within
 * a third of these over the whole table. */
double op_tolerance(op_kind op, dtype type)
{
    if (type == DTYPE_F64) return 1e-13;
    switch (op_class_of(op)) {
    case OP_CLASS_NORMALIZATION: /* differences of nearly equal sums */
        return 1e-5;
    default:
        return 3e-6;
    }
}

int64_t op_first_difference(const double *found, const double *expected, int64_t count, double tolerance)
{
    double squares = 0;
    for (int64_t i = 0; i < count; i++) squares += expected[i] * expected[i];
    double allowed = tolerance * fmax(sqrt(squares / (double)count), SCALE_FLOOR);
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(found[i] - expected[i]) <= allowed)) return i;
    return -1;
}
