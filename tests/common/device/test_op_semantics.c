/* Tests the promises of op.h's comments on every device, with numbers that are small enough to compute by
 * hand. */
#include "tests/common/device/op_compare.h"
#include "tests/common/device/op_devices.h"
#include "tests/common/device/op_families.h"
#include "tests/common/device/op_runner.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const case_options plain = {0};

static void set(case_state *state, const char *name, const double *values)
{
    int tensor = case_find(state->c, name);
    assert_int_not_equal(tensor, CASE_NONE);
    memcpy(state->values[tensor], values, (size_t)state->c->tensors[tensor].count * sizeof *values);
}

/* Runs all steps from `state`, in place, on the device that the test's context names. */
static void run(void **context, case_state *state)
{
    device *d = device_setting_open(*(const device_setting *)*context);
    op_runner runner;
    op_runner_open(d, state->c, &runner);
    op_runner_load(&runner, state);
    op_runner_run(&runner, 0, state->c->step_count);
    op_runner_store(&runner, state);
    op_runner_close(&runner);
    device_close(&d);
}

static void expect(const case_state *state, const char *name, const double *expected)
{
    int tensor = case_find(state->c, name);
    int64_t count = state->c->tensors[tensor].count;
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(state->values[tensor][i] - expected[i]) <= 2e-6 * fmax(1, fabs(expected[i]))))
            fail_msg("%s: %s[%lld] is %.9g, by hand %.9g", state->c->name, name, (long long)i,
                     state->values[tensor][i], expected[i]);
}

static void running_variance_is_unbiased(void **context)
{
    op_case c;
    case_state state;
    case_batchnorm(&c, (batchnorm_attributes){4, 1, 1, 1, 1e-5, 0.1, ACTIVATION_NONE, false, false, 1},
                   plain);
    case_state_open(&c, &state);
    set(&state, "x", (double[]){1, 2, 3, 4});
    set(&state, "running_mean", (double[]){0});
    set(&state, "running_var", (double[]){1});
    run(context, &state);
    expect(&state, "mean", (double[]){2.5});
    expect(&state, "invstd", (double[]){1 / sqrt(1.25 + 1e-5)});
    expect(&state, "running_mean", (double[]){0.25});
    expect(&state, "running_var", (double[]){0.9 + 0.1 * 5 / 3});
    case_state_close(&state);
}

static void first_of_equals_wins_in_maxpool(void **context)
{
    op_case c;
    case_state state;
    case_maxpool(&c,
                 (pool_attributes){.n = 1, .h = 3, .w = 3, .c = 1, .r = 3, .s = 3, .stride = 2, .pad = 1});
    case_state_open(&c, &state);
    set(&state, "x", (double[]){-5, -5, -5, -5, -5, -5, -5, -5, -5});
    set(&state, "dy", (double[]){1, 2, 3, 4});
    run(context, &state);
    /* Windows start at rows and columns -1 and 1. The indices count padding, but padding is never the largest
     * element. */
    expect(&state, "y", (double[]){-5, -5, -5, -5});
    expect(&state, "index", (double[]){4, 3, 1, 0});
    expect(&state, "dx", (double[]){1, 2, 0, 3, 4, 0, 0, 0, 0});
    case_state_close(&state);
}

static void ignored_rows_count_for_nothing(void **context)
{
    op_case c;
    case_state state;
    case_cross_entropy(&c, (loss_attributes){4, 2, true}, plain);
    c.scalars.loss_normalizer = 4;
    case_state_open(&c, &state);
    set(&state, "logits", (double[]){0, 0, 9, 1, 0, 0, 0, log(3)});
    set(&state, "targets", (double[]){0, LOSS_IGNORE, 0, 1});
    run(context, &state);
    /* log 2 + log 2 + log 4/3. All three predictions are right, since the first of equal outputs is taken as
     * the largest. */
    expect(&state, "sums", (double[]){2 * log(2) + log(4.0 / 3), 3});
    expect(&state, "dlogits", (double[]){-0.125, 0.125, 0, 0, -0.125, 0.125, 0.0625, -0.0625});
    case_state_close(&state);
}

static void large_logits_do_not_overflow(void **context)
{
    op_case c;
    case_state state;
    case_cross_entropy(&c, (loss_attributes){2, 2, true}, plain);
    c.scalars.loss_normalizer = 1;
    case_state_open(&c, &state);
    set(&state, "logits", (double[]){1000, 0, -1000, 0});
    set(&state, "targets", (double[]){1, 1});
    run(context, &state);
    expect(&state, "sums", (double[]){1000, 1});
    expect(&state, "dlogits", (double[]){1, -1, 0, 0});
    case_state_close(&state);
}

