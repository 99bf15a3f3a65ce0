/* Compares normalization with torchvision's values, and padding, window and flip with a plain computation. */
#include "tests/common/data/fixture.h"

#include "common/data/transform.h"
#include "tests/common/data/cases.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static data_form image(int64_t c, int64_t h, int64_t w, int64_t classes)
{
    return (data_form){.kind = DATA_IMAGE, .c = c, .h = h, .w = w, .classes = classes};
}

static data_form features(int64_t count, int64_t classes)
{
    return (data_form){.kind = DATA_FEATURES, .features = count, .classes = classes};
}

static data_form tokens(int64_t sequence, int64_t vocabulary, data_target target)
{
    return (data_form){.kind = DATA_TOKENS,
                       .target = target,
                       .sequence = sequence,
                       .vocabulary = vocabulary,
                       .classes = vocabulary};
}

/* Describes a set of the given form. A pixel x of channel c is normalized to x / 255 - c. */
static data_description describe(data_form form)
{
    data_description d = {.name = "test", .form = form};
    for (int c = 0; c < DATA_MAX_CHANNELS; c++) {
        d.mean[c] = (float)c;
        d.deviation[c] = 1;
    }
    return d;
}

static float value(int x, int channel)
{
    return (float)x / 255.0f - (float)channel;
}

static void pixels_are_normalized_as_by_torchvision(void **state)
{
    make_mnist_folder(*state);
    make_cifar10_folder(*state);
    for (size_t i = 0; i < sizeof normalization_cases / sizeof normalization_cases[0]; i++) {
        const struct normalization_case *c = &normalization_cases[i];
        char spec[600];
        data_transform t;
        snprintf(spec, sizeof spec, "%s:%s", c->set, (const char *)*state);
        dataset *set = open_set(spec, NULL);
        must(data_transform_plan(dataset_describe(set), &dataset_describe(set)->form, 0, &t));
        if (memcmp(&t.values[c->channel][c->x], &c->value, sizeof c->value) != 0)
            fail_msg("%s, channel %d, pixel %d: found %a, wanted %a", c->set, c->channel, c->x,
                     (double)t.values[c->channel][c->x], (double)c->value);
        dataset_close(&set);
    }
}

/* Puts the picture into the middle of a black one, cuts the window out, and flips the window, pixel by pixel.
 * Each stage has a separate array. */
static void naive(const uint8_t *stored, int c, int h, int w, int pad, const augment_draw *draw, int size,
                  uint8_t out[40][40][3])
{
    static uint8_t padded[40][40][3], bordered[48][48][3], window[40][40][3];
    memset(padded, 0, sizeof padded);
    memset(bordered, 0, sizeof bordered);
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            for (int k = 0; k < 3; k++)
                padded[y + pad][x + pad][k] = stored[(y * w + x) * c + (c == 1 ? 0 : k)];
    for (int y = 0; y < size; y++)
        for (int x = 0; x < size; x++) memcpy(bordered[y + 4][x + 4], padded[y][x], 3);
    for (int y = 0; y < size; y++)
        for (int x = 0; x < size; x++) memcpy(window[y][x], bordered[y + 4 + draw->dy][x + 4 + draw->dx], 3);
    for (int y = 0; y < size; y++)
        for (int x = 0; x < size; x++) memcpy(out[y][x], window[y][draw->flip ? size - 1 - x : x], 3);
}

static const struct {
    int from_c, from_size, to_c, to_size;
} image_cases[] = {{1, 28, 1, 28}, {1, 28, 2, 28}, {1, 28, 1, 32},
                   {1, 28, 3, 32}, {1, 28, 3, 28}, {3, 32, 3, 32}};

