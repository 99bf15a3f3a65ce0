/* Tests every engine under each rule of --on-nonfinite, with a gradient of one rank that is NaN
 * in one step. */
#include "ps/ps.h"
#include "ring/ring.h"
#include "tests/engines/training.h"
#include "tests/support/check.h"

#include <math.h>
#include <string.h>

enum { WORLD = 3, STEPS = 7, BAD_STEP = 3, NO_STEP = -1, BAD_PARAM = 2 };

typedef struct engine_case {
    const sync_engine_type *engine;
    const char *policy, *options;
    int world;
    /* True if all ranks see the same average, so that the result does not depend on which rank is first. */
    bool by_rounds;
} engine_case;

static const engine_case cases[] = {
    {&sync_none, "none", "", 1, true},
    {&sync_ps, "dp", "", WORLD, true},
    {&sync_ps, "sync", "", WORLD, true},
    {&sync_ps, "sync", "--servers 3 --partition-bytes 100", WORLD, true},
    {&sync_ps, "sync", "--server-optimizer off", WORLD, true},
    {&sync_ps, "ssp", "--staleness 0", WORLD, true},
    {&sync_ps, "ssp", "--staleness 2 --servers 2", WORLD, false},
    {&sync_ps, "async", "", WORLD, false},
    {&sync_ps, "async", "--servers 2", WORLD, false},
    {&sync_ring, "ddp", "--algorithm ring", WORLD, true},
    {&sync_ring, "ddp", "--algorithm two-shot", WORLD, true},
    {&sync_ring, "apex", "--algorithm ring --message-size 40", WORLD, true},
    {&sync_ring, "torch-0.4.1", "", WORLD, true},
    {&sync_ring, "zero1", "", WORLD, true},
    {&sync_ring, "zero2", "--algorithm two-shot", WORLD, true},
    {&sync_ring, "zero3", "", WORLD, true},
    {&sync_ring, "fsdp", "", WORLD, true},
    {&sync_ring, "zero3", "--mixed-precision", WORLD, true},
};
enum { CASES = sizeof cases / sizeof cases[0] };

typedef struct experiment {
    int bad_step; /* Step in which rank 1 (or the only rank) has a gradient that is not finite. */
    int left_out; /* Index of the batch that no rank trains on. */
    uint64_t hash[WORLD];
    int64_t skipped[WORLD];
    bool finite[WORLD];
} experiment;

/* An engine that receives a gradient in which a value was replaced by NaN. */
typedef struct spoiled_engine {
    sync_engine_type type;
    const sync_engine_type *original;
    bool spoils;
} spoiled_engine;

static _Thread_local spoiled_engine spoiled;

static status spoiled_ready(sync_engine *e, int param)
{
    const param_set *set = e->context.params;
    float *grads = param_set_is_mixed(set) ? set->f32_grads.data : set->grads.data;
    if (spoiled.spoils && param == BAD_PARAM) grads[set->grads_placed[param].offset] = NAN;
    return spoiled.original->ready(e, param);
}

static void spoil_engine(sync_engine *e)
{
    spoiled = (spoiled_engine){.type = *e->type, .original = e->type};
    spoiled.type.ready = spoiled_ready;
    e->type = &spoiled.type;
}

static void look(const training_rank *r, experiment *x)
{
    const param_set *set = trainer_params(r->trainer);
    const float *values = param_set_values(set);
    bool finite = true;
    for (int p = 0; p < set->model->param_count; p++)
        for (int64_t i = 0; i < set->pieces[p].count; i++)
            finite = finite && isfinite(values[set->pieces[p].offset + i]);
    x->finite[r->rank] = finite;
    x->skipped[r->rank] = trainer_skipped(r->trainer);
}

static status train(training_rank *r)
{
    experiment *x = training_context(r);
    sync_engine *e = trainer_engine(r->trainer);
    int bad_rank = e->context.world > 1, step = 0;
    status rc = STATUS_OK;
    spoil_engine(e);
    for (int batch = 0; batch < STEPS && rc == STATUS_OK; batch++) {
        step_result result;
        if (batch == x->left_out) continue;
        spoiled.spoils = r->rank == bad_rank && step == x->bad_step;
        rc = trainer_step(r->trainer, r->source, step++, batch, &result);
    }
    if (rc == STATUS_OK) rc = sync_flush(trainer_engine(r->trainer));
    if (rc == STATUS_OK) rc = sync_gather_parameters(trainer_engine(r->trainer));
    e->type = spoiled.original;
    TRY(rc);
    look(r, x);
    return param_set_hash(trainer_params(r->trainer), trainer_stream(r->trainer), &x->hash[r->rank]);
}

