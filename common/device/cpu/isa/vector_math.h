/* Exponential, sigmoid and normal distribution on vectors, accurate to about one ulp, and the activations
 * built from them. The polynomials are minimax fits (tests/common/device/cpu/fit_polynomials.py). */
#ifndef COMMON_DEVICE_CPU_ISA_VECTOR_MATH_H
#define COMMON_DEVICE_CPU_ISA_VECTOR_MATH_H

#include "common/device/cpu/isa/vector.h"
#include "common/ops/op.h"

/* Returns a 2^n. n is an integer in [-126, 128], and `bits` is the same integer as an int. */
ALWAYS_INLINE vf vf_scale(vf a, vf n, vi bits)
{
#if VF == 16
    (void)bits;
    return (vf)_mm512_scalef_ps((__m512)a, (__m512)n);
#else
    (void)n;
    vi half = bits >> 1;
    vf first = (vf)((half + 127) << 23), second = (vf)((bits - half + 127) << 23);
    return a * first * second;
#endif
}

/* Returns e^x = 2^n e^r with |r| <= ln 2 / 2. ln 2 is split so that n times the first part is exact (Cody
 * and Waite, "Software Manual for the Elementary Functions", 1980). Returns 0 for x below `lowest`,
 * because nearly all smaller results are denormal, and arithmetic with denormals takes a hundred times as
 * long. */
ALWAYS_INLINE vf vf_exp(vf x)
{
    const float shift = 0x1.8p23f; /* adding `shift` rounds to an integer, which is then in the low bits */
    const vf lowest = vf_set(-87.33f);
    vf clamped = vf_max(lowest, vf_min(vf_set(89.0f), x));
    vf shifted = vf_fma(clamped, vf_set(0x1.715476p0f), vf_set(shift));
    vf n = shifted - shift;
    vf r = vf_fma(n, vf_set(-0x1.62e4p-1f), clamped);
    r = vf_fma(n, vf_set(-0x1.7f7d1cp-20f), r);
    vf q = vf_set(1.38138808704e-3f);
    q = vf_fma(q, r, vf_set(8.36906345272e-3f));
    q = vf_fma(q, r, vf_set(4.16684218107e-2f));
    q = vf_fma(q, r, vf_set(1.66665177625e-1f));
    q = vf_fma(q, r, vf_set(4.99999932537e-1f));
    vf e = vf_fma(r * r, q, r) + 1.0f;
    return vf_select(vf_greater(lowest, x), vf_set(0), vf_scale(e, n, (vi)shifted - (vi)vf_set(shift)));
}

/* Returns the rounding error of square = a * a. If there is no fused multiply-add, the function uses Dekker's
 * splitting (1971). */
ALWAYS_INLINE vf vf_square_rest(vf a, vf square)
{
#if VF > 4 || defined(VF_FUSES)
    return vf_fma(a, a, -square);
#else
    vf high = (vf)((vi)a & (int32_t)0xfffff000), low = a - high;
    return ((high * high - square) + 2.0f * high * low) + low * low;
#endif
}

typedef struct vf_pair {
    vf a, b;
} vf_pair;

/* Returns a = 1/(1 + e^-x) and b = 1 - a, computed without cancellation. */
ALWAYS_INLINE vf_pair vf_sigmoid(vf x)
{
    vf e = vf_exp(-vf_abs(x));
    vf large = 1.0f / (1.0f + e), small = e * large;
    vmask positive = vf_greater(x, vf_set(0));
    return (vf_pair){vf_select(positive, large, small), vf_select(positive, small, large)};
}

/* Returns a = Phi(x), the normal distribution (1 + erf(x/sqrt 2))/2, and b = its density. If |x| <= 1, Phi =
 * 1/2 + x Q(x^2). If |x| > 1, Phi follows from the tail Phi(-t) = e^(-t^2/2) P(v)/(t + 3) with t = |x| and v
 * = (t - 3)/(t + 3), in the manner of Shepherd and Laframboise, "Chebyshev Approximation of (1 + 2x) exp(x^2)
 * erfc x in 0 <= x < infinity", 1981. */
