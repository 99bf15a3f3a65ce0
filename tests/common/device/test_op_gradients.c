/* Compares the gradients of the reference device with central differences of its forward operations:
 *
 *   d f / d x_i = (f(x + h e_i) - f(x - h e_i)) / 2h + O(h^2),   f = sum of outputs times fixed weights */
#include "tests/common/device/op_devices.h"
#include "tests/common/device/op_runner.h"
#include "tests/common/device/op_table.h"
#include "tests/support/sanitized.h"

#include "common/base/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* The step h balances the errors h^2 f''' / 6 and 1e-16 f / h. TOLERANCE is relative to the gradient's root
 * mean square. */
static const double STEP = 1e-5, TOLERANCE = 1e-7;
enum { SAMPLES = SANITIZED ? 8 : 40 }; /* Number of elements tested in a larger input. */

static double objective_of(const case_state *initial, const case_state *after)
{
    const op_case *c = initial->c;
    double total = 0;
    for (int i = 0; i < c->objective_count; i++) {
        int output = c->objective[i].first, weights = c->objective[i].second;
        if (!weights) {
            total += after->values[output][0] / c->scalars.loss_normalizer;
            continue;
        }
        for (int64_t j = 0; j < c->tensors[output].used; j++)
            total += after->values[output][j] * initial->values[weights][j];
    }
    return total;
}

static double objective_at(op_runner *r, const case_state *initial, case_state *scratch, int tensor,
                           int64_t i, double value)
{
    double kept = initial->values[tensor][i];
    initial->values[tensor][i] = value;
    op_runner_load(r, initial);
    initial->values[tensor][i] = kept;
    op_runner_run(r, 0, r->c->forward_steps);
    op_runner_store(r, scratch);
    return objective_of(initial, scratch);
}

static double root_mean_square(const double *values, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += values[i] * values[i];
    return sqrt(sum / (double)count);
}

static void check_pair(op_runner *r, const case_state *initial, const case_state *after, case_state *scratch,
                       case_pair pair)
{
    const case_tensor *x = &r->c->tensors[pair.first], *dx = &r->c->tensors[pair.second];
    uint64_t start = random_start(7, random_fnv1a64(x->name));
    double scale = root_mean_square(after->values[pair.second], dx->used) + 0.1;
    for (int64_t n = 0; n < x->used && n < SAMPLES; n++) {
        int64_t i = x->used <= SAMPLES ? n : (int64_t)random_below(start, (uint64_t)n, (uint64_t)x->used);
        double value = initial->values[pair.first][i];
        double above = objective_at(r, initial, scratch, pair.first, i, value + STEP);
        double below = objective_at(r, initial, scratch, pair.first, i, value - STEP);
        double numeric = (above - below) / (2 * STEP);
        if (pair.adds) numeric += initial->values[pair.second][i];
        double found = after->values[pair.second][i];
        if (!(fabs(found - numeric) <= TOLERANCE * scale))
            fail_msg("%s: %s[%lld] is %.12g, finite differences of %s give %.12g", r->c->name, dx->name,
                     (long long)i, found, x->name, numeric);
    }
}

static void gradients_match_finite_differences(void **context)
{
    const op_case *c = *context;
    device *d = device_setting_open(device_settings[0]);
    op_runner runner;
    case_state initial, after, scratch;
    op_runner_open(d, c, &runner);
    case_state_open(c, &initial);
    case_state_open(c, &after);
    case_state_open(c, &scratch);
    op_runner_load(&runner, &initial);
    op_runner_run(&runner, 0, c->step_count);
    op_runner_store(&runner, &after);
    for (int i = 0; i < c->gradient_count; i++)
        check_pair(&runner, &initial, &after, &scratch, c->gradients[i]);
    case_state_close(&initial);
    case_state_close(&after);
    case_state_close(&scratch);
    op_runner_close(&runner);
    device_close(&d);
}

int main(void)
{
    static struct CMUnitTest tests[OP_TABLE_CAPACITY];
    static char names[OP_TABLE_CAPACITY][sizeof((op_case *)0)->name + 40];
    op_case *cases = calloc(OP_TABLE_CAPACITY, sizeof *cases);
    if (!cases) return 1;
    int count = op_table_build(cases), used = 0;
    for (int i = 0; i < count; i++)
        if (cases[i].gradient_count) {
            snprintf(names[used], sizeof names[used], "gradients match finite differences: %s",
                     cases[i].name);
            tests[used] =
                (struct CMUnitTest){names[used], gradients_match_finite_differences, NULL, NULL, &cases[i]};
            used++;
        }
    int failed = _cmocka_run_group_tests("gradients of the reference match finite differences", tests,
                                         (size_t)used, NULL, NULL);
    free(cases);
    return failed;
}
