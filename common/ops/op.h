/* The operations of a device. OP_LIST generates the enum, the names and the kernel table of every device, so
 * a missing kernel is a link error.
 *
 * An op_desc holds the kind, sizes and attributes of an operation, but not the addresses of its operands. A
 * launch passes the operands as an array of pointers, indexed by the slots below. The slot of an absent
 * operand (no bias, no residual) is NULL. The comments below give the shapes of operands. N is the number of
 * images and M the number of rows. H and W are the input's height and width, P and Q the output's, and R and
 * S the kernel's. C is the number of input channels and K of output channels. All activations are NHWC or
 * row-major. "dx" is the gradient of the loss with respect to x. Parameters have the layout that the device
 * chose (device.h). */
#ifndef COMMON_OPS_OP_H
#define COMMON_OPS_OP_H

#include "common/ops/tensor.h"

#include <stdbool.h>

/* Columns: operation, class in the cost model. */
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
/* OP_recorded takes a recorded time, and exists only on virtual devices (common/nn/recording.h). */
typedef enum op_kind { OP_LIST(OP_ENUM) OP_recorded, OP_COUNT } op_kind;
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
    OP_CLASS_RECORDED,
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
    int64_t stride, pad_h, pad_w; /* pad_h zeros above and below, pad_w zeros left and right */
    int64_t p, q;                 /* output [n, p, q, k] */
    bool bias;
} conv2d_attributes;

typedef struct linear_attributes {
    int64_t m;       /* rows */
    int64_t in, out; /* weights [out, in] */
    bool bias;
    activation act; /* applied after the bias in the forward pass */
    /* Sizes of an input image [m, h, w, c] that is flattened. The weight columns are ordered c, h, w in
     * PyTorch and h, w, c here. flat_c is 0 if the input is a vector. */
    int64_t flat_c, flat_h, flat_w;
} linear_attributes;

typedef struct batchnorm_attributes {
    int64_t n, h, w, c;
    double eps, momentum;
    activation act;
    bool residual; /* if true, y = act(normalized + residual) */
    bool dy2;      /* backward: if true, the gradient with respect to y is DY + DY2 */
    int64_t world; /* number of ranks over which SUMS is all-reduced */
} batchnorm_attributes;

typedef struct layernorm_attributes {
    int64_t m, c; /* rows, columns */
    double eps;
    bool residual; /* if true, normalizes sum = x + residual */
    bool dsum;     /* backward: if true, adds DSUM, the gradient from another use of the sum */
} layernorm_attributes;

typedef struct elementwise_attributes {
    int64_t count;
    activation act;
} elementwise_attributes;

enum { CONCAT_MOST = 6 };
typedef struct concat_attributes {
    int64_t rows;           /* pixels */
    int64_t c[CONCAT_MOST]; /* channels of each input; 0 after the last input */
} concat_attributes;

typedef struct pool_attributes {
    int64_t n, h, w, c, r, s, stride, pad, p, q;
} pool_attributes;

typedef struct embedding_attributes {
    int64_t batch, sequence, hidden, vocabulary, positions;
    bool position_table, type_table; /* `type_table` adds row 0 of a table with two rows */
} embedding_attributes;

typedef struct attention_attributes {
    int64_t batch, sequence, heads, width; /* `width` is the width of a head; hidden = heads * width */
    bool causal;
    int64_t stride; /* distance in elements between rows of q, k, v, dq, dk, dv: hidden, or 3 hidden if q, k
                       and v are packed */
} attention_attributes;

typedef struct rows_attributes {
    int64_t rows, hidden, selected; /* at most `selected` of `rows` rows are selected */
    int64_t every;                  /* if above 0, rows 0, every, 2 every, ... are selected without an index
                                     * list */
} rows_attributes;

typedef struct loss_attributes {
    int64_t rows, classes; /* sizes of the logits, or of the output for mean squared error */
    bool gradient; /* true if the operation also writes the gradient, which may overwrite the logits */
} loss_attributes;

typedef struct optimizer_attributes {
    int64_t count; /* largest number of elements per launch */
    double momentum, dampening, beta1, beta2, eps;
    bool nesterov, decoupled; /* `decoupled` selects AdamW's weight decay */
    bool bf16; /* if true, also writes BF16, on devices that store bfloat16 (device_info.bf16) */
} optimizer_attributes;

