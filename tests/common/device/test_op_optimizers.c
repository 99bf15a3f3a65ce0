/* Runs several steps of SGD, Adam and AdamW on every device. Compares them with the algorithms of PyTorch's
 * documentation, which are written out here, and with results of torch.optim. */
#include "tests/common/device/op_compare.h"
#include "tests/common/device/op_devices.h"
#include "tests/common/device/op_families.h"
#include "tests/common/device/op_runner.h"
#include "tests/common/device/op_vectors.h"

#include "common/base/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef enum optimizer_rule { RULE_SGD, RULE_ADAM, RULE_ADAMW } optimizer_rule;
enum { MOST_ELEMENTS = 64 };

typedef struct optimizer_setting {
    optimizer_rule rule;
    double lr, momentum, dampening, weight_decay;
    bool nesterov;
    double beta1, beta2, eps;
} optimizer_setting;

static const optimizer_setting settings[] = {
    {RULE_SGD, 0.1, 0, 0, 0, false, 0, 0, 0},
    {RULE_SGD, 0.1, 0, 0, 0.05, false, 0, 0, 0},
    {RULE_SGD, 0.1, 0.9, 0, 0, false, 0, 0, 0},
    {RULE_SGD, 0.1, 0.9, 0.2, 0.05, false, 0, 0, 0},
    {RULE_SGD, 0.1, 0.9, 0, 0.05, true, 0, 0, 0},
    {RULE_ADAM, 0.01, 0, 0, 0, false, 0.9, 0.999, 1e-8},
    {RULE_ADAM, 0.01, 0, 0, 0.1, false, 0.8, 0.95, 1e-4},
    {RULE_ADAMW, 0.01, 0, 0, 0.01, false, 0.9, 0.999, 1e-8},
    {RULE_ADAMW, 0.01, 0, 0, 0.1, false, 0.9, 0.95, 1e-6},
};
enum { SETTINGS = sizeof settings / sizeof settings[0] };

typedef struct trajectory {
    int64_t count;
    double param[MOST_ELEMENTS], grad[MOST_ELEMENTS], state1[MOST_ELEMENTS], state2[MOST_ELEMENTS];
} trajectory;

static void trajectory_start(trajectory *t, int64_t count)
{
    *t = (trajectory){.count = count};
    uint64_t start = random_start(1, random_fnv1a64("param"));
    for (int64_t i = 0; i < count; i++) t->param[i] = random_signed(start, (uint64_t)i);
}

static void draw_gradient(trajectory *t, int step)
{
    char name[32];
    snprintf(name, sizeof name, "grad.step%d", step);
    uint64_t start = random_start(1, random_fnv1a64(name));
    for (int64_t i = 0; i < t->count; i++) t->grad[i] = random_signed(start, (uint64_t)i);
}

/* ---- one step on a device --------------------------------------------------------------------- */

static void put(const op_case *c, case_state *state, const char *name, const double *values)
{
    int tensor = case_find(c, name);
    if (tensor) memcpy(state->values[tensor], values, (size_t)c->tensors[tensor].count * sizeof *values);
}

static void take(const op_case *c, const case_state *state, const char *name, double *values)
{
    int tensor = case_find(c, name);
    if (tensor) memcpy(values, state->values[tensor], (size_t)c->tensors[tensor].count * sizeof *values);
}

static void step_on_device(device *d, const optimizer_setting *s, int step, double scale, trajectory *t)
{
    optimizer_attributes a = {.count = t->count,
                              .momentum = s->momentum,
                              .dampening = s->dampening,
                              .beta1 = s->beta1,
                              .beta2 = s->beta2,
                              .eps = s->eps,
                              .nesterov = s->nesterov,
                              .decoupled = s->rule == RULE_ADAMW};
    case_update u = {s->lr, s->weight_decay, scale, step};
    op_case c;
    op_runner runner;
    case_state state;
    if (s->rule == RULE_SGD)
        case_sgd(&c, a, u);
    else
        case_adam(&c, a, u);
    c.pieces[0] = (piece){0, t->count};
    c.scalars.piece_count = 1;
    op_runner_open(d, &c, &runner);
    case_state_open(&c, &state);
    put(&c, &state, "param", t->param);
    put(&c, &state, "grad", t->grad);
    put(&c, &state, "state1", t->state1);
    put(&c, &state, "state2", t->state2);
    op_runner_load(&runner, &state);
    op_runner_run(&runner, 0, 1);
    op_runner_store(&runner, &state);
    take(&c, &state, "param", t->param);
    take(&c, &state, "state1", t->state1);
    take(&c, &state, "state2", t->state2);
    case_state_close(&state);
    op_runner_close(&runner);
}

/* ---- one step by the documentation ------------------------------------------------------------ */

/* The algorithm of pytorch.org/docs, torch.optim.SGD, with t counted from 1. */
static double sgd_by_the_book(const optimizer_setting *s, int t, double theta, double g, double *b)
{
    if (s->weight_decay != 0) g = g + s->weight_decay * theta;
    if (s->momentum != 0) {
        if (t > 1)
            *b = s->momentum * *b + (1 - s->dampening) * g;
        else
            *b = g;
        if (s->nesterov)
            g = g + s->momentum * *b;
        else
            g = *b;
    }
    return theta - s->lr * g;
}

