/* Compares the reference device, which other tests trust, with PyTorch in float64. */
#include "tests/common/device/op_devices.h"
#include "tests/common/device/op_families.h"
#include "tests/common/device/op_runner.h"
#include "tests/common/device/op_vectors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const case_options plain = {0};

static activation activation_of(const json_t *v)
{
    for (int i = 0; i < ACTIVATION_COUNT; i++)
        if (strcmp(activation_name((activation)i), vector_text(v, "act")) == 0) return (activation)i;
    fail_msg("no activation is called '%s'", vector_text(v, "act"));
    return ACTIVATION_NONE;
}

static void build_conv2d(op_case *c, const json_t *v)
{
    conv2d_attributes a = {.n = vector_integer(v, "n"),
                           .h = vector_integer(v, "h"),
                           .w = vector_integer(v, "w"),
                           .c = vector_integer(v, "c"),
                           .k = vector_integer(v, "k"),
                           .r = vector_integer(v, "r"),
                           .s = vector_integer(v, "s"),
                           .stride = vector_integer(v, "stride"),
                           .pad_h = vector_integer(v, "pad_h"),
                           .pad_w = vector_integer(v, "pad_w"),
                           .bias = vector_flag(v, "bias")};
    case_conv2d(c, a, plain);
}

static void build_linear(op_case *c, const json_t *v)
{
    linear_attributes a = {.m = vector_integer(v, "m"),
                           .in = vector_integer(v, "in"),
                           .out = vector_integer(v, "out"),
                           .bias = vector_flag(v, "bias"),
                           .act = activation_of(v),
                           .flat_c = vector_integer(v, "flat_c"),
                           .flat_h = vector_integer(v, "flat_h"),
                           .flat_w = vector_integer(v, "flat_w")};
    case_linear(c, a, plain);
}

static batchnorm_attributes batchnorm_of(const json_t *v)
{
    return (batchnorm_attributes){.n = vector_integer(v, "n"),
                                  .h = vector_integer(v, "h"),
                                  .w = vector_integer(v, "w"),
                                  .c = vector_integer(v, "c"),
                                  .eps = vector_number(v, "eps"),
                                  .momentum = vector_number(v, "momentum"),
                                  .act = activation_of(v),
                                  .residual = vector_flag(v, "residual"),
                                  .dy2 = vector_flag(v, "dy2"),
                                  .world = 1};
}

static void build_batchnorm(op_case *c, const json_t *v)
{
    case_batchnorm(c, batchnorm_of(v), plain);
}

static void build_syncbatchnorm(op_case *c, const json_t *v)
{
    case_syncbatchnorm(c, batchnorm_of(v), plain);
}

static void build_batchnorm_inference(op_case *c, const json_t *v)
{
    case_batchnorm_inference(c, batchnorm_of(v));
}

static void build_layernorm(op_case *c, const json_t *v)
{
    layernorm_attributes a = {.m = vector_integer(v, "m"),
                              .c = vector_integer(v, "c"),
                              .eps = vector_number(v, "eps"),
                              .residual = vector_flag(v, "residual"),
                              .dsum = vector_flag(v, "dsum")};
    case_layernorm(c, a, plain);
}

static void build_activation(op_case *c, const json_t *v)
{
    case_activation(c, (elementwise_attributes){vector_integer(v, "count"), activation_of(v)}, plain);
}

static pool_attributes pool_of(const json_t *v)
{
    return (pool_attributes){.n = vector_integer(v, "n"),
                             .h = vector_integer(v, "h"),
                             .w = vector_integer(v, "w"),
                             .c = vector_integer(v, "c"),
                             .r = vector_integer(v, "r"),
                             .s = vector_integer(v, "s"),
                             .stride = vector_integer(v, "stride"),
                             .pad = vector_integer(v, "pad")};
}

static void build_maxpool(op_case *c, const json_t *v)
{
    case_maxpool(c, pool_of(v));
}

static void build_avgpool(op_case *c, const json_t *v)
{
    case_avgpool(c, pool_of(v));
}

static void build_concat(op_case *c, const json_t *v)
{
    concat_attributes a = {.rows = vector_integer(v, "rows")};
    const json_t *channels = json_object_get(json_object_get(v, "attributes"), "channels");
    for (size_t i = 0; i < json_array_size(channels); i++)
        a.c[i] = json_integer_value(json_array_get(channels, i));
    case_concat(c, a);
}

