/* Runs SyncBatchNorm on several simulated ranks, and adds up their sums here. Compares the results with one
 * BatchNorm over the samples of all ranks. */
#include "tests/common/device/op_compare.h"
#include "tests/common/device/op_devices.h"
#include "tests/common/device/op_families.h"
#include "tests/common/device/op_runner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_RANKS = 3, STATS = 0, APPLY, BACKWARD_STATS, BACKWARD_APPLY };

typedef struct batch_division {
    int world;
    int64_t samples[MOST_RANKS];
} batch_division;

static const batch_division divisions[] = {{1, {5}}, {2, {3, 2}}, {3, {1, 4, 2}}};
static const activation acts[] = {ACTIVATION_NONE, ACTIVATION_RELU, ACTIVATION_SILU};
enum { DIVISIONS = 3, ACTS = 3 };

typedef struct simulated_rank {
    op_case c;
    op_runner runner;
    case_state state;
    int64_t first; /* Index of the rank's first sample in the whole batch. */
} simulated_rank;

static bool is_per_sample(const op_case *whole, int tensor, int64_t samples)
{
    const case_tensor *t = &whole->tensors[tensor];
    return t->type == CASE_COMPUTE && !t->parameter && !t->layout_of && t->count > t->columns &&
           t->count / t->columns % samples == 0;
}

/* Opens a rank. It starts with its slice of every tensor that has samples, and with a copy of every other
 * tensor. */
static void rank_open(device *d, simulated_rank *r, const op_case *whole, const case_state *state,
                      batchnorm_attributes a, int64_t first, int64_t samples, case_options o)
{
    int64_t all = a.n;
    a.n = samples;
    case_syncbatchnorm(&r->c, a, o);
    r->first = first;
    op_runner_open(d, &r->c, &r->runner);
    case_state_open(&r->c, &r->state);
    for (int i = 1; i <= r->c.tensor_count; i++) {
        int source = case_find(whole, r->c.tensors[i].name);
        if (!source || !r->state.values[i]) continue;
        int64_t offset = is_per_sample(whole, source, all) ? first * (whole->tensors[source].count / all) : 0;
        memcpy(r->state.values[i], state->values[source] + offset,
               (size_t)r->c.tensors[i].count * sizeof(double));
    }
    op_runner_load(&r->runner, &r->state);
}

static void rank_close(simulated_rank *r)
{
    case_state_close(&r->state);
    op_runner_close(&r->runner);
}

/* Runs a step on every rank, then replaces the named tensor by its sum over all ranks. */
static void run_and_sum(simulated_rank *ranks, int world, int step, const char *sums)
{
    for (int i = 0; i < world; i++) {
        op_runner_run(&ranks[i].runner, step, step + 1);
        op_runner_store(&ranks[i].runner, &ranks[i].state);
    }
    if (!sums) return;
    int tensor = case_find(&ranks[0].c, sums);
    for (int64_t j = 0; j < ranks[0].c.tensors[tensor].count; j++) {
        double total = 0;
        for (int i = 0; i < world; i++) total += ranks[i].state.values[tensor][j];
        for (int i = 0; i < world; i++) ranks[i].state.values[tensor][j] = total;
    }
    for (int i = 0; i < world; i++) op_runner_load(&ranks[i].runner, &ranks[i].state);
}

static void check(const char *name, int rank, const double *found, const double *expected, int64_t count,
                  double tolerance)
{
    int64_t i = op_first_difference(found, expected, count, tolerance);
    if (i >= 0)
        fail_msg("rank %d: %s[%lld] is %.12g, over all samples %.12g", rank, name, (long long)i, found[i],
                 expected[i]);
}

static void check_rank(const simulated_rank *r, int number, const op_case *whole, const case_state *expected,
                       int64_t samples, double tolerance)
{
    static const char *const names[] = {"y",           "mean", "invstd",   "running_mean",
                                        "running_var", "dx",   "dresidual"};
    for (int n = 0; n < 7; n++) {
        int here = case_find(&r->c, names[n]), there = case_find(whole, names[n]);
        if (!here || !there) continue;
        int64_t count = r->c.tensors[here].count;
        int64_t offset =
            is_per_sample(whole, there, samples) ? r->first * (whole->tensors[there].count / samples) : 0;
        check(names[n], number, r->state.values[here], expected->values[there] + offset, count, tolerance);
    }
}

