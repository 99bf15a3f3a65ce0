/* Tests the ring policy of docs/add-a-policy.md, which is a row of the table like the other policies: its
 * buckets, and that it averages gradients exactly. */
#include "models/models.h"
#include "ring/policy.h"
#include "tests/ring/engine_job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { RANKS = 3, STEPS = 4 };

static void its_buckets_hold_40_million_elements(void **state)
{
    (void)state;
    ring_options options = {0};
    option_binding binding = {.table = &ring_option_table, .storage = &options};
    ring_settings settings;
    bucket_schedule buckets;
    nn_model *model = NULL;
    nn_program *program = NULL;
    assert_int_equal(options_defaults(&binding, 1), STATUS_OK);
    assert_int_equal(ring_settings_resolve(&options, 0, "megatron", &settings), STATUS_OK);
    assert_int_equal(model_build(&(model_options){.name = "gpt2"}, &model), STATUS_OK);
    const nn_program_config config = {.batch = 1, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
    assert_int_equal(nn_program_compile(model, &config, &program), STATUS_OK);
    assert_int_equal(ring_program_buckets(&settings, program, false, &buckets), STATUS_OK);
    assert_int_equal(buckets.count, 3); /* of 124,439,808 elements */
    for (int b = 0; b + 1 < buckets.count; b++) assert_true(buckets.buckets[b].bytes >= 4 * 40000000);
    bucket_schedule_close(&buckets);
    nn_program_free(&program);
    nn_model_free(&model);
}

static status run_steps(engine_rank *r)
{
    for (int64_t s = 0; s < STEPS; s++) {
        TRY(job_whole_step(r, s));
        TRY(job_check_gradients(r, s));
    }
    return sync_flush(r->engine);
}

static void ranks_average_gradients(void **state)
{
    (void)state;
    engine_job job = {.policy = "megatron", .words = {NULL}, .world = RANKS, .body = run_steps};
    engine_job_run_well(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_buckets_hold_40_million_elements),
        cmocka_unit_test(ranks_average_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
