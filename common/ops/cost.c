/* The formulas of op_cost_of(). The formulas count the floating-point operations of a simple kernel, as in
 * common/device/reference. The bytes of each operand count once. */
#include "common/ops/op.h"

/* Floating-point operations per element for act(x), and for dy act'(x). The following list has the formulas
 * of act(x) and act'(x) in which the operations are counted. RELU: a comparison, a selection. SILU: x / (1 +
 * exp(-x)), s (1 + x (1 - s)). GELU: x/2 erfc(-x/sqrt 2), cdf + x density. GELU_TANH: x/2 (1 + tanh(a (x + b
 * x^3))), 1/2 (1 + t + x (1 - t^2) u'). */
static const struct {
    double forward, slope;
} flops_of[ACTIVATION_COUNT] = {[ACTIVATION_RELU] = {1, 1},
                                [ACTIVATION_SILU] = {4, 9},
                                [ACTIVATION_GELU] = {4, 10},
                                [ACTIVATION_GELU_TANH] = {9, 17}};

/* Floating-point operations and memory traffic of a call. `in` and `out` count elements of activations,
 * which may be bfloat16. `f32_in` and `f32_out` count elements that always have the operation's type.
 * `other_in` and `other_out` are bytes of other types. */
typedef struct traffic {
    double flops;
    double in, out;
    double f32_in, f32_out;
    double other_in, other_out;
} traffic;

/* Counts a write of `elements` elements to a parameter's gradient, and a read if the operation adds to the
 * gradient. */
static void write_gradient(traffic *t, const op_desc *op, double elements)
{
    t->f32_out += elements;
    if (op->accumulate) t->f32_in += elements;
}

/* Counts a read of `elements` elements of X, the input of a convolution or linear layer. X is float32 in
 * the first layer of a model. */
static void read_x(traffic *t, const op_desc *op, double elements)
{
    *(op->x_f32 ? &t->f32_in : &t->in) += elements;
}

/* A convolution has n p q k c r s multiply-adds in each direction. The bias adds n p q k. */
static traffic conv2d_cost(const op_desc *op)
{
    const conv2d_attributes *a = &op->u.conv2d;
    double x = (double)(a->n * a->h * a->w * a->c), y = (double)(a->n * a->p * a->q * a->k);
    double weights = (double)(a->k * a->c * a->r * a->s), bias = a->bias ? (double)a->k : 0;
    double products = 2 * y * (double)(a->c * a->r * a->s);
    if (op->kind == OP_conv2d_backward_data) return (traffic){.flops = products, .in = y + weights, .out = x};
    traffic t = {.flops = products + (a->bias ? y : 0)};
    read_x(&t, op, x);
    if (op->kind == OP_conv2d_forward) {
        t.in += weights + bias;
        t.out = y;
    } else {
        t.in += y;
        write_gradient(&t, op, weights + bias);
    }
    return t;
}

/* A linear layer has m in out multiply-adds. The bias adds m out. If there is an activation, its slope (m,
 * out) is also read or written. */
static traffic linear_cost(const op_desc *op)
{
    const linear_attributes *a = &op->u.linear;
    double x = (double)(a->m * a->in), y = (double)(a->m * a->out);
    double weights = (double)(a->in * a->out), bias = a->bias ? (double)a->out : 0;
    bool keeps_slope = a->act != ACTIVATION_NONE && a->act != ACTIVATION_RELU;
    traffic t = {.flops = 2 * x * (double)a->out};
    if (op->kind == OP_linear_backward_data) {
        t.in = y + weights + (op->accumulate ? x : 0);
        t.out = x;
        return t;
    }
    read_x(&t, op, x);
    if (op->kind == OP_linear_forward) {
        t.flops += (a->bias ? y : 0) + y * flops_of[a->act].forward;
        t.in += weights + bias;
        t.out = y + (keeps_slope ? y : 0);
    } else {
        t.flops += (a->bias ? y : 0) + y * flops_of[a->act].slope;
        t.in += y + (a->act != ACTIVATION_NONE ? y : 0);
        t.out = a->act != ACTIVATION_NONE ? y : 0;
        write_gradient(&t, op, weights + bias);
    }
    return t;
}