/* See nn_segment and nn_recording in common/nn/recording.h. */
typedef struct recorded_attributes {
    int64_t batch, kernel_ns, idle_ns, ranks;
    float arithmetic, traffic;
} recorded_attributes;

typedef union op_attributes {
    int64_t batch; /* First field of every attributes struct: the number of images, rows, sequences or
                      elements, which is proportional to the batch size. */
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
    recorded_attributes recorded;
} op_attributes;

typedef struct op_desc {
    op_kind kind;
    dtype type; /* type of the computation and, unless stated otherwise, of operands */
    bool bf16;  /* Activations, their gradients, and W and B of convolutions and linear layers are stored as
                 * bfloat16. Arithmetic, statistics and parameters' gradients keep `type`. */
    bool x_f32; /* The input X of the convolution or linear layer is the batch itself, which has `type` even
                   if bf16 is set. */
    bool accumulate; /* If true, the operation adds to the parameter's gradient, because another operation has
                        already written to this gradient (for example if two operations use the same table).
                        linear_backward_data then adds to dx. See also op_scalars.accumulate. */
    op_attributes u;
} op_desc;

/* ---- operand slots ---------------------------------------------------------------------------- */

enum { OP_MAX_OPERANDS = 14 };

/* y [n,p,q,k] = x [n,h,w,c] * w [k,c,r,s] + b [k] */
enum { CONV_FWD_X, CONV_FWD_W, CONV_FWD_B, CONV_FWD_Y };
enum { CONV_BWD_DATA_DY, CONV_BWD_DATA_W, CONV_BWD_DATA_DX };
enum { CONV_BWD_WEIGHTS_X, CONV_BWD_WEIGHTS_DY, CONV_BWD_WEIGHTS_DW, CONV_BWD_WEIGHTS_DB };

/* y [m,out] = act(pre), pre = x [m,in] * w [out,in]^T + b [out]. In training, SLOPE = act'(pre) [m,out] is
 * written if act is neither NONE nor RELU and the slot is not NULL. SLOPE is computed together with y,
 * because both need the same exponentials. */
enum { LINEAR_FWD_X, LINEAR_FWD_W, LINEAR_FWD_B, LINEAR_FWD_Y, LINEAR_FWD_SLOPE };
/* If there is an activation, ACT holds y (RELU) or the slope (others). linear_backward_weights runs first and
 * replaces dy in place by d pre = dy * act'(pre). linear_backward_data reads d pre. */
enum { LINEAR_BWD_DATA_DY, LINEAR_BWD_DATA_W, LINEAR_BWD_DATA_DX };
enum {
    LINEAR_BWD_WEIGHTS_X,
    LINEAR_BWD_WEIGHTS_DY,
    LINEAR_BWD_WEIGHTS_DW,
    LINEAR_BWD_WEIGHTS_DB,
    LINEAR_BWD_WEIGHTS_ACT
};

/* y = act((x - mean) * invstd * gamma + beta + residual). All tensors are [n,h,w,c] or [c].
 *
 * batchnorm_forward is for training. It computes mean and invstd = 1/sqrt(biased variance + eps) from this
 * batch, and moves the running statistics by `momentum` towards the mean and the unbiased variance.
 *
 * batchnorm_inference is for evaluation. It uses the running statistics instead of MEAN and INVSTD.
 *
 * batchnorm_apply is the second half of SyncBatchNorm and reads SUMS (see below). */
