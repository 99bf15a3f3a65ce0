#include "common/device/cpu/isa/vector_math.h"

/* Returns the number of rows that stay in the L1 cache while one block of channels at a time is summed in
 * registers. */
static int64_t rows_per_block(int64_t c)
{
    int64_t rows = 4096 / c;
    return rows < 8 ? 8 : rows;
}

typedef struct channel_sums {
    vd first_low, first_high, second_low, second_high;
} channel_sums;

ALWAYS_INLINE void channel_sums_add(channel_sums *s, vf first, vf a, vf b)
{
    s->first_low += vf_low(first);
    s->first_high += vf_high(first);
    s->second_low = vd_fma(vf_low(a), vf_low(b), s->second_low);
    s->second_high = vd_fma(vf_high(a), vf_high(b), s->second_high);
}

ALWAYS_INLINE void vd_add_to(double *p, vd a)
{
    vd_store(p, vd_load(p) + a);
}

ALWAYS_INLINE void channel_sums_flush(const channel_sums *s, double *sums, int64_t c, int64_t count)
{
    if (count >= VF) {
        vd_add_to(sums, s->first_low);
        vd_add_to(sums + VD, s->first_high);
        vd_add_to(sums + c, s->second_low);
        vd_add_to(sums + c + VD, s->second_high);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        sums[i] += i < VD ? s->first_low[i] : s->first_high[i - VD];
        sums[c + i] += i < VD ? s->second_low[i] : s->second_high[i - VD];
    }
}

ALWAYS_INLINE void stats_some(const float *x, int64_t rows, int64_t c, double *sums, int64_t count)
{
    channel_sums s = {0};
    for (int64_t i = 0; i < rows; i++) {
        vf a = vf_load_some(x + i * c, count);
        channel_sums_add(&s, a, a, a);
    }
    channel_sums_flush(&s, sums, c, count);
}

static void stats(const float *x, int64_t rows, int64_t c, double *sums)
{
    int64_t block = rows_per_block(c);
    for (int64_t i = 0; i < rows; i += block) {
        int64_t height = rows - i < block ? rows - i : block, j = 0;
        for (; j + VF <= c; j += VF) stats_some(x + i * c + j, height, c, sums + j, VF);
        if (j < c) stats_some(x + i * c + j, height, c, sums + j, c - j);
    }
}

/* ---- the activation's argument and its gradient: one vector, element i, channel j ----------------- */

ALWAYS_INLINE vf argument(const cpu_batchnorm_data *d, vf centered, int64_t i, int64_t j, int64_t count)
{
    vf a = vf_fma(centered, vf_load_some(d->scale + j, count), vf_load_some(d->beta + j, count));
    return d->residual ? a + vf_load_some(d->residual + i, count) : a;
}

ALWAYS_INLINE vf gradient(activation act, const cpu_batchnorm_data *d, vf centered, int64_t i, int64_t j,
                          int64_t count)
{
    vf dy = vf_load_some(d->dy + i, count);
    if (d->dy2) dy += vf_load_some(d->dy2 + i, count);
    if (act == ACTIVATION_NONE) return dy;
    vf at =
        act == ACTIVATION_RELU && d->y ? vf_load_some(d->y + i, count) : argument(d, centered, i, j, count);
    return vf_activate_backward(act, at, dy);
}

ALWAYS_INLINE vf centered(const cpu_batchnorm_data *d, int64_t i, int64_t j, int64_t count)
{
    return vf_load_some(d->x + i, count) - vf_load_some(d->mean + j, count);
}

/* ---- forward ---------------------------------------------------------------------------------- */

ALWAYS_INLINE void apply_some(activation act, const cpu_batchnorm_data *d, int64_t i, int64_t j,
                              int64_t count)
{
    vf_store_some(d->y + i, vf_activate(act, argument(d, centered(d, i, j, count), i, j, count)), count);
}

ALWAYS_INLINE void apply(activation act, const cpu_batchnorm_data *data, int64_t first, int64_t end)
{
    const cpu_batchnorm_data d = *data;
    for (int64_t row = first; row < end; row++) {
        int64_t i = row * d.c, j = 0;
        for (; j + VF <= d.c; j += VF) apply_some(act, &d, i + j, j, VF);
        if (j < d.c) apply_some(act, &d, i + j, j, d.c - j);
    }
}

