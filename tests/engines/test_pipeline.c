/* Tests that a model in stages trains as the whole model does with the same number of micro-batches. The
 * stages are a pipeline over ranks, or are on devices of each rank. Losses and parameters are bit-identical.
 * They may differ by rounding if two stages have the same parameter, or if gradients are clipped by the norm
 * over all stages. */
#include "ring/ring.h"
#include "tests/engines/training.h"
#include "tests/support/check.h"
#include "tests/support/sanitized.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = SANITIZED ? 2 : 3 };

typedef struct pipeline_case {
    const char *name;
    model_options model;
    int stages, replicas;
    int64_t batches, batch;
    bool shares; /* True if two stages have the same parameter. */
    bool slow;   /* True if the case is slow on the reference device. */
    /* Limit to which the norm of gradients is clipped. It is lower than the norm of all gradients. */
    double clip_norm;
} pipeline_case;

#define GPT .layers = 3, .hidden = 24, .heads = 3, .vocabulary = 50, .sequence = 9
static const pipeline_case cases[] = {
    {"wine_mlp", {.name = "wine_mlp"}, 2, 1, 4, 3, false, false, 0},
    {"lenet, one micro-batch", {.name = "lenet"}, 3, 1, 1, 2, false, false, 0},
    {"lenet", {.name = "lenet"}, 3, 1, 7, 2, false, false, 0},
    {"lenet, two replicas", {.name = "lenet"}, 2, 2, 5, 2, false, false, 0},
    {"bert",
     {.name = "bert",
      .head = MODEL_HEAD_CLS,
      .layers = 3,
      .hidden = 32,
      .heads = 4,
      .vocabulary = 97,
      .sequence = 7},
     3,
     2,
     4,
     3,
     false,
     false,
     0},
    {"gpt2", {.name = "gpt2", GPT}, 3, 1, 4, 2, true, false, 0},
    {"gpt2, two replicas", {.name = "gpt2", GPT}, 2, 2, 3, 2, true, false, 0},
    {"lenet, clipped", {.name = "lenet"}, 3, 1, 4, 2, false, false, 0.25},
    {"gpt2, clipped, two replicas", {.name = "gpt2", GPT}, 3, 2, 2, 2, true, false, 0.25},
    {"resnet18", {.name = "resnet18", .image = 32, .classes = 10}, 4, 1, 10, 2, false, true, 0},
};
/* Under a sanitizer the last one is left out, since it is too large. */
enum { CASES = sizeof cases / sizeof cases[0] - SANITIZED };

/* Result of a run: the parameters in the order of the whole model, and the losses. */
typedef struct outcome {
    const nn_model *model;
    float **params; /* [param_count] */
    double losses[STEPS];
} outcome;

static void open_outcome(const nn_model *m, outcome *o)
{
    *o = (outcome){.model = m, .params = calloc((size_t)m->param_count, sizeof *o->params)};
    for (int p = 0; p < m->param_count; p++)
        o->params[p] = calloc((size_t)m->params[p].elements, sizeof **o->params);
}

static void close_outcome(outcome *o)
{
    for (int p = 0; p < o->model->param_count; p++) free(o->params[p]);
    free(o->params);
}

/* Exports the parameters for which this stage is the last one that uses them. */
static status export_stage(training_rank *r, trainer *t, int stage)
{
    outcome *o = training_context(r);
    param_set *set = trainer_params(t);
    for (int p = 0; p < set->model->param_count; p++) {
        int whole = nn_find_param(o->model, set->model->params[p].name);
        /* A later stage also uses the parameter. */
        if (set->model->params[p].stages >> (stage + 1)) continue;
        TRY(param_set_export(set, trainer_stream(t), set->params.data, p, DTYPE_F32, o->params[whole]));
    }
    return STATUS_OK;
}

static status train_on_devices(training_rank *r)
{
    outcome *o = training_context(r);
    for (int step = 0; step < STEPS; step++) {
        TRY(training_step(r));
        if (r->rank == 0) o->losses[step] = r->last.loss;
    }
    for (int s = 0; s < r->stage_count && r->rank == 0; s++) TRY(export_stage(r, r->stages[s], s));
    return STATUS_OK;
}

