/* Operations are data. OP_LIST gives the enum, the names and every device's kernel table (a missing
 * kernel is a link error): the CPU runs a call, CUDA launches it, the virtual device prices it.
 *
 * An op_desc describes an operation except for the addresses of its operands: kind, sizes, attributes.
 * A launch passes operands as an array of pointers, indexed by the slots below; a slot whose
 * operand is absent (no bias, no residual) is NULL. Shapes are in comments; N images, H and W input
 * height and width, P and Q output height and width, C input and K output channels, R and S kernel
 * height and width; M rows; all activations NHWC or row-major. "d" before a name is the gradient of
 * the loss with respect to it. Parameters are in the layout that the device chose (device.h). */
#ifndef COMMON_OPS_OP_H
#define COMMON_OPS_OP_H

#include "common/ops/tensor.h"

#include <stdbool.h>

/* name, class of the cost model */
#define OP_LIST(X)                                                                                           \
    X(conv2d_forward, CONVOLUTION)                                                                           \
    X(conv2d_backward_data, CONVOLUTION)                                                                     \
    X(conv2d_backward_weights, CONVOLUTION)                                                                  \
    X(linear_forward, GEMM)                                                                                  \
    X(linear_backward_data, GEMM)                                                                            \
    X(linear_backward_weights, GEMM)                                                                         \
    X(batchnorm_forward, NORMALIZATION)                                                                      \
    X(batchnorm_inference, NORMALIZATION)                                                                    \
    X(batchnorm_backward, NORMALIZATION)                                                                     \
    X(batchnorm_stats, NORMALIZATION)                                                                        \
    X(batchnorm_apply, NORMALIZATION)                                                                        \
    X(batchnorm_backward_stats, NORMALIZATION)                                                               \
    X(batchnorm_backward_apply, NORMALIZATION)                                                               \
    X(layernorm_forward, NORMALIZATION)                                                                      \
    X(layernorm_backward, NORMALIZATION)                                                                     \
    X(activation_forward, ELEMENTWISE)                                                                       \
    X(activation_backward, ELEMENTWISE)                                                                      \
    X(add, ELEMENTWISE)                                                                                      \
    X(concat_forward, ELEMENTWISE)                                                                           \
    X(concat_backward, ELEMENTWISE)                                                                          \
    X(maxpool_forward, POOLING)                                                                              \
    X(maxpool_backward, POOLING)                                                                             \
    X(avgpool_forward, POOLING)                                                                              \
    X(avgpool_backward, POOLING)                                                                             \
    X(embedding_forward, EMBEDDING)                                                                          \
    X(embedding_backward, EMBEDDING)                                                                         \
    X(attention_forward, ATTENTION)                                                                          \
    X(attention_backward, ATTENTION)                                                                         \
    X(gather_rows, EMBEDDING)                                                                                \
    X(scatter_rows, EMBEDDING)                                                                               \
    X(cross_entropy, LOSS)                                                                                   \
    X(mean_squared_error, LOSS)                                                                              \
    X(sgd, OPTIMIZER)                                                                                        \
    X(adam, OPTIMIZER)                                                                                       \
    X(sum_squares, OPTIMIZER)                                                                                \
    X(divide, ELEMENTWISE)                                                                                   \
    X(fill, ELEMENTWISE)

#define OP_ENUM(name, class) OP_##name,
typedef enum op_kind { OP_LIST(OP_ENUM) OP_COUNT } op_kind;
#undef OP_ENUM

typedef enum op_class {
    OP_CLASS_CONVOLUTION,
    OP_CLASS_GEMM,
    OP_CLASS_ATTENTION,
    OP_CLASS_NORMALIZATION,
    OP_CLASS_ELEMENTWISE,
    OP_CLASS_POOLING,
    OP_CLASS_EMBEDDING,
    OP_CLASS_LOSS,
    OP_CLASS_OPTIMIZER,
    OP_CLASS_COUNT
} op_class;

const char *op_name(op_kind kind);
op_class op_class_of(op_kind kind);

#define ACTIVATION_LIST(X)                                                                                   \
    X(NONE, "none") X(RELU, "relu") X(SILU, "silu") X(GELU, "gelu") X(GELU_TANH, "gelu_tanh")
#define ACTIVATION_ENUM(name, text) ACTIVATION_##name,
typedef enum activation { ACTIVATION_LIST(ACTIVATION_ENUM) ACTIVATION_COUNT } activation;
#undef ACTIVATION_ENUM
const char *activation_name(activation a);

