#include "models/models.h"

#include "common/nn/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct size_case {
    model_options options;
    int64_t parameters;    /* Number of parameters that the model has in torchvision or Hugging Face. */
    int64_t multiply_adds; /* Multiply-adds of convolutions and linear layers in the forward pass of one
                              sample, or 0 if they are not checked. */
} size_case;

static const size_case sizes[] = {
    {{.name = "toy"}, 165, 150},
    {{.name = "wine_mlp"}, 1091, 1024},
    {{.name = "lenet"}, 61706, 0},
    {{.name = "resnet18"}, 11689512, 1814073344},
    {{.name = "resnet34"}, 21797672, 3663761408},
    {{.name = "resnet50"}, 25557032, 4089184256},
    {{.name = "resnet101"}, 44549160, 7801405440},
    {{.name = "resnet152"}, 60192808, 11513626624},
    {{.name = "inception_v3"}, 23834568, 5713216096},
    {{.name = "alexnet"}, 61100840, 714188480},
    {{.name = "vgg16"}, 138357544, 15470264320},
    {{.name = "resnet18", .image = 32, .classes = 10}, 11181642, 0},
    {{.name = "bert_base"}, 109514298, 0},
    {{.name = "bert_large"}, 335174458, 0},
    {{.name = "gpt2"}, 124439808, 0},
    {{.name = "gpt2_medium"}, 354823168, 0},
    {{.name = "gpt2_large"}, 774030080, 0},
    {{.name = "gpt2-xl"}, 1557611200, 0},
    {{.name = "gpt", .layers = 36, .hidden = 4096, .heads = 32, .vocabulary = 50257}, 7459729408, 0},
};

static double forward_multiply_adds(const nn_program *p)
{
    double flops = 0;
    for (int i = 0; i < p->forward_end; i++) {
        op_desc op = p->ops[i].desc;
        if (op.kind == OP_conv2d_forward)
            op.u.conv2d.bias = false;
        else if (op.kind == OP_linear_forward) {
            op.u.linear.bias = false;
            op.u.linear.act = ACTIVATION_NONE;
        } else
            continue;
        flops += op_cost_of(&op).flops;
    }
    return flops / 2 / (double)p->config.batch;
}

static void models_have_the_published_numbers_of_parameters_and_multiply_adds(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        nn_model *m = NULL;
        nn_program *p = NULL;
        nn_program_config config = {.batch = 2, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
        if (model_build(&sizes[i].options, &m) != STATUS_OK) fail_msg("%s", error_message());
        if (m->parameter_elements != sizes[i].parameters)
            fail_msg("%s: %lld parameters, expected %lld", m->name, (long long)m->parameter_elements,
                     (long long)sizes[i].parameters);
        assert_int_equal(nn_program_compile(m, &config, &p), STATUS_OK);
        double found = forward_multiply_adds(p);
        if (sizes[i].multiply_adds && found != (double)sizes[i].multiply_adds)
            fail_msg("%s: %.0f multiply-adds a sample, expected %lld", m->name, found,
                     (long long)sizes[i].multiply_adds);
        nn_program_free(&p);
        nn_model_free(&m);
    }
}

static void every_listed_model_builds_with_its_defaults(void **state)
{
    (void)state;
    for (int i = 0; i < model_count; i++) {
        nn_model *m = NULL;
        model_options options = {.name = model_table[i].name};
        if (model_build(&options, &m) != STATUS_OK) fail_msg("%s: %s", options.name, error_message());
        assert_int_equal(m->input_kind, model_table[i].input);
        for (int a = 0; a < m->param_count; a++)
            for (int b = a + 1; b < m->param_count; b++)
                if (strcmp(m->params[a].name, m->params[b].name) == 0)
                    fail_msg("%s: two parameters are named %s", options.name, m->params[a].name);
        nn_model_free(&m);
    }
}

/* Engines that move parameters by units move each block of Inception as one unit. */
static void each_block_of_inception_is_a_unit(void **state)
{
    (void)state;
    nn_model *m = NULL;
    model_options options = {.name = "inception_v3"};
    assert_int_equal(model_build(&options, &m), STATUS_OK);
    assert_int_equal(m->unit_count, 11);
    for (int i = 0; i < m->param_count; i++) {
        bool in_block = strncmp(m->params[i].name, "Mixed_", 6) == 0;
        if (in_block != (m->params[i].unit != NN_NONE))
            fail_msg("%s is of unit %d", m->params[i].name, m->params[i].unit);
        if (in_block) assert_int_equal(strncmp(m->params[i].name, m->units[m->params[i].unit], 9), 0);
    }
    nn_model_free(&m);
}

static void what_cannot_be_built_is_refused_in_one_line(void **state)
{
    (void)state;
    static const struct {
        model_options options;
        status expected;
        const char *message;
    } bad[] = {
        {{.name = "resnet19"},
         STATUS_USAGE,
         "--model: expected one of linear, toy, wine_mlp, lenet, resnet18"},
        {{.name = "bert", .heads = 5},
         STATUS_CONFIG,
         "model bert: expected a number of heads that divides the hidden size 256, got 5"},
        {{.name = "bert", .sequence = 600},
         STATUS_CONFIG,
         "model bert: expected a sequence of at most 512 tokens (positions), got 600"},
        {{.name = "vgg16", .image = 16},
         STATUS_CONFIG,
         "model vgg16: maxpool: its input is smaller than its window"},
        {{.name = "inception_v3", .image = 74},
         STATUS_CONFIG,
         "model inception_v3: layer Mixed_7a.branch3x3_2.conv: its input is smaller than its kernel"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        nn_model *m = NULL;
        error_clear();
        assert_int_equal(model_build(&bad[i].options, &m), bad[i].expected);
        if (strncmp(error_message(), bad[i].message, strlen(bad[i].message)) != 0)
            fail_msg("found '%s', expected '%s'", error_message(), bad[i].message);
        assert_null(m);
    }
    error_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_have_the_published_numbers_of_parameters_and_multiply_adds),
        cmocka_unit_test(every_listed_model_builds_with_its_defaults),
        cmocka_unit_test(each_block_of_inception_is_a_unit),
        cmocka_unit_test(what_cannot_be_built_is_refused_in_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
