/* Tests inputs and targets of batches for evaluation, regression, tokens, and images. */
#include "tests/common/data/batches_fixture.h"

#include "common/ops/op.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static recording one, other; /* too large for a stack */

static void evaluation_counts_every_sample_once(void **state)
{
    (void)state;
    enum { WORLD = 4 };
    dataset *set = open_synthetic(&vector_form);
    int64_t counted = 0, padding = 0;
    bool seen[TESTS] = {false};
    for (int rank = 0; rank < WORLD; rank++) {
        batches_config config = training(set, rank, WORLD);
        config.part = DATA_TEST;
        config.purpose = BATCHES_EVALUATE;
        config.batch = 2;
        config.drop_last = true; /* drop_last has an effect only for training. */
        batch_source *source = open_source(&config);
        assert_int_equal(source->steps_per_epoch, 2);
        for (int64_t step = 0; step < 2; step++) {
            batch_view b;
            must(batch_source_next(source, step, &b));
            counted += b.targets_counted;
            padding += b.padding;
            for (int64_t i = 0; i < b.count; i++) {
                /* Without shuffling, samples keep the order of the set. */
                int64_t sample = (step * 2 + i) * WORLD + rank;
                bool padded = sample >= TESTS;
                float scratch[FEATURES];
                const void *input = dataset_input(set, DATA_TEST, sample % TESTS, scratch);
                assert_memory_equal((const float *)b.inputs + i * FEATURES, input, sizeof scratch);
                assert_int_equal(((const int32_t *)b.targets)[i] == LOSS_IGNORE, padded);
                assert_int_equal(padded, i >= b.count - b.padding);
                if (!padded) seen[sample] = true;
            }
            batch_source_return(source, &b);
        }
        batch_source_close(&source);
    }
    assert_int_equal(counted, TESTS);
    assert_int_equal(padding, WORLD * 3 - TESTS);
    for (int i = 0; i < TESTS; i++) assert_true(seen[i]);
    dataset_close(&set);
}

static void evaluation_augments_and_shuffles_nothing(void **state)
{
    (void)state;
    dataset *set = open_synthetic(&picture_form);
    batches_config config = training(set, 0, 2);
    config.purpose = BATCHES_EVALUATE;
    record(&config, 0, 3, &one);
    config.augment = DATA_AUGMENT_CROP | DATA_AUGMENT_FLIP;
    config.seed++;
    record(&config, 0, 3, &other);
    expect_same(&other, &one);
    dataset_close(&set);
}

static void regression_counts_elements_without_padding(void **state)
{
    (void)state;
    data_form values = vector_form;
    values.target = DATA_TARGET_VALUES;
    dataset *set = open_synthetic(&values);
    int64_t counted = 0;
    for (int rank = 0; rank < 4; rank++) {
        batch_view b;
        batches_config config = training(set, rank, 4);
        config.part = DATA_TEST;
        config.purpose = BATCHES_EVALUATE;
        batch_source *source = open_source(&config);
        must(batch_source_next(source, 0, &b));
        assert_int_equal(b.count, 3);
        counted += b.targets_counted;
        batch_source_close(&source);
    }
    assert_int_equal(counted, TESTS * values.classes);
    dataset_close(&set);
}

static void token_batches_count_the_positions_that_have_targets(void **state)
{
    (void)state;
    data_form form = {.kind = DATA_TOKENS, .sequence = 20, .vocabulary = 30, .classes = 30};
    for (form.target = DATA_TARGET_MASKED; form.target <= DATA_TARGET_NEXT; form.target++) {
        batch_view b;
        dataset *set = open_synthetic(&form);
        batches_config config = training(set, 0, 1);
        batch_source *source = open_source(&config);
        must(batch_source_next(source, 0, &b));
        const int32_t *tokens = b.inputs, *targets = b.targets;
        int64_t wanted = 0;
        for (int64_t i = 0; i < BATCH * form.sequence; i++) {
            assert_in_range(tokens[i], 0, 29);
            wanted += targets[i] != LOSS_IGNORE;
            if (form.target == DATA_TARGET_NEXT && (i + 1) % form.sequence != 0)
                assert_int_equal(targets[i], tokens[i + 1]);
        }
        assert_int_equal(b.targets_counted, wanted);
        if (form.target == DATA_TARGET_NEXT)
            assert_int_equal(wanted, BATCH * form.sequence);
        else
            assert_in_range(wanted, BATCH, BATCH * form.sequence / 2);
        batch_source_close(&source);
        dataset_close(&set);
    }
}

static void gray_images_of_28_become_color_images_of_32(void **state)
{
    make_mnist_folder(*state);
    char spec[600];
    snprintf(spec, sizeof spec, "mnist:%s", (const char *)*state);
    dataset *set = open_set(spec, NULL);
    batches_config config = training(set, 0, 1);
    config.model = (data_form){.kind = DATA_IMAGE, .h = 32, .w = 32, .c = 3, .classes = 10};
    config.part = DATA_TEST;
    config.purpose = BATCHES_EVALUATE;
    batch_source *source = open_source(&config);
    batch_view b;
    must(batch_source_next(source, 0, &b));
    assert_int_equal(b.count, 4);
    for (int64_t i = 0; i < 4; i++) {
        for (int64_t p = 0; p < 32 * 32 * 3; p++) {
            int64_t y = p / 96 - 2, x = p / 3 % 32 - 2;
            int pixel = y >= 0 && y < 28 && x >= 0 && x < 28 ? test_pixel(i, y * 28 + x) : 0;
            float wanted = ((float)pixel / 255.0f - 0.1307f) / 0.3081f;
            assert_true(((const float *)b.inputs)[i * 32 * 32 * 3 + p] == wanted);
        }
        assert_int_equal(((const int32_t *)b.targets)[i], test_label(i));
    }
    batch_source_close(&source);
    dataset_close(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluation_counts_every_sample_once),
        cmocka_unit_test(evaluation_augments_and_shuffles_nothing),
        cmocka_unit_test(regression_counts_elements_without_padding),
        cmocka_unit_test(token_batches_count_the_positions_that_have_targets),
        cmocka_unit_test_setup_teardown(gray_images_of_28_become_color_images_of_32, folder_open,
                                        folder_close),
    };
    return cmocka_run_group_tests_name("batch content", tests, NULL, NULL);
}
