#include "tests/common/device/op_compare.h"

#include <math.h>

/* Tensors whose exact values are zero but for rounding (the gradient of a softmax over one element) are
 * measured against their inputs' magnitude, about 0.6. */
static const double SCALE_FLOOR = 0.05;

/* Terms of the sum behind one element of the result. */
static double terms_of(const op_desc *op)
{
    const conv2d_attributes *conv = &op->u.conv2d;
    switch (op->kind) {
    case OP_conv2d_forward:
        return (double)(conv->c * conv->r * conv->s);
    case OP_conv2d_backward_data:
        return (double)(conv->k * conv->r * conv->s);
    case OP_conv2d_backward_weights:
        return (double)(conv->n * conv->p * conv->q);
    case OP_linear_forward:
        return (double)op->u.linear.in;
    case OP_linear_backward_data:
        return (double)op->u.linear.out;
    case OP_linear_backward_weights:
        return (double)op->u.linear.m;
    default:
        return 64; /* sequences, rows and windows of the table */
    }
}

/* Summing n random terms one after another in float32 errs by about 6e-8 sqrt(n) / 2.4 of the sums' root mean
 * square, the worst of ten thousand sums by five times that; plain loops (the reference's own code with
 * float for double) stay within these limits over the whole table. */
double op_tolerance(const op_desc *op, dtype type)
{
    if (type == DTYPE_F64) return 1e-13;
    if (op_class_of(op->kind) == OP_CLASS_NORMALIZATION) return 1e-5; /* differences of nearly equal sums */
    return 1e-6 + 2.5e-7 * sqrt(terms_of(op));
}

static bool multiplies(const op_desc *op)
{
    switch (op->kind) {
    case OP_conv2d_forward:
    case OP_conv2d_backward_data:
    case OP_conv2d_backward_weights:
    case OP_linear_forward:
    case OP_linear_backward_data:
    case OP_linear_backward_weights:
        return true;
    default:
        return false;
    }
}

double op_tolerance_in(const op_desc *op, dtype type, device_precision precision)
{
    double exact = op_tolerance(op, type);
    if (precision == DEVICE_PRECISION_F32 || !multiplies(op)) return exact;
    return exact + (precision == DEVICE_PRECISION_TF32 ? 8 * 0x1p-10 : 16 * 0x1p-9);
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
