/* Tests a model that is divided into stages: the layers and parameters of each stage, and that the stages
 * together compute bit for bit what the whole model computes. */
#include "common/memory/plan.h"
#include "common/nn/instance.h"
#include "common/nn/stages.h"
#include "models/models.h"
#include "tests/support/check.h"
#include "tests/support/sanitized.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct stage_case {
    const char *name;
    model_options options;
    int stages;
} stage_case;

#define BERT .layers = 3, .hidden = 32, .heads = 4, .vocabulary = 97, .sequence = 7
#define GPT .layers = 3, .hidden = 24, .heads = 3, .vocabulary = 50, .sequence = 9
static const stage_case cases[] = {
    {"wine_mlp, 2", {.name = "wine_mlp"}, 2},
    {"lenet, 3", {.name = "lenet"}, 3},
    {"resnet18, 1", {.name = "resnet18", .image = 32, .classes = 10}, 1},
    {"resnet18, 2", {.name = "resnet18", .image = 32, .classes = 10}, 2},
    {"resnet18, 5", {.name = "resnet18", .image = 32, .classes = 10}, 5},
    {"resnet18 silu, 3", {.name = "resnet18", .image = 32, .activation = ACTIVATION_SILU}, 3},
    {"resnet50, 4", {.name = "resnet50", .image = 64, .classes = 10}, 4},
    {"inception_v3, 3", {.name = "inception_v3", .image = 75, .classes = 10}, 3},
    {"vgg16, 6", {.name = "vgg16", .image = 32, .classes = 10}, 6},
    {"bert mlm, 3", {.name = "bert", BERT}, 3},
    {"bert cls, 4", {.name = "bert", .head = MODEL_HEAD_CLS, BERT}, 4},
    {"gpt2, 2", {.name = "gpt2", GPT}, 2},
    {"gpt2, 5", {.name = "gpt2", GPT}, 5},
};
enum { CASES = sizeof cases / sizeof cases[0], BATCH = 4 };

static bool is_long; /* Set by --long: runs large models as well. */

/* Returns true for cases that take long. Only few stages of ResNet-18 run on the CPU. */
static bool is_slow(const stage_case *c, bool reference)
{
    bool large = c->options.image > 32 || strcmp(c->options.name, "vgg16") == 0;
    return large ? reference || !is_long : c->options.image > 0 && reference && (SANITIZED || c->stages <= 2);
}

static void open_case(const stage_case *c, nn_model **m, nn_cut *cut)
{
    if (model_build(&c->options, m) != STATUS_OK || nn_cut_model(*m, c->stages, cut) != STATUS_OK)
        fail_msg("%s: %s", c->name, error_message());
}

static nn_model *stage_of(const stage_case *c, const nn_model *m, const nn_cut *cut, int stage)
{
    nn_model *s = NULL;
    if (nn_stage_model(m, cut, stage, &s) != STATUS_OK) fail_msg("%s: %s", c->name, error_message());
    return s;
}

static void every_layer_is_in_one_stage_and_every_parameter_where_it_is_used(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        nn_model *m = NULL;
        nn_cut cut;
        open_case(&cases[i], &m, &cut);
        int *users = calloc((size_t)m->param_count, sizeof *users), buffers = 0, first = 0;
        nn_ref next = 1;
        for (int s = 0; s < cut.count; s++) {
            const nn_stage *stage = &cut.stages[s];
            assert_int_equal(stage->begin, next);
            assert_true(stage->end > stage->begin);
            next = stage->end;
            nn_model *part = stage_of(&cases[i], m, &cut, s);
            for (int p = 0; p < part->param_count; p++) {
                int whole = nn_find_param(m, part->params[p].name);
                if (users[whole]++ == 0) assert_int_equal(nn_stage_of_param(m, &cut, whole), s);
                assert_int_equal(part->params[p].repeated, users[whole] > 1);
                first += !part->params[p].repeated;
                if (!nn_stage_uses(m, &cut, s, whole))
                    fail_msg("%s: stage %d has %s", cases[i].name, s, part->params[p].name);
                assert_true(part->params[p].stages >> s & 1);
            }
            assert_int_equal(part->parameter_elements, stage->parameters);
            buffers += part->buffer_count;
            for (int b = 0; b < part->buffer_count; b++)
                assert_int_equal(nn_stage_of_buffer(m, &cut, nn_find_buffer(m, part->buffers[b].name)), s);
            nn_model_free(&part);
        }
        assert_int_equal(next, m->layer_count);
        assert_int_equal(buffers, m->buffer_count);
        assert_int_equal(first, m->param_count);
        for (int p = 0; p < m->param_count; p++) {
            bool tied = strcmp(m->params[p].name, "transformer.wte.weight") == 0 ||
                        strcmp(m->params[p].name, "bert.embeddings.word_embeddings.weight") == 0;
            if (users[p] != 1 && !(tied && users[p] == 2))
                fail_msg("%s: expected %s in one stage, got %d", cases[i].name, m->params[p].name, users[p]);
        }
        free(users);
        nn_model_free(&m);
    }
}

