/* Tests that the comparison of test_op_devices.c is strict enough: it finds errors in every tensor that a
 * step of its table writes. */
#include "tests/common/device/op_compare.h"
#include "tests/common/device/op_devices.h"
#include "tests/common/device/op_runner.h"
#include "tests/common/device/op_table.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Makes an error in a copy of the result. Fails if the comparison does not find the error. */
typedef void (*check)(const op_case *c, const case_tensor *t, const double *exact, double *wrong,
                      double tolerance);

static int by_magnitude(const void *a, const void *b)
{
    double x = fabs(*(const double *)a), y = fabs(*(const double *)b);
    return x < y ? -1 : x > y;
}

/* Returns the median magnitude of the values that are not zero, or 0 if all are zero. */
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

static void check_one_percent(const op_case *c, const case_tensor *t, const double *exact, double *wrong,
                              double tolerance)
{
    double median = median_magnitude(exact, t->used);
    if (median <= 1e-6) return;
    int64_t i = 0;
    while (fabs(exact[i]) < median) i++;
    wrong[i] *= 1.01;
    if (op_first_difference(wrong, exact, t->used, tolerance) != i)
        fail_msg("%s: 1%% more in %s[%lld] = %.9g passes", c->name, t->name, (long long)i, exact[i]);
}

static void check_columns(const op_case *c, const case_tensor *t, const double *exact, double *wrong,
                          double tolerance)
{
    bool differs = false;
    for (int64_t i = 0; i < t->used; i++) {
        int64_t row = i / t->columns, column = i % t->columns;
        int64_t other = column / 2 * 2 + 1 < t->columns ? column ^ 1 : column;
        wrong[i] = exact[row * t->columns + other];
        differs |= fabs(wrong[i] - exact[i]) > 1e-6;
    }
    if (differs && op_first_difference(wrong, exact, t->used, tolerance) < 0)
        fail_msg("%s: exchanged columns of %s pass", c->name, t->name);
}

static void check_case(device *reference, const op_case *c, check each)
{
    op_runner runner;
    case_state state;
    op_runner_open(reference, c, &runner);
    case_state_open(c, &state);
    for (int step = 0; step < c->step_count; step++) {
        op_runner_step(&runner, step, &state, &state);
        for (int i = 1; i <= c->tensor_count; i++) {
            const case_tensor *t = &c->tensors[i];
            if (t->base || !case_writes(c, step, i)) continue;
            double *wrong = malloc((size_t)t->count * sizeof *wrong);
            assert_non_null(wrong);
            memcpy(wrong, state.values[i], (size_t)t->used * sizeof *wrong);
            each(c, t, state.values[i], wrong, op_tolerance(&c->steps[step].op, DTYPE_F32));
            free(wrong);
        }
    }
    case_state_close(&state);
    op_runner_close(&runner);
}

static void check_table(check each)
{
    op_case *cases = calloc(OP_TABLE_CAPACITY, sizeof *cases);
    device *reference = device_setting_open(device_settings[0]);
    assert_non_null(cases);
    int count = op_table_build(cases);
    for (int i = 0; i < count; i++) check_case(reference, &cases[i], each);
    device_close(&reference);
    free(cases);
}

static void one_percent_more_in_one_element_of_a_result_is_noticed(void **state)
{
    (void)state;
    check_table(check_one_percent);
}

static void exchanged_columns_of_a_result_are_noticed(void **state)
{
    (void)state;
    check_table(check_columns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_percent_more_in_one_element_of_a_result_is_noticed),
        cmocka_unit_test(exchanged_columns_of_a_result_are_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
