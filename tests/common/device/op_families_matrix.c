#include "tests/common/device/op_families.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Declares only the first rows of a tensor with `columns` columns as used. */
static void limit_rows(op_case *c, int tensor, int64_t rows)
{
    if (tensor && rows > 0) c->tensors[tensor].used = rows * c->tensors[tensor].columns;
}

static void name_rows(op_case *c, int64_t rows)
{
    size_t used = strlen(c->name);
    if (rows > 0) snprintf(c->name + used, sizeof c->name - used, ", %" PRId64 " rows in use", rows);
    c->scalars.rows = rows;
}

void case_linear(op_case *c, linear_attributes a, case_options o)
{
    case_begin(c, "linear %" PRId64 "x%" PRId64 " to %" PRId64 " %s%s%s%s", a.m, a.in, a.out,
               activation_name(a.act), a.bias ? " bias" : "", a.flat_c ? " after an image" : "",
               case_options_text(o));
    name_rows(c, o.rows);
    c->scalars.accumulate = o.micro_batch;
    bool adds = o.accumulate || o.micro_batch,
         keeps_slope = a.act != ACTIVATION_NONE && a.act != ACTIVATION_RELU;
    int x = case_input(c, "x", a.m, a.in), w = case_parameter(c, "w", FILL_SIGNED, shape_2d(a.out, a.in));
    int b = a.bias ? case_parameter(c, "b", FILL_SIGNED, shape_1d(a.out)) : CASE_NONE;
    int y = case_output(c, "y", a.m, a.out),
        slope = keeps_slope ? case_output(c, "slope", a.m, a.out) : CASE_NONE;
    int dy = case_input(c, "dy", a.m, a.out);
    int dx = o.accumulate ? case_input(c, "dx", a.m, a.in) : case_output(c, "dx", a.m, a.in);
    int dw = case_parameter_gradient(c, "dw", w, adds);
    int db = a.bias ? case_parameter_gradient(c, "db", b, adds) : CASE_NONE;
    int kept = a.act == ACTIVATION_RELU ? y : slope;
    int by_row[] = {x, y, slope, dy, dx};
    for (int i = 0; i < 5; i++) limit_rows(c, by_row[i], o.rows);
    op_desc op = {.kind = OP_linear_forward, .type = DTYPE_F64, .u.linear = a};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){x, w, b, y, slope},
                  1 << LINEAR_FWD_Y | 1 << LINEAR_FWD_SLOPE)
        ->layout = w;
    c->forward_steps = c->step_count;
    op.kind = OP_linear_backward_weights;
    op.accumulate = o.accumulate;
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){x, dy, dw, db, kept},
                  1 << LINEAR_BWD_WEIGHTS_DW | 1 << LINEAR_BWD_WEIGHTS_DB |
                      (a.act != ACTIVATION_NONE) << LINEAR_BWD_WEIGHTS_DY)
        ->layout = w;
    op.kind = OP_linear_backward_data;
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){dy, w, dx}, 1 << LINEAR_BWD_DATA_DX)->layout = w;
    /* A large layer has so many kinks that some are closer to x than the step of a finite difference. */
    if (a.act == ACTIVATION_RELU && a.out > 1024) return;
    case_objective(c, y, dy);
    case_gradient(c, x, dx, o.accumulate);
    case_gradient(c, w, dw, adds);
    if (a.bias) case_gradient(c, b, db, adds);
}

void case_layernorm(op_case *c, layernorm_attributes a, case_options o)
{
    case_begin(c, "layernorm %" PRId64 "x%" PRId64 "%s%s%s", a.m, a.c, a.residual ? " residual" : "",
               a.dsum ? " dsum" : "", case_options_text(o));
    name_rows(c, o.rows);
    c->scalars.accumulate = o.micro_batch;
    bool adds = o.accumulate || o.micro_batch, in_place = o.alias == ALIAS_IN_PLACE;
    int x = case_input(c, "x", a.m, a.c),
        residual = a.residual ? case_input(c, "residual", a.m, a.c) : CASE_NONE;
    int gamma = case_parameter(c, "gamma", FILL_POSITIVE, shape_1d(a.c));
    int beta = case_parameter(c, "beta", FILL_SIGNED, shape_1d(a.c));
    int y = case_output(c, "y", a.m, a.c), sum = CASE_NONE;
    if (a.residual) sum = in_place ? x : case_output(c, "sum", a.m, a.c);
    int mean = case_output(c, "mean", a.m, 1), invstd = case_output(c, "invstd", a.m, 1);
    int dy = case_input(c, "dy", a.m, a.c), dsum = a.dsum ? case_input(c, "dsum", a.m, a.c) : CASE_NONE;
    int dx = in_place ? dy : case_output(c, "dx", a.m, a.c), normalized = a.residual ? sum : x;
    int dgamma = case_parameter_gradient(c, "dgamma", gamma, adds);
    int dbeta = case_parameter_gradient(c, "dbeta", beta, adds);
    int by_row[] = {x, residual, y, sum, mean, invstd, dy, dsum, dx};
    for (int i = 0; i < 9; i++) limit_rows(c, by_row[i], o.rows);
    op_desc op = {.kind = OP_layernorm_forward, .type = DTYPE_F64, .u.layernorm = a};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){x, residual, gamma, beta, y, sum, mean, invstd},
                  1 << LN_FWD_Y | 1 << LN_FWD_SUM | 1 << LN_FWD_MEAN | 1 << LN_FWD_INVSTD);
    c->forward_steps = c->step_count;
    op.kind = OP_layernorm_backward;
    op.accumulate = o.accumulate;
    case_add_step(c, &op,
                  (int[OP_MAX_OPERANDS]){normalized, gamma, mean, invstd, dy, dsum, dx, dgamma, dbeta},
                  1 << LN_BWD_DX | 1 << LN_BWD_DGAMMA | 1 << LN_BWD_DBETA);
    case_objective(c, y, dy);
    if (a.dsum) case_objective(c, normalized, dsum);
    case_gradient(c, x, dx, false);
    if (a.residual) case_gradient(c, residual, dx, false);
    case_gradient(c, gamma, dgamma, adds);
    case_gradient(c, beta, dbeta, adds);
}

