/* Tests synthetic data, the syntax of --data, and which data sets fit a model. */
#include "tests/common/data/fixture.h"

#include "common/data/batches.h"
#include "common/data/dataset_impl.h"
#include "common/nn/model.h"
#include "common/ops/op.h"
#include "tests/common/data/cases.h"

#include <stdio.h>
#include <string.h>

static char *words(char *text, const void *values, int count, int bytes)
{
    text[0] = '\0';
    for (int i = 0; i < count; i++)
        sprintf(text + strlen(text), i ? " %d" : "%d",
                bytes == 1 ? ((const uint8_t *)values)[i] : ((const int32_t *)values)[i]);
    return text;
}

static void synthetic_values_are_those_documented(void **state)
{
    (void)state;
    char text[512];
    int32_t numbers[16];
    float values[2];
    uint8_t pixels[27];
    dataset *set = open_set("synthetic:3x3x3:10", NULL);
    assert_string_equal(words(text, dataset_input(set, DATA_TRAIN, 3, pixels), 27, 1), synthetic_pixels);
    assert_int_equal(label_of(set, DATA_TRAIN, 3), SYNTHETIC_CLASS);
    assert_int_equal(dataset_describe(set)->samples[DATA_TRAIN], 50000);
    assert_int_equal(dataset_describe(set)->samples[DATA_TEST], 1000);
    dataset_close(&set);

    data_form next = {
        .kind = DATA_TOKENS, .target = DATA_TARGET_NEXT, .sequence = 6, .vocabulary = 50, .classes = 50};
    set = open_set("synthetic", &next);
    memcpy(numbers, dataset_input(set, DATA_TEST, 3, numbers + 8), 6 * sizeof numbers[0]);
    dataset_target(set, DATA_TEST, 3, numbers + 8);
    assert_memory_equal(numbers + 1, numbers + 8, 5 * sizeof numbers[0]);
    numbers[6] = numbers[8 + 5];
    assert_string_equal(words(text, numbers, 7, 4), synthetic_tokens);
    dataset_close(&set);

    data_form masked = {
        .kind = DATA_TOKENS, .target = DATA_TARGET_MASKED, .sequence = 12, .vocabulary = 50, .classes = 50};
    set = open_set("synthetic", &masked);
    for (int sample = 0; sample < 3; sample++) {
        dataset_target(set, DATA_TRAIN, sample, numbers);
        assert_string_equal(words(text, numbers, 12, 4), synthetic_masked[sample]);
    }
    dataset_close(&set);

    data_form regression = {.kind = DATA_FEATURES, .target = DATA_TARGET_VALUES, .features = 4, .classes = 2};
    set = open_set("synthetic", &regression);
    dataset_target(set, DATA_TRAIN, 3, values);
    assert_memory_equal(values, synthetic_values, sizeof values);
    dataset_close(&set);
}

static void every_masked_sample_has_targets_and_15_percent_on_average(void **state)
{
    (void)state;
    enum { SAMPLES = 2000, SEQUENCE = 64, SHORT = 2 };
    data_form form = {.kind = DATA_TOKENS,
                      .target = DATA_TARGET_MASKED,
                      .sequence = SEQUENCE,
                      .vocabulary = 9,
                      .classes = 9};
    int32_t targets[SEQUENCE];
    int total = 0;
    dataset *set = open_set("synthetic", &form);
    for (int n = 0; n < SAMPLES; n++) {
        dataset_target(set, DATA_TRAIN, n, targets);
        for (int i = 0; i < SEQUENCE; i++) {
            total += targets[i] != LOSS_IGNORE;
            assert_true(targets[i] == LOSS_IGNORE || (targets[i] >= 0 && targets[i] < 9));
        }
    }
    assert_in_range(total, 18500, 19900); /* 19200 +- 128 */
    dataset_close(&set);
    form.sequence = SHORT;
    set = open_set("synthetic", &form);
    for (int n = 0; n < SAMPLES; n++) {
        dataset_target(set, DATA_TRAIN, n, targets);
        assert_true(targets[0] != LOSS_IGNORE || targets[1] != LOSS_IGNORE);
    }
    dataset_close(&set);
}

