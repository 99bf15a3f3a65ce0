#include "common/device/cpu/isa/vector_math.h"

#include <math.h>

static float largest(const float *x, int64_t count)
{
    vf most = vf_set(-INFINITY);
    int64_t i = 0;
    for (; i + VF <= count; i += VF) most = vf_max(most, vf_load(x + i));
    if (i < count) {
        vf last = vf_select(vf_first_lanes(count - i), vf_load_part(x + i, count - i), vf_set(-INFINITY));
        most = vf_max(most, last);
    }
    return vf_largest(most);
}

/* Computes y = exp(scale x - shift) and returns the sum. y may be x or NULL. The lanes are summed in float
 * over at most BLOCK vectors, then in double. */
ALWAYS_INLINE double exponentials(const float *x, float *y, int64_t count, float scale, float shift)
{
    enum { BLOCK = 16 };
    double sum = 0;
    for (int64_t begin = 0; begin < count; begin += BLOCK * VF) {
        int64_t end = count - begin < BLOCK * VF ? count : begin + BLOCK * VF, i = begin;
        vf lanes = vf_set(0);
        for (; i + VF <= end; i += VF) {
            vf e = vf_exp(vf_fma(vf_load(x + i), vf_set(scale), vf_set(-shift)));
            if (y) vf_store(y + i, e);
            lanes += e;
        }
        if (i < end) {
            vf e = vf_exp(vf_fma(vf_load_part(x + i, end - i), vf_set(scale), vf_set(-shift)));
            if (y) vf_store_part(y + i, e, end - i);
            lanes += vf_select(vf_first_lanes(end - i), e, vf_set(0));
        }
        sum += vf_sum(lanes);
    }
    return sum;
}

static void scale_row(float *x, int64_t count, float factor)
{
    int64_t i = 0;
    for (; i + VF <= count; i += VF) vf_store(x + i, vf_load(x + i) * factor);
    if (i < count) vf_store_part(x + i, vf_load_part(x + i, count - i) * factor, count - i);
}

/* ---- attention -------------------------------------------------------------------------------- */

static int64_t visible_columns(const cpu_scores *d, int64_t row)
{
    int64_t visible = d->visible + row + 1;
    return visible < d->columns ? visible : d->columns;
}

static void attention_forward(const cpu_scores *d, float *inverse, float *lse)
{
    for (int64_t i = 0; i < d->rows; i++) {
        float *s = d->s + i * d->stride;
        int64_t visible = visible_columns(d, i);
        float shift = largest(s, visible) * d->scale;
        double sum = exponentials(s, s, visible, d->scale, shift);
        memset(s + visible, 0, (size_t)(d->columns - visible) * sizeof *s);
        inverse[i] = (float)(1 / sum);
        lse[i] = (float)(shift + log(sum));
    }
}

ALWAYS_INLINE void probability_gradient(float *s, float *ds, float scale, float lse, float delta,
                                        int64_t count)
{
    vf p = vf_exp(vf_fma(vf_load_some(s, count), vf_set(scale), vf_set(-lse)));
    vf gradient = p * (vf_load_some(ds, count) - delta) * scale;
    vf_store_some(s, p, count);
    vf_store_some(ds, gradient, count);
}

static void attention_backward(const cpu_scores *d, float *ds, const float *lse, const float *delta)
{
    for (int64_t i = 0; i < d->rows; i++) {
        float *s = d->s + i * d->stride, *gradient = ds + i * d->stride;
        int64_t visible = visible_columns(d, i), j = 0;
        for (; j + VF <= visible; j += VF)
            probability_gradient(s + j, gradient + j, d->scale, lse[i], delta[i], VF);
        if (j < visible) probability_gradient(s + j, gradient + j, d->scale, lse[i], delta[i], visible - j);
        memset(s + visible, 0, (size_t)(d->columns - visible) * sizeof *s);
        memset(gradient + visible, 0, (size_t)(d->columns - visible) * sizeof *s);
    }
}

static void row_dots(const float *a, const float *b, int64_t stride, int64_t rows, int64_t columns,
                     float *delta)
{
    for (int64_t i = 0; i < rows; i++) {
        const float *x = a + i * stride, *y = b + i * stride;
        vf sum = vf_set(0);
        for (int64_t j = 0; j < columns; j += VF)
            sum = vf_fma(vf_load_some(x + j, columns - j), vf_load_some(y + j, columns - j), sum);
        delta[i] = (float)vf_sum(sum);
    }
}

static void scale_rows(float *x, int64_t stride, int64_t rows, int64_t columns, const float *factor)
{
    for (int64_t i = 0; i < rows; i++) scale_row(x + i * stride, columns, factor[i]);
}

/* ---- losses ----------------------------------------------------------------------------------- */

static bool contains(const float *x, int64_t count, float value)
{
    vi found = {0};
    int64_t i = 0;
    for (; i + VF <= count; i += VF) found |= vf_load(x + i) == value;
    for (; i < count; i++) found[0] |= x[i] == value;
    return vi_any(found);
}