static void build_embedding(op_case *c, const json_t *v)
{
    embedding_attributes a = {.batch = vector_integer(v, "batch"),
                              .sequence = vector_integer(v, "sequence"),
                              .hidden = vector_integer(v, "hidden"),
                              .vocabulary = vector_integer(v, "vocabulary"),
                              .positions = vector_integer(v, "positions"),
                              .position_table = vector_flag(v, "position_table"),
                              .type_table = vector_flag(v, "type_table")};
    case_embedding(c, a, plain);
}

static void build_attention(op_case *c, const json_t *v)
{
    attention_attributes a = {.batch = vector_integer(v, "batch"),
                              .sequence = vector_integer(v, "sequence"),
                              .heads = vector_integer(v, "heads"),
                              .width = vector_integer(v, "width"),
                              .causal = vector_flag(v, "causal")};
    a.stride = vector_flag(v, "packed") ? 3 * a.heads * a.width : 0;
    case_attention(c, a);
}

static loss_attributes loss_of(const json_t *v)
{
    return (loss_attributes){vector_integer(v, "rows"), vector_integer(v, "classes"), true};
}

static void build_cross_entropy(op_case *c, const json_t *v)
{
    case_cross_entropy(c, loss_of(v), plain);
    c->scalars.loss_normalizer = vector_number(v, "normalizer");
}

static void build_mean_squared_error(op_case *c, const json_t *v)
{
    case_mean_squared_error(c, loss_of(v), plain);
    c->scalars.loss_normalizer = vector_number(v, "normalizer");
}

typedef struct family {
    const char *name; /* Name of the field in op_vectors.json. */
    const char *text; /* Name of the field in the names of tests. */
    void (*build)(op_case *c, const json_t *v);
} family;

static const family families[] = {
    {"conv2d", "conv2d", build_conv2d},
    {"linear", "linear", build_linear},
    {"batchnorm", "batchnorm", build_batchnorm},
    {"batchnorm", "syncbatchnorm of one rank", build_syncbatchnorm},
    {"batchnorm_inference", "batchnorm_inference", build_batchnorm_inference},
    {"layernorm", "layernorm", build_layernorm},
    {"activation", "activation", build_activation},
    {"maxpool", "maxpool", build_maxpool},
    {"avgpool", "avgpool", build_avgpool},
    {"concat", "concat", build_concat},
    {"embedding", "embedding", build_embedding},
    {"attention", "attention", build_attention},
    {"cross_entropy", "cross_entropy", build_cross_entropy},
    {"mean_squared_error", "mean_squared_error", build_mean_squared_error},
};
enum { FAMILIES = sizeof families / sizeof families[0], MOST_TESTS = 128 };

typedef struct vector_test {
    const family *family;
    const json_t *vector;
    char name[256];
} vector_test;

static void results_are_those_of_pytorch(void **context)
{
    const vector_test *test = *context;
    device *d = device_setting_open(device_settings[0]);
    op_case c;
    op_runner runner;
    case_state state;
    test->family->build(&c, test->vector);
    op_runner_open(d, &c, &runner);
    case_state_open(&c, &state);
    op_runner_load(&runner, &state);
    op_runner_run(&runner, 0, c.step_count);
    op_runner_store(&runner, &state);
    const char *name;
    json_t *result;
    json_object_foreach(json_object_get(test->vector, "results"), name, result)
    {
        int tensor = case_find(&c, name);
        if (!tensor) fail_msg("%s: no tensor is called %s", test->name, name);
        vector_check(name, result, state.values[tensor], c.tensors[tensor].count);
    }
    case_state_close(&state);
    op_runner_close(&runner);
    device_close(&d);
}

int main(void)
{
    static struct CMUnitTest tests[MOST_TESTS];
    static vector_test contexts[MOST_TESTS];
    json_t *document = vectors_load();
    const json_t *vectors = json_object_get(document, "cases");
    int used = 0;
    for (size_t i = 0; i < json_array_size(vectors); i++)
        for (int f = 0; f < FAMILIES && used < MOST_TESTS; f++) {
            const json_t *vector = json_array_get(vectors, i);
            if (strcmp(json_string_value(json_object_get(vector, "family")), families[f].name) != 0) continue;
            char attributes[224];
            contexts[used] = (vector_test){.family = &families[f], .vector = vector};
            snprintf(contexts[used].name, sizeof contexts[used].name,
                     "the reference gives PyTorch's figures: %s %s", families[f].text,
                     vector_name(vector, attributes, sizeof attributes));
            tests[used] = (struct CMUnitTest){contexts[used].name, results_are_those_of_pytorch, NULL, NULL,
                                              &contexts[used]};
            used++;
        }
    int failed =
        _cmocka_run_group_tests("the reference gives PyTorch's figures", tests, (size_t)used, NULL, NULL);
    json_decref(document);
    return failed;
}
