/* The arithmetic of the CPU device: functions over ranges of memory, without threads, compiled once for each
 * instruction set. Each instruction set has a table of its functions, and the device picks a table at run
 * time.
 *
 * Pointers need only the alignment of their elements. "In place" means the same address; other overlap is not
 * allowed. Sums are in double precision. */
#ifndef COMMON_DEVICE_CPU_ISA_ISA_H
#define COMMON_DEVICE_CPU_ISA_ISA_H

#include "common/base/processor.h"
#include "common/ops/op.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- elementwise ------------------------------------------------------------------------------ */

typedef struct cpu_elementwise {
    void (*add)(const float *a, const float *b, float *y, int64_t count); /* y may be a or b */
    void (*divide)(float *x, float divisor, int64_t count);
    /* Rounds to bfloat16, to nearest and to even on ties. NaN stays NaN. */
    void (*to_bf16)(const float *x, uint16_t *y, int64_t count);
    /* Sets x to 0. Does not write blocks that are already zero. */
    void (*clear)(float *x, int64_t count);
    /* activate() computes y = act(x); y may be x. activate_backward() computes dx = dy act'(x); dx may be dy.
     * For RELU, activate_backward() may be given y instead of x, because both are above 0 in the same places.
     */
    void (*activate[ACTIVATION_COUNT])(const float *x, float *y, int64_t count);
    void (*activate_backward[ACTIVATION_COUNT])(const float *x, const float *dy, float *dx, int64_t count);
    /* Computes y = act(y + bias) in y [rows, columns], whose rows are `stride` apart, and slope = act'(y +
     * bias) with the same stride. bias and slope may be NULL. */
    void (*bias_activate[ACTIVATION_COUNT])(float *y, float *slope, const float *bias, int64_t stride,
                                            int64_t rows, int64_t columns);
    void (*multiply)(const float *a, float *y, int64_t count); /* y[i] *= a[i] */
    /* Adds the column sums of x [rows, columns] to `sums` [columns]. Rows are `stride` apart. */
    void (*column_sums)(const float *x, int64_t stride, int64_t rows, int64_t columns, double *sums);
} cpu_elementwise;

/* ---- batch normalization ---------------------------------------------------------------------- */

/* Tensors [rows, c] of one layer. The argument of the layer's activation is (x - mean) scale + beta +
 * residual. */
typedef struct cpu_batchnorm_data {
    int64_t c;
    const float *x, *residual, *mean, *scale, *beta; /* residual may be NULL */
    /* In the forward pass, receives y; in the backward pass, y of the forward pass for RELU's mask, or
     * NULL. */
    float *y;
    const float *dy, *dy2; /* only in the backward pass; dy2 may be NULL */
    float *g;              /* in the backward pass, receives (dy + dy2) act', or is NULL */
} cpu_batchnorm_data;

/* Coefficients [c] of dx = a g + b (x - mean) + e. */
typedef struct cpu_batchnorm_gradient {
    const float *a, *b, *e;
    float *dx;
} cpu_batchnorm_gradient;

typedef struct cpu_batchnorm {
    /* Adds [ sum x | sum x^2 ] to sums [2c]. */
    void (*stats)(const float *x, int64_t rows, int64_t c, double *sums);
    void (*apply[ACTIVATION_COUNT])(const cpu_batchnorm_data *d, int64_t first, int64_t end);
    /* Adds [ sum g | sum g (x - mean) ] to sums [2c]. If y is NULL, RELU's mask is computed from x. */
    void (*backward_stats[ACTIVATION_COUNT])(const cpu_batchnorm_data *d, int64_t first, int64_t end,
                                             double *sums);
    /* Computes dx, and recomputes g from dy. To read g from memory, call backward_apply[NONE] with dy = g. */
    void (*backward_apply[ACTIVATION_COUNT])(const cpu_batchnorm_data *d,
                                             const cpu_batchnorm_gradient *gradient, int64_t first,
                                             int64_t end);
} cpu_batchnorm;

/* ---- layer normalization ---------------------------------------------------------------------- */

typedef struct cpu_layernorm {
    /* Compute rows [first, end) of layer normalization. `operands` has the slots of op.h. */
    void (*forward)(const layernorm_attributes *a, void *const *operands, int64_t first, int64_t end);
    /* Adds [ dgamma | dbeta ] to sums [2c]. */
    void (*backward)(const layernorm_attributes *a, void *const *operands, int64_t first, int64_t end,
                     double *sums);
} cpu_layernorm;

/* ---- pooling: rows [first, end) of n*p (forward) or n*h (backward) image rows ------------------ */

