/* Tests the errors of all ranks after one rank has failed. */
#include "tests/ring/engine_job.h"

#include "common/base/clock.h"
#include "tests/support/status_name.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { WORLD = 3, ODD = 1 }; /* ODD is the rank that differs from the others, or fails */

/* Checks that all errors have the status `code`. The message of the odd rank must contain `own`, and the
 * other messages must contain `others`. */
static void expect_errors(const char *what, const rank_context *results, status code, const char *own,
                          const char *others)
{
    for (int r = 0; r < WORLD; r++) {
        const error_record *e = &results[r].error;
        const char *text = r == ODD ? own : others;
        if (!text ? e->code != STATUS_OK : e->code != code || !strstr(e->message, text))
            fail_msg("%s, rank %d: found %s '%s', expected %s '%s'", what, r, status_name(e->code),
                     e->message, status_name(code), text ? text : "");
    }
}

/* ---- differences at the start ----------------------------------------------------------------- */

static nn_model other_model;

static void rename_parameter(engine_rank *r)
{
    if (r->context->rank != ODD) return;
    other_model = *r->params->model;
    static nn_param params[64];
    memcpy(params, other_model.params, (size_t)other_model.param_count * sizeof *params);
    snprintf(params[6].name, sizeof params[6].name, "head.weight");
    other_model.params = params;
    r->params->model = &other_model;
}

static void reshape_parameter(engine_rank *r)
{
    rename_parameter(r);
    if (r->context->rank != ODD) return;
    snprintf(other_model.params[6].name, sizeof other_model.params[6].name, "bn2.bias");
    other_model.params[6].shape = shape_1d(17);
}

static void change_option(engine_rank *r)
{
    if (r->context->rank == ODD) r->options.bucket_cap_mb = 3;
}

static status do_nothing(engine_rank *r)
{
    (void)r;
    return STATUS_OK;
}

static void ranks_that_differ_are_an_error_with_both_values(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        void (*prepare)(engine_rank *r);
        const char *text;
    } cases[] = {
        {"a name", rename_parameter, "parameter 6: head.weight"},
        {"a shape", reshape_parameter, "rank 1 has 'parameter 6: bn2.bias 17 float32 at "},
        {"an option", change_option, "rank 1 has 'later.limit=3145728', rank 0 has 'later.limit=26214400'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        engine_job job = {.policy = "ddp", .world = WORLD, .body = do_nothing, .prepare = cases[i].prepare};
        rank_context results[RANKS_MAX];
        engine_job_run(&job, results);
        expect_errors(cases[i].what, results, STATUS_PROTOCOL, cases[i].text, cases[i].text);
    }
}

/* ---- in a step -------------------------------------------------------------------------------- */

static status run_missing(engine_rank *r)
{
    bool skip[32] = {false};
    int param = nn_find_param(r->params->model, "fc2.weight");
    for (int64_t s = 0; s < 3; s++) {
        sync_step step = job_step_of(r, s);
        skip[param] = s == 1 && r->context->rank == ODD;
        TRY(job_begin(r, &step));
        TRY(job_backward(r, &step, skip, 0));
        TRY(job_finish(r, &step));
    }
    return STATUS_OK;
}

static void a_parameter_without_a_gradient_is_named_on_every_rank(void **state)
{
    (void)state;
    static const char *const policies[] = {"ddp", "apex", "torch-0.4.1", "naive"};
    for (int i = 0; i < 8; i++) {
        engine_job job = {
            .policy = policies[i / 2], .world = WORLD, .body = run_missing, .inline_progress = i % 2};
        rank_context results[RANKS_MAX];
        engine_job_run(&job, results);
        expect_errors(job.policy, results, STATUS_CONFIG, "parameter 'fc2.weight' never became ready",
                      "rank 1 gave up: parameter 'fc2.weight' never became ready");
    }
}

static status run_no_data(engine_rank *r)
{
    for (int64_t s = 0; s < 3; s++) {
        sync_step step = job_step_of(r, s);
        if (s == 2 && r->context->rank == ODD) step.samples = 0;
        TRY(job_begin(r, &step));
        TRY(job_backward(r, &step, NULL, 0));
        TRY(job_finish(r, &step));
    }
    return STATUS_OK;
}

