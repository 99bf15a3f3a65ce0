/* Every data set: what it holds, and what is said when it cannot be read. */
#include "tests/common/data/fixture.h"

#include "common/data/data_options.h"
#include "common/data/dataset_synthetic.h"
#include "common/data/permutation.h"
#include "common/nn/model.h"
#include "common/ops/op.h"
#include "tests/common/data/cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *spec_of(const char *set, const char *folder, const char *rest)
{
    static char spec[1200];
    snprintf(spec, sizeof spec, "%s:%s%s", set, folder, rest);
    return spec;
}

static void expect_refusal(const char *spec, status code, const char *message)
{
    dataset *set;
    expect_failure(dataset_open(&(dataset_config){.spec = spec, .seed = 5}, &set), code, message);
    assert_null(set);
}

static int32_t label_of(const dataset *set, data_part part, int64_t index)
{
    int32_t label;
    dataset_target(set, part, index, &label);
    return label;
}

/* ---- Wine ------------------------------------------------------------------------------------- */

static void wine_holds_back_a_stratified_fifth(void **state)
{
    (void)state;
    static const int wanted[DATA_PARTS][3] = {{47, 57, 38}, {12, 14, 10}};
    dataset *set = open_set("wine", NULL);
    const data_description *d = dataset_describe(set);
    assert_string_equal(d->name, "wine");
    assert_int_equal(d->form.kind, DATA_FEATURES);
    assert_int_equal(d->form.features, 13);
    assert_int_equal(d->form.classes, 3);
    assert_int_equal(d->file_count, 1);
    assert_non_null(strstr(d->files[0], "wine_data.csv"));
    for (int part = 0; part < DATA_PARTS; part++) {
        int counts[3] = {0};
        for (int64_t i = 0; i < d->samples[part]; i++) counts[label_of(set, part, i)]++;
        for (int c = 0; c < 3; c++) assert_int_equal(counts[c], wanted[part][c]);
    }
    dataset_close(&set);
}

enum { MOST_ROWS = 178, MOST_FEATURES = 13 };

/* Reads the file again with scanf, and compares every value of both parts. */
static void expect_standardised(const char *path, const dataset *set)
{
    static double raw[MOST_ROWS][MOST_FEATURES];
    uint8_t labels[MOST_ROWS];
    int32_t picks[MOST_ROWS];
    int rows, features;
    int64_t train;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%d,%d,%*[^\n]", &rows, &features), 2);
    for (int i = 0; i < rows; i++) {
        for (int f = 0; f < features; f++) assert_int_equal(fscanf(file, "%lf,", &raw[i][f]), 1);
        assert_int_equal(fscanf(file, "%hhu", &labels[i]), 1);
    }
    fclose(file);
    expect_ok(permutation_split(labels, rows, 5, picks, &train));
    for (int f = 0; f < features; f++) {
        double sum = 0, squares = 0;
        for (int i = 0; i < train; i++) sum += raw[picks[i]][f];
        for (int i = 0; i < train; i++) squares += pow(raw[picks[i]][f] - sum / (double)train, 2);
        double deviation = squares > 0 ? sqrt(squares / (double)train) : 1;
        for (int i = 0; i < rows; i++) {
            data_part part = i < train ? DATA_TRAIN : DATA_TEST;
            const float *found = dataset_input(set, part, part == DATA_TRAIN ? i : i - train, NULL);
            double wanted = (raw[picks[i]][f] - sum / (double)train) / deviation;
            if (fabs((double)found[f] - wanted) > 1e-6)
                fail_msg("row %d, feature %d: found %.9g, wanted %.9g", picks[i], f, (double)found[f], wanted);
        }
    }
}

static void wine_is_standardised_on_its_training_part(void **state)
{
    (void)state;
    dataset *set = open_set("wine", NULL);
    expect_standardised(dataset_describe(set)->files[0], set);
    dataset_close(&set);
}

