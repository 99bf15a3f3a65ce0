/* Tests that the table of cases has every operation, with every kind of size. */
#include "tests/common/device/op_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VECTOR = 16 }; /* Number of elements in the widest vector register. */

static bool is_prime(int64_t n)
{
    for (int64_t d = 2; d * d <= n; d++)
        if (n % d == 0) return false;
    return n > 1;
}

/* Kinds of sizes that the table has for an operation. */
typedef struct coverage {
    int cases, with_gradients;
    bool one, prime, odd_vectors; /* An extent of 1, a prime, and an extent larger than a vector that is no
                                     multiple of a vector. */
} coverage;

static void note_extent(coverage *c, int64_t extent)
{
    c->one |= extent == 1;
    c->prime |= is_prime(extent);
    c->odd_vectors |= extent > VECTOR && extent % VECTOR != 0;
}

static void note_tensor(coverage *c, const case_tensor *t)
{
    if (t->type != CASE_COMPUTE) return;
    note_extent(c, t->count);
    note_extent(c, t->columns);
    note_extent(c, t->count / t->columns);
    for (int i = 0; i < t->shape.rank; i++) note_extent(c, t->shape.dims[i]);
}

static void note_case(coverage *all, const op_case *c)
{
    for (int s = 0; s < c->step_count; s++) {
        coverage *found = &all[c->steps[s].op.kind];
        found->cases++;
        found->with_gradients += c->gradient_count > 0;
        for (int slot = 0; slot < OP_MAX_OPERANDS; slot++)
            if (c->steps[s].operand[slot]) note_tensor(found, &c->tensors[c->steps[s].operand[slot]]);
    }
}

static void every_operation_has_cases_of_every_kind_of_size(void **state)
{
    const coverage *all = *state;
    for (int kind = 0; kind < OP_recorded; kind++) { /* which no real device runs */
        const coverage *c = &all[kind];
        if (c->cases == 0) fail_msg("%s has no case in op_table.c", op_name((op_kind)kind));
        if (!c->one) fail_msg("%s has no case with an extent of 1", op_name((op_kind)kind));
        if (!c->prime) fail_msg("%s has no case with a prime extent", op_name((op_kind)kind));
        if (!c->odd_vectors)
            fail_msg("%s has no case beyond a vector that no vector divides", op_name((op_kind)kind));
    }
}

static void every_gradient_is_held_to_finite_differences(void **state)
{
    const coverage *all = *state;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        const char *name = op_name((op_kind)kind);
        bool has_gradient = strstr(name, "backward") || op_class_of((op_kind)kind) == OP_CLASS_LOSS ||
                            kind == OP_scatter_rows;
        if (has_gradient && all[kind].with_gradients == 0)
            fail_msg("no case checks the gradients of %s", name);
    }
}

static int build(void **state)
{
    static coverage all[OP_COUNT];
    op_case *cases = calloc(OP_TABLE_CAPACITY, sizeof *cases);
    if (!cases) return -1;
    int count = op_table_build(cases);
    for (int i = 0; i < count; i++) note_case(all, &cases[i]);
    free(cases);
    *state = all;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_has_cases_of_every_kind_of_size),
        cmocka_unit_test(every_gradient_is_held_to_finite_differences),
    };
    return cmocka_run_group_tests(tests, build, NULL);
}