/* Tries all divisions of the layers into stages. Returns the cost of the most expensive stage in the best
 * division. */
static double least(const double *cost, int count, int stages)
{
    double best = INFINITY, sum = 0;
    if (stages == 1) {
        for (int i = 0; i < count; i++) sum += cost[i];
        return sum;
    }
    for (int i = 0; i + stages <= count; i++) {
        sum += cost[i];
        double rest = least(cost + i + 1, count - i - 1, stages - 1), most = rest > sum ? rest : sum;
        if (most < best) best = most;
    }
    return best;
}

static void the_most_expensive_stage_is_as_cheap_as_it_can_be(void **state)
{
    (void)state;
    nn_model *m = NULL;
    nn_cut finest, cut;
    double cost[NN_MOST_STAGES];
    int places = 0;
    assert_ok(model_build(&(model_options){.name = "resnet18"}, &m));
    /* Divides the model into as many stages as possible. */
    while (nn_cut_model(m, places + 1, &finest) == STATUS_OK) places++;
    error_clear();
    assert_ok(nn_cut_model(m, places, &finest));
    for (int i = 0; i < places; i++) cost[i] = finest.stages[i].flops;
    for (int stages = 2; stages <= 5; stages++) {
        double most = 0;
        assert_ok(nn_cut_model(m, stages, &cut));
        for (int i = 0; i < stages; i++)
            if (cut.stages[i].flops > most) most = cut.stages[i].flops;
        double expected = least(cost, places, stages);
        if (fabs(most - expected) > 1e-9 * expected)
            fail_msg("%d stages: expected %g, got %g", stages, expected, most);
    }
    nn_model_free(&m);
}

static void blocks_are_not_cut_apart(void **state)
{
    (void)state;
    nn_model *m = NULL;
    nn_cut cut;
    assert_ok(model_build(
        &(model_options){.name = "gpt2", .layers = 4, .hidden = 24, .heads = 3, .vocabulary = 50}, &m));
    assert_ok(nn_cut_model(m, 4, &cut));
    for (int s = 1; s < 4; s++) {
        /* Only the residual passes from one stage to the next here. */
        const char *name = m->layers[cut.stages[s].begin].name;
        if (!strstr(name, ".ln_") && !strstr(name, "lm_head")) fail_msg("stage %d begins at %s", s, name);
        assert_int_equal(cut.stages[s - 1].crosses, 128 * 24);
    }
    assert_int_equal(cut.stages[3].crosses, 0);
    nn_model_free(&m);
}

static void too_many_stages_are_refused(void **state)
{
    (void)state;
    nn_model *m = NULL;
    nn_cut cut;
    assert_ok(model_build(&(model_options){.name = "wine_mlp"}, &m));
    assert_int_equal(nn_cut_model(m, 3, &cut), STATUS_CONFIG);
    assert_string_equal(
        error_message(),
        "--stages: expected at most 2 for model wine_mlp, which can be cut in 1 place, got 3");
    error_clear();
    nn_model_free(&m);
}

/* ---- numbers ---------------------------------------------------------------------------------- */

typedef struct part {
    /* The model of this part, or NULL if the part is the whole model. The whole model is borrowed. */
    nn_model *model;
    nn_program *program;
    param_set *set;
    nn_instance *instance;
    nn_memory memory;
    device_memory input, target;
    ledger ledger;
} part;

static status nothing(void *context, int param)
{
    (void)context, (void)param;
    return STATUS_OK;
}

static const nn_observer observer = {.need = nothing, .ready = nothing};

static int64_t value_bytes(const part *p, int value)
{
    return p->program->values[value].bytes;
}

static void allocate(device *d, int64_t bytes, device_memory *out)
{
    assert_ok(device_allocate(d, DEVICE_MEMORY_PRIVATE, (size_t)bytes + 64, out));
}

