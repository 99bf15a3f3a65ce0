/* The CPU device's own kernels: plain functions over ranges of memory, without threads, compiled once for
 * each instruction set. A table names one set's functions by family; the device picks a table at run time.
 * All pointers need only the alignment of their elements. "In place" means the same address, never partial
 * overlap. Where sums are kept, they are double. */
#ifndef COMMON_DEVICE_CPU_ISA_ISA_H
#define COMMON_DEVICE_CPU_ISA_ISA_H

#include "common/base/processor.h"
#include "common/ops/op.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- elementwise ------------------------------------------------------------------------------ */

typedef struct cpu_elementwise {
    void (*add)(const float *a, const float *b, float *y, int64_t count); /* in place in either */
    void (*divide)(float *x, float divisor, int64_t count);
    /* bfloat16, to nearest and even on ties; NaN stays NaN. */
    void (*to_bf16)(const float *x, uint16_t *y, int64_t count);
    /* x = 0; only read where it is zero already. */
    void (*clear)(float *x, int64_t count);
    /* y = act(x), in place; dx = dy act'(x), in place in dy (x: the result for RELU). */
    void (*activate[ACTIVATION_COUNT])(const float *x, float *y, int64_t count);
    void (*activate_backward[ACTIVATION_COUNT])(const float *x, const float *dy, float *dx, int64_t count);
    /* y = act(y + bias) over rows of y [rows, columns], `stride` apart; bias may be NULL, and so may slope,
     * which has y's stride and becomes act'(y + bias). */
    void (*bias_activate[ACTIVATION_COUNT])(float *y, float *slope, const float *bias, int64_t stride,
                                            int64_t rows, int64_t columns);
    void (*multiply)(const float *a, float *y, int64_t count); /* y *= a */
    /* sums [columns] += columns of x [rows, columns], rows `stride` apart. */
    void (*column_sums)(const float *x, int64_t stride, int64_t rows, int64_t columns, double *sums);
} cpu_elementwise;

/* ---- batch normalization ---------------------------------------------------------------------- */

/* One layer's tensors [rows, c]; the argument of its activation is (x - mean) scale + beta + residual. */
typedef struct cpu_batchnorm_data {
    int64_t c;
    const float *x, *residual, *mean, *scale, *beta; /* residual may be NULL */
    float *y;                                        /* forward: written; backward: RELU's mask, or NULL */
    const float *dy, *dy2;                           /* backward; dy2 may be NULL */
    float *g;                                        /* backward: (dy + dy2) act', written unless NULL */
} cpu_batchnorm_data;

/* dx = a g + b (x - mean) + e, coefficients [c]. */
typedef struct cpu_batchnorm_gradient {
    const float *a, *b, *e;
    float *dx;
} cpu_batchnorm_gradient;

typedef struct cpu_batchnorm {
    /* sums [2c]: += sum x, sum x^2 */
    void (*stats)(const float *x, int64_t rows, int64_t c, double *sums);
    void (*apply[ACTIVATION_COUNT])(const cpu_batchnorm_data *d, int64_t first, int64_t end);
    /* sums [2c]: += sum g, sum g (x - mean). Where y is NULL, RELU's mask is computed from x. */
    void (*backward_stats[ACTIVATION_COUNT])(const cpu_batchnorm_data *d, int64_t first, int64_t end,
                                             double *sums);
    /* g is computed again from dy: backward_apply[NONE] with dy = g reads it from memory. */
    void (*backward_apply[ACTIVATION_COUNT])(const cpu_batchnorm_data *d,
                                             const cpu_batchnorm_gradient *gradient, int64_t first,
                                             int64_t end);
} cpu_batchnorm;

/* ---- layer normalization ---------------------------------------------------------------------- */

typedef struct cpu_layernorm {
    /* Rows [first, end) of the forward and backward operations as in op.h; the operands are those arrays. */
    void (*forward)(const layernorm_attributes *a, void *const *operands, int64_t first, int64_t end);
    /* sums [2c]: += dgamma, dbeta */
    void (*backward)(const layernorm_attributes *a, void *const *operands, int64_t first, int64_t end,
                     double *sums);
} cpu_layernorm;

/* ---- pooling: rows [first, end) of n*p (forward) or n*h (backward) image rows ------------------ */

/* In the order of the operations, from OP_maxpool_forward on; the operands are those of op.h. */
typedef struct cpu_pool {
    void (*run[4])(const pool_attributes *a, void *const *operands, int64_t first, int64_t end);
} cpu_pool;

