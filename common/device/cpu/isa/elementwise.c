#include "common/device/cpu/isa/vector_math.h"

static void add(const float *a, const float *b, float *y, int64_t count)
{
    int64_t i = 0;
    for (; i + VF <= count; i += VF) vf_store(y + i, vf_load(a + i) + vf_load(b + i));
    if (i < count)
        vf_store_part(y + i, vf_load_part(a + i, count - i) + vf_load_part(b + i, count - i), count - i);
}

static void multiply(const float *a, float *y, int64_t count)
{
    int64_t i = 0;
    for (; i + VF <= count; i += VF) vf_store(y + i, vf_load(a + i) * vf_load(y + i));
    if (i < count)
        vf_store_part(y + i, vf_load_part(a + i, count - i) * vf_load_part(y + i, count - i), count - i);
}

static void divide(float *x, float divisor, int64_t count)
{
    int64_t i = 0;
    for (; i + VF <= count; i += VF) vf_store(x + i, vf_load(x + i) / divisor);
    if (i < count) vf_store_part(x + i, vf_load_part(x + i, count - i) / divisor, count - i);
}

typedef uint32_t vu __attribute__((vector_size(4 * VF)));

/* Rounds each lane to bfloat16, and returns the result in the lower half of the lane. */
ALWAYS_INLINE vu round_to_bf16(vf a)
{
    vu bits = (vu)a, odd = (bits >> 16) & 1, is_nan = (vu)((bits & 0x7fffffff) > 0x7f800000);
    vu rounded = (bits + (odd + 0x7fff)) >> 16, quiet = (bits >> 16) | 0x40;
    return (is_nan & quiet) | (~is_nan & rounded);
}

static void to_bf16(const float *x, uint16_t *y, int64_t count)
{
    typedef uint16_t vh __attribute__((vector_size(2 * VF)));
    for (int64_t i = 0; i < count; i += VF) {
        int64_t rest = count - i < VF ? count - i : VF;
        vf a = rest == VF ? vf_load(x + i) : vf_load_part(x + i, rest);
        vh halves = __builtin_convertvector(round_to_bf16(a), vh);
        memcpy(y + i, &halves, (size_t)rest * sizeof *y);
    }
}

static void clear(float *x, int64_t count)
{
    enum { BLOCK = 32 * VF };
    int64_t i = 0;
    for (; i + BLOCK <= count; i += BLOCK) {
        vi bits = {0};
        for (int k = 0; k < BLOCK; k += VF) bits |= (vi)vf_load(x + i + k);
        if (!vi_any(bits)) continue;
        memset(x + i, 0, BLOCK * sizeof *x);
    }
    memset(x + i, 0, (size_t)(count - i) * sizeof *x);
}

ALWAYS_INLINE void activate(activation act, const float *x, float *y, int64_t count)
{
    int64_t i = 0;
    for (; i + VF <= count; i += VF) vf_store(y + i, vf_activate(act, vf_load(x + i)));
    if (i < count) vf_store_part(y + i, vf_activate(act, vf_load_part(x + i, count - i)), count - i);
}

ALWAYS_INLINE void activate_backward(activation act, const float *x, const float *dy, float *dx,
                                     int64_t count)
{
    int64_t i = 0;
    for (; i + VF <= count; i += VF)
        vf_store(dx + i, vf_activate_backward(act, vf_load(x + i), vf_load(dy + i)));
    if (i == count) return;
    int64_t rest = count - i;
    vf last = vf_activate_backward(act, vf_load_part(x + i, rest), vf_load_part(dy + i, rest));
    vf_store_part(dx + i, last, rest);
}

ALWAYS_INLINE void bias_activate_some(activation act, float *y, float *slope, const float *bias,
                                      int64_t count)
{
    vf argument = vf_load_some(y, count);
    if (bias) argument += vf_load_some(bias, count);
    if (slope) {
        vf_pair both = vf_activate_with_slope(act, argument);
        vf_store_some(y, both.a, count);
        vf_store_some(slope, both.b, count);
    } else
        vf_store_some(y, vf_activate(act, argument), count);
}

ALWAYS_INLINE void bias_activate(activation act, float *y, float *slope, const float *bias, int64_t stride,
                                 int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++, y += stride, slope = slope ? slope + stride : NULL) {
        int64_t j = 0;
        for (; j + VF <= columns; j += VF)
            bias_activate_some(act, y + j, slope ? slope + j : NULL, bias ? bias + j : NULL, VF);
        if (j < columns)
            bias_activate_some(act, y + j, slope ? slope + j : NULL, bias ? bias + j : NULL, columns - j);
    }
}

static void column_sums(const float *x, int64_t stride, int64_t rows, int64_t columns, double *sums)
{
    for (int64_t j = 0; j < columns; j += VF) {
        int64_t count = columns - j;
        vd low = vd_set(0), high = vd_set(0);
        for (int64_t i = 0; i < rows; i++) {
            vf a = vf_load_some(x + i * stride + j, count);
            low += vf_low(a);
            high += vf_high(a);
        }
        if (count >= VF) {
            vd_store(sums + j, vd_load(sums + j) + low);
            vd_store(sums + j + VD, vd_load(sums + j + VD) + high);
            continue;
        }
        double lane[VF];
        vd_store(lane, low);
        vd_store(lane + VD, high);
        for (int64_t k = 0; k < count; k++) sums[j + k] += lane[k];
    }
}

#define DEFINE_ACTIVATION(name, text)                                                                        \
    static void activate_##name(const float *x, float *y, int64_t count)                                     \
    {                                                                                                        \
        activate(ACTIVATION_##name, x, y, count);                                                            \
    }                                                                                                        \
    static void activate_backward_##name(const float *x, const float *dy, float *dx, int64_t count)          \
    {                                                                                                        \
        activate_backward(ACTIVATION_##name, x, dy, dx, count);                                              \
    }                                                                                                        \
    static void bias_activate_##name(float *y, float *slope, const float *bias, int64_t stride,              \
                                     int64_t rows, int64_t columns)                                          \
    {                                                                                                        \
        bias_activate(ACTIVATION_##name, y, slope, bias, stride, rows, columns);                             \
    }
ACTIVATION_LIST(DEFINE_ACTIVATION)

#define ACTIVATE(name, text) [ACTIVATION_##name] = activate_##name,
#define ACTIVATE_BACKWARD(name, text) [ACTIVATION_##name] = activate_backward_##name,
#define BIAS_ACTIVATE(name, text) [ACTIVATION_##name] = bias_activate_##name,
const cpu_elementwise KERNEL(cpu_elementwise) = {
    .add = add,
    .multiply = multiply,
    .divide = divide,
    .to_bf16 = to_bf16,
    .clear = clear,
    .activate = {ACTIVATION_LIST(ACTIVATE)},
    .activate_backward = {ACTIVATION_LIST(ACTIVATE_BACKWARD)},
    .bias_activate = {ACTIVATION_LIST(BIAS_ACTIVATE)},
    .column_sums = column_sums,
};