/* Operations per element: 1 for the mean, 3 for the variance, 3 for y = (x - mean) scale + beta, and 1 for
 * the residual. Operations per channel are not counted. */
static traffic batchnorm_forward_cost(const op_desc *op)
{
    const batchnorm_attributes *a = &op->u.batchnorm;
    double x = (double)(a->n * a->h * a->w * a->c), c = (double)a->c, residual = a->residual ? x : 0;
    double normalize = 3 * x + residual + x * flops_of[a->act].forward;
    if (op->kind == OP_batchnorm_stats) /* sums of x and x^2 */
        return (traffic){.flops = 3 * x, .in = x, .other_out = 8 * (2 * c + 1)};
    traffic t = {.flops = normalize, .in = x + residual, .out = x, .f32_in = 4 * c};
    if (op->kind == OP_batchnorm_forward) t.flops += 4 * x;
    if (op->kind == OP_batchnorm_apply) t.other_in = 8 * (2 * c + 1);
    /* Training reads and writes the running statistics, and writes mean and invstd. */
    if (op->kind != OP_batchnorm_inference) t.f32_out = 4 * c;
    return t;
}

/* Operations per element: 1 to add dy2, flops_of[].slope for g, 5 for the sums of g and g xhat, and 5 for dx
 * if the factors of a channel are combined beforehand. An activation other than RELU takes 3 more to
 * recompute its argument, and 1 more to add the residual to the argument. */
static traffic batchnorm_backward_cost(const op_desc *op)
{
    const batchnorm_attributes *a = &op->u.batchnorm;
    double x = (double)(a->n * a->h * a->w * a->c), c = (double)a->c;
    if (op->kind == OP_batchnorm_backward_apply)
        return (traffic){.flops = 5 * x, .in = 2 * x, .out = x, .f32_in = 3 * c, .other_in = 8 * (2 * c + 1)};
    bool relu = a->act == ACTIVATION_RELU, recomputes = a->act != ACTIVATION_NONE && !relu;
    bool residual_read = a->residual && recomputes;
    traffic t = {.flops = 5 * x + x * flops_of[a->act].slope + (a->dy2 ? x : 0),
                 .in = 2 * x + (a->dy2 ? x : 0) + (relu ? x : 0),
                 .f32_in = 4 * c};
    t.flops += (recomputes ? 3 * x : 0) + (residual_read ? x : 0);
    t.in += residual_read ? x : 0;
    write_gradient(&t, op, 2 * c);
    if (op->kind == OP_batchnorm_backward_stats) {
        t.out += x; /* g */
        t.other_out = 16 * c;
        return t;
    }
    bool writes_residual = a->residual && (a->act != ACTIVATION_NONE || a->dy2);
    t.flops += 5 * x;
    t.out += x + (writes_residual ? x : 0);
    return t;
}

/* Operations per element. The forward pass takes 1 for the residual, 1 for the mean, 3 for the variance
 * and 4 for y. The backward pass takes 2 for xhat, 7 for the sums over rows and columns, 5 for dx and 1
 * for dsum. */
static traffic layernorm_cost(const op_desc *op)
{
    const layernorm_attributes *a = &op->u.layernorm;
    double x = (double)(a->m * a->c), c = (double)a->c, m = (double)a->m;
    double residual = a->residual ? x : 0, dsum = a->dsum ? x : 0;
    if (op->kind == OP_layernorm_forward)
        return (traffic){.flops = 8 * x + residual,
                         .in = x + residual,
                         .out = x + residual,
                         .f32_in = 2 * c,
                         .f32_out = 2 * m};
    traffic t = {.flops = 14 * x + dsum, .in = 2 * x + dsum, .out = x, .f32_in = c + 2 * m};
    write_gradient(&t, op, 2 * c);
    return t;
}