static void images_are_padded_windowed_and_flipped_in_this_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof image_cases / sizeof image_cases[0]; i++) {
        int from_c = image_cases[i].from_c, from = image_cases[i].from_size;
        int to_c = image_cases[i].to_c, to = image_cases[i].to_size;
        data_description set = describe(image(from_c, from, from, 10));
        data_form model = image(to_c, to, to, 10);
        data_transform t;
        uint8_t stored[32 * 32 * 3];
        static float found[32 * 32 * 3];
        static uint8_t wanted[40][40][3];
        for (int p = 0; p < from * from * from_c; p++) stored[p] = test_pixel(1, p);
        must(data_transform_plan(&set, &model, DATA_AUGMENT_CROP | DATA_AUGMENT_FLIP, &t));
        for (int draw = 0; draw < 9 * 9 * 2; draw++) {
            augment_draw d = {.dy = draw % 9 - 4, .dx = draw / 9 % 9 - 4, .flip = draw >= 81};
            data_transform_apply(&t, stored, &d, found);
            naive(stored, from_c, from, from, (to - from) / 2, &d, to, wanted);
            for (int p = 0; p < to * to * to_c; p++) {
                int x = wanted[p / to_c / to][p / to_c % to][p % to_c];
                float w = value(x, from_c == 1 ? 0 : p % to_c);
                if (found[p] != w)
                    fail_msg("case %d, window %d %d, flip %d, element %d: found %g, wanted %g", (int)i, d.dy,
                             d.dx, d.flip, p, (double)found[p], (double)w);
            }
        }
        augment_draw none = {0};
        static float plain[32 * 32 * 3];
        data_transform_apply(&t, stored, NULL, plain);
        data_transform_apply(&t, stored, &none, found);
        assert_memory_equal(plain, found, (size_t)(to * to * to_c) * sizeof(float));
    }
}

static void an_image_becomes_a_vector_in_pytorchs_order(void **state)
{
    (void)state;
    data_description set = describe(image(3, 2, 2, 10));
    data_form model = features(12, 10);
    data_transform t;
    uint8_t stored[12];
    float found[12];
    for (int p = 0; p < 12; p++) stored[p] = (uint8_t)(20 * p);
    must(data_transform_plan(&set, &model, 0, &t));
    data_transform_apply(&t, stored, NULL, found);
    for (int c = 0; c < 3; c++)
        for (int p = 0; p < 4; p++) assert_true(found[c * 4 + p] == value(20 * (p * 3 + c), c));
}

#define IMAGES(channels, height, width, number)                                                              \
    {                                                                                                        \
        .kind = DATA_IMAGE, .c = channels, .h = height, .w = width, .classes = number                        \
    }
#define FEATURES(count, number)                                                                              \
    {                                                                                                        \
        .kind = DATA_FEATURES, .features = count, .classes = number                                          \
    }
#define REGRESSION(count, number)                                                                            \
    {                                                                                                        \
        .kind = DATA_FEATURES, .target = DATA_TARGET_VALUES, .features = count, .classes = number            \
    }

static const struct {
    data_form set, model;
    unsigned augment;
    const char *message; /* The expected error, or NULL if the options fit. */
} fit_cases[] = {
    {IMAGES(1, 28, 28, 10), IMAGES(3, 32, 32, 1000), 0, NULL},
    {IMAGES(1, 28, 28, 10), FEATURES(784, 10), 0, NULL},
    {IMAGES(3, 32, 32, 10), IMAGES(3, 224, 224, 1000), 0,
     "data set test: expected what the model takes, images of 3x224x224 with 1000 classes, "
     "got images of 3x32x32 with 10 classes"},
    {IMAGES(3, 32, 32, 10), IMAGES(1, 32, 32, 10), 0, "got images of 3x32x32"},
    {IMAGES(1, 30, 30, 10), IMAGES(1, 32, 32, 10), 0, "takes, images of 1x32x32"},
    {IMAGES(1, 28, 28, 10), IMAGES(1, 28, 28, 2), 0, "with 2 classes, got images of 1x28x28 with 10 classes"},
    {IMAGES(1, 28, 28, 10), FEATURES(785, 10), 0, "takes, 785 features with 10 classes"},
    {FEATURES(13, 3), FEATURES(13, 3), 0, NULL},
    {FEATURES(13, 3), FEATURES(10, 3), 0,
     "expected what the model takes, 10 features with 3 classes, got 13 features with 3 classes"},
    {FEATURES(13, 3), REGRESSION(13, 3), 0, "takes, 13 features with 3 values"},
    {REGRESSION(13, 2), REGRESSION(13, 3), 0, "got 13 features with 2 values"},
    {FEATURES(784, 3), IMAGES(1, 28, 28, 3), 0, "got 784 features"},
    {FEATURES(13, 3), FEATURES(13, 3), DATA_AUGMENT_FLIP,
     "--augment: expected a model that takes images, got one that takes 13 features with 3 classes"},
};