/* Pooling functions in the order of the operations from OP_maxpool_forward on. `operands` has the slots of
 * op.h. */
typedef struct cpu_pool {
    void (*run[4])(const pool_attributes *a, void *const *operands, int64_t first, int64_t end);
} cpu_pool;

/* ---- softmax ---------------------------------------------------------------------------------- */

/* Scores s [rows, columns], whose rows are `stride` apart. Row i sees columns 0 to visible + i, as far as
 * these columns exist. */
typedef struct cpu_scores {
    float *s;
    int64_t stride, rows, columns, visible;
    float scale; /* factor of the scores before the exponential */
} cpu_scores;

typedef struct cpu_softmax {
    /* Computes s = exp(scale s - scale max), which is 0 in columns that the row does not see. Sets inverse[i]
     * to 1/sum and lse[i] to the log-sum-exp of row i. */
    void (*attention_forward)(const cpu_scores *d, float *inverse, float *lse);
    /* Computes s = P = exp(scale s - lse) and ds = scale P (ds - delta). Both are 0 in columns that the row
     * does not see. */
    void (*attention_backward)(const cpu_scores *d, float *ds, const float *lse, const float *delta);
    /* Computes delta[i] = sum_j a[i][j] b[i][j]. Rows are `stride` apart. */
    void (*row_dots)(const float *a, const float *b, int64_t stride, int64_t rows, int64_t columns,
                     float *delta);
    /* Multiplies x[i][j] by factor[i]. Rows are `stride` apart. */
    void (*scale_rows)(float *x, int64_t stride, int64_t rows, int64_t columns, const float *factor);
    /* Computes dlogits [rows, classes] = (softmax - [target]) / normalizer, or zero in ignored rows. dlogits
     * may be `logits` or NULL. Adds to sums [2] the loss, and the number of rows in which the target has the
     * largest logit. If several logits are equal, the first one counts as the largest. */
    void (*cross_entropy)(const float *logits, const int32_t *targets, int64_t rows, int64_t classes,
                          double normalizer, float *dlogits, double *sums);
    /* Returns sum (x - t)^2. Computes dx = 2 (x - t) / normalizer; dx may be x or NULL. */
    double (*squared_error)(const float *x, const float *t, float *dx, double normalizer, int64_t count);
} cpu_softmax;

/* ---- optimizers ------------------------------------------------------------------------------- */

typedef struct cpu_sgd_step {
    float learning_rate, weight_decay, gradient_scale, momentum, undamped /* 1 - dampening */;
    bool has_momentum, nesterov, first_step;
} cpu_sgd_step;

typedef struct cpu_adam_step {
    float decay;        /* p is multiplied by `decay` before the update; 1 unless the optimizer is AdamW */
    float weight_decay; /* weight_decay * p is added to the gradient; 0 for AdamW */
    float gradient_scale, beta1, beta1_rest, beta2, beta2_rest /* 1 - beta */, eps;
    float step_size, root_correction2; /* lr / bias_correction1, sqrt(bias_correction2) */
} cpu_adam_step;

/* A sum whose value is high + low, for more precision than one double. */
typedef struct cpu_long_sum {
    double high, low;
} cpu_long_sum;

typedef struct cpu_optimizer {
    /* Return true if all scaled gradients are finite. */
    bool (*sgd)(const cpu_sgd_step *s, float *p, const float *g, float *momentum, int64_t count);
    bool (*adam)(const cpu_adam_step *s, float *p, const float *g, float *m, float *v, int64_t count);
    /* Adds the squares to *sum. The rounding error is far smaller than a double's, so the rounded total
     * almost certainly does not depend on how the array was split into parts. */
    void (*sum_squares)(const float *x, int64_t count, cpu_long_sum *sum);
} cpu_optimizer;

/* ---- small matrix multiplications -------------------------------------------------------------- */

typedef struct cpu_matrix {
    /* Computes c [m,n] = a b, or c += a b if `add`. Element (i, j) of a is a[i row_stride + j
     * column_stride]. Rows of b [k,n] and c are b_stride and c_stride apart. The loops are blocked for
     * registers, but not for caches. */
    void (*multiply)(int64_t m, int64_t n, int64_t k, const float *a, int64_t row_stride,
                     int64_t column_stride, const float *b, int64_t b_stride, bool add, float *c,
                     int64_t c_stride);
    /* Computes y [columns, rows] = x [rows, columns]^T, or adds the transpose to y if `add`. */
    void (*transpose)(const float *x, int64_t x_stride, int64_t rows, int64_t columns, bool add, float *y,
                      int64_t y_stride);
} cpu_matrix;