/* The total loss of several rows. A row's loss is log(sum) + rest, with a sum between 1 and the number of
 * classes. The sums are multiplied, so that many rows need only one logarithm. */
typedef struct loss_sums {
    double product, loss, correct;
} loss_sums;

ALWAYS_INLINE void add_row(loss_sums *l, double sum, double rest, bool correct)
{
    l->product *= sum;
    l->loss += rest;
    l->correct += correct;
    if (l->product < 1e200) return;
    l->loss += log(l->product);
    l->product = 1;
}

ALWAYS_INLINE bool is_correct(const float *logits, int32_t target, float most)
{
    return logits[target] == most && !contains(logits, target, most);
}

static void long_row(const float *logits, int64_t classes, int32_t target, double normalizer, float *dlogits,
                     loss_sums *l)
{
    float most = largest(logits, classes);
    double rest = (double)most - logits[target];
    bool correct = is_correct(logits, target, most);
    double sum = exponentials(logits, dlogits, classes, 1.0f, most);
    add_row(l, sum, rest, correct);
    if (!dlogits) return;
    double factor = 1 / (sum * normalizer);
    float p = dlogits[target];
    scale_row(dlogits, classes, (float)factor);
    dlogits[target] = (float)((p - sum) * factor);
}

/* Number of rows processed at a time if a row fits in one vector. If each row were stored before the next one
 * is loaded, the load would have to wait for the store. */
enum { SHORT_ROWS = 8 };

ALWAYS_INLINE void short_rows(const float *logits, const int32_t *targets, int64_t rows, int64_t classes,
                              double normalizer, float *dlogits, loss_sums *l)
{
    vmask used = vf_first_lanes(classes);
    vf x[SHORT_ROWS], target_share = vf_set((float)(1 / normalizer));
    for (int64_t i = 0; i < rows; i++) x[i] = vf_load_some(logits + i * classes, classes);
    for (int64_t i = 0; i < rows; i++) {
        const float *row = logits + i * classes;
        float most = vf_largest(vf_select(used, x[i], vf_set(-INFINITY)));
        vf e = vf_select(used, vf_exp(x[i] - most), vf_set(0));
        double sum = vf_sum(e);
        if (targets[i] == LOSS_IGNORE) {
            x[i] = vf_set(0);
            continue;
        }
        vmask at_target = vi_equal(vi_lanes(), vi_set(targets[i]));
        x[i] = e * (float)(1 / (sum * normalizer)) - vf_select(at_target, target_share, vf_set(0));
        add_row(l, sum, (double)most - row[targets[i]], is_correct(row, targets[i], most));
    }
    if (!dlogits) return;
    for (int64_t i = 0; i < rows; i++) vf_store_some(dlogits + i * classes, x[i], classes);
}

static void cross_entropy(const float *logits, const int32_t *targets, int64_t rows, int64_t classes,
                          double normalizer, float *dlogits, double *sums)
{
    loss_sums l = {.product = 1};
    int64_t i = 0;
    if (classes <= VF)
        for (; i < rows; i += SHORT_ROWS)
            short_rows(logits + i * classes, targets + i, rows - i < SHORT_ROWS ? rows - i : SHORT_ROWS,
                       classes, normalizer, dlogits ? dlogits + i * classes : NULL, &l);
    for (; i < rows; i++) {
        float *dx = dlogits ? dlogits + i * classes : NULL;
        if (targets[i] != LOSS_IGNORE)
            long_row(logits + i * classes, classes, targets[i], normalizer, dx, &l);
        else if (dx)
            memset(dx, 0, (size_t)classes * sizeof *dx);
    }
    sums[0] += l.loss + log(l.product);
    sums[1] += l.correct;
}

ALWAYS_INLINE void squared_error_some(const float *x, const float *t, float *dx, float factor, int64_t count,
                                      vd *low, vd *high)
{
    vf error = vf_load_some(x, count) - vf_load_some(t, count);
    *low = vd_fma(vf_low(error), vf_low(error), *low);
    *high = vd_fma(vf_high(error), vf_high(error), *high);
    if (dx) vf_store_some(dx, error * factor, count);
}

static double squared_error(const float *x, const float *t, float *dx, double normalizer, int64_t count)
{
    vd low = vd_set(0), high = vd_set(0);
    float factor = (float)(2 / normalizer);
    int64_t i = 0;
    for (; i + VF <= count; i += VF)
        squared_error_some(x + i, t + i, dx ? dx + i : NULL, factor, VF, &low, &high);
    if (i < count) squared_error_some(x + i, t + i, dx ? dx + i : NULL, factor, count - i, &low, &high);
    return vd_sum(low + high);
}

const cpu_softmax KERNEL(cpu_softmax) = {
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .row_dots = row_dots,
    .scale_rows = scale_rows,
    .cross_entropy = cross_entropy,
    .squared_error = squared_error,
};