ALWAYS_INLINE vf_pair vf_normal(vf x)
{
    vf t = vf_min(vf_set(13.5f), vf_abs(x));
    vf square = t * t, rest = vf_square_rest(t, square);
    vf e = vf_exp(square * -0.5f);
    e = vf_fma(e, rest * -0.5f, e);
    vf s = 1.0f / (t + 3.0f), v = (t - 3.0f) * s;
    vf p = vf_set(-1.02021668e-3f);
    p = vf_fma(p, v, vf_set(9.09069963e-4f));
    p = vf_fma(p, v, vf_set(6.98231658e-3f));
    p = vf_fma(p, v, vf_set(-1.04442420e-2f));
    p = vf_fma(p, v, vf_set(-4.72650227e-2f));
    p = vf_fma(p, v, vf_set(2.30016749e-1f));
    p = vf_fma(p, v, vf_set(-5.09331911e-1f));
    p = vf_fma(p, v, vf_set(7.29083698e-1f));
    vf tail = p * s * e;
    vf q = vf_set(-7.65420873e-6f);
    q = vf_fma(q, square, vf_set(1.13486373e-4f));
    q = vf_fma(q, square, vf_set(-1.18632994e-3f));
    q = vf_fma(q, square, vf_set(9.97332341e-3f));
    q = vf_fma(q, square, vf_set(-6.64903599e-2f));
    q = vf_fma(q, square, vf_set(3.98942280e-1f));
    vf near = vf_fma(x, q, vf_set(0.5f)), far = vf_select(vf_greater(x, vf_set(0)), 1.0f - tail, tail);
    return (vf_pair){vf_select(vf_greater(vf_set(1.0f), t), near, far), e * 0.398942280401f};
}

/* ---- activations ------------------------------------------------------------------------------ */

/* Returns x / (1 + e^-u) with one division and without overflow. */
ALWAYS_INLINE vf vf_times_sigmoid(vf x, vf u)
{
    vf e = vf_exp(-vf_abs(u));
    return vf_select(vf_greater(u, vf_set(0)), x, x * e) / (1.0f + e);
}

/* The constants 2 sqrt(2/pi) and 2 sqrt(2/pi) 0.044715. GELU's tanh form is x sigmoid(2u) with u = sqrt(2/pi)
 * (x + 0.044715 x^3). */
#define GELU_TANH_LINEAR 1.595769121605731f
#define GELU_TANH_CUBIC 0.07135481627159f

ALWAYS_INLINE vf vf_activate(activation act, vf x)
{
    switch (act) {
    case ACTIVATION_RELU:
        return vf_max(vf_set(0), x);
    case ACTIVATION_SILU:
        return vf_times_sigmoid(x, x);
    case ACTIVATION_GELU:
        return x * vf_normal(x).a;
    case ACTIVATION_GELU_TANH: {
        vf u = x * vf_fma(x * x, vf_set(GELU_TANH_CUBIC), vf_set(GELU_TANH_LINEAR));
        return vf_times_sigmoid(x, u);
    }
    default:
        return x;
    }
}

/* Returns a = act(x) and b = act'(x), for activations whose slope cannot be computed from their value. */
ALWAYS_INLINE vf_pair vf_activate_with_slope(activation act, vf x)
{
    switch (act) {
    case ACTIVATION_SILU: {
        vf_pair s = vf_sigmoid(x);
        return (vf_pair){x * s.a, s.a * vf_fma(x, s.b, vf_set(1.0f))};
    }
    case ACTIVATION_GELU: {
        vf_pair normal = vf_normal(x);
        return (vf_pair){x * normal.a, vf_fma(x, normal.b, normal.a)};
    }
    case ACTIVATION_GELU_TANH: {
        vf square = x * x;
        vf u = x * vf_fma(square, vf_set(GELU_TANH_CUBIC), vf_set(GELU_TANH_LINEAR));
        vf rise = vf_fma(square, vf_set(3 * GELU_TANH_CUBIC), vf_set(GELU_TANH_LINEAR));
        vf_pair s = vf_sigmoid(u);
        return (vf_pair){x * s.a, s.a * vf_fma(x * s.b, rise, vf_set(1.0f))};
    }
    default:
        return (vf_pair){vf_activate(act, x), vf_set(1.0f)};
    }
}

/* Returns dy act'(x). For RELU, x may be the argument or the result. */
ALWAYS_INLINE vf vf_activate_backward(activation act, vf x, vf dy)
{
    if (act == ACTIVATION_RELU) return vf_select(vf_greater(x, vf_set(0)), dy, vf_set(0));
    if (act == ACTIVATION_NONE) return dy;
    return dy * vf_activate_with_slope(act, x).b;
}

#endif
