#include "tests/common/device/op_families.h"

#include <inttypes.h>
#include <math.h>

/* Divides an arena into two pieces, with gaps like padding before, between and after the pieces. A short
 * arena is a single piece. */
static void cut_pieces(op_case *c, int64_t count)
{
    c->pieces[0] = (piece){0, count};
    c->scalars.pieces = c->pieces;
    c->scalars.piece_count = 1;
    if (count < 8) return;
    c->pieces[0] = (piece){1, count / 2 - 1};
    c->pieces[1] = (piece){count / 2 + 2, count - count / 2 - 3};
    c->scalars.piece_count = 2;
}

static void begin_update(op_case *c, optimizer_attributes a, case_update u)
{
    c->scalars.learning_rate = u.learning_rate;
    c->scalars.weight_decay = u.weight_decay;
    c->scalars.gradient_scale = u.gradient_scale;
    c->scalars.first_step = u.step == 0;
    c->scalars.bias_correction1 = 1 - pow(a.beta1, (double)(u.step + 1));
    c->scalars.bias_correction2 = 1 - pow(a.beta2, (double)(u.step + 1));
    cut_pieces(c, a.count);
}

void case_sgd(op_case *c, optimizer_attributes a, case_update u)
{
    case_begin(c, "sgd of %" PRId64 " momentum %g dampening %g decay %g scale %g%s step %" PRId64, a.count,
               a.momentum, a.dampening, u.weight_decay, u.gradient_scale, a.nesterov ? " nesterov" : "",
               u.step);
    begin_update(c, a, u);
    int param = case_input(c, "param", 1, a.count), grad = case_input(c, "grad", 1, a.count);
    int state = a.momentum != 0 ? case_input(c, "state1", 1, a.count) : CASE_NONE;
    op_desc op = {.kind = OP_sgd, .type = DTYPE_F64, .u.optimizer = a};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){param, grad, state}, 1 << OPT_PARAM | 1 << OPT_STATE1);
    c->forward_steps = c->step_count;
}

void case_adam(op_case *c, optimizer_attributes a, case_update u)
{
    case_begin(c, "%s of %" PRId64 " betas %g %g decay %g scale %g step %" PRId64,
               a.decoupled ? "adamw" : "adam", a.count, a.beta1, a.beta2, u.weight_decay, u.gradient_scale,
               u.step);
    begin_update(c, a, u);
    case_fill second = u.step == 0 ? FILL_ZERO : FILL_POSITIVE;
    int param = case_input(c, "param", 1, a.count), grad = case_input(c, "grad", 1, a.count);
    int state1 = case_tensor_add(c, "state1", u.step == 0 ? FILL_ZERO : FILL_SIGNED, 1, a.count);
    int state2 = case_tensor_add(c, "state2", second, 1, a.count);
    op_desc op = {.kind = OP_adam, .type = DTYPE_F64, .u.optimizer = a};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){param, grad, state1, state2},
                  1 << OPT_PARAM | 1 << OPT_STATE1 | 1 << OPT_STATE2);
    c->forward_steps = c->step_count;
}

void case_sum_squares(op_case *c, int64_t count)
{
    case_begin(c, "sum of squares of %" PRId64, count);
    cut_pieces(c, count);
    int x = case_input(c, "x", 1, count), out = case_input(c, "out", 1, 1);
    c->tensors[out].type = CASE_F64;
    op_desc op = {.kind = OP_sum_squares, .type = DTYPE_F64, .u.optimizer = {.count = count}};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){x, out}, 1 << SUMSQ_OUT);
    c->forward_steps = c->step_count;
}

void case_divide(op_case *c, int64_t count, double divisor)
{
    case_begin(c, "divide %" PRId64 " by %g", count, divisor);
    cut_pieces(c, count);
    c->scalars.divisor = divisor;
    int x = case_input(c, "x", 1, count);
    op_desc op = {.kind = OP_divide, .type = DTYPE_F64, .u.elementwise = {.count = count}};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){x}, 1 << DIVIDE_X);
    c->forward_steps = c->step_count;
}

void case_clear(op_case *c, int64_t count)
{
    case_begin(c, "fill %" PRId64, count);
    cut_pieces(c, count);
    int x = case_input(c, "x", 1, count);
    op_desc op = {.kind = OP_fill, .type = DTYPE_F64, .u.elementwise = {.count = count}};
    case_add_step(c, &op, (int[OP_MAX_OPERANDS]){x}, 1 << FILL_X);
    c->forward_steps = c->step_count;
}
