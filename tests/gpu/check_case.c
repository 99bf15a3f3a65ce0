#include "tests/gpu/check_case.h"

#include "tests/common/device/op_compare.h"
#include "tests/common/device/op_runner.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void compare(const op_case *c, const case_state *found, const case_state *expected, double tolerance)
{
    for (int i = 1; i <= c->tensor_count; i++) {
        if (c->tensors[i].base) continue;
        int64_t at =
            op_first_difference(found->values[i], expected->values[i], c->tensors[i].used, tolerance);
        if (at >= 0)
            fail_msg("%s: %s[%lld] is %.9g, the reference has %.9g", c->name, c->tensors[i].name,
                     (long long)at, found->values[i][at], expected->values[i][at]);
    }
}

void check_case_on(device *d, const op_case *c, int times, double tolerance)
{
    device *oracle = device_setting_open((device_setting){"reference", 1, 0});
    op_runner on_cuda, on_oracle;
    case_state found, expected;
    op_runner_open(d, c, &on_cuda);
    op_runner_open(oracle, c, &on_oracle);
    case_state_open(c, &expected);
    case_state_round(&expected, DTYPE_F32);
    op_runner_load(&on_oracle, &expected);
    op_runner_run(&on_oracle, 0, c->step_count);
    op_runner_store(&on_oracle, &expected);
    for (int i = 0; i < times; i++) {
        case_state_open(c, &found);
        case_state_round(&found, DTYPE_F32);
        op_runner_load(&on_cuda, &found);
        op_runner_run(&on_cuda, 0, c->step_count);
        op_runner_store(&on_cuda, &found);
        compare(c, &found, &expected, tolerance);
        case_state_close(&found);
    }
    case_state_close(&expected);
    op_runner_close(&on_cuda);
    op_runner_close(&on_oracle);
    device_close(&oracle);
}

void check_case(const op_case *c, device_setting setting, double tolerance)
{
    device *d = device_setting_open(setting);
    check_case_on(d, c, 1, tolerance);
    device_close(&d);
}