static status run(const engine_case *c, optimizer_options optimizer, int rule, experiment *x)
{
    optimizer.on_nonfinite = rule;
    training_config config = {.model = "wine_mlp",
                              .engine = c->engine,
                              .policy = c->policy,
                              .options = c->options,
                              .world = c->world,
                              .batch = 4,
                              .processes =
                                  /* A rank that ends frees memory that ranks as threads may still use. */
                              rule == NONFINITE_STOP,
                              .optimizer = optimizer};
    return training_run(&config, x, train);
}

static optimizer_options with_momentum(void)
{
    optimizer_options o = optimizer_defaults(OPTIMIZER_SGD);
    o.momentum = 0.9;
    return o;
}

static const char *name_of(const engine_case *c)
{
    static char text[128];
    snprintf(text, sizeof text, "%s %s %s", c->engine->name, c->policy, c->options);
    return text;
}

static void skip_leaves_parameters_and_optimizer_as_if_the_step_had_not_been(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * CASES; i++) {
        const engine_case *c = &cases[i / 2];
        optimizer_options o = i % 2 ? optimizer_defaults(OPTIMIZER_ADAM) : with_momentum();
        experiment skipped = {.bad_step = BAD_STEP, .left_out = NO_STEP};
        experiment without = {.bad_step = NO_STEP, .left_out = BAD_STEP};
        assert_ok(run(c, o, NONFINITE_SKIP, &skipped));
        assert_ok(run(c, o, NONFINITE_SKIP, &without));
        for (int r = 0; r < c->world; r++) {
            bool counts = strcmp(c->policy, "dp") != 0 || r == 0;
            if (!skipped.finite[r]) fail_msg("%s: rank %d has parameters that are not finite", name_of(c), r);
            if (skipped.hash[r] != skipped.hash[0]) fail_msg("%s: ranks 0 and %d differ", name_of(c), r);
            if (counts && skipped.skipped[r] != 1)
                fail_msg("%s: rank %d counts %lld updates skipped, expected 1", name_of(c), r,
                         (long long)skipped.skipped[r]);
            if (without.skipped[r] != 0)
                fail_msg("%s: rank %d skipped an update of finite gradients", name_of(c), r);
            if (c->by_rounds && skipped.hash[r] != without.hash[r])
                fail_msg("%s: rank %d differs from a run without the step", name_of(c), r);
        }
    }
}

static void stop_names_step_and_parameter(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        experiment x = {.bad_step = BAD_STEP, .left_out = NO_STEP};
        status rc = run(&cases[i], with_momentum(), NONFINITE_STOP, &x);
        const char *message = error_message();
        if (rc != STATUS_NONFINITE || !strstr(message, "step 3: ") ||
            !strstr(message, "gradient of fc2.weight is not finite"))
            fail_msg("%s: %s: %s", name_of(&cases[i]), status_name(rc), message);
        if (!cases[i].by_rounds && strcmp(cases[i].policy, "async") == 0 && !strstr(message, "rank 1"))
            fail_msg("%s: does not name rank 1: %s", name_of(&cases[i]), message);
        error_clear();
    }
}

static void warn_goes_on(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        experiment x = {.bad_step = BAD_STEP, .left_out = NO_STEP};
        assert_ok(run(&cases[i], with_momentum(), NONFINITE_WARN, &x));
        for (int r = 0; r < cases[i].world; r++)
            if ((x.finite[r] && r == 0) || x.skipped[r] != 0)
                fail_msg("%s: rank %d has left the update out", name_of(&cases[i]), r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(skip_leaves_parameters_and_optimizer_as_if_the_step_had_not_been),
        cmocka_unit_test(stop_names_step_and_parameter),
        cmocka_unit_test(warn_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