enum {
    BN_FWD_X,
    BN_FWD_GAMMA,
    BN_FWD_BETA,
    BN_FWD_RESIDUAL,
    BN_FWD_RUNNING_MEAN,
    BN_FWD_RUNNING_VAR,
    BN_FWD_Y,
    BN_FWD_MEAN,
    BN_FWD_INVSTD,
    BN_FWD_SUMS
};
/* batchnorm_backward computes g = (dy + dy2) * act' and the gradients of the parameters and of x.
 *
 * RELU's derivative is a mask that selects the elements with positive y. If there is no residual, a device
 * may compute the mask from x, gamma and beta instead. Other activations recompute their argument from x and
 * residual. If there is a residual, g is also the gradient of the residual and is written to DRESIDUAL, which
 * may be DY's memory. If act is NONE and there is no dy2, g equals dy and DRESIDUAL is NULL. DX may be DY's
 * memory unless DRESIDUAL is.
 *
 * batchnorm_backward_stats writes g, dgamma, dbeta and SUMS (see below), but not DX. */
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
    BN_BWD_DRESIDUAL,
    BN_BWD_SUMS
};
/* SyncBatchNorm runs in two halves. The engine all-reduces SUMS between the halves. `stats` writes the sums
 * of this rank, and `apply` reads the sums over all ranks.
 *   forward   SUMS [2c+1] = [ sum x (c) | sum x^2 (c) | count ]   float64 on every device
 *   backward  SUMS [2c]   = [ sum g (c) | sum g xhat (c) ]        float64; dgamma, dbeta are this rank's
 * The first half always writes G, which is in the slot DRESIDUAL of the first half. G may be DY's memory, and
 * DX may be G's memory. */
enum { BN_STATS_X, BN_STATS_SUMS };
/* COUNT [1] float64: number of values per channel over all ranks, which is the last element of the forward
 * pass's SUMS. */
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

/* sum = x + residual, y = (sum - mean) * invstd * gamma + beta. mean and invstd are [m], gamma and beta are
 * [c], and all other tensors are [m,c]. SUM may be X's memory, and is NULL without a residual. */
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
/* X is the forward pass's SUM, or the forward pass's X if there was no residual. dx is the gradient through
 * the normalization, plus DSUM. DX may be DY's memory. */
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

/* All tensors are [count]. Y may be X's memory. In backward, X is y for RELU and the argument for other
 * activations; DX may be DY's memory. As in PyTorch, RELU (fused or not) and maximum pooling return NaN if an
 * input is NaN, so a diverged run is visible. */
enum { ACT_FWD_X, ACT_FWD_Y };
enum { ACT_BWD_X, ACT_BWD_DY, ACT_BWD_DX };
/* y = a + b; Y may be A's or B's memory. */
enum { ADD_A, ADD_B, ADD_Y };

/* Concatenates channels: y [rows, sum of c] = x0 [rows, c0] | x1 [rows, c1] | .... The slots from X on hold
 * the inputs. Backward splits dy the same way, and the slots from DX on receive the parts. A slot from DX on
 * is NULL if the input needs no gradient. */
enum { CONCAT_FWD_Y, CONCAT_FWD_X };
enum { CONCAT_BWD_DY, CONCAT_BWD_DX };

/* INDEX [n,p,q,c] uint8 is the position of the maximum in its window. Positions are numbered row by row,
 * including positions in the padding. An INDEX has one byte, so r*s must not exceed 256. If several values
 * are equal, the first one counts, as in PyTorch. The padding is at most r/2 and s/2. Average pooling divides
 * by r*s and counts padding as zeros (AvgPool2d's count_include_pad). */
enum { MAXPOOL_FWD_X, MAXPOOL_FWD_Y, MAXPOOL_FWD_INDEX };
enum { MAXPOOL_BWD_DY, MAXPOOL_BWD_INDEX, MAXPOOL_BWD_DX };
enum { AVGPOOL_FWD_X, AVGPOOL_FWD_Y };
enum { AVGPOOL_BWD_DY, AVGPOOL_BWD_DX };

/* y [batch*sequence, hidden] = table[token] + position[index in sequence] + type[0]. TOKENS is int32. */
enum { EMB_FWD_TOKENS, EMB_FWD_TABLE, EMB_FWD_POSITION, EMB_FWD_TYPE, EMB_FWD_Y };
/* Writes all rows of the gradients, with zeros in unused rows. If op_desc.accumulate (only for the token
 * table) or op_scalars.accumulate (for all three tables) is set, adds to the gradients instead. */
enum { EMB_BWD_TOKENS, EMB_BWD_DY, EMB_BWD_DTABLE, EMB_BWD_DPOSITION, EMB_BWD_DTYPE };