/* ---- attributes ------------------------------------------------------------------------------- */

typedef struct conv2d_attributes {
    int64_t n, h, w, c;           /* input [n, h, w, c] */
    int64_t k, r, s;              /* weights [k, c, r, s] in PyTorch's order */
    int64_t stride, pad_h, pad_w; /* zeros above and below, left and right */
    int64_t p, q;                 /* output [n, p, q, k] */
    bool bias;
} conv2d_attributes;

typedef struct linear_attributes {
    int64_t m;       /* rows */
    int64_t in, out; /* weights [out, in] */
    bool bias;
    activation act; /* fused after the bias in forward */
    /* The input is an image [m, h, w, c] flattened: PyTorch's weight columns run c, h, w, ours h, w, c.
     * c == 0: the input was a vector. */
    int64_t flat_c, flat_h, flat_w;
} linear_attributes;

typedef struct batchnorm_attributes {
    int64_t n, h, w, c;
    double eps, momentum;
    activation act;
    bool residual; /* y = act(normalized + residual) */
    bool dy2;      /* backward: the output's gradient is the sum of two tensors */
    int64_t world; /* batchnorm_apply, batchnorm_backward_apply: ranks over which statistics were summed */
} batchnorm_attributes;

typedef struct layernorm_attributes {
    int64_t m, c; /* rows, columns */
    double eps;
    bool residual; /* normalizes sum = x + residual */
    bool dsum;     /* backward: the sum was also used elsewhere; that use's gradient is added */
} layernorm_attributes;

typedef struct elementwise_attributes {
    int64_t count;
    activation act;
} elementwise_attributes;

enum { CONCAT_MOST = 6 };
typedef struct concat_attributes {
    int64_t rows;           /* pixels */
    int64_t c[CONCAT_MOST]; /* channels of each input; 0 after the last */
} concat_attributes;

typedef struct pool_attributes {
    int64_t n, h, w, c, r, s, stride, pad, p, q;
} pool_attributes;

typedef struct embedding_attributes {
    int64_t batch, sequence, hidden, vocabulary, positions;
    bool position_table, type_table; /* type_table: row 0 of a table of two is added */
} embedding_attributes;

typedef struct attention_attributes {
    int64_t batch, sequence, heads, width; /* width of a head; hidden = heads * width */
    bool causal;
    int64_t stride; /* elements between rows of q, k, v, dq, dk, dv: hidden, or 3 hidden where packed */
} attention_attributes;

typedef struct rows_attributes {
    int64_t rows, hidden, selected; /* `selected` of `rows` rows; at most */
    int64_t every;                  /* > 0: rows 0, every, 2 every, ... instead of an index list */
} rows_attributes;

typedef struct loss_attributes {
    int64_t rows, classes; /* logits [rows, classes]; mean squared error: output [rows, classes] */
    bool gradient;         /* also writes the gradient (may be in place of the logits) */
} loss_attributes;

typedef struct optimizer_attributes {
    int64_t count; /* most elements of a launch */
    double momentum, dampening, beta1, beta2, eps;
    bool nesterov, decoupled; /* decoupled: AdamW's weight decay */
    bool bf16;                /* BF16 is written: on devices that store bfloat16 (device_info.bf16) */
} optimizer_attributes;

typedef union op_attributes {
    int64_t
        batch; /* the first field of each: images, rows, sequences or elements, in proportion to the batch */
    conv2d_attributes conv2d;
    linear_attributes linear;
    batchnorm_attributes batchnorm;
    layernorm_attributes layernorm;
    elementwise_attributes elementwise;
    concat_attributes concat;
    pool_attributes pool;
    embedding_attributes embedding;
    attention_attributes attention;
    rows_attributes rows;
    loss_attributes loss;
    optimizer_attributes optimizer;
} op_attributes;

typedef struct op_desc {
    op_kind kind;
    dtype type; /* of the computation and, unless stated otherwise, of operands */
    bool bf16;  /* activations and their gradients are stored as bfloat16, and so are W and B of convolutions
                 * and  linear layers; arithmetic, statistics and parameters' gradients stay of `type` */
    bool x_f32; /* with bf16, convolutions and linear layers: X holds a batch's samples, of `type` */
    bool accumulate; /* operations that write a parameter's gradient always add to it (a table used
                      * twice); see also op_scalars.accumulate. linear_backward_data adds to dx */
    op_attributes u;
} op_desc;

