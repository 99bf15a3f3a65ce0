/* Compares the bytes of op_cost_of() with the sizes of the operands of the table's cases, slot by slot. */
#include "tests/common/device/op_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* Returns whether a slot that an operation writes is also read. */
static bool is_read_too(const op_desc *op, int slot)
{
    switch (op->kind) {
    case OP_batchnorm_forward:
        return slot == BN_FWD_RUNNING_MEAN || slot == BN_FWD_RUNNING_VAR;
    case OP_batchnorm_apply:
        return slot == BN_FWD_RUNNING_MEAN || slot == BN_FWD_RUNNING_VAR;
    case OP_linear_backward_weights:
        return slot == LINEAR_BWD_WEIGHTS_DY || op->accumulate;
    case OP_linear_backward_data:
    case OP_conv2d_backward_weights:
        return op->accumulate;
    case OP_batchnorm_backward:
        return op->accumulate && (slot == BN_BWD_DGAMMA || slot == BN_BWD_DBETA);
    case OP_batchnorm_backward_stats:
        return op->accumulate && (slot == BN_BWD_DGAMMA || slot == BN_BWD_DBETA);
    case OP_layernorm_backward:
        return op->accumulate && (slot == LN_BWD_DGAMMA || slot == LN_BWD_DBETA);
    case OP_sgd:
    case OP_adam:
    case OP_sum_squares:
    case OP_divide:
        return true;
    default:
        return false;
    }
}

static double bytes_of(const op_case *c, int tensor)
{
    static const double sizes[] = {[CASE_COMPUTE] = 8, [CASE_F64] = 8, [CASE_I32] = 4, [CASE_U8] = 1};
    const case_tensor *t = &c->tensors[tensor];
    if (!t->base) return (double)t->count * sizes[t->type];
    /* A view of q, k or v is a third of its base. The only other view holds a count, of 8 bytes. */
    int64_t third = c->tensors[t->base].count / 3;
    return t->type == CASE_F64 ? 8 : (double)third * 8;
}

static void check_step(const op_case *c, const case_step *step)
{
    double read = 0, written = 0;
    for (int slot = 0; slot < OP_MAX_OPERANDS; slot++) {
        if (!step->operand[slot]) continue;
        bool is_written = step->written >> slot & 1;
        if (is_written) written += bytes_of(c, step->operand[slot]);
        if (!is_written || is_read_too(&step->op, slot)) read += bytes_of(c, step->operand[slot]);
    }
    op_cost cost = op_cost_of(&step->op);
    if (cost.bytes_read != read || cost.bytes_written != written)
        fail_msg("%s of %s: cost has %.0f bytes read and %.0f written, the operands %.0f and %.0f",
                 op_name(step->op.kind), c->name, cost.bytes_read, cost.bytes_written, read, written);
}

/* Returns true for operations that read only some rows of an operand, or add to some rows. test_cost.c
 * compares them with figures worked out by hand. */
static bool touches_some_rows(const op_desc *op)
{
    return op->kind == OP_embedding_forward || op->kind == OP_embedding_backward ||
           op->kind == OP_gather_rows;
}

static void bytes_are_those_of_the_operands(void **context)
{
    op_case *cases = *context;
    int count = op_table_build(cases);
    for (int i = 0; i < count; i++)
        for (int s = 0; s < cases[i].step_count; s++)
            if (!touches_some_rows(&cases[i].steps[s].op)) check_step(&cases[i], &cases[i].steps[s]);
}

static void the_table_holds_every_operation(void **context)
{
    op_case *cases = *context;
    int count = op_table_build(cases), seen[OP_COUNT] = {0};
    for (int i = 0; i < count; i++)
        for (int s = 0; s < cases[i].step_count; s++) seen[cases[i].steps[s].op.kind]++;
    for (int kind = 0; kind < OP_recorded; kind++) /* which no real device runs */
        if (seen[kind] < 2) fail_msg("%s stands in %d cases", op_name((op_kind)kind), seen[kind]);
}

int main(void)
{
    op_case *cases = calloc(OP_TABLE_CAPACITY, sizeof *cases);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(bytes_are_those_of_the_operands, cases),
        cmocka_unit_test_prestate(the_table_holds_every_operation, cases),
    };
    int failed = cases ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
    free(cases);
    return failed;
}