static status train(training_rank *r)
{
    outcome *o = training_context(r);
    param_set *set = trainer_params(r->trainer);
    for (int step = 0; step < STEPS; step++) {
        TRY(training_step(r));
        bool has_loss = isfinite(r->last.loss);
        if (has_loss == set->model->sent)
            return fail(STATUS_INTERNAL, "rank %d: a loss is the last stage's", r->rank);
        if (has_loss && r->place.replica == 0 && (r->place.shape.stages > 0 || r->rank == 0))
            o->losses[step] = r->last.loss;
    }
    if (r->place.replica != 0 || (r->place.shape.stages == 0 && r->rank != 0)) return STATUS_OK;
    return export_stage(r, r->trainer, r->place.stage);
}

static bool is_rounded(const pipeline_case *c)
{
    return c->shares || c->clip_norm > 0;
}

static void compare(const pipeline_case *c, const char *device, const char *schedule, const outcome *expected,
                    const outcome *got)
{
    for (int s = 0; s < STEPS; s++) {
        double difference = fabs(expected->losses[s] - got->losses[s]);
        if (is_rounded(c) && s > 0 ? difference > 1e-5 : difference != 0)
            fail_msg("%s on %s, %s: loss of step %d: expected %.17g, got %.17g", c->name, device, schedule, s,
                     expected->losses[s], got->losses[s]);
    }
    for (int p = 0; p < expected->model->param_count; p++)
        for (int64_t e = 0; e < expected->model->params[p].elements; e++) {
            float a = expected->params[p][e], b = got->params[p][e];
            if (is_rounded(c) ? fabsf(a - b) <= 1e-5f * (1 + fabsf(a)) : a == b) continue;
            fail_msg("%s on %s, %s: %s[%lld]: expected %.9g, got %.9g", c->name, device, schedule,
                     expected->model->params[p].name, (long long)e, a, b);
        }
}

static void train_whole_and_split(const pipeline_case *c, const char *device)
{
    nn_model *m = NULL;
    outcome expected;
    assert_ok(model_build(&c->model, &m));
    open_outcome(m, &expected);
    training_config config = {.model = c->model.name,
                              .sizes = &c->model,
                              .engine = &sync_ring,
                              .device = device,
                              .world = c->replicas,
                              .batch = c->batch,
                              .accumulate = c->batches,
                              .optimizer = optimizer_defaults(OPTIMIZER_SGD)};
    config.optimizer.clip_norm = c->clip_norm;
    /* If the learning rate is large, a stage that clips by a wrong norm gets clearly different parameters. */
    if (c->clip_norm > 0) config.optimizer.lr = 1;
    assert_ok(training_run(&config, &expected, train));
    config.stages = c->stages;
    config.world = c->stages * c->replicas;
    for (int s = 0; s < PIPELINE_SCHEDULE_COUNT; s++) {
        outcome got;
        open_outcome(m, &got);
        config.schedule = s;
        assert_ok(training_run(&config, &got, train));
        compare(c, device, pipeline_schedule_names[s], &expected, &got);
        close_outcome(&got);
    }
    config.world = c->replicas;
    config.on_devices = true;
    outcome got;
    open_outcome(m, &got);
    assert_ok(training_run(&config, &got, train_on_devices));
    compare(c, device, "devices of a rank", &expected, &got);
    close_outcome(&got);
    close_outcome(&expected);
    nn_model_free(&m);
}

static void stages_train_as_the_whole_model_on_cpu(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) train_whole_and_split(&cases[i], "cpu");
}

static void stages_train_as_the_whole_model_on_reference(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++)
        if (!cases[i].slow) train_whole_and_split(&cases[i], "reference");
}

/* ---- what is refused -------------------------------------------------------------------------- */

static void policies_that_cut_state_are_refused(void **state)
{
    (void)state;
    training_config config = {.model = "lenet",
                              .engine = &sync_ring,
                              .policy = "zero3",
                              .world = 2,
                              .stages = 2,
                              .accumulate = 2,
                              .batch = 2};
    assert_fails(training_run(&config, NULL, train), STATUS_CONFIG,
                 "--stages: expected a policy whose ranks have all gradients, as ddp, got zero3");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_train_as_the_whole_model_on_cpu),
        cmocka_unit_test(stages_train_as_the_whole_model_on_reference),
        cmocka_unit_test(policies_that_cut_state_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