/* ---- operand slots ---------------------------------------------------------------------------- */

enum { OP_MAX_OPERANDS = 14 };

/* y [n,p,q,k] = x [n,h,w,c] * w [k,c,r,s] + b [k] */
enum { CONV_FWD_X, CONV_FWD_W, CONV_FWD_B, CONV_FWD_Y };
enum { CONV_BWD_DATA_DY, CONV_BWD_DATA_W, CONV_BWD_DATA_DX };
enum { CONV_BWD_WEIGHTS_X, CONV_BWD_WEIGHTS_DY, CONV_BWD_WEIGHTS_DW, CONV_BWD_WEIGHTS_DB };

/* y [m,out] = act(pre), pre = x [m,in] * w [out,in]^T + b [out].  SLOPE = act'(pre) [m,out] is written where
 * act is neither NONE nor RELU and the slot is not NULL (training): it shares its exponentials with act. */
enum { LINEAR_FWD_X, LINEAR_FWD_W, LINEAR_FWD_B, LINEAR_FWD_Y, LINEAR_FWD_SLOPE };
/* With an activation, ACT holds y (RELU) or the slope (others), and dy is replaced in place by
 * d pre = dy * act'(pre) by linear_backward_weights, which runs first; backward_data takes d pre. */
enum { LINEAR_BWD_DATA_DY, LINEAR_BWD_DATA_W, LINEAR_BWD_DATA_DX };
enum {
    LINEAR_BWD_WEIGHTS_X,
    LINEAR_BWD_WEIGHTS_DY,
    LINEAR_BWD_WEIGHTS_DW,
    LINEAR_BWD_WEIGHTS_DB,
    LINEAR_BWD_WEIGHTS_ACT
};

/* Training.  mean, invstd [c] are of this batch (invstd = 1/sqrt(biased variance + eps)); the running
 * statistics move by `momentum` towards mean and unbiased variance.
 *   y = act((x - mean) * invstd * gamma + beta + residual)        all tensors [n,h,w,c] or [c] */
enum {
    BN_FWD_X,
    BN_FWD_GAMMA,
    BN_FWD_BETA,
    BN_FWD_RESIDUAL,
    BN_FWD_RUNNING_MEAN,
    BN_FWD_RUNNING_VAR,
    BN_FWD_Y,
    BN_FWD_MEAN,
    BN_FWD_INVSTD
};
/* Evaluation, with the running statistics. */
enum {
    BN_INF_X,
    BN_INF_GAMMA,
    BN_INF_BETA,
    BN_INF_RESIDUAL,
    BN_INF_RUNNING_MEAN,
    BN_INF_RUNNING_VAR,
    BN_INF_Y
};
/* g = (dy + dy2) * act'; dresidual = g; dgamma, dbeta, dx as usual.  RELU takes its mask from y (or, without
 * a residual, from x, gamma and beta, which give the same); other activations recompute their argument from
 * x (and residual).  DRESIDUAL may be DY's memory. It is
 * required where the residual is used, and then holds g. With act NONE and no dy2,
 * dresidual is dy itself and the slot is NULL. DX may be DY's memory unless DRESIDUAL is. */
enum {
    BN_BWD_X,
    BN_BWD_Y,
    BN_BWD_GAMMA,
    BN_BWD_BETA,
    BN_BWD_RESIDUAL,
    BN_BWD_MEAN,
    BN_BWD_INVSTD,
    BN_BWD_DY,
    BN_BWD_DY2,
    BN_BWD_DX,
    BN_BWD_DGAMMA,
    BN_BWD_DBETA,
    BN_BWD_DRESIDUAL
};
/* SyncBatchNorm in two halves with an all-reduce of SUMS between: stats writes this rank's sums, apply
 * reads those over all ranks.
 *   forward   SUMS [2c+1] = [ sum x (c) | sum x^2 (c) | count ]   float64 on every device
 *   backward  SUMS [2c]   = [ sum g (c) | sum g xhat (c) ]        float64; dgamma, dbeta are this rank's
 * G is written always and may be DY's memory; it is also the residual's gradient. DX may be G's memory. */