void case_activation(op_case *c, elementwise_attributes a, case_options o)
{
    case_begin(c, "activation %s of %" PRId64 "%s", activation_name(a.act), a.count, case_options_text(o));
    bool in_place = o.alias == ALIAS_IN_PLACE;
    int x = case_input(c, "x", 1, a.count), dy = case_input(c, "dy", 1, a.count);
    int y = in_place ? x : case_output(c, "y", 1, a.count),
        dx = in_place ? dy : case_output(c, "dx", 1, a.count);
    op_desc op = {.kind = OP_activation_forward, .type = DTYPE_F64, .u.elementwise = a};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){x, y}, 1 << ACT_FWD_Y);
    c->forward_steps = c->step_count;
    op.kind = OP_activation_backward;
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){a.act == ACTIVATION_RELU ? y : x, dy, dx}, 1 << ACT_BWD_DX);
    case_objective(c, y, dy);
    case_gradient(c, x, dx, false);
}

void case_add(op_case *c, elementwise_attributes attributes, case_options o)
{
    case_begin(c, "add of %" PRId64 "%s", attributes.count, case_options_text(o));
    int a = case_input(c, "a", 1, attributes.count), b = case_input(c, "b", 1, attributes.count);
    int y = o.alias == ALIAS_IN_PLACE ? b : case_output(c, "y", 1, attributes.count);
    op_desc op = {.kind = OP_add, .type = DTYPE_F64, .u.elementwise = attributes};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){a, b, y}, 1 << ADD_Y);
    c->forward_steps = c->step_count;
}

void case_cross_entropy(op_case *c, loss_attributes a, case_options o)
{
    case_begin(c, "cross entropy %" PRId64 "x%" PRId64 "%s%s", a.rows, a.classes,
               a.gradient ? "" : " without gradient", case_options_text(o));
    name_rows(c, o.rows);
    c->scalars.loss_normalizer = 3;
    int logits = case_input(c, "logits", a.rows, a.classes);
    int targets = case_integers(c, "targets", FILL_TARGET, a.rows, a.classes), dlogits = CASE_NONE;
    if (a.gradient)
        dlogits = o.alias == ALIAS_IN_PLACE ? logits : case_output(c, "dlogits", a.rows, a.classes);
    int sums = case_output(c, "sums", 1, 2);
    c->tensors[sums].type = CASE_F64;
    limit_rows(c, logits, o.rows);
    limit_rows(c, dlogits, o.rows);
    limit_rows(c, targets, o.rows);
    op_desc op = {.kind = OP_cross_entropy, .type = DTYPE_F64, .u.loss = a};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){logits, targets, dlogits, sums},
                  1 << LOSS_DLOGITS | 1 << LOSS_SUMS);
    c->forward_steps = c->step_count;
    case_objective(c, sums, CASE_NONE);
    if (a.gradient) case_gradient(c, logits, dlogits, false);
}

void case_mean_squared_error(op_case *c, loss_attributes a, case_options o)
{
    case_begin(c, "mean squared error %" PRId64 "x%" PRId64 "%s%s", a.rows, a.classes,
               a.gradient ? "" : " without gradient", case_options_text(o));
    name_rows(c, o.rows);
    c->scalars.loss_normalizer = 3;
    int y = case_input(c, "y", a.rows, a.classes), targets = case_input(c, "targets", a.rows, a.classes);
    int dy = CASE_NONE;
    if (a.gradient) dy = o.alias == ALIAS_IN_PLACE ? y : case_output(c, "dy", a.rows, a.classes);
    int sums = case_output(c, "sums", 1, 2);
    c->tensors[sums].type = CASE_F64;
    limit_rows(c, y, o.rows);
    limit_rows(c, targets, o.rows);
    limit_rows(c, dy, o.rows);
    op_desc op = {.kind = OP_mean_squared_error, .type = DTYPE_F64, .u.loss = a};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){y, targets, dy, sums}, 1 << LOSS_DLOGITS | 1 << LOSS_SUMS);
    c->forward_steps = c->step_count;
    case_objective(c, sums, CASE_NONE);
    if (a.gradient) case_gradient(c, y, dy, false);
}
