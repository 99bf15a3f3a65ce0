/* Tests that the policy of docs/add-a-policy.md is a row of the table like the other policies, and that it
 * trains. */
#include "tests/ps/job.h"
#include "tests/support/check.h"

enum { RANKS = 3, STEPS = 6 };

static status train(local_ranks *group, job_rank *r)
{
    ps_report report;
    (void)group;
    for (int i = 0; i < STEPS; i++) TRY(job_step(r));
    TRY(sync_flush(r->engine));
    ps_read_report(r->engine, &report);
    if (report.reads == 0 || report.most > 1)
        snprintf(r->error, sizeof r->error, "%lld reads, at most %lld updates late; expected at most 1",
                 (long long)report.reads, (long long)report.most);
    return STATUS_OK;
}

static void the_row_is_found(void **state)
{
    (void)state;
    job j;
    ps_policy p;
    job_open(&(job_config){.world = RANKS, .policy = "pipelined"}, &j);
    assert_ok(ps_policy_resolve("pipelined", &j.options, RANKS, &p));
    assert_int_equal(p.consistency, PS_SSP);
    assert_int_equal(p.staleness, 1);
    assert_string_equal(ps_policy_infos[PS_POLICY_COUNT - 1].name, "pipelined");
    job_close(&j);
}

static void ranks_train_and_read_at_most_one_update_late(void **state)
{
    (void)state;
    job j;
    job_open(&(job_config){.world = RANKS, .policy = "pipelined"}, &j);
    assert_ok(job_run(&j, train));
    job_close(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_row_is_found),
        cmocka_unit_test(ranks_train_and_read_at_most_one_update_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