enum { BN_STATS_X, BN_STATS_SUMS };
enum {
    BN_APPLY_X,
    BN_APPLY_GAMMA,
    BN_APPLY_BETA,
    BN_APPLY_RESIDUAL,
    BN_APPLY_RUNNING_MEAN,
    BN_APPLY_RUNNING_VAR,
    BN_APPLY_Y,
    BN_APPLY_MEAN,
    BN_APPLY_INVSTD,
    BN_APPLY_SUMS
};
enum {
    BN_BSTATS_X,
    BN_BSTATS_Y,
    BN_BSTATS_GAMMA,
    BN_BSTATS_BETA,
    BN_BSTATS_RESIDUAL,
    BN_BSTATS_MEAN,
    BN_BSTATS_INVSTD,
    BN_BSTATS_DY,
    BN_BSTATS_DY2,
    BN_BSTATS_G,
    BN_BSTATS_DGAMMA,
    BN_BSTATS_DBETA,
    BN_BSTATS_SUMS
};
/* COUNT [1] float64: samples over all ranks (the last element of the forward's SUMS). */
enum {
    BN_BAPPLY_X,
    BN_BAPPLY_GAMMA,
    BN_BAPPLY_MEAN,
    BN_BAPPLY_INVSTD,
    BN_BAPPLY_G,
    BN_BAPPLY_DX,
    BN_BAPPLY_SUMS,
    BN_BAPPLY_COUNT
};

/* sum = x + residual (SUM may be X's memory; NULL without residual), y = (sum - mean) * invstd * gamma +
 * beta; [m,c], mean and invstd [m]. */
enum {
    LN_FWD_X,
    LN_FWD_RESIDUAL,
    LN_FWD_GAMMA,
    LN_FWD_BETA,
    LN_FWD_Y,
    LN_FWD_SUM,
    LN_FWD_MEAN,
    LN_FWD_INVSTD
};
/* X is what was normalized (the sum). dx = gradient through the normalization + DSUM. DX may be DY's memory.
 */
enum {
    LN_BWD_X,
    LN_BWD_GAMMA,
    LN_BWD_MEAN,
    LN_BWD_INVSTD,
    LN_BWD_DY,
    LN_BWD_DSUM,
    LN_BWD_DX,
    LN_BWD_DGAMMA,
    LN_BWD_DBETA
};

/* [count]; Y may be X's memory.  Backward: X is y for RELU, the argument otherwise; DX may be DY's. NaN
 * passes RELU, here and fused, and wins a maximum, as in PyTorch, so that a diverged run is visible. */
enum { ACT_FWD_X, ACT_FWD_Y };
enum { ACT_BWD_X, ACT_BWD_DY, ACT_BWD_DX };
/* y = a + b; Y may be A's or B's memory. */
enum { ADD_A, ADD_B, ADD_Y };

/* Along channels: y [rows, sum of c] = x0 [rows, c0] | x1 [rows, c1] | ..., in slots from X on. Backward cuts
 * dy the same way; a slot from DX on is NULL where that input needs no gradient. */
enum { CONCAT_FWD_Y, CONCAT_FWD_X };
enum { CONCAT_BWD_DY, CONCAT_BWD_DX };

/* INDEX [n,p,q,c] uint8: position of the maximum in its window, row by row, padding counted (r*s <= 256).
 * The first of equals wins, as in PyTorch; pad <= r/2, s/2. Average pooling divides by r*s, padding counted
 * as zeros (AvgPool2d's count_include_pad). */
enum { MAXPOOL_FWD_X, MAXPOOL_FWD_Y, MAXPOOL_FWD_INDEX };
enum { MAXPOOL_BWD_DY, MAXPOOL_BWD_INDEX, MAXPOOL_BWD_DX };
enum { AVGPOOL_FWD_X, AVGPOOL_FWD_Y };
enum { AVGPOOL_BWD_DY, AVGPOOL_BWD_DX };

/* y [batch*sequence, hidden] = table[token] + position[index in sequence] + type[0]; TOKENS int32. */
enum { EMB_FWD_TOKENS, EMB_FWD_TABLE, EMB_FWD_POSITION, EMB_FWD_TYPE, EMB_FWD_Y };
/* Writes all rows of the gradients (zero where unused), unless op_desc.accumulate (token table only) or
 * op_scalars.accumulate (all three) is set. */
enum { EMB_BWD_TOKENS, EMB_BWD_DY, EMB_BWD_DTABLE, EMB_BWD_DPOSITION, EMB_BWD_DTYPE };

