#include "tests/common/device/op_families.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *case_options_text(case_options o)
{
    if (o.accumulate) return " accumulated";
    if (o.micro_batch) return " as a later micro-batch";
    if (o.alias == ALIAS_IN_PLACE) return " in place";
    if (o.alias == ALIAS_RESIDUAL_IN_DY) return " with dresidual in dy";
    return o.large_mean ? " with a large mean" : "";
}

static int64_t windows(int64_t size, int64_t pad, int64_t kernel, int64_t stride)
{
    return (size + 2 * pad - kernel) / stride + 1;
}

void case_conv2d(op_case *c, conv2d_attributes a, case_options o)
{
    a.p = windows(a.h, a.pad_h, a.r, a.stride);
    a.q = windows(a.w, a.pad_w, a.s, a.stride);
    case_begin(c,
               "conv2d %" PRId64 "x%" PRId64 "x%" PRId64 "x%" PRId64 " to %" PRId64 " kernel %" PRId64
               "x%" PRId64 " stride %" PRId64 " pad %" PRId64 "x%" PRId64 "%s%s",
               a.n, a.h, a.w, a.c, a.k, a.r, a.s, a.stride, a.pad_h, a.pad_w, a.bias ? " bias" : "",
               case_options_text(o));
    c->scalars.accumulate = o.micro_batch;
    bool adds = o.accumulate || o.micro_batch;
    int x = case_input(c, "x", a.n * a.h * a.w, a.c);
    int w = case_parameter(c, "w", FILL_SIGNED, shape_4d(a.k, a.c, a.r, a.s));
    int b = a.bias ? case_parameter(c, "b", FILL_SIGNED, shape_1d(a.k)) : CASE_NONE;
    int y = case_output(c, "y", a.n * a.p * a.q, a.k), dy = case_input(c, "dy", a.n * a.p * a.q, a.k);
    int dx = case_output(c, "dx", a.n * a.h * a.w, a.c), dw = case_parameter_gradient(c, "dw", w, adds);
    int db = a.bias ? case_parameter_gradient(c, "db", b, adds) : CASE_NONE;
    op_desc op = {.kind = OP_conv2d_forward, .type = DTYPE_F64, .u.conv2d = a};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){x, w, b, y}, 1 << CONV_FWD_Y)->layout = w;
    c->forward_steps = c->step_count;
    op.kind = OP_conv2d_backward_data;
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){dy, w, dx}, 1 << CONV_BWD_DATA_DX)->layout = w;
    op.kind = OP_conv2d_backward_weights;
    op.accumulate = o.accumulate;
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){x, dy, dw, db},
                  1 << CONV_BWD_WEIGHTS_DW | 1 << CONV_BWD_WEIGHTS_DB)
        ->layout = w;
    case_objective(c, y, dy);
    case_gradient(c, x, dx, false);
    case_gradient(c, w, dw, adds);
    if (a.bias) case_gradient(c, b, db, adds);
}

static void name_batchnorm(op_case *c, const char *what, const batchnorm_attributes *a, case_options o)
{
    case_begin(c, "%s %" PRId64 "x%" PRId64 "x%" PRId64 "x%" PRId64 " %s%s%s%s", what, a->n, a->h, a->w, a->c,
               activation_name(a->act), a->residual ? " residual" : "", a->dy2 ? " dy2" : "",
               case_options_text(o));
    c->scalars.accumulate = o.micro_batch;
}

/* Tensors that all directions of BatchNorm share, or CASE_NONE if a case does not have them. */
typedef struct batchnorm_tensors {
    int x, gamma, beta, residual, running_mean, running_var, y, mean, invstd;
    int dy, dy2, dx, dgamma, dbeta, dresidual;
} batchnorm_tensors;