static void a_constant_feature_is_centred_and_not_divided(void **state)
{
    static const char text[] = "6,2,a\n1,7,0\n2,7,0\n3,7,0\n4,7,0\n5,7,0\n9,7,0\n";
    write_file(path_in(*state, "t.csv"), text, strlen(text));
    dataset *set = open_set(spec_of("wine", *state, "/t.csv"), NULL);
    assert_true(((const float *)dataset_input(set, DATA_TEST, 0, NULL))[1] == 0);
    expect_standardised(path_in(*state, "t.csv"), set);
    dataset_close(&set);
}

static void wine_files_that_cannot_be_used_are_named(void **state)
{
    static const char damaged[] = "2,2,a,b\n1,2,0\n1,oops,1\n", one[] = "1,2,a\n1,2,0\n";
    write_file(path_in(*state, "bad.csv"), damaged, strlen(damaged));
    write_file(path_in(*state, "one.csv"), one, strlen(one));
    expect_refusal(spec_of("wine", *state, "/bad.csv"), STATUS_DATA,
                   "/bad.csv: line 3, column 3: found 'oops', allowed is a decimal number");
    expect_refusal(spec_of("wine", *state, "/one.csv"), STATUS_DATA, "/one.csv: found 1 sample, allowed is at least 2");
    expect_refusal(spec_of("wine", *state, "/none.csv"), STATUS_DATA, "/none.csv: cannot be opened: No such file");
    expect_refusal(spec_of("wine", *state, ""), STATUS_DATA, "cannot be read: Is a directory");
}

/* ---- IDX -------------------------------------------------------------------------------------- */

static void expect_image(const dataset *set, data_part part, int64_t index, int64_t image)
{
    const uint8_t *pixels = dataset_input(set, part, index, NULL);
    for (int64_t p = 0; p < 784; p++) assert_int_equal(pixels[p], test_pixel(image, p));
    assert_int_equal(label_of(set, part, index), test_label(image));
}

static void mnist_files_are_read_plain_and_compressed(void **state)
{
    make_mnist_folder(*state);
    dataset *set = open_set(spec_of("mnist", *state, ""), NULL);
    const data_description *d = dataset_describe(set);
    assert_int_equal(d->samples[DATA_TRAIN], MNIST_TRAIN);
    assert_int_equal(d->samples[DATA_TEST], MNIST_TEST);
    assert_int_equal(d->file_count, 4);
    assert_int_equal(d->form.h * d->form.w * d->form.c, 784);
    assert_int_equal(d->form.classes, 10);
    for (int64_t i = 0; i < MNIST_TRAIN; i++) expect_image(set, DATA_TRAIN, i, i);
    for (int64_t i = 0; i < MNIST_TEST; i++) expect_image(set, DATA_TEST, i, i);
    dataset_close(&set);
}

static void an_idx_pair_is_split_and_measured_on_its_training_part(void **state)
{
    uint8_t *bytes;
    char spec[1200];
    size_t size = make_idx_images(&bytes, 20);
    write_gzip(path_in(*state, "images.gz"), bytes, size);
    free(bytes);
    size = make_idx_labels(&bytes, 20);
    write_file(path_in(*state, "labels"), bytes, size);
    free(bytes);
    snprintf(spec, sizeof spec, "idx:%s,%s", path_in(*state, "images.gz"), path_in(*state, "labels"));
    dataset *set = open_set(spec, NULL);
    const data_description *d = dataset_describe(set);
    assert_int_equal(d->samples[DATA_TRAIN], 16);
    assert_int_equal(d->samples[DATA_TEST], 4);
    assert_int_equal(d->form.classes, 10);
    double sum = 0, squares = 0;
    int seen[10] = {0};
    for (int part = 0; part < DATA_PARTS; part++) {
        for (int64_t i = 0; i < d->samples[part]; i++) {
            const uint8_t *pixels = dataset_input(set, part, i, NULL);
            seen[label_of(set, part, i)]++;
            for (int p = 0; p < 784 && part == DATA_TRAIN; p++) {
                sum += pixels[p] / 255.0;
                squares += pixels[p] / 255.0 * (pixels[p] / 255.0);
            }
        }
    }
    double mean = sum / (16 * 784);
    for (int c = 0; c < 10; c++) assert_int_equal(seen[c], 2);
    assert_true(fabs((double)d->mean[0] - mean) < 1e-6);
    assert_true(fabs((double)d->deviation[0] - sqrt(squares / (16 * 784) - mean * mean)) < 1e-6);
    dataset_close(&set);
}

