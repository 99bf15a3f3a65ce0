#include "common/device/cpu/isa/vector.h"

#include <math.h>

/* Number of float vectors that accumulate the sum of a row. The lanes of these vectors are then added in
 * double. */
enum { CHAINS = 4 };

ALWAYS_INLINE double chains_sum(const vf chain[CHAINS])
{
    double sum = 0;
    for (int k = 0; k < CHAINS; k++) sum += vf_sum(chain[k]);
    return sum;
}

/* Returns `count` elements from j on. If there is a residual, adds it and stores sum = x + residual. */
ALWAYS_INLINE vf row_element(const float *x, const float *residual, float *sum, int64_t j, int64_t count)
{
    vf a = vf_load_some(x + j, count);
    if (residual) {
        a += vf_load_some(residual + j, count);
        vf_store_some(sum + j, a, count);
    }
    return a;
}

ALWAYS_INLINE double row_sum(const float *x, const float *residual, float *sum, int64_t c)
{
    vf chain[CHAINS] = {{0}};
    int64_t j = 0;
    for (; j + CHAINS * VF <= c; j += CHAINS * VF)
        for (int k = 0; k < CHAINS; k++) chain[k] += row_element(x, residual, sum, j + k * VF, VF);
    for (; j < c; j += VF) chain[0] += row_element(x, residual, sum, j, c - j);
    return chains_sum(chain);
}

ALWAYS_INLINE double row_squares(const float *x, float mean, int64_t c)
{
    vf chain[CHAINS] = {{0}};
    int64_t j = 0;
    for (; j + CHAINS * VF <= c; j += CHAINS * VF)
        for (int k = 0; k < CHAINS; k++) {
            vf a = vf_load(x + j + k * VF) - mean;
            chain[k] = vf_fma(a, a, chain[k]);
        }
    for (; j < c; j += VF) {
        vf a = vf_select(vf_first_lanes(c - j), vf_load_some(x + j, c - j) - mean, vf_set(0));
        chain[0] = vf_fma(a, a, chain[0]);
    }
    return chains_sum(chain);
}

static void forward(const layernorm_attributes *a, void *const *operands, int64_t first, int64_t end)
{
    const float *gamma = operands[LN_FWD_GAMMA], *beta = operands[LN_FWD_BETA];
    float *means = operands[LN_FWD_MEAN], *invstds = operands[LN_FWD_INVSTD];
    int64_t c = a->c;
    for (int64_t row = first; row < end; row++) {
        const float *x = (const float *)operands[LN_FWD_X] + row * c, *residual = NULL;
        float *y = (float *)operands[LN_FWD_Y] + row * c, *sum = NULL;
        if (a->residual) {
            residual = (const float *)operands[LN_FWD_RESIDUAL] + row * c;
            sum = (float *)operands[LN_FWD_SUM] + row * c;
        }
        float mean = (float)(row_sum(x, residual, sum, c) / (double)c);
        const float *normalized = residual ? sum : x;
        float invstd = (float)(1 / sqrt(row_squares(normalized, mean, c) / (double)c + a->eps));
        for (int64_t j = 0; j < c; j += VF) {
            vf scale = vf_load_some(gamma + j, c - j) * invstd;
            vf centered = vf_load_some(normalized + j, c - j) - mean;
            vf_store_some(y + j, vf_fma(centered, scale, vf_load_some(beta + j, c - j)), c - j);
        }
        means[row] = mean;
        invstds[row] = invstd;
    }
}

/* ---- backward --------------------------------------------------------------------------------- */

typedef struct row_gradient {
    const float *x, *gamma, *dy, *dsum;
    float *dx;
    float mean, invstd;
} row_gradient;

ALWAYS_INLINE void add_gradient(const row_gradient *r, int64_t j, int64_t count, vf *g_sum, vf *gx_sum)
{
    vf g = vf_load_some(r->dy + j, count) * vf_load_some(r->gamma + j, count);
    *g_sum += g;
    *gx_sum = vf_fma(g, vf_load_some(r->x + j, count) - r->mean, *gx_sum);
}

