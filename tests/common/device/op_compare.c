#include "tests/common/device/op_compare.h"

#include <math.h>

/* A result may be zero except for rounding, such as the gradient of a softmax over one element. Then the
 * magnitude of the inputs, about 0.6, is the measure of its error. */
static const double SCALE_FLOOR = 0.05;

/* Returns the number of terms in the sum for one element of the result. */
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
        return 64; /* sequences, rows and windows of the table have at most this length */
    }
}

/* Returns true for a convolution that Winograd's F(4x4, 3x3) may compute: common/device/cpu/isa/isa.h. */
static bool may_be_filtered(const op_desc *op)
{
    const conv2d_attributes *a = &op->u.conv2d;
    bool convolution = op->kind == OP_conv2d_forward || op->kind == OP_conv2d_backward_data ||
                       op->kind == OP_conv2d_backward_weights;
    return convolution && a->r == 3 && a->s == 3 && a->stride == 1 && a->pad_h == a->pad_w &&
           a->c % 32 == 0 && a->k % 32 == 0;
}

/* With Y = A^T [(G g) * (B^T d)] in one dimension, the terms of output i have a variance of
 *     sum_p A[p][i]^2 |B[p]|^2 |G[p]|^2
 * times that of d and g, where plainly summed products have 3 (4 in the gradient with respect to weights). At
 * the points 0, +-5/8, +-3/2 and infinity the root of the quotient is at most 2.87, in two dimensions its
 * square: so much larger than the result is what the filtering sums and rounds. */
static const double FILTERING_GROWTH = 8.2;

/* Summing n random terms one after another in float32 errs by about 6e-8 sqrt(n) / 2.4 of the sums' root mean
 * square, the worst of ten thousand sums by five times that; plain loops (the reference's own code with
 * float for double) stay within these limits over the whole table. Filtering sums a ninth of the
 * terms (a sixteenth for weights), each of them larger. */
double op_tolerance(const op_desc *op, dtype type)
{
    if (type == DTYPE_F64) return 1e-13;
    if (op_class_of(op->kind) == OP_CLASS_NORMALIZATION) return 1e-5; /* differences of nearly equal sums */
    if (may_be_filtered(op)) return FILTERING_GROWTH * (1e-6 + 2.5e-7 * sqrt(terms_of(op) / 9));
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
    bool attends = precision == DEVICE_PRECISION_TF32 && op_class_of(op->kind) == OP_CLASS_ATTENTION;
    if (precision == DEVICE_PRECISION_F32 || !(multiplies(op) || attends)) return exact;
    return exact + (precision == DEVICE_PRECISION_TF32 ? 8 * 0x1p-10 : 16 * 0x1p-9);
}

double op_tolerance_of_storage(const op_desc *op)
{
    bool rounds = op->kind == OP_layernorm_forward || op->kind == OP_batchnorm_backward ||
                  op_class_of(op->kind) == OP_CLASS_ATTENTION;
    return rounds ? 16 * 0x1p-9 : 0;
}

int64_t op_first_difference(const double *found, const double *expected, int64_t count, double tolerance)
{
    return op_first_difference_stored(found, expected, count, tolerance, 0);
}

int64_t op_first_difference_stored(const double *found, const double *expected, int64_t count,
                                   double tolerance, double relative)
{
    double squares = 0;
    for (int64_t i = 0; i < count; i++) squares += expected[i] * expected[i];
    double allowed = tolerance * fmax(sqrt(squares / (double)count), SCALE_FLOOR);
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(found[i] - expected[i]) <= allowed + relative * fabs(expected[i]))) return i;
    return -1;
}