static const data_form an_image = {.kind = DATA_IMAGE, .h = 32, .w = 30, .c = 3, .classes = 7};
static const data_form a_text = {
    .kind = DATA_TOKENS, .target = DATA_TARGET_MASKED, .sequence = 128, .vocabulary = 1000, .classes = 1000};

static const struct {
    const char *argument;
    const data_form *model;
    const char *form;
    int64_t samples;
} form_cases[] = {
    {NULL, &an_image, "images of 3x32x30 with 7 classes", 0},
    {"1x28x27", &an_image, "images of 1x28x27 with 7 classes", 0},
    {"1x28x27:5", &an_image, "images of 1x28x27 with 5 classes", 0},
    {"1x28x27:5", NULL, "images of 1x28x27 with 5 classes", 0},
    {"13", &an_image, "13 features with 7 classes", 0},
    {"13:3", NULL, "13 features with 3 classes", 0},
    {"13:3:90", NULL, "13 features with 3 classes", 90},
    {NULL, &a_text, "sequences of 128 tokens out of 1000 with masked targets", 0},
    {"64", &a_text, "sequences of 64 tokens out of 1000 with masked targets", 0},
    {"64:50", &a_text, "sequences of 64 tokens out of 50 with masked targets", 0},
    {"3x32x32:10", &a_text, "images of 3x32x32 with 10 classes", 0},
};

static void synthetic_data_have_the_form_given_or_the_models(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof form_cases / sizeof form_cases[0]; i++) {
        char text[128];
        data_form form;
        int64_t samples;
        must(synthetic_form(form_cases[i].argument, form_cases[i].model, &form, &samples));
        assert_int_equal(samples, form_cases[i].samples);
        assert_string_equal(data_form_format(text, sizeof text, &form), form_cases[i].form);
    }
}

static const struct {
    const char *spec;
    status code;
    const char *message;
} spec_cases[] = {
    {"vine", STATUS_USAGE,
     "--data: expected one of wine[:FILE], fashion-mnist[:DIR], mnist:DIR, "
     "idx:IMAGES,LABELS, cifar10:DIR, synthetic[:SHAPE[:CLASSES[:SAMPLES]]]"},
    {"", STATUS_USAGE, "--data: expected one of"},
    {"wine:", STATUS_USAGE, "--data: expected wine[:FILE]"},
    {"mnist", STATUS_USAGE, "--data: expected mnist:DIR"},
    {"cifar10", STATUS_USAGE, "--data: expected cifar10:DIR"},
    {"idx:images", STATUS_USAGE, "--data: expected idx:IMAGES,LABELS"},
    {"idx:,labels", STATUS_USAGE, "expected idx:IMAGES,LABELS, got 'idx"},
    {"idx", STATUS_USAGE, "expected idx:IMAGES,LABELS, got 'idx"},
    {"mnist:/nowhere", STATUS_DATA,
     "data set mnist: expected a file /nowhere/train-images-idx3-ubyte or "
     "train-images-idx3-ubyte.gz"},
    {"synthetic", STATUS_CONFIG,
     "--data synthetic: expected synthetic:SHAPE:CLASSES, since no model gives the shape"},
    {"synthetic:13", STATUS_CONFIG,
     "--data synthetic:13: expected synthetic:SHAPE:CLASSES, since no model gives the classes"},
    {"synthetic:3x32", STATUS_USAGE,
     "--data synthetic: expected a shape of one number (features, tokens) or three"},
    {"synthetic:3x32x32x1:4", STATUS_USAGE,
     "--data synthetic: width: expected an integer from 1 to 4096, got '32x1'"},
    {"synthetic:9x32x32:4", STATUS_USAGE,
     "--data synthetic: channels: expected an integer from 1 to 4, got '9'"},
    {"synthetic:0:4", STATUS_USAGE, "--data synthetic: features: expected an integer from 1"},
    {"synthetic:5:0", STATUS_USAGE, "--data synthetic: classes: expected an integer from 1"},
    {"synthetic:5:4:0", STATUS_USAGE, "--data synthetic: samples: expected an integer from 1"},
    {"synthetic:5:4:3:2", STATUS_USAGE, "--data synthetic: samples: expected an integer from 1"},
};