/* ---- softmax ---------------------------------------------------------------------------------- */

/* Scores s [rows, columns], `stride` apart. Row i sees columns [0, visible + i], at most all. */
typedef struct cpu_scores {
    float *s;
    int64_t stride, rows, columns, visible;
    float scale; /* of the scores, before the exponential */
} cpu_scores;

typedef struct cpu_softmax {
    /* s = exp(scale s - scale max), 0 where not visible; inverse[i] = 1/sum, lse[i] = log-sum-exp. */
    void (*attention_forward)(const cpu_scores *d, float *inverse, float *lse);
    /* s = P = exp(scale s - lse); ds = scale P (ds - delta), both 0 where not visible. */
    void (*attention_backward)(const cpu_scores *d, float *ds, const float *lse, const float *delta);
    /* delta[i] = sum_j a[i][j] b[i][j] over rows `stride` apart. */
    void (*row_dots)(const float *a, const float *b, int64_t stride, int64_t rows, int64_t columns,
                     float *delta);
    /* x[i][j] *= factor[i] over rows `stride` apart. */
    void (*scale_rows)(float *x, int64_t stride, int64_t rows, int64_t columns, const float *factor);
    /* Rows of logits [rows, classes]: dlogits (in place, or NULL) = (softmax - [target]) / normalizer, zero
     * in rows to be ignored; sums [2] += loss, rows in which the first of the largest logits is the target's.
     */
    void (*cross_entropy)(const float *logits, const int32_t *targets, int64_t rows, int64_t classes,
                          double normalizer, float *dlogits, double *sums);
    /* sum (x - t)^2; dx (in place in x, or NULL) = 2 (x - t) / normalizer */
    double (*squared_error)(const float *x, const float *t, float *dx, double normalizer, int64_t count);
} cpu_softmax;

/* ---- optimizers ------------------------------------------------------------------------------- */

typedef struct cpu_sgd_step {
    float learning_rate, weight_decay, gradient_scale, momentum, undamped /* 1 - dampening */;
    bool has_momentum, nesterov, first_step;
} cpu_sgd_step;

typedef struct cpu_adam_step {
    float decay;        /* p is multiplied by it first: AdamW; else 1 */
    float weight_decay; /* added to the gradient: Adam */
    float gradient_scale, beta1, beta1_rest, beta2, beta2_rest /* 1 - beta */, eps;
    float step_size, root_correction2; /* lr / bias_correction1, sqrt(bias_correction2) */
} cpu_adam_step;

/* A sum as the unevaluated sum of two doubles. */
typedef struct cpu_long_sum {
    double high, low;
} cpu_long_sum;

typedef struct cpu_optimizer {
    /* Both return whether all gradients, scaled, are finite. */
    bool (*sgd)(const cpu_sgd_step *s, float *p, const float *g, float *momentum, int64_t count);
    bool (*adam)(const cpu_adam_step *s, float *p, const float *g, float *m, float *v, int64_t count);
    /* Adds the squares to *sum. The error is far below a double's, so that after rounding it is all but
     * certain not to show in which parts the array was summed. */
    void (*sum_squares)(const float *x, int64_t count, cpu_long_sum *sum);
} cpu_optimizer;

/* ---- small matrix multiplications -------------------------------------------------------------- */

typedef struct cpu_matrix {
    /* c [m,n] = a b + beta c, beta 0 or 1; element (i, j) of a is a[i row_stride + j column_stride];
     * b [k,n] and c have rows of stride b_stride, c_stride. Blocks for registers, not for caches. */
    void (*multiply)(int64_t m, int64_t n, int64_t k, const float *a, int64_t row_stride,
                     int64_t column_stride, const float *b, int64_t b_stride, bool add, float *c,
                     int64_t c_stride);
    /* y [columns, rows] = (or += where `add`) x [rows, columns]^T */
    void (*transpose)(const float *x, int64_t x_stride, int64_t rows, int64_t columns, bool add, float *y,
                      int64_t y_stride);
} cpu_matrix;

/* ---- Winograd's minimal winograd_conv -------------------------------------------------------------- */