/* Each damage is done to a fresh folder of MNIST files. */
static void keep(const char *folder, const char *name, size_t size)
{
    assert_int_equal(truncate(path_in(folder, name), (off_t)size), 0);
}

static void overwrite(const char *folder, const char *name, long offset, uint8_t byte)
{
    FILE *file = fopen(path_in(folder, name), "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, offset, SEEK_SET), 0);
    assert_int_equal(fputc(byte, file), byte);
    fclose(file);
}

static size_t size_of(const char *folder, const char *name)
{
    struct stat info;
    assert_int_equal(stat(path_in(folder, name), &info), 0);
    return (size_t)info.st_size;
}

static void damaged_mnist_folders_are_refused_with_file_and_place(void **state)
{
    const char *spec = spec_of("mnist", *state, ""), *test_images = "t10k-images-idx3-ubyte.gz";
    uint8_t *bytes;

    make_mnist_folder(*state);
    unlink(path_in(*state, "t10k-labels-idx1-ubyte"));
    expect_refusal(spec, STATUS_DATA, "data set mnist: found no file /tmp/");
    expect_refusal(spec, STATUS_DATA, "/t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz");

    make_mnist_folder(*state);
    keep(*state, "train-images-idx3-ubyte", 5000);
    expect_refusal(spec, STATUS_DATA, "/train-images-idx3-ubyte: truncated: ends at offset 5000, allowed is 9424");

    make_mnist_folder(*state);
    keep(*state, test_images, size_of(*state, test_images) - 20);
    expect_refusal(spec, STATUS_DATA, "/t10k-images-idx3-ubyte.gz: gzip data end early, behind ");

    make_mnist_folder(*state);
    overwrite(*state, test_images, (long)size_of(*state, test_images) - 8, 0x5a);
    expect_refusal(spec, STATUS_DATA, "/t10k-images-idx3-ubyte.gz: damaged gzip data: ");

    make_mnist_folder(*state);
    overwrite(*state, "t10k-labels-idx1-ubyte", 10, 77);
    expect_refusal(spec, STATUS_DATA, "/t10k-labels-idx1-ubyte: offset 10: found label 77, allowed is 0 to 9");

    make_mnist_folder(*state);
    size_t size = make_idx_labels(&bytes, MNIST_TEST + 1);
    write_file(path_in(*state, "t10k-labels-idx1-ubyte"), bytes, size);
    free(bytes);
    expect_refusal(spec, STATUS_DATA, "/t10k-labels-idx1-ubyte: offset 4: found 6 labels, allowed is 5, as many as /tmp/");

    make_mnist_folder(*state);
    overwrite(*state, "train-images-idx3-ubyte", 11, 14);
    keep(*state, "train-images-idx3-ubyte", 16 + MNIST_TRAIN * 14 * 28);
    expect_refusal(spec, STATUS_DATA, "/train-images-idx3-ubyte: offset 8: found images of 14x28, allowed is 28x28");

    make_mnist_folder(*state);
    size = make_idx_labels(&bytes, MNIST_TRAIN);
    write_file(path_in(*state, "train-images-idx3-ubyte"), bytes, size);
    free(bytes);
    expect_refusal(spec, STATUS_DATA, "/train-images-idx3-ubyte: offset 0: found magic number 0x00000801");

    make_mnist_folder(*state);
    keep(*state, "train-images-idx3-ubyte", 0);
    expect_refusal(spec, STATUS_DATA, "/train-images-idx3-ubyte: ends at offset 0, allowed is an IDX header");
}

static void fashion_mnist_is_whole_and_normalised_by_its_own_figures(void **state)
{
    (void)state;
    if (access("/usr/share/datasets/fashion-mnist", R_OK) != 0) {
        print_message("# skipped: Debian's package dataset-fashion-mnist is not installed\n");
        skip();
    }
    dataset *set = open_set("fashion-mnist", NULL);
    const data_description *d = dataset_describe(set);
    assert_int_equal(d->samples[DATA_TRAIN], 60000);
    assert_int_equal(d->samples[DATA_TEST], 10000);
    for (int part = 0; part < DATA_PARTS; part++) {
        int counts[10] = {0};
        for (int64_t i = 0; i < d->samples[part]; i++) counts[label_of(set, part, i)]++;
        for (int c = 0; c < 10; c++) assert_int_equal(counts[c], part == DATA_TRAIN ? 6000 : 1000);
    }
    static const int first_labels[] = {9, 0, 0, 3, 0, 2, 7, 2, 5, 5};
    for (int i = 0; i < 10; i++) assert_int_equal(label_of(set, DATA_TRAIN, i), first_labels[i]);
    double sum = 0, squares = 0, count = 60000.0 * 784;
    for (int64_t i = 0; i < 60000; i++) {
        const uint8_t *pixels = dataset_input(set, DATA_TRAIN, i, NULL);
        for (int p = 0; p < 784; p++) {
            sum += pixels[p];
            squares += pixels[p] * pixels[p];
        }
    }
    double mean = sum / count / 255, deviation = sqrt(squares / count - sum / count * (sum / count)) / 255;
    assert_true(fabs(mean - (double)d->mean[0]) < 5e-5); /* 0.28604 */
    assert_true(fabs(deviation - (double)d->deviation[0]) < 5e-5); /* 0.35302 */
    dataset_close(&set);
}

/* ---- CIFAR-10 --------------------------------------------------------------------------------- */

static void cifar10_files_are_read_in_order(void **state)
{
    make_cifar10_folder(*state);
    dataset *set = open_set(spec_of("cifar10", *state, ""), NULL);
    const data_description *d = dataset_describe(set);
    assert_int_equal(d->samples[DATA_TRAIN], 5 * CIFAR_EACH);
    assert_int_equal(d->samples[DATA_TEST], CIFAR_TEST);
    assert_int_equal(d->file_count, 6);
    for (int64_t i = 0; i < 5 * CIFAR_EACH + CIFAR_TEST; i++) {
        data_part part = i < 5 * CIFAR_EACH ? DATA_TRAIN : DATA_TEST;
        int64_t index = part == DATA_TRAIN ? i : i - 5 * CIFAR_EACH;
        const uint8_t *pixels = dataset_input(set, part, index, NULL);
        assert_int_equal(label_of(set, part, index), test_label(i));
        for (int64_t p = 0; p < 1024; p++)
            for (int64_t c = 0; c < 3; c++) assert_int_equal(pixels[p * 3 + c], test_pixel(i, c * 1024 + p));
    }
    dataset_close(&set);
}

static void damaged_cifar10_folders_are_refused_with_file_and_place(void **state)
{
    const char *spec = spec_of("cifar10", *state, "");
    make_cifar10_folder(*state);
    overwrite(*state, "data_batch_4.bin", 2 * 3073, 10);
    expect_refusal(spec, STATUS_DATA, "/data_batch_4.bin: offset 6146: found label 10, allowed is 0 to 9");
    make_cifar10_folder(*state);
    keep(*state, "test_batch.bin", 4 * 3073 - 1);
    expect_refusal(spec, STATUS_DATA, "/test_batch.bin: ends at offset 12291, inside record 3");
    unlink(path_in(*state, "data_batch_5.bin"));
    expect_refusal(spec, STATUS_DATA, "/data_batch_5.bin: cannot be opened: No such file or directory");
}

/* ---- synthetic -------------------------------------------------------------------------------- */

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
    assert_int_equal(dataset_describe(set)->samples[DATA_TEST], 10000);
    dataset_close(&set);

    data_form next = {.kind = DATA_TOKENS, .target = DATA_TARGET_NEXT, .sequence = 6, .vocabulary = 50, .classes = 50};
    set = open_set("synthetic", &next);
    memcpy(numbers, dataset_input(set, DATA_TEST, 3, numbers + 8), 6 * sizeof numbers[0]);
    dataset_target(set, DATA_TEST, 3, numbers + 8);
    assert_memory_equal(numbers + 1, numbers + 8, 5 * sizeof numbers[0]);
    numbers[6] = numbers[8 + 5];
    assert_string_equal(words(text, numbers, 7, 4), synthetic_tokens);
    dataset_close(&set);

    data_form masked = {.kind = DATA_TOKENS, .target = DATA_TARGET_MASKED, .sequence = 12, .vocabulary = 50, .classes = 50};
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
    data_form form = {.kind = DATA_TOKENS, .target = DATA_TARGET_MASKED, .sequence = SEQUENCE, .vocabulary = 9, .classes = 9};
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
} form_cases[] = {
    {NULL, &an_image, "images of 3x32x30 with 7 classes"},
    {"1x28x27", &an_image, "images of 1x28x27 with 7 classes"},
    {"1x28x27:5", &an_image, "images of 1x28x27 with 5 classes"},
    {"1x28x27:5", NULL, "images of 1x28x27 with 5 classes"},
    {"13", &an_image, "13 features with 7 classes"},
    {"13:3", NULL, "13 features with 3 classes"},
    {NULL, &a_text, "sequences of 128 tokens out of 1000 with masked targets"},
    {"64", &a_text, "sequences of 64 tokens out of 1000 with masked targets"},
    {"64:50", &a_text, "sequences of 64 tokens out of 50 with masked targets"},
    {"3x32x32:10", &a_text, "images of 3x32x32 with 10 classes"},
};