static void open_part(device *d, device_stream *s, const nn_model *m, part *p)
{
    nn_program_config config = {
        .batch = BATCH, .mode = NN_TRAIN, .type = device_get_info(d)->compute_type, .world = 1};
    param_set_config params = {.gradients = true};
    assert_ok(nn_program_compile(m, &config, &p->program));
    assert_ok(param_set_open(d, m, p->program, &params, &p->set));
    assert_ok(param_set_initialize(p->set, s, 5));
    assert_ok(nn_instance_open(d, s, p->program, p->set, &p->instance));
    p->memory.activation_bytes = p->program->activation_bytes;
    p->memory.workspace_bytes = (int64_t)nn_instance_workspace(p->instance);
    allocate(d, p->memory.activation_bytes, &p->memory.activations);
    allocate(d, p->memory.workspace_bytes, &p->memory.workspace);
    allocate(d, 2 * sizeof(double), &p->memory.loss);
    allocate(d, BATCH * shape_elements(m->layers[0].sample) * 8, &p->input);
    allocate(d, BATCH * m->rows_per_sample * m->classes * 8, &p->target);
    nn_bindings bindings = {.memory = &p->memory, .input = p->input.data, .target = p->target.data};
    assert_ok(nn_instance_bind(p->instance, &bindings));
}

static void close_part(device *d, part *p)
{
    nn_instance_close(&p->instance);
    param_set_close(&p->set);
    nn_program_free(&p->program);
    device_memory *all[] = {&p->memory.activations, &p->memory.workspace, &p->memory.loss, &p->input,
                            &p->target};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) device_free(d, all[i]);
    nn_model_free(&p->model);
}

/* Returns a small number that depends on the index. */
static double number(int64_t i)
{
    return (double)((i * 2654435761u >> 7) % 1000) / 500.0 - 1.0;
}

static void fill(const nn_model *m, part *input, part *output)
{
    int64_t inputs = BATCH * shape_elements(m->layers[0].sample), targets = BATCH * m->rows_per_sample;
    bool doubles = input->program->config.type == DTYPE_F64, values = m->loss == NN_LOSS_MSE;
    for (int64_t i = 0; i < inputs; i++) {
        if (m->input_kind == NN_INPUT_TOKENS)
            ((int32_t *)input->input.data)[i] = (int32_t)(i * 31 % m->layers[0].vocabulary);
        else if (doubles)
            ((double *)input->input.data)[i] = number(i);
        else
            ((float *)input->input.data)[i] = (float)number(i);
    }
    for (int64_t i = 0; i < targets * (values ? m->classes : 1); i++) {
        if (!values)
            ((int32_t *)output->target.data)[i] = (int32_t)(i * 7 % m->classes);
        else if (doubles)
            ((double *)output->target.data)[i] = number(i + 5);
        else
            ((float *)output->target.data)[i] = (float)number(i + 5);
    }
}

static void pass(part *p, nn_pass first, nn_pass last, const nn_model *m)
{
    op_scalars scalars = {.loss_normalizer = (double)(BATCH * m->rows_per_sample)};
    assert_ok(nn_run(p->instance, first, last, &observer, &scalars, &p->ledger));
}

/* Runs the forward passes of the parts in order, and their backward passes in reverse order. */
static void run(const nn_model *m, part *parts, int count)
{
    fill(m, &parts[0], &parts[count - 1]);
    for (int i = 0; i < count; i++) {
        part *p = &parts[i];
        pass(p, NN_FORWARD, NN_FORWARD, m);
        if (i + 1 == count) continue;
        part *next = &parts[i + 1];
        assert_int_equal(value_bytes(p, p->program->output_value),
                         value_bytes(next, next->program->input_value));
        memcpy(nn_instance_value(next->instance, next->program->input_value),
               nn_instance_value(p->instance, p->program->output_value),
               (size_t)value_bytes(p, p->program->output_value));
    }
    for (int i = count - 1; i >= 0; i--) {
        part *p = &parts[i];
        if (i + 1 < count) {
            part *next = &parts[i + 1];
            int64_t bytes = value_bytes(p, p->program->output_gradient_value);
            assert_int_equal(bytes, value_bytes(next, next->program->input_gradient_value));
            ledger_acquire(
                &p->ledger, LEDGER_ACTIVATIONS, bytes,
                /* The gradient comes from the next part, so its memory is not in the plan of this part. */
                plan_align(bytes));
            memcpy(nn_instance_value(p->instance, p->program->output_gradient_value),
                   nn_instance_value(next->instance, next->program->input_gradient_value), (size_t)bytes);
        }
        pass(p, NN_LOSS, NN_BACKWARD, m);
        assert_int_equal(p->ledger.classes[LEDGER_ACTIVATIONS].current, 0);
    }
}