/* F(4x4, 3x3) of Lavin and Gray, "Fast algorithms for convolutional neural networks" (2016): a 3x3
 * convolution's outputs in tiles of 4x4, each from a patch of 6x6 pixels, as 36 products of transforms of
 * patch and kernel, one for each pair of six interpolation points; summed over channels they are 36 matrix
 * multiplications. The gradient with respect to weights multiplies patch and tile, has 3x3 results, and is
 * summed over tiles. The points are 0, +-5/8, +-3/2 and infinity, which err a third to a half as much as the
 * usual 0, +-1, +-2.
 *
 * A matrix multiplication processes WINOGRAD_DEPTH of its depth and a panel of `columns` columns at a time:
 *     v  transforms of patches, of so many channels: [tiles][36][WINOGRAD_DEPTH], and
 *     u  of what they are multiplied with: [36][WINOGRAD_DEPTH][columns], both
 *     m  their products: [rows][36][columns],
 * where a tile of v, a point of u and a row of m end with a cache line of padding, so that they map to
 * different cache sets. The sizes below are in floats. */
enum {
    WINOGRAD_TILE = 4,
    WINOGRAD_PATCH = 6,
    WINOGRAD_POINTS = 36,
    WINOGRAD_DEPTH = 64,
    WINOGRAD_PADDING = 16,
    WINOGRAD_V_TILE = WINOGRAD_POINTS * WINOGRAD_DEPTH + WINOGRAD_PADDING
};

static inline int64_t winograd_u_floats(int64_t columns)
{
    return WINOGRAD_POINTS * (WINOGRAD_DEPTH * columns + WINOGRAD_PADDING);
}

static inline int64_t winograd_m_row(int64_t columns)
{
    return WINOGRAD_POINTS * columns + WINOGRAD_PADDING;
}

/* A square of pixels of an NHWC image, of which only rows [top, bottom) and columns [left, right) exist;
 * others are zero where read, and not written. */
typedef struct cpu_patch {
    int64_t origin; /* of its first pixel in the image, in floats; may be outside */
    int64_t row_stride, pixel_stride;
    int top, bottom, left, right;
} cpu_patch;

typedef enum cpu_winograd_rows {
    WINOGRAD_ROWS_TILES,   /* rows are tiles, depth is channels */
    WINOGRAD_ROWS_CHANNELS /* the other way round: the gradient with respect to weights */
} cpu_winograd_rows;

typedef struct cpu_winograd {
    int64_t columns; /* of a panel */
    /* A tile of v: the transform of a 6x6 patch of `channels`, a multiple of 16. */
    void (*input_transform)(const float *x, const cpu_patch *patch, int64_t channels, float *v);
    /* A square of u: the transform of weights [3x3][block][block], which are flipped round and transposed
     * first where `flip`. The block `next` is fetched meanwhile. */
    void (*weights_transform)(const float *w, const float *next, int64_t block, bool flip, float *u);
    /* m = (or += where `add`) v u */
    void (*gemm)(cpu_winograd_rows kind, int64_t rows, int64_t depth, const float *v, const float *u,
                 bool add, float *m);
    /* y, a 4x4 patch of a panel's channels = the inverse transform of a row of m, + bias unless NULL. */
    void (*output_transform)(const float *m, const float *bias, float *y, const cpu_patch *patch);
    /* A row of u: the transform of a 4x4 patch of a panel's channels of y's gradient. */
    void (*output_gradient_transform)(const float *dy, const cpu_patch *patch, float *u);
    /* Weights' gradient dw [3x3][block][block] = (or += where `add`) the inverse transform of a square of m.
     */
    void (*weights_gradient_transform)(const float *m, int64_t block, bool add, float *dw);
} cpu_winograd;

/* ---- the table -------------------------------------------------------------------------------- */

typedef struct cpu_isa {
    const char *name;  /* "AVX-512" */
    int vector_floats; /* in a register */
    const cpu_elementwise *elementwise;
    const cpu_batchnorm *batchnorm;
    const cpu_layernorm *layernorm;
    const cpu_pool *pool;
    const cpu_softmax *softmax;
    const cpu_optimizer *optimizer;
    const cpu_matrix *matrix;
    const cpu_winograd *winograd;
} cpu_isa;

/* All sets, from the least to the most capable; whether this machine has one. */
#define CPU_ISA_INDEX(name) CPU_ISA_##name,
enum { PROCESSOR_ISA_LIST(CPU_ISA_INDEX) CPU_ISA_COUNT };
#undef CPU_ISA_INDEX
extern const cpu_isa *const cpu_isas[CPU_ISA_COUNT];
bool cpu_isa_supported(const cpu_isa *isa);

#endif
