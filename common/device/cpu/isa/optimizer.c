#include "common/device/cpu/isa/vector.h"

/* Returns true if all lanes are 0. Used for sums of x - x, which are 0 unless some x is infinite or NaN. */
ALWAYS_INLINE bool is_zero(vf sum)
{
    bool zero = true;
    for (int lane = 0; lane < VF; lane++) zero = zero && sum[lane] == 0;
    return zero;
}

/* ---- torch.optim.SGD -------------------------------------------------------------------------- */

ALWAYS_INLINE void sgd_some(const cpu_sgd_step *s, bool has_momentum, float *p, const float *g,
                            float *momentum, int64_t count, vf *differences)
{
    vf weight = vf_load_some(p, count);
    vf gradient = vf_load_some(g, count) * s->gradient_scale;
    *differences += gradient - gradient;
    if (s->weight_decay != 0) gradient = vf_fma(vf_set(s->weight_decay), weight, gradient);
    if (has_momentum) {
        vf buffer = gradient;
        if (!s->first_step)
            buffer = vf_fma(vf_set(s->momentum), vf_load_some(momentum, count), gradient * s->undamped);
        vf_store_some(momentum, buffer, count);
        gradient = s->nesterov ? vf_fma(vf_set(s->momentum), buffer, gradient) : buffer;
    }
    vf_store_some(p, vf_fma(vf_set(-s->learning_rate), gradient, weight), count);
}

ALWAYS_INLINE bool sgd_all(const cpu_sgd_step *settings, bool has_momentum, float *p, const float *g,
                           float *momentum, int64_t count)
{
    const cpu_sgd_step s = *settings;
    vf differences = vf_set(0);
    int64_t i = 0;
    for (; i + VF <= count; i += VF)
        sgd_some(&s, has_momentum, p + i, g + i, momentum ? momentum + i : NULL, VF, &differences);
    if (i < count)
        sgd_some(&s, has_momentum, p + i, g + i, momentum ? momentum + i : NULL, count - i, &differences);
    return is_zero(differences);
}

static bool sgd(const cpu_sgd_step *s, float *p, const float *g, float *momentum, int64_t count)
{
    return s->has_momentum ? sgd_all(s, true, p, g, momentum, count) : sgd_all(s, false, p, g, NULL, count);
}

/* ---- torch.optim.Adam, AdamW ------------------------------------------------------------------ */

ALWAYS_INLINE void adam_some(const cpu_adam_step *s, float *p, const float *g, float *m, float *v,
                             int64_t count, vf *differences)
{
    vf weight = vf_load_some(p, count) * s->decay;
    vf gradient = vf_load_some(g, count) * s->gradient_scale;
    *differences += gradient - gradient;
    if (s->weight_decay != 0) gradient = vf_fma(vf_set(s->weight_decay), weight, gradient);
    vf first = vf_fma(vf_set(s->beta1), vf_load_some(m, count), gradient * s->beta1_rest);
    vf second = vf_fma(vf_set(s->beta2), vf_load_some(v, count), gradient * gradient * s->beta2_rest);
    vf_store_some(m, first, count);
    vf_store_some(v, second, count);
    vf denominator = vf_sqrt(second) / s->root_correction2 + s->eps;
    vf_store_some(p, vf_fma(vf_set(-s->step_size), first / denominator, weight), count);
}

static bool adam(const cpu_adam_step *settings, float *p, const float *g, float *m, float *v, int64_t count)
{
    const cpu_adam_step s = *settings;
    vf differences = vf_set(0);
    int64_t i = 0;
    for (; i + VF <= count; i += VF) adam_some(&s, p + i, g + i, m + i, v + i, VF, &differences);
    if (i < count) adam_some(&s, p + i, g + i, m + i, v + i, count - i, &differences);
    return is_zero(differences);
}

/* ---- sum of squares --------------------------------------------------------------------------- */

typedef struct long_lanes {
    vd high, low;
} long_lanes;

/* Knuth's TwoSum, "The Art of Computer Programming", volume 2, section 4.2.2, theorem B. */
ALWAYS_INLINE void long_add(long_lanes *sum, vd a)
{
    vd high = sum->high + a, from_a = high - sum->high;
    sum->low += (sum->high - (high - from_a)) + (a - from_a);
    sum->high = high;
}

static void long_add_scalar(cpu_long_sum *sum, double a)
{
    double high = sum->high + a, from_a = high - sum->high;
    sum->low += (sum->high - (high - from_a)) + (a - from_a);
    sum->high = high;
}

/* The square of a float is exact in double. */
ALWAYS_INLINE void add_squares(vf a, long_lanes *even, long_lanes *odd)
{
    vd low = vf_low(a), high = vf_high(a);
    long_add(even, low * low);
    long_add(odd, high * high);
}

static void sum_squares(const float *x, int64_t count, cpu_long_sum *sum)
{
    enum { CHAINS = 4 };
    long_lanes lanes[CHAINS] = {{{0}, {0}}};
    int64_t i = 0;
    for (; i + 2 * VF <= count; i += 2 * VF) {
        add_squares(vf_load(x + i), &lanes[0], &lanes[1]);
        add_squares(vf_load(x + i + VF), &lanes[2], &lanes[3]);
    }
    for (; i < count; i += VF) add_squares(vf_load_some(x + i, count - i), &lanes[0], &lanes[1]);
    for (int k = 0; k < CHAINS; k++)
        for (int lane = 0; lane < VD; lane++) {
            long_add_scalar(sum, lanes[k].high[lane]);
            long_add_scalar(sum, lanes[k].low[lane]);
        }
}

const cpu_optimizer KERNEL(cpu_optimizer) = {.sgd = sgd, .adam = adam, .sum_squares = sum_squares};
