/* Every device against the reference, every operation by itself over the whole table: both devices start
 * a step from the same values, rounded to what the device under test computes in. */
#include "tests/common/device/op_compare.h"
#include "tests/common/device/op_devices.h"
#include "tests/common/device/op_runner.h"
#include "tests/common/device/op_table.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct setting_test {
    const op_case *c;
    int setting; /* in device_settings */
    char name[192];
} setting_test;

static device *devices[DEVICE_SETTINGS];

/* Opened when first used, for all tests: opening a GPU is slow. */
static device *device_at(int setting)
{
    if (!devices[setting]) devices[setting] = device_setting_open(device_settings[setting]);
    return devices[setting];
}

/* Runs one step from `from` and leaves all tensors in `to`. */
static void run_step(op_runner *r, int step, const case_state *from, case_state *to)
{
    op_runner_load(r, from);
    op_runner_run(r, step, step + 1);
    op_runner_store(r, to);
}

static bool writes(const op_case *c, int step, int tensor)
{
    for (int slot = 0; slot < OP_MAX_OPERANDS; slot++)
        if (c->steps[step].written >> slot & 1 && case_owner(c, c->steps[step].operand[slot]) == tensor)
            return true;
    return false;
}

static void compare_written(const op_runner *r, int step, int tensor, const case_state *found,
                            const case_state *expected, int precision)
{
    const op_case *c = r->c;
    dtype type = device_get_info(r->device)->compute_type;
    const op_desc *op = &c->steps[step].op;
    const case_tensor *t = &c->tensors[tensor];
    double tolerance = t->type == CASE_I32 || t->type == CASE_U8 ? 0 : op_tolerance_in(op, type, (device_precision)precision);
    if (device_get_info(r->device)->bf16 && t->type == CASE_COMPUTE) tolerance += op_tolerance_of_storage(op);
    int64_t i = op_first_difference_stored(found->values[tensor], expected->values[tensor], t->used, tolerance,
                                           op_runner_is_bf16(r, tensor) ? 0x1p-8 : 0);
    if (i >= 0)
        fail_msg("%s of %s: %s[%lld] is %.9g, the reference has %.9g", op_name(op->kind), c->name, t->name,
                 (long long)i, found->values[tensor][i], expected->values[tensor][i]);
}

static void compare_untouched(const op_case *c, int step, int tensor, const case_state *found,
                              const case_state *before)
{
    size_t bytes = (size_t)c->tensors[tensor].count * sizeof(double);
    if (memcmp(found->values[tensor], before->values[tensor], bytes) != 0)
        fail_msg("%s of %s changed %s, which it only reads", op_name(c->steps[step].op.kind), c->name,
                 c->tensors[tensor].name);
}

static void operations_agree_with_the_reference(void **context)
{
    const setting_test *test = *context;
    const op_case *c = test->c;
    device *tested = device_at(test->setting), *oracle = device_at(0);
    op_runner on_tested, on_oracle;
    case_state before, found, again, expected;
    case_state *const states[] = {&before, &found, &again, &expected};
    op_runner_open(tested, c, &on_tested);
    op_runner_open(oracle, c, &on_oracle);
    for (int i = 0; i < 4; i++) case_state_open(c, states[i]);
    for (int step = 0; step < c->step_count; step++) {
        op_runner_round(&on_tested, &before);
        run_step(&on_oracle, step, &before, &expected);
        run_step(&on_tested, step, &before, &found);
        run_step(&on_tested, step, &before, &again);
        for (int i = 1; i <= c->tensor_count; i++) {
            if (c->tensors[i].base) continue;
            if (writes(c, step, i))
                compare_written(&on_tested, step, i, &found, &expected, device_settings[test->setting].precision);
            else
                compare_untouched(c, step, i, &found, &before);
            size_t used = (size_t)c->tensors[i].used * sizeof(double);
            if (memcmp(found.values[i], again.values[i], used) != 0)
                fail_msg("%s: a second run gives other bits in %s", c->name, c->tensors[i].name);
        }
        case_state_copy(&before, &expected);
    }
    for (int i = 0; i < 4; i++) case_state_close(states[i]);
    op_runner_close(&on_tested);
    op_runner_close(&on_oracle);
}

/* ---- the comparison itself -------------------------------------------------------------------- */

static int by_magnitude(const void *a, const void *b)
{
    double x = fabs(*(const double *)a), y = fabs(*(const double *)b);
    return x < y ? -1 : x > y;
}