static void specifications_that_cannot_be_understood_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof spec_cases / sizeof spec_cases[0]; i++)
        expect_refusal(spec_cases[i].spec, spec_cases[i].code, spec_cases[i].message);
}

/* ---- models and options ----------------------------------------------------------------------- */

static void a_models_form_is_that_of_its_input_and_loss(void **state)
{
    (void)state;
    nn_layer image_input = {.kind = NN_INPUT, .sample = {3, {32, 30, 3}}};
    nn_layer text[] = {{.kind = NN_INPUT, .sample = {1, {128}}, .vocabulary = 1000}, {.kind = NN_ATTENTION}};
    nn_model models[] = {
        {.layers = &image_input,
         .layer_count = 1,
         .input_kind = NN_INPUT_IMAGE,
         .classes = 7,
         .rows_per_sample = 1},
        {.layers = text,
         .layer_count = 2,
         .input_kind = NN_INPUT_TOKENS,
         .classes = 1000,
         .rows_per_sample = 128},
        {.layers = text, .layer_count = 2, .input_kind = NN_INPUT_TOKENS, .classes = 2, .rows_per_sample = 1},
        {.layers = text,
         .layer_count = 1,
         .input_kind = NN_INPUT_FEATURES,
         .classes = 5,
         .loss = NN_LOSS_MSE},
    };
    static const char *const wanted[] = {
        "images of 3x32x30 with 7 classes", "sequences of 128 tokens out of 1000 with masked targets",
        "sequences of 128 tokens out of 1000 with 2 classes", "128 features with 5 values"};
    char found[128];
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        data_form form = data_form_of_model(&models[i]);
        assert_string_equal(data_form_format(found, sizeof found, &form), wanted[i]);
    }
    text[1].attributes.attention.causal = true;
    data_form form = data_form_of_model(&models[1]);
    assert_int_equal(form.target, DATA_TARGET_NEXT);
}

static void the_option_table_has_the_documented_defaults(void **state)
{
    (void)state;
    data_options options;
    option_binding binding = {.table = &data_option_table, .storage = &options};
    must(options_defaults(&binding, 1));
    assert_string_equal(options.data, "synthetic");
    assert_int_equal(options.batch, 32);
    assert_int_equal(options.sampler, SAMPLER_DISTRIBUTED);
    assert_false(options.drop_last);
    assert_string_equal(options.augment, "none");
    assert_int_equal(options.loader_threads, 1);
    must(options_set(&binding, 1, "sampler", "global"));
    assert_int_equal(options.sampler, SAMPLER_GLOBAL);
    assert_fails(options_set(&binding, 1, "sampler", "random"), STATUS_USAGE,
                 "expected one of distributed, global, got 'random'");
    assert_fails(options_set(&binding, 1, "batch", "0"), STATUS_USAGE, "--batch: expected an integer from 1");
    assert_fails(options_set(&binding, 1, "loader-threads", "5"), STATUS_USAGE, "from 0 to 4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(synthetic_values_are_those_documented),
        cmocka_unit_test(every_masked_sample_has_targets_and_15_percent_on_average),
        cmocka_unit_test(synthetic_data_have_the_form_given_or_the_models),
        cmocka_unit_test(specifications_that_cannot_be_understood_are_refused),
        cmocka_unit_test(a_models_form_is_that_of_its_input_and_loss),
        cmocka_unit_test(the_option_table_has_the_documented_defaults),
    };
    return cmocka_run_group_tests_name("synthetic", tests, NULL, NULL);
}
