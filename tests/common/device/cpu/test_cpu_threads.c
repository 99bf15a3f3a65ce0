/* A command that runs twice with the same number of threads gives bit-identical results. Operations that do
 * not sum across rows give them for any number of threads. */
#include "tests/common/device/cpu/cpu_cases.h"
#include "tests/common/device/cpu/cpu_test.h"
#include "tests/common/device/op_runner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RUNS = 3 };

/* Runs all steps of the case on a newly opened device. */
static void run_case(const op_case *c, int threads, case_state *out)
{
    device *d = cpu_test_open(threads);
    op_runner runner;
    op_runner_open(d, c, &runner);
    case_state_open(c, out);
    op_runner_load(&runner, out);
    op_runner_run(&runner, 0, c->step_count);
    op_runner_store(&runner, out);
    op_runner_close(&runner);
    device_close(&d);
}

static void compare_states(const op_case *c, const case_state *found, const case_state *expected,
                           const char *what)
{
    for (int i = 1; i <= c->tensor_count; i++)
        for (int64_t j = 0; !c->tensors[i].base && j < c->tensors[i].used; j++)
            if (memcmp(&found->values[i][j], &expected->values[i][j], sizeof(double)) != 0)
                fail_msg("%s of %s: %s[%lld] is %a, before it was %a", what, c->name, c->tensors[i].name,
                         (long long)j, found->values[i][j], expected->values[i][j]);
}

static void results_repeat_bit_for_bit(void **context)
{
    const cpu_case *test = *context;
    op_case *c = calloc(1, sizeof *c);
    assert_non_null(c);
    test->build(c);
    case_state expected, found;
    for (int threads = 1; threads <= 3; threads++) {
        if (threads == 1 || !test->any_threads) run_case(c, threads, &expected);
        for (int run = 0; run < RUNS; run++) {
            char what[32];
            snprintf(what, sizeof what, "run %d with %d threads", run, threads);
            run_case(c, threads, &found);
            compare_states(c, &found, &expected, what);
            case_state_close(&found);
        }
        if (threads == 3 || !test->any_threads) case_state_close(&expected);
    }
    free(c);
}

int main(void)
{
    static struct CMUnitTest tests[CPU_CASES];
    static char names[CPU_CASES][128];
    for (int i = 0; i < CPU_CASES; i++) {
        snprintf(names[i], sizeof names[i], "%s repeats bit for bit%s", cpu_cases[i].name,
                 cpu_cases[i].any_threads ? " with any number of threads" : "");
        tests[i] = (struct CMUnitTest){names[i], results_repeat_bit_for_bit, NULL, NULL,
                                       (void *)(uintptr_t)&cpu_cases[i]};
    }
    return _cmocka_run_group_tests("the cpu device repeats its results", tests, CPU_CASES, NULL, NULL);
}