/* The median magnitude of what is not zero; 0 if all are. */
static double median_magnitude(const double *values, int64_t count)
{
    double *sorted = malloc((size_t)count * sizeof *sorted);
    int64_t used = 0;
    assert_non_null(sorted);
    for (int64_t i = 0; i < count; i++)
        if (values[i] != 0) sorted[used++] = values[i];
    qsort(sorted, (size_t)used, sizeof *sorted, by_magnitude);
    double median = used ? fabs(sorted[used / 2]) : 0;
    free(sorted);
    return median;
}

static const char *precision_name(int precision)
{
    static const char *const names[] = {"float32", "tf32", "bf16"};
    return names[precision];
}

static void check_sensitivity(const op_case *c, int step, int tensor, const case_state *after)
{
    const case_tensor *t = &c->tensors[tensor];
    const double *exact = after->values[tensor];
    double median = median_magnitude(exact, t->used), tolerance = op_tolerance(&c->steps[step].op, DTYPE_F32);
    double *wrong = malloc((size_t)t->used * sizeof *wrong);
    assert_non_null(wrong);
    for (int64_t i = 0; i < t->used && median > 1e-6; i++) {
        if (fabs(exact[i]) < median) continue;
        memcpy(wrong, exact, (size_t)t->used * sizeof *wrong);
        wrong[i] *= 1.01;
        if (op_first_difference(wrong, exact, t->used, tolerance) != i)
            fail_msg("%s: 1%% more in %s[%lld] = %.9g passes", c->name, t->name, (long long)i, exact[i]);
        break;
    }
    for (int64_t i = 0; i < t->used; i++) {
        int64_t row = i / t->columns, column = i % t->columns;
        int64_t other = column / 2 * 2 + 1 < t->columns ? column ^ 1 : column;
        wrong[i] = exact[row * t->columns + other];
    }
    bool differs = false;
    for (int64_t i = 0; i < t->used; i++) differs |= fabs(wrong[i] - exact[i]) > 1e-6;
    if (differs && op_first_difference(wrong, exact, t->used, tolerance) < 0)
        fail_msg("%s: exchanged columns of %s pass", c->name, t->name);
    free(wrong);
}

static void comparison_notices_small_errors(void **context)
{
    const setting_test *test = *context;
    const op_case *c = test->c;
    op_runner runner;
    case_state state;
    op_runner_open(device_at(0), c, &runner);
    case_state_open(c, &state);
    for (int step = 0; step < c->step_count; step++) {
        run_step(&runner, step, &state, &state);
        for (int i = 1; i <= c->tensor_count; i++)
            if (!c->tensors[i].base && writes(c, step, i)) check_sensitivity(c, step, i, &state);
    }
    case_state_close(&state);
    op_runner_close(&runner);
}

int main(void)
{
    static struct CMUnitTest tests[(DEVICE_SETTINGS + 1) * OP_TABLE_CAPACITY];
    op_case *cases = calloc(OP_TABLE_CAPACITY, sizeof *cases);
    setting_test *contexts = calloc((DEVICE_SETTINGS + 1) * OP_TABLE_CAPACITY, sizeof *contexts);
    if (!cases || !contexts) return 1;
    int count = op_table_build(cases), used = 0;
    bool in_float32 = device_settings[1].precision == DEVICE_PRECISION_F32; /* the comparison itself is tested there */
    for (int i = 0; i < count && in_float32; i++, used++) {
        contexts[used].c = &cases[i];
        snprintf(contexts[used].name, sizeof contexts[used].name, "1%% is noticed: %s", cases[i].name);
        tests[used] = (struct CMUnitTest){contexts[used].name, comparison_notices_small_errors, NULL, NULL,
                                          &contexts[used]};
    }
    for (int s = 0; s < device_setting_count; s++)
        for (int i = 0; i < count; i++, used++) {
            contexts[used] = (setting_test){.c = &cases[i], .setting = s};
            snprintf(contexts[used].name, sizeof contexts[used].name,
                     "%s in %s with %d threads agrees with the reference: %s",
                     device_settings[s].name, precision_name(device_settings[s].precision),
                     device_settings[s].threads, cases[i].name);
            tests[used] = (struct CMUnitTest){contexts[used].name, operations_agree_with_the_reference, NULL,
                                              NULL, &contexts[used]};
        }
    int failed = _cmocka_run_group_tests("devices agree with the reference", tests, (size_t)used, NULL, NULL);
    for (int s = 0; s < DEVICE_SETTINGS; s++) device_close(&devices[s]);
    free(contexts);
    free(cases);
    return failed;
}