static batchnorm_tensors batchnorm_forward_tensors(op_case *c, const batchnorm_attributes *a, case_options o)
{
    int64_t count = a->n * a->h * a->w;
    batchnorm_tensors t = {.x =
                               case_tensor_add(c, "x", o.large_mean ? FILL_OFFSET : FILL_SIGNED, count, a->c),
                           .gamma = case_parameter(c, "gamma", FILL_POSITIVE, shape_1d(a->c)),
                           .beta = case_parameter(c, "beta", FILL_SIGNED, shape_1d(a->c)),
                           .residual = a->residual ? case_input(c, "residual", count, a->c) : CASE_NONE,
                           .running_mean = case_input(c, "running_mean", 1, a->c),
                           .running_var = case_tensor_add(c, "running_var", FILL_POSITIVE, 1, a->c),
                           .y = case_output(c, "y", count, a->c)};
    return t;
}

/* Adds the tensors of the backward pass. If there is neither an activation nor dy2, the residual's gradient
 * is dy itself, and no tensor is added for it. */
static void batchnorm_backward_tensors(op_case *c, const batchnorm_attributes *a, case_options o,
                                       batchnorm_tensors *t)
{
    int64_t count = a->n * a->h * a->w;
    bool adds = o.accumulate || o.micro_batch, has_g = a->residual && (a->act != ACTIVATION_NONE || a->dy2);
    t->dy = case_input(c, "dy", count, a->c);
    t->dy2 = a->dy2 ? case_input(c, "dy2", count, a->c) : CASE_NONE;
    t->dx = o.alias == ALIAS_IN_PLACE ? t->dy : case_output(c, "dx", count, a->c);
    t->dgamma = case_parameter_gradient(c, "dgamma", t->gamma, adds);
    t->dbeta = case_parameter_gradient(c, "dbeta", t->beta, adds);
    if (has_g)
        t->dresidual = o.alias == ALIAS_RESIDUAL_IN_DY ? t->dy : case_output(c, "dresidual", count, a->c);
    case_objective(c, t->y, t->dy);
    if (a->dy2) case_objective(c, t->y, t->dy2);
    case_gradient(c, t->x, t->dx, false);
    case_gradient(c, t->gamma, t->dgamma, adds);
    case_gradient(c, t->beta, t->dbeta, adds);
    if (a->residual && t->dresidual) case_gradient(c, t->residual, t->dresidual, false);
}

/* Returns a mask of the tensors that the backward operation receives. y and the residual are passed only if
 * op.h says that the operation reads them. */
static int mask_of(const batchnorm_attributes *a, const batchnorm_tensors *t)
{
    return a->act == ACTIVATION_RELU ? t->y : CASE_NONE;
}

static int argument_of(const batchnorm_attributes *a, const batchnorm_tensors *t)
{
    return a->act == ACTIVATION_NONE || a->act == ACTIVATION_RELU ? CASE_NONE : t->residual;
}

void case_batchnorm(op_case *c, batchnorm_attributes a, case_options o)
{
    name_batchnorm(c, "batchnorm", &a, o);
    batchnorm_tensors t = batchnorm_forward_tensors(c, &a, o);
    t.mean = case_output(c, "mean", 1, a.c);
    t.invstd = case_output(c, "invstd", 1, a.c);
    batchnorm_backward_tensors(c, &a, o, &t);
    op_desc op = {.kind = OP_batchnorm_forward, .type = DTYPE_F64, .u.batchnorm = a};
    case_add_step(c, &op,
                  (int[OP_MAX_OPERANDS]){t.x, t.gamma, t.beta, t.residual, t.running_mean, t.running_var, t.y,
                                         t.mean, t.invstd},
                  1 << BN_FWD_RUNNING_MEAN | 1 << BN_FWD_RUNNING_VAR | 1 << BN_FWD_Y | 1 << BN_FWD_MEAN |
                      1 << BN_FWD_INVSTD);
    c->forward_steps = c->step_count;
    op.kind = OP_batchnorm_backward;
    op.accumulate = o.accumulate;
    case_add_step(c, &op,
                  (int[OP_MAX_OPERANDS]){t.x, mask_of(&a, &t), t.gamma, t.beta, argument_of(&a, &t), t.mean,
                                         t.invstd, t.dy, t.dy2, t.dx, t.dgamma, t.dbeta, t.dresidual},
                  1 << BN_BWD_DX | 1 << BN_BWD_DGAMMA | 1 << BN_BWD_DBETA | 1 << BN_BWD_DRESIDUAL);
}

