/* Tests the engine of docs/add-an-engine.md. If it averages after every step, it trains as the ring does. If
 * it averages less often, the ranks differ between averages. */
#include "ring/ring.h"
#include "tests/engines/training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { WORLD = 3, STEPS = 5, MOST = 4096 };

extern const sync_engine_type sync_local_sgd;

typedef struct outcome {
    float trained[WORLD][MOST]; /* Parameters of each rank after STEPS steps. */
    float flushed[WORLD][MOST]; /* Parameters of each rank after a flush. */
    int64_t count;
} outcome;

static status export_params(training_rank *r, float *out, int64_t *count)
{
    const param_set *set = trainer_params(r->trainer);
    *count = 0;
    for (int p = 0; p < set->model->param_count; *count += set->model->params[p++].elements)
        TRY(param_set_export(set, trainer_stream(r->trainer), set->params.data, p, DTYPE_F32, out + *count));
    return STATUS_OK;
}

static status train(training_rank *r)
{
    outcome *o = training_context(r);
    int64_t count;
    if (trainer_params(r->trainer)->model->parameter_elements > MOST) return STATUS_INTERNAL;
    for (int i = 0; i < STEPS; i++) TRY(training_step(r));
    TRY(export_params(r, o->trained[r->rank], &count));
    TRY(sync_flush(trainer_engine(r->trainer)));
    TRY(export_params(r, o->flushed[r->rank], &count));
    if (r->rank == 0) o->count = count;
    return STATUS_OK;
}

static void run(outcome *out, const sync_engine_type *engine, const char *policy, const char *options)
{
    training_config config = {.model = "wine_mlp",
                              .engine = engine,
                              .policy = policy,
                              .options = options,
                              .world = WORLD,
                              .batch = 4};
    status rc = training_run(&config, out, train);
    if (rc != STATUS_OK) fail_msg("%s %s: %s", engine->name, options ? options : "", error_message());
    assert_true(out->count > 0);
}

static void expect_near(const float *found, const float *expected, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (fabsf(found[i] - expected[i]) > 1e-5f * fmaxf(1, fabsf(expected[i])))
            fail_msg("parameter element %lld: found %g, expected %g", (long long)i, (double)found[i],
                     (double)expected[i]);
}

static void an_average_of_parameters_after_every_step_trains_as_an_average_of_gradients(void **state)
{
    (void)state;
    static outcome local, ring;
    run(&local, &sync_local_sgd, "local-sgd", "--average-every 1");
    run(&ring, &sync_ring, "ddp", NULL);
    expect_near(local.trained[0], ring.trained[0], ring.count);
}

static void ranks_differ_between_averages_and_a_flush_averages_them(void **state)
{
    (void)state;
    static outcome o;
    run(&o, &sync_local_sgd, "local-sgd", "--average-every 4"); /* there is no average after the fifth step */
    size_t bytes = (size_t)o.count * sizeof(float);
    static float mean[MOST];
    for (int64_t i = 0; i < o.count; i++)
        mean[i] = (o.trained[0][i] + o.trained[1][i] + o.trained[2][i]) / WORLD;
    assert_true(memcmp(o.trained[0], o.trained[1], bytes) != 0);
    for (int r = 1; r < WORLD; r++) assert_memory_equal(o.flushed[r], o.flushed[0], bytes);
    expect_near(o.flushed[0], mean, o.count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_average_of_parameters_after_every_step_trains_as_an_average_of_gradients),
        cmocka_unit_test(ranks_differ_between_averages_and_a_flush_averages_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