static void causal_attention_sees_no_later_token(void **context)
{
    op_case c;
    case_state state;
    case_attention(&c, (attention_attributes){1, 2, 1, 1, true, 0});
    case_state_open(&c, &state);
    set(&state, "q", (double[]){2, 1});
    set(&state, "k", (double[]){3, 3});
    set(&state, "v", (double[]){5, 7});
    set(&state, "dout", (double[]){1, 1});
    run(context, &state);
    expect(&state, "out", (double[]){5, 6});
    expect(&state, "lse", (double[]){6, 3 + log(2)});
    expect(&state, "dv", (double[]){1.5, 0.5});
    case_state_close(&state);
}

static void large_scores_do_not_overflow(void **context)
{
    op_case c;
    case_state state;
    case_attention(&c, (attention_attributes){1, 2, 1, 1, false, 0});
    case_state_open(&c, &state);
    set(&state, "q", (double[]){100, -100});
    set(&state, "k", (double[]){10, 1});
    set(&state, "v", (double[]){5, 7});
    set(&state, "dout", (double[]){1, 1});
    run(context, &state);
    expect(&state, "out", (double[]){5, 7});
    expect(&state, "lse", (double[]){1000, -100});
    expect(&state, "dq", (double[]){0, 0});
    case_state_close(&state);
}

static void weights_after_an_image_follow_its_columns(void **context)
{
    op_case c;
    case_state state;
    linear_attributes a = {.m = 1, .in = 6, .out = 1, .flat_c = 2, .flat_h = 1, .flat_w = 3};
    case_linear(&c, a, plain);
    case_state_open(&c, &state);
    set(&state, "x", (double[]){1, 10, 2, 20, 3, 30});       /* (w, c): the channels are 1 2 3 and 10 20 30 */
    set(&state, "w", (double[]){1, 0.5, 0.25, -1, -0.5, 2}); /* (c, w) */
    set(&state, "dy", (double[]){1});
    run(context, &state);
    expect(&state, "y", (double[]){1 + 1 + 0.75 - 10 - 10 + 60});
    expect(&state, "dw", (double[]){1, 2, 3, 10, 20, 30});
    expect(&state, "dx", (double[]){1, -1, 0.5, -0.5, 0.25, 2});
    case_state_close(&state);
}

static void repeated_tokens_add_their_gradients(void **context)
{
    op_case c;
    case_state state;
    case_embedding(&c, (embedding_attributes){1, 3, 1, 3, 4, true, true}, plain);
    case_state_open(&c, &state);
    set(&state, "tokens", (double[]){2, 0, 2});
    set(&state, "dy", (double[]){1, 2, 4});
    run(context, &state);
    expect(&state, "dtable", (double[]){2, 0, 5});
    expect(&state, "dposition", (double[]){1, 2, 4, 0});
    expect(&state, "dtype", (double[]){7, 0});
    case_state_close(&state);
}

static void selected_rows_come_and_go_by_index(void **context)
{
    op_case c;
    case_state state;
    case_rows(&c, (rows_attributes){.rows = 4, .hidden = 2, .selected = 2}, plain);
    case_state_open(&c, &state);
    set(&state, "x", (double[]){1, 2, 3, 4, 5, 6, 7, 8});
    set(&state, "index", (double[]){3, 1});
    set(&state, "dy", (double[]){10, 20, 30, 40});
    run(context, &state);
    expect(&state, "y", (double[]){7, 8, 3, 4});
    expect(&state, "dx", (double[]){0, 0, 30, 40, 0, 0, 10, 20});
    case_state_close(&state);
    case_rows(&c, (rows_attributes){.rows = 5, .hidden = 1, .selected = 2, .every = 2}, plain);
    case_state_open(&c, &state);
    set(&state, "x", (double[]){1, 2, 3, 4, 5});
    set(&state, "dy", (double[]){10, 20});
    run(context, &state);
    expect(&state, "y", (double[]){1, 3});
    expect(&state, "dx", (double[]){10, 0, 20, 0, 0});
    case_state_close(&state);
}

static void tensors_are_added(void **context)
{
    op_case c;
    case_state state;
    case_add(&c, (elementwise_attributes){.count = 3}, plain);
    case_state_open(&c, &state);
    set(&state, "a", (double[]){1, -2, 0.5});
    set(&state, "b", (double[]){10, 2, 0.25});
    run(context, &state);
    expect(&state, "y", (double[]){11, 0, 0.75});
    case_state_close(&state);
}

static void squares_are_added_over_the_pieces(void **context)
{
    op_case c;
    case_state state;
    case_sum_squares(&c, 6);
    c.pieces[0] = (piece){1, 2};
    c.pieces[1] = (piece){5, 1};
    c.scalars.piece_count = 2;
    case_state_open(&c, &state);
    set(&state, "x", (double[]){100, 2, 3, 100, 100, 4});
    set(&state, "out", (double[]){1000});
    run(context, &state);
    expect(&state, "out", (double[]){1029});
    case_state_close(&state);
}