static void forms_that_do_not_fit_are_refused_with_both_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof fit_cases / sizeof fit_cases[0]; i++) {
        data_description set = describe(fit_cases[i].set);
        data_transform t;
        status result = data_transform_plan(&set, &fit_cases[i].model, fit_cases[i].augment, &t);
        if (fit_cases[i].message)
            assert_fails(result, STATUS_CONFIG, fit_cases[i].message);
        else
            must(result);
    }
}

static void token_forms_fit_within_the_models_vocabulary(void **state)
{
    (void)state;
    data_transform t;
    data_form model = tokens(128, 1000, DATA_TARGET_MASKED), causal = tokens(128, 1000, DATA_TARGET_NEXT);
    data_description smaller = describe(tokens(128, 900, DATA_TARGET_MASKED));
    data_description larger = describe(tokens(128, 1001, DATA_TARGET_MASKED));
    data_description longer = describe(tokens(129, 900, DATA_TARGET_MASKED));
    must(data_transform_plan(&smaller, &model, 0, &t));
    assert_fails(data_transform_plan(&larger, &model, 0, &t), STATUS_CONFIG,
                 "got sequences of 128 tokens out of 1001 with masked targets");
    assert_fails(data_transform_plan(&longer, &model, 0, &t), STATUS_CONFIG, "got sequences of 129 tokens");
    assert_fails(data_transform_plan(&smaller, &causal, 0, &t), STATUS_CONFIG, "with next-token targets");
    smaller.form.target = model.target = DATA_TARGET_CLASS;
    smaller.form.classes = model.classes = 2;
    must(data_transform_plan(&smaller, &model, 0, &t));
    model.vocabulary = 899;
    assert_fails(data_transform_plan(&smaller, &model, 0, &t), STATUS_CONFIG,
                 "expected what the model takes, sequences of 128 tokens out of 899 with 2 classes, "
                 "got sequences of 128 tokens out of 900 with 2 classes");
}

static void draws_are_functions_of_seed_epoch_and_sample(void **state)
{
    (void)state;
    enum { N = 9000, BOTH = DATA_AUGMENT_CROP | DATA_AUGMENT_FLIP };
    int offsets[9] = {0}, flips = 0, same_epoch = 0;
    for (int i = 0; i < N; i++) {
        augment_draw a = data_augment_draw(BOTH, 3, 1, i), b = data_augment_draw(BOTH, 3, 1, i);
        augment_draw next = data_augment_draw(BOTH, 3, 2, i),
                     flip = data_augment_draw(DATA_AUGMENT_FLIP, 3, 1, i);
        assert_true(a.dy == b.dy && a.dx == b.dx && a.flip == b.flip);
        assert_true(flip.dy == 0 && flip.dx == 0 && flip.flip == a.flip);
        assert_in_range(a.dy + 4, 0, 8);
        assert_in_range(a.dx + 4, 0, 8);
        offsets[a.dx + 4]++;
        flips += a.flip;
        same_epoch += a.dy == next.dy && a.dx == next.dx && a.flip == next.flip;
    }
    for (int i = 0; i < 9; i++) assert_in_range(offsets[i], 820, 1180); /* 1000 +- 30 */
    assert_in_range(flips, 4200, 4800);                                 /* 4500 +- 47 */
    assert_in_range(same_epoch, 10, 110);                               /* 9000 / 162 = 56 +- 7 */
}

static void augmentations_are_named_exactly(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        unsigned bits;
    } cases[] = {{"none", 0}, {"crop", 1}, {"flip", 2}, {"crop,flip", 3}};
    unsigned found;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        must(data_augment_parse(cases[i].text, &found));
        assert_int_equal(found, cases[i].bits);
    }
    assert_fails(data_augment_parse("rotate", &found), STATUS_USAGE,
                 "--augment: expected one of none, crop, flip, crop,flip, got 'rotate'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pixels_are_normalized_as_by_torchvision, folder_open, folder_close),
        cmocka_unit_test(images_are_padded_windowed_and_flipped_in_this_order),
        cmocka_unit_test(an_image_becomes_a_vector_in_pytorchs_order),
        cmocka_unit_test(forms_that_do_not_fit_are_refused_with_both_named),
        cmocka_unit_test(token_forms_fit_within_the_models_vocabulary),
        cmocka_unit_test(draws_are_functions_of_seed_epoch_and_sample),
        cmocka_unit_test(augmentations_are_named_exactly),
    };
    return cmocka_run_group_tests_name("transform", tests, NULL, NULL);
}