static void synthetic_data_have_the_form_given_or_the_models(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof form_cases / sizeof form_cases[0]; i++) {
        char text[128];
        data_form form;
        expect_ok(synthetic_form(form_cases[i].argument, form_cases[i].model, &form));
        assert_string_equal(data_form_format(text, sizeof text, &form), form_cases[i].form);
    }
}

static const struct {
    const char *spec;
    status code;
    const char *message;
} spec_cases[] = {
    {"vine", STATUS_USAGE, "--data: found 'vine', allowed is one of wine[:FILE], fashion-mnist[:DIR], mnist:DIR, "
                           "idx:IMAGES,LABELS, cifar10:DIR, synthetic[:SHAPE[:CLASSES]]"},
    {"", STATUS_USAGE, "--data: found '', allowed is one of"},
    {"wine:", STATUS_USAGE, "--data: found 'wine:', allowed is wine[:FILE]"},
    {"mnist", STATUS_USAGE, "--data: found 'mnist', allowed is mnist:DIR"},
    {"cifar10", STATUS_USAGE, "--data: found 'cifar10', allowed is cifar10:DIR"},
    {"idx:images", STATUS_USAGE, "--data: found 'idx:images', allowed is idx:IMAGES,LABELS"},
    {"idx:,labels", STATUS_USAGE, "allowed is idx:IMAGES,LABELS"},
    {"idx", STATUS_USAGE, "allowed is idx:IMAGES,LABELS"},
    {"mnist:/nowhere", STATUS_DATA, "data set mnist: found no file /nowhere/train-images-idx3-ubyte or "
                                    "train-images-idx3-ubyte.gz"},
    {"synthetic", STATUS_CONFIG, "--data synthetic: found no shape and no model to take it from"},
    {"synthetic:13", STATUS_CONFIG, "--data synthetic:13: found no classes and no model to take them from"},
    {"synthetic:3x32", STATUS_USAGE, "--data synthetic: found a shape of two numbers"},
    {"synthetic:3x32x32x1:4", STATUS_USAGE, "--data synthetic: width: found '32x1', allowed is"},
    {"synthetic:9x32x32:4", STATUS_USAGE, "--data synthetic: channels: found '9', allowed is a whole number from 1 to 4"},
    {"synthetic:0:4", STATUS_USAGE, "--data synthetic: features: found '0'"},
    {"synthetic:5:0", STATUS_USAGE, "--data synthetic: classes: found '0'"},
    {"synthetic:5:4:3", STATUS_USAGE, "--data synthetic: classes: found '4:3'"},
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
        {.layers = &image_input, .layer_count = 1, .input_kind = NN_INPUT_IMAGE, .classes = 7, .rows_per_sample = 1},
        {.layers = text, .layer_count = 2, .input_kind = NN_INPUT_TOKENS, .classes = 1000, .rows_per_sample = 128},
        {.layers = text, .layer_count = 2, .input_kind = NN_INPUT_TOKENS, .classes = 2, .rows_per_sample = 1},
        {.layers = text, .layer_count = 1, .input_kind = NN_INPUT_FEATURES, .classes = 5, .loss = NN_LOSS_MSE},
    };
    static const char *const wanted[] = {
        "images of 3x32x30 with 7 classes", "sequences of 128 tokens out of 1000 with masked targets",
        "sequences of 128 tokens out of 1000 with 2 classes", "128 features with 5 values"};
    char found[128];
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        data_form form = data_form_of_model(&models[i]);
        assert_string_equal(data_form_format(found, sizeof found, &form), wanted[i]);
    }
    text[1].causal = true;
    data_form form = data_form_of_model(&models[1]);
    assert_int_equal(form.target, DATA_TARGET_NEXT);
}