/* Per head: P = softmax(Q K^T / sqrt(width)), out = P V. Rows of q, k and v are `stride` elements apart,
 * and rows of out are `hidden` elements apart. LSE [batch, heads, sequence] is the log of each row's sum
 * of exponentials, from which backward recomputes P (Dao et al., "FlashAttention", 2022). */
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

/* y [selected, hidden] = x[index]. INDEX is int32 without duplicates, or NULL if attributes.every > 0.
 * scatter writes all rows of dx, with zeros in rows that are not selected. */
enum { ROWS_GATHER_X, ROWS_GATHER_INDEX, ROWS_GATHER_Y };
enum { ROWS_SCATTER_DY, ROWS_SCATTER_INDEX, ROWS_SCATTER_DX };

/* SUMS [2] float64: the sum of the loss over the rows that count, and the number of rows in which the target
 * has the largest logit. If several logits are equal, the first one counts as the largest. For mean squared
 * error, SUMS holds the sum over all elements, and 0. Rows with target LOSS_IGNORE do not count, and their
 * dlogits are zero. dlogits is divided by op_scalars.loss_normalizer. TARGETS is int32 [rows], or [rows,
 * classes] of the computation's type for mean squared error. DLOGITS may be LOGITS' memory. */
enum { LOSS_LOGITS, LOSS_TARGETS, LOSS_DLOGITS, LOSS_SUMS };
#define LOSS_IGNORE (-100)

/* PyTorch's torch.optim.SGD, Adam and AdamW in one pass over the pieces in op_scalars. STATE1 is the momentum
 * buffer or exp_avg, and STATE2 is exp_avg_sq. BF16 has PARAM's layout and receives the new values of PARAM
 * as bfloat16. */
enum { OPT_PARAM, OPT_GRAD, OPT_STATE1, OPT_STATE2, OPT_BF16 };
/* Adds the sum of squares over the pieces to OUT [1], which is float64. */
enum { SUMSQ_X, SUMSQ_OUT };
/* DIVIDE computes x[i] = x[i] / op_scalars.divisor over the pieces, with a true division. FILL sets x[i] = 0.
 * A launch has at most elementwise_attributes.count elements. On the virtual device, a division with
 * op_desc.bf16 stands for a copy that rounds to bfloat16. Real devices use device_convert() for this copy. */
enum { DIVIDE_X };
enum { FILL_X };

/* If an element of the gradients is not finite, a GPU reports the index of the element
 * (op_scalars.nonfinite), divided by this number and rounded down. The elements with the same result belong
 * to one parameter. */
enum { OP_NONFINITE_UNIT = 16 };

/* Values that change from step to step. The struct is in host memory. On a GPU, `nonfinite` points to device
 * memory. */
struct piece;
typedef struct op_scalars {
    double loss_normalizer; /* divisor of dlogits */
    double learning_rate, weight_decay;
    double gradient_scale; /* factor that the optimizer first multiplies gradients by (clipping) */
    int32_t *nonfinite; /* Flag that the optimizer sets if a gradient is not finite. A CPU sets 1. A GPU sets
                           INT32_MAX - i / OP_NONFINITE_UNIT for the first element i that is not finite. NULL
                           if gradients are not checked. */
    double bias_correction1, bias_correction2; /* 1 - beta^step */
    bool first_step; /* true in the first step, in which SGD sets the momentum buffer to the gradient */
    bool accumulate; /* true if the operation adds to the gradients of earlier micro-batches */
    double divisor;
    /* Number of rows in use, or 0 for all rows. Only for linear, layernorm, gather, scatter and loss
     * operations whose row count varies from batch to batch. In gather and scatter the number counts
     * selected rows. Rows that are not in use are not read, and their outputs are unspecified. */
    int64_t rows;
    const struct piece *pieces;
    int piece_count;
} op_scalars;

/* ---- cost ------------------------------------------------------------------------------------- */

/* The cost of an operation: floating-point operations, and the bytes read and written if each byte of an
 * operand moves once and no cache holds it. A multiply-add is two operations; a comparison, exponential, root
 * or hyperbolic tangent is one. All rows and all positions of windows are counted, including padding. cost.c
 * has the formulas. */
typedef struct op_cost {
    double flops, bytes_read, bytes_written;
} op_cost;
op_cost op_cost_of(const op_desc *op);

#endif