/* Per head: P = softmax(Q K^T / sqrt(width)), out = P V. q, k, v rows are `stride` apart, out rows hidden.
 * LSE [batch, heads, sequence]: log of each row's sum of exponentials, from which backward recomputes P
 * (Dao et al., "FlashAttention", 2022). */
enum { ATT_FWD_Q, ATT_FWD_K, ATT_FWD_V, ATT_FWD_OUT, ATT_FWD_LSE };
enum {
    ATT_BWD_Q,
    ATT_BWD_K,
    ATT_BWD_V,
    ATT_BWD_OUT,
    ATT_BWD_LSE,
    ATT_BWD_DOUT,
    ATT_BWD_DQ,
    ATT_BWD_DK,
    ATT_BWD_DV
};

/* y [selected, hidden] = x[index]; INDEX int32 (NULL where attributes.every > 0), no row twice. scatter
 * writes all rows of dx, zero where not selected. */
enum { ROWS_GATHER_X, ROWS_GATHER_INDEX, ROWS_GATHER_Y };
enum { ROWS_SCATTER_DY, ROWS_SCATTER_INDEX, ROWS_SCATTER_DX };

/* LOSS [2] float64: sum over counted rows (elements) of the loss, and the number of rows whose largest
 * logit is the target's, of equals the first (0 for mean squared error). Rows with target LOSS_IGNORE do
 * not count; their dlogits are zero.
 * dlogits is divided by op_scalars.loss_normalizer.  TARGETS int32 [rows]; for mean squared error
 * [rows, classes] of the computation's type. DLOGITS may be LOGITS' memory. */
enum { LOSS_LOGITS, LOSS_TARGETS, LOSS_DLOGITS, LOSS_SUMS };
#define LOSS_IGNORE (-100)

/* PyTorch's torch.optim.SGD, Adam and AdamW, in one pass; op_scalars lists the pieces of the arena. STATE1
 * is the momentum buffer or exp_avg, STATE2 exp_avg_sq. BF16, laid out like PARAM, gets its new values as
 * bfloat16. */
enum { OPT_PARAM, OPT_GRAD, OPT_STATE1, OPT_STATE2, OPT_BF16 };
/* OUT [1] float64 += sum of squares over the pieces. */
enum { SUMSQ_X, SUMSQ_OUT };
/* x[i] = x[i] / op_scalars.divisor (true division) over the pieces; x[i] = 0. With op_desc.bf16 a division
 * represents a rounding copy, only on the virtual device: others have device_convert(). At most
 * elementwise_attributes.count elements per launch. */
enum { DIVIDE_X };
enum { FILL_X };

/* Elements, of which no two parameters have one in common: what op_scalars.nonfinite counts on a GPU. */
enum { OP_NONFINITE_UNIT = 16 };

/* What changes from step to step. On a GPU it is in device memory. */
struct piece;
typedef struct op_scalars {
    double loss_normalizer; /* dlogits are divided by it */
    double learning_rate, weight_decay;
    double gradient_scale; /* the optimizer multiplies gradients by it first (clipping) */
    int32_t *nonfinite; /* the optimizer raises it where a gradient is not finite: to 1; on a GPU, for element
                         * i, to INT32_MAX - i / OP_NONFINITE_UNIT if that is more; NULL: no check */
    double bias_correction1, bias_correction2; /* 1 - beta^step */
    bool first_step;                           /* SGD: the momentum buffer starts as the gradient */
    bool accumulate; /* gradients are added to the existing ones: micro-batches after the first */
    double divisor;
    /* Rows in use of linear, layernorm, gather and scatter (of `selected`) and loss operations, where a
     * count varies from batch to batch; 0: all. Later rows are not read; what is written there is not
     * specified. */
    int64_t rows;
    const struct piece *pieces;
    int piece_count;
} op_scalars;

/* ---- cost ------------------------------------------------------------------------------------- */

/* What an operation costs: floating-point operations (a multiply-add is two; a comparison, exponential,
 * root or hyperbolic tangent is one) and the bytes that it must read and write once each if no cache holds
 * them. Counts are those of full rows and whole windows, padding included; cost.c has the formulas. */
typedef struct op_cost {
    double flops, bytes_read, bytes_written;
} op_cost;
op_cost op_cost_of(const op_desc *op);

#endif