/* The algorithm of torch.optim.Adam and AdamW, with maximize and amsgrad false. */
static double adam_by_the_book(const optimizer_setting *s, int t, double theta, double g, double *m,
                               double *v)
{
    if (s->rule == RULE_ADAMW)
        theta = theta - s->lr * s->weight_decay * theta;
    else if (s->weight_decay != 0)
        g = g + s->weight_decay * theta;
    *m = s->beta1 * *m + (1 - s->beta1) * g;
    *v = s->beta2 * *v + (1 - s->beta2) * g * g;
    double mhat = *m / (1 - pow(s->beta1, t)), vhat = *v / (1 - pow(s->beta2, t));
    return theta - s->lr * mhat / (sqrt(vhat) + s->eps);
}

static void step_by_the_book(const optimizer_setting *s, int step, double scale, trajectory *t)
{
    for (int64_t i = 0; i < t->count; i++) {
        double g = scale * t->grad[i];
        t->param[i] = s->rule == RULE_SGD
                          ? sgd_by_the_book(s, step + 1, t->param[i], g, &t->state1[i])
                          : adam_by_the_book(s, step + 1, t->param[i], g, &t->state1[i], &t->state2[i]);
    }
}

/* ---- tests ------------------------------------------------------------------------------------ */

static void check_close(const char *what, int setting, const double *found, const double *expected,
                        int64_t count, double tolerance)
{
    int64_t i = op_first_difference(found, expected, count, tolerance);
    if (i >= 0)
        fail_msg("setting %d: %s[%lld] is %.17g, by the documentation %.17g", setting, what, (long long)i,
                 found[i], expected[i]);
}

static void updates_follow_the_documentation(void **context)
{
    device *d = device_setting_open(*(const device_setting *)*context);
    double tolerance = device_get_info(d)->compute_type == DTYPE_F64 ? 1e-13 : 3e-6;
    for (int n = 0; n < SETTINGS; n++) {
        trajectory found, expected;
        trajectory_start(&found, 37);
        trajectory_start(&expected, 37);
        for (int step = 0; step < 5; step++) {
            double scale = step == 3 ? 0.25 : 1;
            draw_gradient(&found, step);
            draw_gradient(&expected, step);
            step_on_device(d, &settings[n], step, scale, &found);
            step_by_the_book(&settings[n], step, scale, &expected);
        }
        check_close("param", n, found.param, expected.param, 37, tolerance);
        check_close("state1", n, found.state1, expected.state1, 37, tolerance);
        check_close("state2", n, found.state2, expected.state2, 37, tolerance);
        check_close("grad", n, found.grad, expected.grad, 37, 0);
    }
    device_close(&d);
}

static optimizer_setting setting_of(const json_t *v)
{
    const char *kind = vector_text(v, "kind");
    const json_t *betas = json_object_get(json_object_get(v, "attributes"), "betas");
    return (optimizer_setting){.rule = strcmp(kind, "sgd") == 0    ? RULE_SGD
                                       : strcmp(kind, "adam") == 0 ? RULE_ADAM
                                                                   : RULE_ADAMW,
                               .lr = vector_number(v, "lr"),
                               .momentum = vector_number(v, "momentum"),
                               .dampening = vector_number(v, "dampening"),
                               .weight_decay = vector_number(v, "weight_decay"),
                               .nesterov = vector_flag(v, "nesterov"),
                               .beta1 = json_number_value(json_array_get(betas, 0)),
                               .beta2 = json_number_value(json_array_get(betas, 1)),
                               .eps = vector_number(v, "eps")};
}

static void check_vector(device *d, const json_t *v)
{
    trajectory t;
    optimizer_setting s = setting_of(v);
    trajectory_start(&t, vector_integer(v, "count"));
    for (int step = 0; step < vector_integer(v, "steps"); step++) {
        draw_gradient(&t, step);
        step_on_device(d, &s, step, step ? 0.5 : 1, &t);
    }
    const char *name;
    json_t *result;
    json_object_foreach(json_object_get(v, "results"), name, result)
    {
        const double *values = strcmp(name, "param") == 0    ? t.param
                               : strcmp(name, "state1") == 0 ? t.state1
                                                             : t.state2;
        vector_check(name, result, values, t.count);
    }
}

static void updates_are_those_of_torch_optim(void **context)
{
    (void)context;
    device *d = device_setting_open(device_settings[0]);
    json_t *document = vectors_load();
    size_t i;
    const json_t *v;
    int compared = 0;
    json_array_foreach(json_object_get(document, "cases"), i, v)
    {
        if (strcmp(json_string_value(json_object_get(v, "family")), "optimizer") != 0) continue;
        check_vector(d, v);
        compared++;
    }
    assert_int_equal(compared, 9);
    json_decref(document);
    device_close(&d);
}

int main(void)
{
    struct CMUnitTest tests[DEVICE_SETTINGS + 1];
    static char names[DEVICE_SETTINGS][96];
    int used = 0;
    if (device_setting_first == 0)
        tests[used++] = (struct CMUnitTest)cmocka_unit_test(updates_are_those_of_torch_optim);
    for (int i = device_setting_first; i < device_setting_count; i++) {
        snprintf(names[i], sizeof names[i], "updates on %s with %d threads follow the documentation",
                 device_settings[i].name, device_settings[i].threads);
        tests[used++] = (struct CMUnitTest){names[i], updates_follow_the_documentation, NULL, NULL,
                                            (void *)&device_settings[i]};
    }
    return _cmocka_run_group_tests("optimizers", tests, (size_t)used, NULL, NULL);
}