/* Computes dx = invstd (g - mean(g) - xhat mean(g xhat)) + dsum with g = dy gamma. */
ALWAYS_INLINE void row_backward(const row_gradient *r, int64_t c)
{
    vf g_chain[CHAINS] = {{0}}, gx_chain[CHAINS] = {{0}};
    int64_t i = 0;
    for (; i + CHAINS * VF <= c; i += CHAINS * VF)
        for (int k = 0; k < CHAINS; k++) add_gradient(r, i + k * VF, VF, &g_chain[k], &gx_chain[k]);
    for (; i < c; i += VF) add_gradient(r, i, c - i, &g_chain[0], &gx_chain[0]);
    double invstd = r->invstd;
    float mean_g = (float)(chains_sum(g_chain) / (double)c);
    float slope = (float)(chains_sum(gx_chain) / (double)c * invstd * invstd);
    for (int64_t j = 0; j < c; j += VF) {
        vf g = vf_load_some(r->dy + j, c - j) * vf_load_some(r->gamma + j, c - j);
        vf centered = vf_load_some(r->x + j, c - j) - r->mean;
        vf dx = vf_fma(centered, vf_set(-slope), g - mean_g) * r->invstd;
        if (r->dsum) dx += vf_load_some(r->dsum + j, c - j);
        vf_store_some(r->dx + j, dx, c - j);
    }
}

ALWAYS_INLINE void columns_backward(const layernorm_attributes *a, void *const *operands, int64_t first,
                                    int64_t end, int64_t j, double *sums, int64_t count)
{
    const float *x = operands[LN_BWD_X], *dy = operands[LN_BWD_DY];
    const float *mean = operands[LN_BWD_MEAN], *invstd = operands[LN_BWD_INVSTD];
    vf dgamma = vf_set(0), dbeta = vf_set(0);
    for (int64_t row = first; row < end; row++) {
        vf gradient = vf_load_some(dy + row * a->c + j, count);
        vf centered = vf_load_some(x + row * a->c + j, count) - mean[row];
        dgamma = vf_fma(gradient, centered * invstd[row], dgamma);
        dbeta += gradient;
    }
    float lanes[2][VF];
    vf_store(lanes[0], dgamma);
    vf_store(lanes[1], dbeta);
    for (int64_t k = 0; k < count && k < VF; k++) {
        sums[j + k] += lanes[0][k];
        sums[a->c + j + k] += lanes[1][k];
    }
}

static void backward(const layernorm_attributes *a, void *const *operands, int64_t first, int64_t end,
                     double *sums)
{
    enum { BLOCK = 8 }; /* number of rows that stay in the L1 cache until dx is computed */
    int64_t c = a->c;
    for (int64_t block = first; block < end; block += BLOCK) {
        int64_t until = end - block < BLOCK ? end : block + BLOCK, j = 0;
        for (; j + VF <= c; j += VF) columns_backward(a, operands, block, until, j, sums, VF);
        if (j < c) columns_backward(a, operands, block, until, j, sums, c - j);
        for (int64_t row = block; row < until; row++) {
            row_gradient r = {.x = (const float *)operands[LN_BWD_X] + row * c,
                              .gamma = operands[LN_BWD_GAMMA],
                              .dy = (const float *)operands[LN_BWD_DY] + row * c,
                              .dsum = a->dsum ? (const float *)operands[LN_BWD_DSUM] + row * c : NULL,
                              .dx = (float *)operands[LN_BWD_DX] + row * c,
                              .mean = ((const float *)operands[LN_BWD_MEAN])[row],
                              .invstd = ((const float *)operands[LN_BWD_INVSTD])[row]};
            row_backward(&r, c);
        }
    }
}

const cpu_layernorm KERNEL(cpu_layernorm) = {.forward = forward, .backward = backward};
