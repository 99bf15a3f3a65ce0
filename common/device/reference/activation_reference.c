#include "common/device/reference/reference_kernels.h"

#include <math.h>

/* The cumulative distribution function and the density of the standard normal distribution. */
static double normal_cdf(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}

static double normal_density(double x)
{
    return exp(-0.5 * x * x) * M_SQRT1_2 * 0.5 * M_2_SQRTPI;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* The argument of tanh in GELU (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016) and the derivative
 * of this argument. */
static double gelu_inner(double x)
{
    return M_SQRT2 * 0.5 * M_2_SQRTPI * (x + 0.044715 * x * x * x);
}

static double gelu_inner_slope(double x)
{
    return M_SQRT2 * 0.5 * M_2_SQRTPI * (1 + 3 * 0.044715 * x * x);
}

double reference_activate(activation act, double x)
{
    switch (act) {
    case ACTIVATION_RELU:
        return x <= 0 ? 0 : x; /* NaN stays NaN, as in PyTorch */
    case ACTIVATION_SILU:
        return x * sigmoid(x);
    case ACTIVATION_GELU:
        return x * normal_cdf(x);
    case ACTIVATION_GELU_TANH:
        return 0.5 * x * (1 + tanh(gelu_inner(x)));
    default:
        return x;
    }
}

double reference_activate_backward(activation act, double kept, double dy)
{
    double s, t;
    switch (act) {
    case ACTIVATION_RELU:
        return kept <= 0 ? 0 : dy;
    case ACTIVATION_SILU:
        s = sigmoid(kept);
        return dy * s * (1 + kept * (1 - s));
    case ACTIVATION_GELU:
        return dy * (normal_cdf(kept) + kept * normal_density(kept));
    case ACTIVATION_GELU_TANH:
        t = tanh(gelu_inner(kept));
        return dy * 0.5 * (1 + t + kept * (1 - t * t) * gelu_inner_slope(kept));
    default:
        return dy;
    }
}

void reference_activation_forward(const host_call *call)
{
    const elementwise_attributes *a = &call->op->u.elementwise;
    const double *x = call->operands[ACT_FWD_X];
    double *y = call->operands[ACT_FWD_Y];
    for (int64_t i = 0; i < a->count; i++) y[i] = reference_activate(a->act, x[i]);
}

void reference_activation_backward(const host_call *call)
{
    const elementwise_attributes *a = &call->op->u.elementwise;
    const double *kept = call->operands[ACT_BWD_X], *dy = call->operands[ACT_BWD_DY];
    double *dx = call->operands[ACT_BWD_DX];
    for (int64_t i = 0; i < a->count; i++) dx[i] = reference_activate_backward(a->act, kept[i], dy[i]);
}

void reference_add(const host_call *call)
{
    const double *a = call->operands[ADD_A], *b = call->operands[ADD_B];
    double *y = call->operands[ADD_Y];
    for (int64_t i = 0; i < call->op->u.elementwise.count; i++) y[i] = a[i] + b[i];
}