/* Checks a gradient. Each rank has the gradient of its own samples, and the sum over the ranks must be the
 * gradient of the whole batch. */
static void check_summed(const simulated_rank *ranks, int world, const op_case *whole,
                         const case_state *expected, const char *name, double tolerance)
{
    int here = case_find(&ranks[0].c, name), there = case_find(whole, name);
    int64_t count = whole->tensors[there].count;
    double *sum = calloc((size_t)count, sizeof *sum);
    assert_non_null(sum);
    for (int i = 0; i < world; i++)
        for (int64_t j = 0; j < count; j++) sum[j] += ranks[i].state.values[here][j];
    check(name, -1, sum, expected->values[there], count, tolerance);
    free(sum);
}

static void check_division(device *d, const batch_division *division, batchnorm_attributes a, case_options o)
{
    simulated_rank ranks[MOST_RANKS];
    op_case whole;
    op_runner runner;
    case_state state;
    double tolerance = device_get_info(d)->compute_type == DTYPE_F64 ? 1e-11 : 1e-5;
    a.world = division->world;
    a.n = 0;
    for (int i = 0; i < division->world; i++) a.n += division->samples[i];
    device *oracle = device_setting_open(device_settings[0]);
    case_batchnorm(&whole, a, o);
    op_runner_open(oracle, &whole, &runner);
    case_state_open(&whole, &state);
    case_state_round(&state, device_get_info(d)->compute_type);
    for (int64_t i = 0, first = 0; i < division->world; first += division->samples[i++])
        rank_open(d, &ranks[i], &whole, &state, a, first, division->samples[i], o);
    op_runner_load(&runner, &state);
    op_runner_run(&runner, 0, whole.step_count);
    op_runner_store(&runner, &state);
    run_and_sum(ranks, division->world, STATS, "sums");
    run_and_sum(ranks, division->world, APPLY, NULL);
    run_and_sum(ranks, division->world, BACKWARD_STATS, "dsums");
    run_and_sum(ranks, division->world, BACKWARD_APPLY, NULL);
    for (int i = 0; i < division->world; i++) check_rank(&ranks[i], i, &whole, &state, a.n, tolerance);
    check_summed(ranks, division->world, &whole, &state, "dgamma", tolerance);
    check_summed(ranks, division->world, &whole, &state, "dbeta", tolerance);
    for (int i = 0; i < division->world; i++) rank_close(&ranks[i]);
    case_state_close(&state);
    op_runner_close(&runner);
    device_close(&oracle);
}

static void ranks_together_are_one_batchnorm(void **context)
{
    device *d = device_setting_open(*(const device_setting *)*context);
    for (int i = 0; i < DIVISIONS; i++)
        for (int act = 0; act < ACTS; act++)
            for (int flags = 0; flags < 4; flags++) {
                batchnorm_attributes a = {.h = 2,
                                          .w = 3,
                                          .c = 5,
                                          .eps = 1e-5,
                                          .momentum = 0.1,
                                          .act = acts[act],
                                          .residual = flags & 1,
                                          .dy2 = flags & 2};
                check_division(d, &divisions[i], a, (case_options){0});
                check_division(d, &divisions[i], a, (case_options){.large_mean = true});
            }
    device_close(&d);
}

int main(void)
{
    struct CMUnitTest tests[DEVICE_SETTINGS];
    static char names[DEVICE_SETTINGS][96];
    int used = 0;
    for (int i = device_setting_first; i < device_setting_count; i++) {
        snprintf(names[i], sizeof names[i], "ranks on %s with %d threads together are one batchnorm",
                 device_settings[i].name, device_settings[i].threads);
        tests[used++] = (struct CMUnitTest){names[i], ranks_together_are_one_batchnorm, NULL, NULL,
                                            (void *)&device_settings[i]};
    }
    return _cmocka_run_group_tests("synchronized batchnorm", tests, (size_t)used, NULL, NULL);
}
