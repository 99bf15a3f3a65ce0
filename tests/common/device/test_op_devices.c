/* Compares every device with the reference, each step of the table by itself. Both devices start a step from
 * the same values, rounded to the types in which the device under test computes. test_op_comparison.c tests
 * the comparison. */
#include "tests/common/device/op_compare.h"
#include "tests/common/device/op_devices.h"
#include "tests/common/device/op_runner.h"
#include "tests/common/device/op_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct setting_test {
    const op_case *c;
    int setting; /* Index into device_settings. */
    char name[192];
} setting_test;

static device *devices[DEVICE_SETTINGS];

/* Devices are opened when they are first used, and stay open for all tests: opening a GPU is slow. */
static device *device_at(int setting)
{
    if (!devices[setting]) devices[setting] = device_setting_open(device_settings[setting]);
    return devices[setting];
}

static void compare_written(const op_runner *r, int step, int tensor, const case_state *found,
                            const case_state *expected, int precision)
{
    const op_case *c = r->c;
    dtype type = device_get_info(r->device)->compute_type;
    const op_desc *op = &c->steps[step].op;
    const case_tensor *t = &c->tensors[tensor];
    double tolerance = t->type == CASE_I32 || t->type == CASE_U8
                           ? 0
                           : op_tolerance_in(op, type, (device_precision)precision);
    if (device_get_info(r->device)->bf16 && t->type == CASE_COMPUTE) tolerance += op_tolerance_of_storage(op);
    int64_t i = op_first_difference_stored(found->values[tensor], expected->values[tensor], t->used,
                                           tolerance, op_runner_is_bf16(r, tensor) ? 0x1p-8 : 0);
    if (i >= 0)
        fail_msg("%s of %s: %s[%lld] is %.9g, the reference has %.9g", op_name(op->kind), c->name, t->name,
                 (long long)i, found->values[tensor][i], expected->values[tensor][i]);
}

/* Checks that a step changes only the tensors that it writes, and that a second run gives bit-identical
 * results. */
static void compare_runs(const op_case *c, int step, const case_state *before, const case_state *found,
                         const case_state *again)
{
    for (int i = 1; i <= c->tensor_count; i++) {
        const case_tensor *t = &c->tensors[i];
        if (t->base) continue;
        if (!case_writes(c, step, i) &&
            memcmp(found->values[i], before->values[i], (size_t)t->count * sizeof(double)) != 0)
            fail_msg("%s of %s changed %s, which it only reads", op_name(c->steps[step].op.kind), c->name,
                     t->name);
        if (memcmp(found->values[i], again->values[i], (size_t)t->used * sizeof(double)) != 0)
            fail_msg("%s: a second run gives other bits in %s", c->name, t->name);
    }
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
        op_runner_step(&on_oracle, step, &before, &expected);
        op_runner_step(&on_oracle, step, &before, &again);
        compare_runs(c, step, &before, &expected, &again);
        op_runner_step(&on_tested, step, &before, &found);
        op_runner_step(&on_tested, step, &before, &again);
        compare_runs(c, step, &before, &found, &again);
        for (int i = 1; i <= c->tensor_count; i++)
            if (!c->tensors[i].base && case_writes(c, step, i))
                compare_written(&on_tested, step, i, &found, &expected,
                                device_settings[test->setting].precision);
        case_state_copy(&before, &expected);
    }
    for (int i = 0; i < 4; i++) case_state_close(states[i]);
    op_runner_close(&on_tested);
    op_runner_close(&on_oracle);
}

static const char *precision_name(int precision)
{
    static const char *const names[] = {"float32", "tf32", "bf16"};
    return names[precision];
}

/* Returns true for cases of an operation that is in `names`, or for all cases if `names` is empty. */
static bool is_wanted(const op_case *c, int words, char *const *names)
{
    size_t length = strcspn(c->name, " ");
    for (int i = 0; i < words; i++)
        if (strlen(names[i]) == length && strncmp(c->name, names[i], length) == 0) return true;
    return words == 0;
}

/* test_op_devices [conv2d|linear|attention ...] */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[DEVICE_SETTINGS * OP_TABLE_CAPACITY];
    op_case *cases = calloc(OP_TABLE_CAPACITY, sizeof *cases);
    setting_test *contexts = calloc(DEVICE_SETTINGS * OP_TABLE_CAPACITY, sizeof *contexts);
    if (!cases || !contexts) return 1;
    int count = op_table_build(cases), used = 0;
    for (int s = 1; s < device_setting_count; s++)
        for (int i = 0; i < count; i++) {
            if (!is_wanted(&cases[i], argc - 1, argv + 1)) continue;
            contexts[used] = (setting_test){.c = &cases[i], .setting = s};
            snprintf(contexts[used].name, sizeof contexts[used].name,
                     "%s in %s with %d thread%s agrees with the reference: %s", device_settings[s].name,
                     precision_name(device_settings[s].precision), device_settings[s].threads,
                     device_settings[s].threads == 1 ? "" : "s", cases[i].name);
            tests[used] = (struct CMUnitTest){contexts[used].name, operations_agree_with_the_reference, NULL,
                                              NULL, &contexts[used]};
            used++;
        }
    int failed = _cmocka_run_group_tests("devices agree with the reference", tests, (size_t)used, NULL, NULL);
    for (int s = 0; s < DEVICE_SETTINGS; s++) device_close(&devices[s]);
    free(contexts);
    free(cases);
    return failed;
}