void case_batchnorm_inference(op_case *c, batchnorm_attributes a)
{
    name_batchnorm(c, "batchnorm inference", &a, (case_options){0});
    batchnorm_tensors t = batchnorm_forward_tensors(c, &a, (case_options){0});
    op_desc op = {.kind = OP_batchnorm_inference, .type = DTYPE_F64, .u.batchnorm = a};
    case_add_step(
        c, &op, (int[OP_MAX_OPERANDS]){t.x, t.gamma, t.beta, t.residual, t.running_mean, t.running_var, t.y},
        1 << BN_FWD_Y);
    c->forward_steps = c->step_count;
}

/* g and dx share a tensor if dx uses dy's memory. */
void case_syncbatchnorm(op_case *c, batchnorm_attributes a, case_options o)
{
    name_batchnorm(c, "syncbatchnorm", &a, o);
    batchnorm_tensors t = batchnorm_forward_tensors(c, &a, o);
    t.mean = case_output(c, "mean", 1, a.c);
    t.invstd = case_output(c, "invstd", 1, a.c);
    int sums = case_output(c, "sums", 1, 2 * a.c + 1), gradient_sums = case_output(c, "dsums", 1, 2 * a.c);
    c->tensors[sums].type = c->tensors[gradient_sums].type = CASE_F64;
    int count = case_view(c, "count", sums, 2 * a.c);
    batchnorm_backward_tensors(c, &a, o, &t);
    int g = t.dresidual                 ? t.dresidual
            : o.alias == ALIAS_IN_PLACE ? t.dy
                                        : case_output(c, "g", a.n * a.h * a.w, a.c);
    op_desc op = {.kind = OP_batchnorm_stats, .type = DTYPE_F64, .u.batchnorm = a};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){t.x, sums}, 1 << BN_STATS_SUMS);
    op.kind = OP_batchnorm_apply;
    case_add_step(c, &op,
                  (int[OP_MAX_OPERANDS]){t.x, t.gamma, t.beta, t.residual, t.running_mean, t.running_var, t.y,
                                         t.mean, t.invstd, sums},
                  1 << BN_FWD_RUNNING_MEAN | 1 << BN_FWD_RUNNING_VAR | 1 << BN_FWD_Y | 1 << BN_FWD_MEAN |
                      1 << BN_FWD_INVSTD);
    c->forward_steps = c->step_count;
    op.kind = OP_batchnorm_backward_stats;
    op.accumulate = o.accumulate;
    case_add_step(c, &op,
                  (int[OP_MAX_OPERANDS]){t.x, mask_of(&a, &t), t.gamma, t.beta, argument_of(&a, &t), t.mean,
                                         t.invstd, t.dy, t.dy2, 0, t.dgamma, t.dbeta, g, gradient_sums},
                  1 << BN_BWD_DRESIDUAL | 1 << BN_BWD_DGAMMA | 1 << BN_BWD_DBETA | 1 << BN_BWD_SUMS);
    op.kind = OP_batchnorm_backward_apply;
    case_add_step(c, &op,
                  (int[OP_MAX_OPERANDS]){t.x, t.gamma, t.mean, t.invstd, g, t.dx, gradient_sums, count},
                  1 << BN_BAPPLY_DX);
}

