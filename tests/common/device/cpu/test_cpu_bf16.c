/* Tests products in bfloat16. If bfloat16 represents the factors exactly, only the sums are rounded, so
 * results must be as close to the reference as products in float32. If factors are rounded, this must be
 * visible in the results. */
#include "tests/common/device/cpu/cpu_test.h"
#include "tests/common/device/op_compare.h"
#include "tests/common/device/op_runner.h"
#include "tests/common/device/op_table.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Opens the device in bfloat16. Skips the test if the processor does not multiply bfloat16. */
static device *open_bf16(int threads)
{
    device_config config = {
        .name = "cpu", .world = 1, .threads = threads, .precision = DEVICE_PRECISION_BF16};
    device *d = NULL;
    status rc = device_open(&config, &d);
    if (rc == STATUS_CONFIG) {
        print_message("# skipped: %s\n", error_message());
        error_clear();
        skip();
    }
    must(rc);
    return d;
}

/* ---- rounding --------------------------------------------------------------------------------- */

/* Rounds to the nearer of the two neighbors. Of two neighbors that are equally near, takes the one with an
 * even last bit. */
static uint16_t rounded(float value)
{
    uint32_t bits = bits_of(value), low = bits & 0xffff0000u, high = low + 0x10000u;
    if (isnan(value)) return (uint16_t)(bits >> 16 | 0x40);
    uint32_t rest = bits & 0xffff;
    if (rest != 0x8000) return (uint16_t)((rest < 0x8000 ? low : high) >> 16);
    return (uint16_t)((low >> 16 & 1 ? high : low) >> 16);
}