/* Tests that x / 3 is divided in the computation's type, and not multiplied by a rounded 1/3. */
static void division_is_true_division(void **context)
{
    enum { COUNT = 1000 };
    op_case c;
    case_state state;
    device *d = device_setting_open(*(const device_setting *)*context);
    bool single = device_get_info(d)->compute_type == DTYPE_F32;
    device_close(&d);
    case_divide(&c, COUNT, 3);
    c.pieces[0] = (piece){0, COUNT};
    c.scalars.piece_count = 1;
    case_state_open(&c, &state);
    double *x = state.values[case_find(&c, "x")];
    for (int i = 0; i < COUNT; i++) x[i] = i + 1;
    run(context, &state);
    for (int i = 0; i < COUNT; i++) {
        double quotient = (i + 1) / 3.0;
        assert_true(x[i] == (single ? (double)(float)quotient : quotient));
    }
    case_state_close(&state);
}

static void updates_leave_what_no_piece_names(void **context)
{
    op_case c;
    case_state state;
    case_clear(&c, 6);
    c.pieces[0] = (piece){1, 2};
    c.pieces[1] = (piece){4, 0};
    c.pieces[2] = (piece){5, 1};
    c.scalars.piece_count = 3;
    case_state_open(&c, &state);
    set(&state, "x", (double[]){1, 2, 3, 4, 5, 6});
    run(context, &state);
    expect(&state, "x", (double[]){1, 0, 0, 4, 5, 0});
    case_state_close(&state);
}

static void operation_of_a_foreign_type_is_refused(void **context)
{
    device *d = device_setting_open(*(const device_setting *)*context);
    op_desc op = {.kind = OP_add, .type = DTYPE_I64, .u.elementwise = {.count = 1}};
    device_kernel *kernel;
    assert_int_not_equal(device_prepare(d, &op, NULL, &kernel), STATUS_OK);
    assert_null(kernel);
    assert_non_null(strstr(error_message(), "int64"));
    error_clear();
    device_close(&d);
}

static void not_a_number_is_not_hidden(void **context)
{
    op_case c;
    case_state state;
    case_activation(&c, (elementwise_attributes){2, ACTIVATION_RELU}, plain);
    case_state_open(&c, &state);
    set(&state, "x", (double[]){NAN, -1});
    run(context, &state);
    assert_true(isnan(state.values[case_find(&c, "y")][0]));
    case_state_close(&state);
    case_maxpool(&c, (pool_attributes){.n = 1, .h = 2, .w = 2, .c = 1, .r = 2, .s = 2, .stride = 2});
    case_state_open(&c, &state);
    set(&state, "x", (double[]){1, NAN, 2, 0});
    run(context, &state);
    assert_true(isnan(state.values[case_find(&c, "y")][0]));
    case_state_close(&state);
}

typedef struct semantics_test {
    const char *name;
    void (*function)(void **context);
} semantics_test;

static const semantics_test semantics[] = {
    {"the running variance is unbiased", running_variance_is_unbiased},
    {"the first of equals wins in maxpool", first_of_equals_wins_in_maxpool},
    {"ignored rows count for nothing", ignored_rows_count_for_nothing},
    {"large logits do not overflow", large_logits_do_not_overflow},
    {"causal attention sees no later token", causal_attention_sees_no_later_token},
    {"large scores do not overflow", large_scores_do_not_overflow},
    {"weights after an image follow its columns", weights_after_an_image_follow_its_columns},
    {"repeated tokens add their gradients", repeated_tokens_add_their_gradients},
    {"selected rows come and go by index", selected_rows_come_and_go_by_index},
    {"tensors are added", tensors_are_added},
    {"squares are added over the pieces", squares_are_added_over_the_pieces},
    {"division is true division", division_is_true_division},
    {"updates leave what no piece names", updates_leave_what_no_piece_names},
    {"an operation of a foreign type is refused", operation_of_a_foreign_type_is_refused},
    {"ReLU and maxpool pass on what is not a number", not_a_number_is_not_hidden},
};
enum { SEMANTICS = sizeof semantics / sizeof semantics[0] };

int main(void)
{
    struct CMUnitTest tests[DEVICE_SETTINGS * SEMANTICS];
    static char names[DEVICE_SETTINGS * SEMANTICS][128];
    int used = 0;
    for (int d = device_setting_first; d < device_setting_count; d++)
        for (int i = 0; i < SEMANTICS; i++, used++) {
            snprintf(names[used], sizeof names[used], "%s with %d threads: %s", device_settings[d].name,
                     device_settings[d].threads, semantics[i].name);
            tests[used] = (struct CMUnitTest){names[used], semantics[i].function, NULL, NULL,
                                              (void *)&device_settings[d]};
        }
    return _cmocka_run_group_tests("semantics of operations", tests, (size_t)used, NULL, NULL);
}