static void the_option_table_has_the_documented_defaults(void **state)
{
    (void)state;
    data_options options;
    option_binding binding = {.table = &data_option_table, .storage = &options};
    expect_ok(options_defaults(&binding, 1));
    assert_string_equal(options.data, "synthetic");
    assert_int_equal(options.batch, 32);
    assert_int_equal(options.sampler, SAMPLER_DISTRIBUTED);
    assert_false(options.drop_last);
    assert_string_equal(options.augment, "none");
    assert_int_equal(options.loader_threads, 1);
    expect_ok(options_set(&binding, 1, "sampler", "global"));
    assert_int_equal(options.sampler, SAMPLER_GLOBAL);
    expect_failure(options_set(&binding, 1, "sampler", "random"), STATUS_USAGE, "allowed is one of distributed, global");
    expect_failure(options_set(&binding, 1, "batch", "0"), STATUS_USAGE, "option --batch: found '0'");
    expect_failure(options_set(&binding, 1, "loader-threads", "5"), STATUS_USAGE, "from 0 to 4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wine_holds_back_a_stratified_fifth),
        cmocka_unit_test(wine_is_standardised_on_its_training_part),
        cmocka_unit_test_setup_teardown(a_constant_feature_is_centred_and_not_divided, folder_open, folder_close),
        cmocka_unit_test_setup_teardown(wine_files_that_cannot_be_used_are_named, folder_open, folder_close),
        cmocka_unit_test_setup_teardown(mnist_files_are_read_plain_and_compressed, folder_open, folder_close),
        cmocka_unit_test_setup_teardown(an_idx_pair_is_split_and_measured_on_its_training_part, folder_open,
                                        folder_close),
        cmocka_unit_test_setup_teardown(damaged_mnist_folders_are_refused_with_file_and_place, folder_open,
                                        folder_close),
        cmocka_unit_test(fashion_mnist_is_whole_and_normalised_by_its_own_figures),
        cmocka_unit_test_setup_teardown(cifar10_files_are_read_in_order, folder_open, folder_close),
        cmocka_unit_test_setup_teardown(damaged_cifar10_folders_are_refused_with_file_and_place, folder_open,
                                        folder_close),
        cmocka_unit_test(synthetic_values_are_those_documented),
        cmocka_unit_test(every_masked_sample_has_targets_and_15_percent_on_average),
        cmocka_unit_test(synthetic_data_have_the_form_given_or_the_models),
        cmocka_unit_test(specifications_that_cannot_be_understood_are_refused),
        cmocka_unit_test(a_models_form_is_that_of_its_input_and_loss),
        cmocka_unit_test(the_option_table_has_the_documented_defaults),
    };
    return cmocka_run_group_tests_name("dataset", tests, NULL, NULL);
}
