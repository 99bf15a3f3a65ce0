/* Tests the hook of docs/add-a-hook.md. It averages the signs of gradients, each scaled by the rank's mean
 * absolute gradient. */
#include "tests/ring/engine_job.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

enum { RANKS = 2, STEPS = 3 };

/* Returns the mean absolute gradient of a rank over a bucket of one parameter. The gradient is job_value()
 * times the number of ranks. */
static double mean_absolute(const engine_rank *r, int rank, int64_t step, int param)
{
    int64_t count = r->params->pieces[param].count;
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += RANKS * fabs(job_value(rank, step, param, i));
    return sum / (double)count;
}

static status check(const engine_rank *r, int64_t step)
{
    for (int p = 0; p < r->params->model->param_count; p++) {
        double means[RANKS];
        for (int k = 0; k < RANKS; k++) means[k] = mean_absolute(r, k, step, p);
        for (int64_t i = 0; i < r->params->pieces[p].count; i++) {
            double right = 0, found = job_element(r, &r->params->grads, p, i);
            for (int k = 0; k < RANKS; k++) right += copysign(means[k], job_value(k, step, p, i)) / RANKS;
            if (fabs(found - right) > 1e-5 * (means[0] + means[1]))
                return rank_error(STATUS_MISMATCH, "%s[%lld] is %.9g, expected %.9g",
                                  r->params->model->params[p].name, (long long)i, found, right);
        }
    }
    return STATUS_OK;
}

static status run_steps(engine_rank *r)
{
    for (int64_t s = 0; s < STEPS; s++) {
        TRY(job_whole_step(r, s));
        TRY(check(r, s));
    }
    return sync_flush(r->engine);
}

static void ranks_average_signs(void **state)
{
    (void)state;
    engine_job job = {.policy = "naive",     /* each parameter has its own bucket */
                      .device = "reference", /* PyTorch's layout: a bucket holds values without padding */
                      .words = {"--comm-hook=sign"},
                      .world = RANKS,
                      .body = run_steps};
    engine_job_run_well(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_average_signs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