static void a_rank_without_data_is_named_unless_ranks_may_join(void **state)
{
    (void)state;
    engine_job job = {.policy = "ddp", .world = WORLD, .body = run_no_data};
    rank_context results[RANKS_MAX];
    engine_job_run(&job, results);
    expect_errors("no data", results, STATUS_CONFIG, "rank 1 has no data in step 2: --join",
                  "rank 1 gave up: rank 1 has no data in step 2");
}

static status run_changed_graph(engine_rank *r)
{
    bool skip[32] = {false};
    int param = nn_find_param(r->params->model, "fc1.bias");
    for (int64_t s = 0; s < 3; s++) {
        sync_step step = job_step_of(r, s);
        skip[param] = s < 2 || r->context->rank != ODD;
        TRY(job_begin(r, &step));
        TRY(job_backward(r, &step, skip, 0));
        TRY(job_finish(r, &step));
    }
    return STATUS_OK;
}

static void a_static_graph_that_changes_is_named(void **state)
{
    (void)state;
    engine_job job = {
        .policy = "ddp", .words = {"--static-graph"}, .world = WORLD, .body = run_changed_graph};
    rank_context results[RANKS_MAX];
    engine_job_run(&job, results);
    expect_errors("changed graph", results, STATUS_CONFIG,
                  "parameter 'fc1.bias' has a gradient, though the graph",
                  "rank 1 gave up: parameter 'fc1.bias' has a gradient");
}

static atomic_int others_ended;

static status run_late(engine_rank *r)
{
    for (int64_t s = 0; s < 2; s++) TRY(job_whole_step(r, s));
    if (r->context->rank == ODD) {
        while (atomic_load(&others_ended) < WORLD - 1) clock_sleep_ns(NS_PER_MS);
        return STATUS_OK;
    }
    status rc = job_whole_step(r, 2);
    atomic_fetch_add(&others_ended, 1);
    return rc;
}

static void a_late_rank_ends_the_others_and_is_named(void **state)
{
    (void)state;
    static const char *const policies[] = {"ddp", "apex", "naive"};
    for (int i = 0; i < 6; i++) {
        engine_job job = {.policy = policies[i / 2],
                          .words = {i % 3 ? "--algorithm=ring" : NULL},
                          .world = WORLD,
                          .body = run_late,
                          .stall_timeout_ns = NS_PER_S,
                          .inline_progress = i % 2};
        rank_context results[RANKS_MAX];
        atomic_store(&others_ended, 0);
        engine_job_run(&job, results);
        expect_errors(job.policy, results, STATUS_PEER, NULL, "waits for rank 1");
    }
}

static status run_other_order(engine_rank *r)
{
    double values[4] = {0};
    sync_step step = job_step_of(r, 0);
    TRY(job_begin(r, &step));
    if (r->context->rank == ODD) TRY(sync_group_sum(r->engine, values, 4));
    TRY(job_backward(r, &step, NULL, 0));
    return job_finish(r, &step);
}

static void collectives_in_different_orders_are_both_named(void **state)
{
    (void)state;
    engine_job job = {.policy = "naive", .world = WORLD, .body = run_other_order, .group_values = 4};
    rank_context results[RANKS_MAX];
    engine_job_run(&job, results);
    expect_errors("order", results, STATUS_PROTOCOL, "all_reduce (sum) of 4 float64, tag -5",
                  "all_reduce (sum) of 4 float64, tag -5");
    for (int r = 0; r < WORLD; r++) assert_non_null(strstr(results[r].error.message, "float32, tag 0"));
}

/* ---- before the start ------------------------------------------------------------------------- */

static void a_collective_table_that_cannot_be_read_is_named(void **state)
{
    (void)state;
    engine_job job = {
        .policy = "ddp", .words = {"--collective-table=/nonexistent"}, .world = WORLD, .body = do_nothing};
    rank_context results[RANKS_MAX];
    engine_job_run(&job, results);
    expect_errors("table", results, STATUS_DATA, "--collective-table: /nonexistent",
                  "--collective-table: /nonexistent");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_differ_are_an_error_with_both_values),
        cmocka_unit_test(a_parameter_without_a_gradient_is_named_on_every_rank),
        cmocka_unit_test(a_rank_without_data_is_named_unless_ranks_may_join),
        cmocka_unit_test(a_static_graph_that_changes_is_named),
        cmocka_unit_test(a_late_rank_ends_the_others_and_is_named),
        cmocka_unit_test(collectives_in_different_orders_are_both_named),
        cmocka_unit_test(a_collective_table_that_cannot_be_read_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
