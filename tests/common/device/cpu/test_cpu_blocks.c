/* Compares the device with the reference at sizes that exceed the device's blocks; tests/common/device
 * compares small shapes. */
#include "tests/common/device/cpu/cpu_cases.h"
#include "tests/common/device/cpu/cpu_test.h"
#include "tests/common/device/op_compare.h"
#include "tests/common/device/op_runner.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* Runs all steps of the case on a device, from the same initial values. */
static void run_on(device *d, const op_case *c, case_state *state)
{
    op_runner runner;
    op_runner_open(d, c, &runner);
    op_runner_load(&runner, state);
    op_runner_run(&runner, 0, c->step_count);
    op_runner_store(&runner, state);
    op_runner_close(&runner);
}

/* Returns the tolerance of a case. The errors of one step affect the next one. */
static double tolerance_of(const op_case *c)
{
    double tolerance = 0;
    for (int i = 0; i < c->step_count; i++) tolerance += op_tolerance(&c->steps[i].op, DTYPE_F32);
    return tolerance;
}

static double root_mean_square(const double *values, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += values[i] * values[i];
    return sqrt(sum / (double)count);
}

/* Differences are relative to the element, or to the tensor's root mean square if that is larger. In causal
 * attention the first rows are far larger than the others. */
static void compare_tensor(const op_case *c, int tensor, const double *found, const double *expected)
{
    const case_tensor *t = &c->tensors[tensor];
    double tolerance = t->type == CASE_U8 || t->type == CASE_I32 ? 0 : tolerance_of(c);
    double scale = fmax(root_mean_square(expected, t->used), 0.05);
    for (int64_t i = 0; i < t->used; i++)
        if (!(fabs(found[i] - expected[i]) <= tolerance * fmax(scale, fabs(expected[i]))))
            fail_msg("%s: %s[%lld] is %.9g, the reference has %.9g", c->name, t->name, (long long)i, found[i],
                     expected[i]);
}

static void compare(const op_case *c, const case_state *found, const case_state *expected)
{
    for (int i = 1; i <= c->tensor_count; i++)
        if (!c->tensors[i].base) compare_tensor(c, i, found->values[i], expected->values[i]);
}

static void blocks_join_without_a_seam(void **context)
{
    const cpu_case *test = *context;
    op_case *c = calloc(1, sizeof *c);
    assert_non_null(c);
    test->build(c);
    device_config reference = {.name = "reference", .world = 1, .threads = 1};
    device *oracle = NULL;
    must(device_open(&reference, &oracle));
    case_state expected, found;
    case_state_open(c, &expected);
    case_state_round(&expected, DTYPE_F32);
    run_on(oracle, c, &expected);
    for (int threads = 1; threads <= 2; threads++) {
        device *d = cpu_test_open(threads);
        case_state_open(c, &found);
        run_on(d, c, &found);
        compare(c, &found, &expected);
        case_state_close(&found);
        device_close(&d);
    }
    case_state_close(&expected);
    device_close(&oracle);
    free(c);
}

int main(void)
{
    static struct CMUnitTest tests[CPU_CASES];
    static char names[CPU_CASES][128];
    for (int i = 0; i < CPU_CASES; i++) {
        snprintf(names[i], sizeof names[i], "%s agrees with the reference", cpu_cases[i].name);
        tests[i] = (struct CMUnitTest){names[i], blocks_join_without_a_seam, NULL, NULL,
                                       (void *)(uintptr_t)&cpu_cases[i]};
    }
    return _cmocka_run_group_tests("blocks join without a seam", tests, CPU_CASES, NULL, NULL);
}