/* ---- backward --------------------------------------------------------------------------------- */

ALWAYS_INLINE void backward_stats_some(activation act, const cpu_batchnorm_data *d, int64_t first,
                                       int64_t end, int64_t j, double *sums, int64_t count)
{
    channel_sums s = {0};
    for (int64_t row = first; row < end; row++) {
        int64_t i = row * d->c + j;
        vf x = centered(d, i, j, count), g = gradient(act, d, x, i, j, count);
        if (d->g) vf_store_some(d->g + i, g, count);
        channel_sums_add(&s, g, g, x);
    }
    channel_sums_flush(&s, sums + j, d->c, count);
}

ALWAYS_INLINE void backward_stats(activation act, const cpu_batchnorm_data *data, int64_t first, int64_t end,
                                  double *sums)
{
    const cpu_batchnorm_data d = *data;
    int64_t block = rows_per_block(d.c);
    for (int64_t row = first; row < end; row += block) {
        int64_t until = end - row < block ? end : row + block, j = 0;
        for (; j + VF <= d.c; j += VF) backward_stats_some(act, &d, row, until, j, sums, VF);
        if (j < d.c) backward_stats_some(act, &d, row, until, j, sums, d.c - j);
    }
}

ALWAYS_INLINE void backward_apply_some(activation act, const cpu_batchnorm_data *d,
                                       const cpu_batchnorm_gradient *k, int64_t i, int64_t j, int64_t count)
{
    vf x = centered(d, i, j, count), g = gradient(act, d, x, i, j, count);
    vf dx = vf_fma(vf_load_some(k->a + j, count), g, vf_load_some(k->e + j, count));
    vf_store_some(k->dx + i, vf_fma(vf_load_some(k->b + j, count), x, dx), count);
}

ALWAYS_INLINE void backward_apply(activation act, const cpu_batchnorm_data *data,
                                  const cpu_batchnorm_gradient *coefficients, int64_t first, int64_t end)
{
    const cpu_batchnorm_data d = *data;
    const cpu_batchnorm_gradient k = *coefficients;
    for (int64_t row = first; row < end; row++) {
        int64_t i = row * d.c, j = 0;
        for (; j + VF <= d.c; j += VF) backward_apply_some(act, &d, &k, i + j, j, VF);
        if (j < d.c) backward_apply_some(act, &d, &k, i + j, j, d.c - j);
    }
}

#define DEFINE_ACTIVATION(name, text)                                                                        \
    static void apply_##name(const cpu_batchnorm_data *d, int64_t first, int64_t end)                        \
    {                                                                                                        \
        apply(ACTIVATION_##name, d, first, end);                                                             \
    }                                                                                                        \
    static void backward_stats_##name(const cpu_batchnorm_data *d, int64_t first, int64_t end, double *sums) \
    {                                                                                                        \
        backward_stats(ACTIVATION_##name, d, first, end, sums);                                              \
    }                                                                                                        \
    static void backward_apply_##name(const cpu_batchnorm_data *d, const cpu_batchnorm_gradient *k,          \
                                      int64_t first, int64_t end)                                            \
    {                                                                                                        \
        backward_apply(ACTIVATION_##name, d, k, first, end);                                                 \
    }
ACTIVATION_LIST(DEFINE_ACTIVATION)

#define APPLY(name, text) [ACTIVATION_##name] = apply_##name,
#define BACKWARD_STATS(name, text) [ACTIVATION_##name] = backward_stats_##name,
#define BACKWARD_APPLY(name, text) [ACTIVATION_##name] = backward_apply_##name,
const cpu_batchnorm KERNEL(cpu_batchnorm) = {
    .stats = stats,
    .apply = {ACTIVATION_LIST(APPLY)},
    .backward_stats = {ACTIVATION_LIST(BACKWARD_STATS)},
    .backward_apply = {ACTIVATION_LIST(BACKWARD_APPLY)},
};