void case_concat(op_case *c, concat_attributes a)
{
    int whole = 0, forward[OP_MAX_OPERANDS] = {0}, backward[OP_MAX_OPERANDS] = {0};
    unsigned written = 0;
    char text[CONCAT_MOST * 24] = "";
    for (int i = 0; i < CONCAT_MOST && a.c[i]; whole += (int)a.c[i++])
        snprintf(text + strlen(text), sizeof text - strlen(text), " %" PRId64, a.c[i]);
    case_begin(c, "concat of %" PRId64 " rows of%s", a.rows, text);
    int y = case_output(c, "y", a.rows, whole), dy = case_input(c, "dy", a.rows, whole);
    for (int i = 0; i < CONCAT_MOST && a.c[i]; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        forward[CONCAT_FWD_X + i] = case_input(c, name, a.rows, a.c[i]);
        snprintf(name, sizeof name, "dx%d", i);
        backward[CONCAT_BWD_DX + i] = case_output(c, name, a.rows, a.c[i]);
        written |= 1u << (CONCAT_BWD_DX + i);
        case_gradient(c, forward[CONCAT_FWD_X + i], backward[CONCAT_BWD_DX + i], false);
    }
    forward[CONCAT_FWD_Y] = y;
    backward[CONCAT_BWD_DY] = dy;
    op_desc op = {.kind = OP_concat_forward, .type = DTYPE_F64, .u.concat = a};
    case_add_step(c, &op, forward, 1 << CONCAT_FWD_Y);
    c->forward_steps = c->step_count;
    op.kind = OP_concat_backward;
    case_add_step(c, &op, backward, written);
    case_objective(c, y, dy);
}

static void name_pool(op_case *c, const char *what, pool_attributes *a)
{
    a->p = windows(a->h, a->pad, a->r, a->stride);
    a->q = windows(a->w, a->pad, a->s, a->stride);
    case_begin(c,
               "%s %" PRId64 "x%" PRId64 "x%" PRId64 "x%" PRId64 " window %" PRId64 "x%" PRId64
               " stride %" PRId64 " pad %" PRId64,
               what, a->n, a->h, a->w, a->c, a->r, a->s, a->stride, a->pad);
}

void case_maxpool(op_case *c, pool_attributes a)
{
    name_pool(c, "maxpool", &a);
    int x = case_input(c, "x", a.n * a.h * a.w, a.c), y = case_output(c, "y", a.n * a.p * a.q, a.c);
    int index = case_output(c, "index", a.n * a.p * a.q, a.c);
    int dy = case_input(c, "dy", a.n * a.p * a.q, a.c), dx = case_output(c, "dx", a.n * a.h * a.w, a.c);
    c->tensors[index].type = CASE_U8;
    op_desc op = {.kind = OP_maxpool_forward, .type = DTYPE_F64, .u.pool = a};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){x, y, index}, 1 << MAXPOOL_FWD_Y | 1 << MAXPOOL_FWD_INDEX);
    c->forward_steps = c->step_count;
    op.kind = OP_maxpool_backward;
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){dy, index, dx}, 1 << MAXPOOL_BWD_DX);
    case_objective(c, y, dy);
    case_gradient(c, x, dx, false);
}

void case_avgpool(op_case *c, pool_attributes a)
{
    name_pool(c, "avgpool", &a);
    int x = case_input(c, "x", a.n * a.h * a.w, a.c), y = case_output(c, "y", a.n * a.p * a.q, a.c);
    int dy = case_input(c, "dy", a.n * a.p * a.q, a.c), dx = case_output(c, "dx", a.n * a.h * a.w, a.c);
    op_desc op = {.kind = OP_avgpool_forward, .type = DTYPE_F64, .u.pool = a};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){x, y}, 1 << AVGPOOL_FWD_Y);
    c->forward_steps = c->step_count;
    op.kind = OP_avgpool_backward;
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){dy, dx}, 1 << AVGPOOL_BWD_DX);
    case_objective(c, y, dy);
    case_gradient(c, x, dx, false);
}