static traffic concat_cost(const op_desc *op)
{
    const concat_attributes *a = &op->u.concat;
    double count = 0;
    for (int i = 0; i < CONCAT_MOST; i++) count += (double)(a->rows * a->c[i]);
    return (traffic){.in = count, .out = count};
}

static traffic elementwise_cost(const op_desc *op)
{
    double count = (double)op->u.elementwise.count;
    activation act = op->u.elementwise.act;
    switch (op->kind) {
    case OP_activation_forward:
        return (traffic){.flops = count * flops_of[act].forward, .in = count, .out = count};
    case OP_activation_backward:
        return (traffic){.flops = count * flops_of[act].slope, .in = 2 * count, .out = count};
    case OP_add:
        return (traffic){.flops = count, .in = 2 * count, .out = count};
    case OP_divide:
        return (traffic){.flops = count, .f32_in = count, .out = count};
    case OP_concat_forward:
    case OP_concat_backward:
        return concat_cost(op);
    default: /* fill */
        return (traffic){.out = count};
    }
}

/* Maximum pooling compares every position of a window, and its backward pass adds once per output. Average
 * pooling adds every position of a window and divides once. INDEX is one byte per output. */
static traffic pool_cost(const op_desc *op)
{
    const pool_attributes *a = &op->u.pool;
    double x = (double)(a->n * a->h * a->w * a->c), y = (double)(a->n * a->p * a->q * a->c);
    double window = (double)(a->r * a->s);
    switch (op->kind) {
    case OP_maxpool_forward:
        return (traffic){.flops = y * window, .in = x, .out = y, .other_out = y};
    case OP_maxpool_backward:
        return (traffic){.flops = y, .in = y, .out = x, .other_in = y};
    case OP_avgpool_forward:
        return (traffic){.flops = y * (window + 1), .in = x, .out = y};
    default:
        return (traffic){.flops = y * (window + 1), .in = y, .out = x};
    }
}

static traffic rows_cost(const op_desc *op)
{
    const rows_attributes *a = &op->u.rows;
    double selected = (double)(a->selected * a->hidden), rows = (double)(a->rows * a->hidden);
    double index = a->every > 0 ? 0 : 4 * (double)a->selected;
    return (traffic){.in = selected, .out = op->kind == OP_gather_rows ? selected : rows, .other_in = index};
}

/* For every token, one row of the table is read or added to. Rows of the position table are read once per
 * batch. */
static traffic embedding_cost(const op_desc *op)
{
    const embedding_attributes *a = &op->u.embedding;
    if (op->kind == OP_gather_rows || op->kind == OP_scatter_rows) return rows_cost(op);
    double rows = (double)(a->batch * a->sequence), y = rows * (double)a->hidden;
    double hidden = (double)a->hidden;
    double tables = 1 + (a->position_table ? 1 : 0) + (a->type_table ? 1 : 0);
    traffic t = {.other_in = 4 * rows};
    if (op->kind == OP_embedding_forward) {
        t.flops = (tables - 1) * y;
        t.f32_in = y + (a->position_table ? (double)a->sequence * hidden : 0) + (a->type_table ? hidden : 0);
        t.out = y;
        return t;
    }
    t.flops = tables * y;
    t.in = y;
    t.f32_in = op->accumulate ? y : 0;
    t.f32_out = op->accumulate ? y : (double)a->vocabulary * hidden;
    t.f32_out += (a->position_table ? (double)a->positions * hidden : 0) + (a->type_table ? 2 * hidden : 0);
    return t;
}

/* Let S be the number of (query, key) pairs in which the query sees the key, summed over batch and heads. The
 * forward pass takes 4 S width for two matmuls, and 6 S for scale, maximum, subtraction, exponential, sum and
 * division. The backward pass takes 10 S width for five matmuls, 3 S to recompute the exponential, 3 S for
 * ds, and two per element of dout for the products dout . out. */