static void float32_goes_to_the_nearest_bfloat16_on_every_instruction_set(void **state)
{
    static const uint32_t rests[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    enum { RESTS = sizeof rests / sizeof rests[0], COUNT = 0x10000 * RESTS };
    (void)state;
    float *from = malloc(COUNT * sizeof *from);
    uint16_t *to = malloc(COUNT * sizeof *to);
    for (uint32_t i = 0; i < COUNT; i++) from[i] = float_of((i / RESTS) << 16 | rests[i % RESTS]);
    for (int k = 0; k < CPU_ISA_COUNT; k++) {
        if (!cpu_isa_supported(cpu_isas[k])) continue;
        for (int64_t cut = 0; cut < 20; cut++) { /* Tries ends of all lengths. */
            int64_t count = cut ? 1000 + cut : COUNT;
            cpu_isas[k]->elementwise->to_bf16(from + cut, to, count - cut);
            for (int64_t i = 0; i < count - cut; i++)
                if (to[i] != rounded(from[i + cut]))
                    fail_msg("%s: %a: found %04x, expected %04x", cpu_isas[k]->name, (double)from[i + cut],
                             to[i], rounded(from[i + cut]));
        }
    }
    free(from);
    free(to);
}

/* ---- operations ------------------------------------------------------------------------------- */

/* Returns true for operations that multiply their operands without changing them first. */
static bool takes_part(const op_desc *op)
{
    switch (op->kind) {
    case OP_conv2d_forward:
    case OP_conv2d_backward_data:
    case OP_conv2d_backward_weights:
        return true;
    case OP_linear_forward:
    case OP_linear_backward_data:
    case OP_linear_backward_weights:
        return op->u.linear.act == ACTIVATION_NONE;
    default:
        return false;
    }
}

static void round_state(case_state *s)
{
    for (int i = 1; i <= s->c->tensor_count; i++)
        for (int64_t j = 0; !s->c->tensors[i].base && j < s->c->tensors[i].count; j++)
            if (s->c->tensors[i].type == CASE_COMPUTE)
                s->values[i][j] = (double)float_of((uint32_t)rounded((float)s->values[i][j]) << 16);
}

static void run_step(op_runner *r, int step, const case_state *from, case_state *to)
{
    op_runner_load(r, from);
    op_runner_run(r, step, step + 1);
    op_runner_store(r, to);
}

static void compare_step(const op_case *c, int step, const case_state *found, const case_state *expected)
{
    for (int slot = 0; slot < OP_MAX_OPERANDS; slot++) {
        if (!(c->steps[step].written >> slot & 1)) continue;
        int tensor = case_owner(c, c->steps[step].operand[slot]);
        int64_t i = op_first_difference(found->values[tensor], expected->values[tensor],
                                        c->tensors[tensor].used, op_tolerance(&c->steps[step].op, DTYPE_F32));
        if (i >= 0)
            fail_msg("%s of %s: %s[%lld] is %.9g, the reference has %.9g", op_name(c->steps[step].op.kind),
                     c->name, c->tensors[tensor].name, (long long)i, found->values[tensor][i],
                     expected->values[tensor][i]);
    }
}

static void check_case(device *tested, device *oracle, const op_case *c)
{
    op_runner on_tested, on_oracle;
    case_state before, found, again, expected;
    op_runner_open(tested, c, &on_tested);
    op_runner_open(oracle, c, &on_oracle);
    case_state *const states[] = {&before, &found, &again, &expected};
    for (int i = 0; i < 4; i++) case_state_open(c, states[i]);
    for (int step = 0; step < c->step_count; step++) {
        round_state(&before);
        run_step(&on_oracle, step, &before, &expected);
        run_step(&on_tested, step, &before, &found);
        run_step(&on_tested, step, &before, &again);
        compare_step(c, step, &found, &expected);
        for (int i = 1; i <= c->tensor_count; i++)
            if (!c->tensors[i].base)
                assert_memory_equal(found.values[i], again.values[i],
                                    (size_t)c->tensors[i].used * sizeof(double));
        case_state_copy(&before, &expected);
    }
    for (int i = 0; i < 4; i++) case_state_close(states[i]);
    op_runner_close(&on_tested);
    op_runner_close(&on_oracle);
}

static void products_of_bfloat16_meet_the_reference(void **state)
{
    (void)state;
    device *tested = open_bf16(1); /* Comes first, since it may skip the test. */
    op_case *cases = calloc(OP_TABLE_CAPACITY, sizeof *cases);
    int count = op_table_build(cases), checked = 0;
    device *oracle = NULL;
    must(device_open(&(device_config){.name = "reference", .world = 1, .threads = 1}, &oracle));
    for (int threads = 1; threads <= 2; threads++) {
        if (!tested) tested = open_bf16(threads);
        for (int i = 0; i < count; i++) {
            if (!takes_part(&cases[i].steps[0].op)) continue;
            check_case(tested, oracle, &cases[i]);
            checked++;
        }
        device_close(&tested);
    }
    device_close(&oracle);
    free(cases);
    assert_true(checked >= 2 * 25);
}

static void factors_are_rounded(void **state)
{
    enum { ROWS = 32, SIZE = 64 };
    (void)state;
    device *d = open_bf16(1);
    float *x = cpu_test_blank(ROWS * SIZE), *w = cpu_test_blank(SIZE * SIZE),
          *y = cpu_test_blank(ROWS * SIZE);
    for (int i = 0; i < ROWS * SIZE; i++)
        x[i] = 1 + 0x1p-10f; /* A quarter of a rounding unit above 1, which bfloat16 rounds to 1. */
    for (int i = 0; i < SIZE * SIZE; i++) w[i] = 1;
    op_desc op;
    memset(&op, 0, sizeof op);
    op.kind = OP_linear_forward;
    op.u.linear = (linear_attributes){.m = ROWS, .in = SIZE, .out = SIZE};
    void *operands[OP_MAX_OPERANDS] = {[LINEAR_FWD_X] = x, [LINEAR_FWD_W] = w, [LINEAR_FWD_Y] = y};
    cpu_test_run(d, op, NULL, operands, NULL);
    for (int i = 0; i < ROWS * SIZE; i++)
        if (y[i] != SIZE) fail_msg("y[%d] is %.9g, expected %d", i, (double)y[i], SIZE);
    free(x);
    free(w);
    free(y);
    device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float32_goes_to_the_nearest_bfloat16_on_every_instruction_set),
        cmocka_unit_test(products_of_bfloat16_meet_the_reference),
        cmocka_unit_test(factors_are_rounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