/* ---- Winograd's minimal filtering ------------------------------------------------------------------ */

/* F(4x4, 3x3) of Lavin and Gray, "Fast algorithms for convolutional neural networks" (2016).
 *
 * The outputs of a 3x3 convolution are divided into tiles of 4x4. Each tile depends on a patch of 6x6 pixels.
 * A tile is computed from 36 products of the transformed patch and the transformed kernel, one for each pair
 * of six interpolation points. Summed over channels, the products form 36 matrix multiplications. For the
 * gradient with respect to weights, the factors are a transformed patch and a transformed tile of dy, the
 * result is 3x3, and the sum is over tiles. The interpolation points are 0, +-5/8, +-3/2 and infinity. The
 * error is a third to a half of the error that results from the usual points 0, +-1, +-2.
 *
 * A matrix multiplication processes a panel of `columns` columns and WINOGRAD_DEPTH terms of each sum at a
 * time:
 *
 *   v  transforms of patches: [tiles][36][WINOGRAD_DEPTH]
 *   u  transforms of the other factor: [36][WINOGRAD_DEPTH][columns]
 *   m  products of v and u: [rows][36][columns]
 *
 * Every tile of v, every point of u and every row of m ends with a cache line of padding, so that neighbors
 * map to different cache sets. The sizes below are in floats. */
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

/* A square of pixels of an NHWC image. Only rows [top, bottom) and columns [left, right) are inside the
 * image. Other pixels are read as zero and not written. */
typedef struct cpu_patch {
    int64_t origin; /* offset in floats of the first pixel, which may be outside of the image */
    int64_t row_stride, pixel_stride;
    int top, bottom, left, right;
} cpu_patch;

typedef enum cpu_winograd_rows {
    WINOGRAD_ROWS_TILES,   /* rows are tiles, depth is channels */
    WINOGRAD_ROWS_CHANNELS /* rows are channels, depth is tiles; for the gradient with respect to weights */
} cpu_winograd_rows;

typedef struct cpu_winograd {
    int64_t columns;
    /* Writes a tile of v: the transform of a 6x6 patch. `channels` must be a multiple of 16. */
    void (*input_transform)(const float *x, const cpu_patch *patch, int64_t channels, float *v);
    /* Transforms the weights [3x3][block][block], and writes the result to `block` rows and columns of u. If
     * `flip`, the weights are rotated and transposed first. Prefetches the weights at `next`. */
    void (*weights_transform)(const float *w, const float *next, int64_t block, bool flip, float *u);
    /* Computes m = v u, or m += v u if `add`. */
    void (*gemm)(cpu_winograd_rows kind, int64_t rows, int64_t depth, const float *v, const float *u,
                 bool add, float *m);
    /* Computes the inverse transform of a row of m, and adds `bias` unless `bias` is NULL. Writes the result
     * to y, a 4x4 patch of a panel's channels. */
    void (*output_transform)(const float *m, const float *bias, float *y, const cpu_patch *patch);
    /* Writes a row of u: the transform of a 4x4 patch of dy, for the channels of a panel. */
    void (*output_gradient_transform)(const float *dy, const cpu_patch *patch, float *u);
    /* Applies the inverse transform to `block` rows and columns of m. Writes the result, a weight gradient,
     * to dw [3x3][block][block], or adds it to dw if `add`. */
    void (*weights_gradient_transform)(const float *m, int64_t block, bool add, float *dw);
} cpu_winograd;

/* ---- the table -------------------------------------------------------------------------------- */

typedef struct cpu_isa {
    const char *name; /* name such as "AVX-512" */
    int vector_floats;
    const cpu_elementwise *elementwise;
    const cpu_batchnorm *batchnorm;
    const cpu_layernorm *layernorm;
    const cpu_pool *pool;
    const cpu_softmax *softmax;
    const cpu_optimizer *optimizer;
    const cpu_matrix *matrix;
    const cpu_winograd *winograd;
} cpu_isa;

/* The tables of all instruction sets, from the least to the most capable. cpu_isa_supported() returns true
 * if this machine has the instruction set. */
#define CPU_ISA_INDEX(name) CPU_ISA_##name,
enum { PROCESSOR_ISA_LIST(CPU_ISA_INDEX) CPU_ISA_COUNT };
#undef CPU_ISA_INDEX
extern const cpu_isa *const cpu_isas[CPU_ISA_COUNT];
bool cpu_isa_supported(const cpu_isa *isa);

#endif