static float *gradient_of(part *p, int param)
{
    float *values = malloc((size_t)p->set->model->params[param].elements * sizeof *values);
    assert_ok(param_set_export(p->set, NULL, p->set->grads.data, param, DTYPE_F32, values));
    return values;
}

/* Compares gradients. If two stages have the same parameter, the sum of their gradients must equal the
 * gradient of the whole model, except for rounding. */
static void compare_gradient(const stage_case *c, part *whole, part *parts, int count, int param)
{
    const nn_param *info = &whole->set->model->params[param];
    float *expected = gradient_of(whole, param), *sum = calloc((size_t)info->elements, sizeof *sum);
    int users = 0;
    for (int i = 0; i < count; i++) {
        int own = nn_find_param(parts[i].set->model, info->name);
        if (own == NN_NONE) continue;
        float *values = gradient_of(&parts[i], own);
        for (int64_t e = 0; e < info->elements; e++) sum[e] += values[e];
        free(values);
        users++;
    }
    for (int64_t e = 0; e < info->elements; e++) {
        bool equal = users == 1 ? sum[e] == expected[e]
                                : fabsf(sum[e] - expected[e]) <= 1e-5f * (1 + fabsf(expected[e]));
        if (!equal)
            fail_msg("%s: gradient of %s: expected %.9g, got %.9g", c->name, info->name, expected[e], sum[e]);
    }
    free(expected);
    free(sum);
}

static void compare_losses(const stage_case *c, part *whole, part *last)
{
    const double *expected = nn_instance_loss_sums(whole->instance),
                 *found = nn_instance_loss_sums(last->instance);
    for (int i = 0; i < 2; i++)
        if (expected[i] != found[i])
            fail_msg("%s: loss: expected %.17g, got %.17g", c->name, expected[i], found[i]);
    assert_true(expected[0] > 0);
}

static void compare(const char *name)
{
    device *d = NULL;
    device_stream *s = NULL;
    assert_ok(device_open(&(device_config){.name = name, .world = 1, .threads = 1}, &d));
    assert_ok(device_stream_open(d, DEVICE_STREAM_COMPUTE, &s));
    for (int i = 0; i < CASES; i++) {
        if (is_slow(&cases[i], device_get_info(d)->compute_type == DTYPE_F64)) continue;
        nn_model *m = NULL;
        nn_cut cut;
        part whole = {0}, parts[NN_MOST_STAGES] = {0};
        open_case(&cases[i], &m, &cut);
        open_part(d, s, m, &whole);
        run(m, &whole, 1);
        for (int k = 0; k < cut.count; k++) {
            parts[k].model = stage_of(&cases[i], m, &cut, k);
            open_part(d, s, parts[k].model, &parts[k]);
        }
        run(m, parts, cut.count);
        compare_losses(&cases[i], &whole, &parts[cut.count - 1]);
        for (int p = 0; p < m->param_count; p++) compare_gradient(&cases[i], &whole, parts, cut.count, p);
        for (int k = 0; k < cut.count; k++) close_part(d, &parts[k]);
        close_part(d, &whole);
        nn_model_free(&m);
    }
    device_stream_close(&s);
    device_close(&d);
}

static void stages_compute_the_loss_and_the_gradients_of_the_whole_model_on_cpu(void **state)
{
    (void)state;
    compare("cpu");
}

static void stages_compute_the_loss_and_the_gradients_of_the_whole_model_on_reference(void **state)
{
    (void)state;
    compare("reference");
}

int main(int argc, char **argv)
{
    is_long = argc > 1 && strcmp(argv[1], "--long") == 0;
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layer_is_in_one_stage_and_every_parameter_where_it_is_used),
        cmocka_unit_test(the_most_expensive_stage_is_as_cheap_as_it_can_be),
        cmocka_unit_test(blocks_are_not_cut_apart),
        cmocka_unit_test(too_many_stages_are_refused),
        cmocka_unit_test(stages_compute_the_loss_and_the_gradients_of_the_whole_model_on_cpu),
        cmocka_unit_test(stages_compute_the_loss_and_the_gradients_of_the_whole_model_on_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