static traffic attention_cost(const op_desc *op)
{
    const attention_attributes *a = &op->u.attention;
    double sequence = (double)a->sequence, width = (double)a->width;
    double pairs = a->causal ? sequence * (sequence + 1) / 2 : sequence * sequence;
    double scores = (double)(a->batch * a->heads) * pairs, lse = (double)(a->batch * a->heads) * sequence;
    double x = lse * width;
    if (op->kind == OP_attention_forward)
        return (traffic){.flops = scores * (4 * width + 6), .in = 3 * x, .out = x, .f32_out = lse};
    return (traffic){.flops = scores * (10 * width + 6) + 2 * x, .in = 5 * x, .out = 3 * x, .f32_in = lse};
}

/* Operations per logit. Cross entropy takes 4 for maximum, subtraction, exponential and sum. Mean squared
 * error takes 3 for difference, square and sum. The gradient takes 2 more. */
static traffic loss_cost(const op_desc *op)
{
    const loss_attributes *a = &op->u.loss;
    double logits = (double)(a->rows * a->classes);
    bool cross_entropy = op->kind == OP_cross_entropy;
    traffic t = {.flops = logits * (cross_entropy ? 4 : 3), .in = logits, .other_out = 16};
    if (cross_entropy)
        t.other_in = 4 * (double)a->rows;
    else
        t.f32_in = logits;
    if (a->gradient) {
        t.flops += 2 * logits;
        t.out = logits;
    }
    return t;
}

/* Operations per element. SGD takes 1 for the scale, 2 for weight decay, 3 for momentum, 2 for Nesterov's
 * momentum and 2 for the update. Adam takes 1 for the scale, 2 for weight decay, 3 + 4 for the two moments
 * and 7 for the update. */
static traffic optimizer_cost(const op_desc *op)
{
    const optimizer_attributes *a = &op->u.optimizer;
    double count = (double)a->count;
    double rounded = a->bf16 ? count * dtype_size(DTYPE_BF16) : 0;
    bool momentum = a->momentum != 0;
    switch (op->kind) {
    case OP_sgd:
        return (traffic){.flops = count * (5 + (momentum ? 3 : 0) + (momentum && a->nesterov ? 2 : 0)),
                         .in = count * (momentum ? 3 : 2),
                         .out = count * (momentum ? 2 : 1),
                         .other_out = rounded};
    case OP_adam:
        return (traffic){.flops = 17 * count, .in = 4 * count, .out = 3 * count, .other_out = rounded};
    default: /* sum_squares */
        return (traffic){.flops = 2 * count, .in = count, .other_in = 8, .other_out = 8};
    }
}

static traffic normalization_cost(const op_desc *op)
{
    op_kind kind = op->kind;
    if (kind == OP_layernorm_forward || kind == OP_layernorm_backward) return layernorm_cost(op);
    bool backward = kind == OP_batchnorm_backward || kind == OP_batchnorm_backward_stats ||
                    kind == OP_batchnorm_backward_apply;
    return backward ? batchnorm_backward_cost(op) : batchnorm_forward_cost(op);
}

static traffic (*const cost_of_class[OP_CLASS_COUNT])(const op_desc *op) = {
    [OP_CLASS_CONVOLUTION] = conv2d_cost,      [OP_CLASS_GEMM] = linear_cost,
    [OP_CLASS_ATTENTION] = attention_cost,     [OP_CLASS_NORMALIZATION] = normalization_cost,
    [OP_CLASS_ELEMENTWISE] = elementwise_cost, [OP_CLASS_POOLING] = pool_cost,
    [OP_CLASS_EMBEDDING] = embedding_cost,     [OP_CLASS_LOSS] = loss_cost,
    [OP_CLASS_OPTIMIZER] = optimizer_cost,
};

op_cost op_cost_of(const op_desc *op)
{
    traffic t = cost_of_class[op_class_of(op->kind)](op);
    double size = dtype_size(op->type), stored = op->bf16 ? dtype_size(DTYPE_BF16) : size;
    return (op_cost){t.flops, t.in * stored + t.f32_in * size + t.other_in,
                     t.out * stored + t.f32_out * size + t.other_out};
}
