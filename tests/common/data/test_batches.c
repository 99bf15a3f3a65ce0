/* Batches of data sets: which samples, in what form, and that they depend on nothing else. */
#include "tests/common/data/fixture.h"

#include "common/data/batches.h"
#include "common/ops/op.h"
#include "tests/common/data/allocations.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 23, TESTS = 11, FEATURES = 3, BATCH = 4 };

static const data_form vector = {.kind = DATA_FEATURES, .features = FEATURES, .classes = 5};
static const data_form picture = {.kind = DATA_IMAGE, .h = 8, .w = 8, .c = 3, .classes = 5};

static dataset *open_synthetic(const data_form *form)
{
    dataset *set;
    expect_ok(dataset_open(
        &(dataset_config){.spec = "synthetic", .seed = 5, .model = form, .synthetic_samples = {SAMPLES, TESTS}}, &set));
    return set;
}

static batches_config training(const dataset *set, int rank, int world)
{
    return (batches_config){.set = set,
                            .part = DATA_TRAIN,
                            .purpose = BATCHES_TRAIN,
                            .model = dataset_describe(set)->form,
                            .seed = 11,
                            .rank = rank,
                            .world = world,
                            .batch = BATCH,
                            .threads = 1};
}

static batch_source *open_source(const batches_config *config)
{
    batch_source *source;
    expect_ok(batches_open(config, &source));
    return source;
}

/* Bytes of a batch's inputs and targets. */
static size_t input_bytes(const batch_source *s, const batch_view *b)
{
    return (size_t)(b->count * data_form_input_elements(&s->form)) * 4;
}

static size_t target_bytes(const batch_source *s, const batch_view *b)
{
    return (size_t)(b->count * data_form_target_elements(&s->form)) * 4;
}

/* All batches of steps [first, end), one behind the other. */
typedef struct recording {
    uint8_t bytes[1 << 18];
    size_t size;
} recording;

static void append(recording *r, const void *bytes, size_t size)
{
    assert_true(r->size + size <= sizeof r->bytes);
    memcpy(r->bytes + r->size, bytes, size);
    r->size += size;
}

static void record(const batches_config *config, int64_t first, int64_t end, recording *out)
{
    batches_config from = *config;
    from.first_step = first;
    out->size = 0;
    batch_source *source = open_source(&from);
    for (int64_t step = first; step < end; step++) {
        batch_view b;
        expect_ok(batch_source_next(source, step, &b));
        const int64_t figures[] = {b.count, b.targets_counted, b.padding, b.step, b.epoch, b.epoch_step};
        append(out, figures, sizeof figures);
        append(out, b.inputs, input_bytes(source, &b));
        append(out, b.targets, target_bytes(source, &b));
        batch_source_return(source, &b);
    }
    batch_source_close(&source);
}

static void expect_same(const recording *found, const recording *wanted)
{
    assert_int_equal(found->size, wanted->size);
    assert_memory_equal(found->bytes, wanted->bytes, wanted->size);
}

/* ---- which samples ---------------------------------------------------------------------------- */

static void expect_samples(const batch_view *b, const dataset *set, const sampler *s, const sampler_span *span,
                           const int32_t *order)
{
    float scratch[FEATURES];
    int32_t label;
    assert_int_equal(b->count, span->count);
    assert_int_equal(b->padding, span->padding);
    assert_int_equal(b->targets_counted, span->count);
    for (int64_t i = 0; i < b->count; i++) {
        int64_t sample = order[sampler_position(s, span, i)];
        const void *wanted = dataset_input(set, DATA_TRAIN, sample, scratch);
        dataset_target(set, DATA_TRAIN, sample, &label);
        assert_memory_equal((const float *)b->inputs + i * FEATURES, wanted, sizeof scratch);
        assert_int_equal(((const int32_t *)b->targets)[i], label);
    }
}

static void a_rank_trains_on_the_samples_that_the_sampler_names(void **state)
{
    (void)state;
    enum { WORLD = 3, EPOCHS = 3 };
    dataset *set = open_synthetic(&vector);
    for (int mode = SAMPLER_DISTRIBUTED; mode <= SAMPLER_GLOBAL; mode++) {
        for (int rank = 0; rank < WORLD; rank++) {
            sampler s;
            int32_t order[SAMPLES];
            batches_config config = training(set, rank, WORLD);
            config.sampler = mode;
            batch_source *source = open_source(&config);
            expect_ok(sampler_init(&s, &(sampler_config){mode, SAMPLES, BATCH, WORLD, false}));
            assert_int_equal(source->steps_per_epoch, s.steps);
            for (int64_t step = 0; step < EPOCHS * s.steps; step++) {
                batch_view b;
                sampler_span span = sampler_span_of(&s, rank, step % s.steps);
                sampler_shuffle(&s, config.seed, step / s.steps, order);
                expect_ok(batch_source_next(source, step, &b));
                expect_samples(&b, set, &s, &span, order);
                batch_source_return(source, &b);
            }
            batch_source_close(&source);
        }
    }
    dataset_close(&set);
}

static void the_whole_batch_is_that_of_the_ranks_in_rank_order(void **state)
{
    (void)state;
    enum { WORLD = 3 };
    dataset *set = open_synthetic(&vector);
    for (int mode = SAMPLER_DISTRIBUTED; mode <= SAMPLER_GLOBAL; mode++) {
        batch_source *ranks[WORLD], *whole;
        for (int rank = 0; rank <= WORLD; rank++) {
            batches_config config = training(set, rank % WORLD, WORLD);
            config.sampler = mode;
            config.whole = rank == WORLD;
            *(rank == WORLD ? &whole : &ranks[rank]) = open_source(&config);
        }
        assert_int_equal(whole->largest_batch, WORLD * BATCH);
        for (int64_t step = 0; step < 2 * whole->steps_per_epoch; step++) {
            batch_view all, one;
            int64_t done = 0;
            expect_ok(batch_source_next(whole, step, &all));
            for (int rank = 0; rank < WORLD; rank++) {
                expect_ok(batch_source_next(ranks[rank], step, &one));
                assert_memory_equal((const float *)all.inputs + done * FEATURES, one.inputs, input_bytes(whole, &one));
                assert_memory_equal((const int32_t *)all.targets + done, one.targets, target_bytes(whole, &one));
                done += one.count;
                batch_source_return(ranks[rank], &one);
            }
            assert_int_equal(all.count, done);
            batch_source_return(whole, &all);
        }
        for (int rank = 0; rank < WORLD; rank++) batch_source_close(&ranks[rank]);
        batch_source_close(&whole);
    }
    dataset_close(&set);
}

/* ---- that they depend on nothing else --------------------------------------------------------- */

static recording one, other; /* too large for a stack */

static void batches_do_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    dataset *set = open_synthetic(&picture);
    batches_config config = training(set, 1, 2);
    config.augment = DATA_AUGMENT_CROP | DATA_AUGMENT_FLIP;
    config.threads = 0;
    record(&config, 0, 20, &one);
    for (config.threads = 1; config.threads <= LOADER_MAX_THREADS; config.threads++) {
        record(&config, 0, 20, &other);
        expect_same(&other, &one);
    }
    dataset_close(&set);
}

static void a_run_that_resumes_sees_what_the_whole_run_saw(void **state)
{
    (void)state;
    dataset *set = open_synthetic(&picture);
    batches_config config = training(set, 0, 2);
    config.augment = DATA_AUGMENT_CROP | DATA_AUGMENT_FLIP;
    for (int64_t stop = 1; stop < 9; stop++) {
        record(&config, 0, 9, &one);
        record(&config, 0, stop, &other);
        size_t before = other.size;
        assert_memory_equal(other.bytes, one.bytes, before);
        record(&config, stop, 9, &other);
        assert_int_equal(before + other.size, one.size);
        assert_memory_equal(other.bytes, one.bytes + before, other.size);
    }
    dataset_close(&set);
}

static void seeds_and_epochs_change_order_and_augmentation(void **state)
{
    (void)state;
    dataset *set = open_synthetic(&picture);
    batches_config config = training(set, 0, 1);
    config.batch = SAMPLES;
    config.augment = DATA_AUGMENT_CROP;
    record(&config, 0, 1, &one);
    record(&config, 1, 2, &other);
    size_t figures = 6 * sizeof(int64_t);
    assert_memory_not_equal(one.bytes + figures, other.bytes + figures, one.size - figures);
    config.seed++;
    record(&config, 0, 1, &other);
    assert_memory_not_equal(one.bytes, other.bytes, one.size);
    dataset_close(&set);
}

/* Finds each sample's augmented picture of an epoch, wherever it was trained on. */
static void collect_pictures(const dataset *set, int world, int64_t epoch, float pictures[SAMPLES][8 * 8 * 3])
{
    int32_t order[SAMPLES];
    sampler s;
    expect_ok(sampler_init(&s, &(sampler_config){SAMPLER_DISTRIBUTED, SAMPLES, BATCH, world, false}));
    for (int rank = 0; rank < world; rank++) {
        batches_config config = training(set, rank, world);
        config.augment = DATA_AUGMENT_CROP | DATA_AUGMENT_FLIP;
        batch_source *source = open_source(&config);
        sampler_shuffle(&s, config.seed, epoch, order);
        for (int64_t step = 0; step < s.steps; step++) {
            batch_view b;
            sampler_span span = sampler_span_of(&s, rank, step);
            expect_ok(batch_source_next(source, epoch * s.steps + step, &b));
            for (int64_t i = 0; i < b.count; i++)
                memcpy(pictures[order[sampler_position(&s, &span, i)]],
                       (const float *)b.inputs + i * 8 * 8 * 3, sizeof pictures[0]);
            batch_source_return(source, &b);
        }
        batch_source_close(&source);
    }
}

static void a_samples_augmentation_does_not_depend_on_the_ranks(void **state)
{
    (void)state;
    static float alone[SAMPLES][8 * 8 * 3], shared[SAMPLES][8 * 8 * 3], later[SAMPLES][8 * 8 * 3];
    dataset *set = open_synthetic(&picture);
    collect_pictures(set, 1, 2, alone);
    collect_pictures(set, 4, 2, shared);
    collect_pictures(set, 1, 3, later);
    assert_memory_equal(alone, shared, sizeof alone);
    assert_memory_not_equal(alone, later, sizeof alone);
    dataset_close(&set);
}

/* ---- evaluation, targets ---------------------------------------------------------------------- */

static void evaluation_counts_every_sample_once(void **state)
{
    (void)state;
    enum { WORLD = 4 };
    dataset *set = open_synthetic(&vector);
    int64_t counted = 0, padding = 0;
    bool seen[TESTS] = {false};
    for (int rank = 0; rank < WORLD; rank++) {
        batches_config config = training(set, rank, WORLD);
        config.part = DATA_TEST;
        config.purpose = BATCHES_EVALUATE;
        config.batch = 2;
        config.drop_last = true; /* holds for training alone */
        batch_source *source = open_source(&config);
        assert_int_equal(source->steps_per_epoch, 2);
        for (int64_t step = 0; step < 2; step++) {
            batch_view b;
            expect_ok(batch_source_next(source, step, &b));
            counted += b.targets_counted;
            padding += b.padding;
            for (int64_t i = 0; i < b.count; i++) {
                int64_t sample = (step * 2 + i) * WORLD + rank; /* as they lie */
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

static void regression_counts_elements_without_padding(void **state)
{
    (void)state;
    data_form values = vector;
    values.target = DATA_TARGET_VALUES;
    dataset *set = open_synthetic(&values);
    int64_t counted = 0;
    for (int rank = 0; rank < 4; rank++) {
        batch_view b;
        batches_config config = training(set, rank, 4);
        config.part = DATA_TEST;
        config.purpose = BATCHES_EVALUATE;
        batch_source *source = open_source(&config);
        expect_ok(batch_source_next(source, 0, &b));
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
        expect_ok(batch_source_next(source, 0, &b));
        const int32_t *tokens = b.inputs, *targets = b.targets;
        int64_t wanted = 0;
        for (int64_t i = 0; i < BATCH * form.sequence; i++) {
            assert_in_range(tokens[i], 0, 29);
            wanted += targets[i] != LOSS_IGNORE;
            if (form.target == DATA_TARGET_NEXT && (i + 1) % form.sequence != 0) assert_int_equal(targets[i], tokens[i + 1]);
        }
        assert_int_equal(b.targets_counted, wanted);
        if (form.target == DATA_TARGET_NEXT) assert_int_equal(wanted, BATCH * form.sequence);
        else assert_in_range(wanted, BATCH, BATCH * form.sequence / 2);
        batch_source_close(&source);
        dataset_close(&set);
    }
}

static void grey_images_of_28_become_colour_images_of_32(void **state)
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
    expect_ok(batch_source_next(source, 0, &b));
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

/* ---- threads, memory, refusals ---------------------------------------------------------------- */

typedef struct rank_thread {
    const dataset *set;
    int rank, world;
    int64_t counts[SAMPLES]; /* how often each sample came, by its first feature */
    status result;
} rank_thread;

static int64_t sample_of(const dataset *set, const float *input)
{
    float scratch[FEATURES];
    for (int64_t i = 0; i < SAMPLES; i++)
        if (memcmp(dataset_input(set, DATA_TRAIN, i, scratch), input, sizeof scratch) == 0) return i;
    return -1;
}

static void *run_rank(void *argument)
{
    rank_thread *r = argument;
    batches_config config = training(r->set, r->rank, r->world);
    config.sampler = SAMPLER_GLOBAL;
    config.threads = 2;
    batch_source *source;
    r->result = batches_open(&config, &source);
    for (int64_t step = 0; r->result == STATUS_OK && step < 10 * source->steps_per_epoch; step++) {
        batch_view b;
        r->result = batch_source_next(source, step, &b);
        for (int64_t i = 0; i < b.count; i++)
            r->counts[sample_of(r->set, (const float *)b.inputs + i * FEATURES)]++;
        batch_source_return(source, &b);
    }
    batch_source_close(&source);
    return NULL;
}

static void ranks_that_are_threads_share_one_set(void **state)
{
    (void)state;
    enum { WORLD = 4 };
    pthread_t ids[WORLD];
    rank_thread ranks[WORLD] = {0};
    dataset *set = open_synthetic(&vector);
    for (int rank = 0; rank < WORLD; rank++) {
        ranks[rank] = (rank_thread){.set = set, .rank = rank, .world = WORLD};
        assert_int_equal(pthread_create(&ids[rank], NULL, run_rank, &ranks[rank]), 0);
    }
    for (int rank = 0; rank < WORLD; rank++) pthread_join(ids[rank], NULL);
    for (int i = 0; i < SAMPLES; i++) {
        int64_t total = 0;
        for (int rank = 0; rank < WORLD; rank++) total += ranks[rank].counts[i];
        assert_int_equal(total, 10);
    }
    dataset_close(&set);
}

static void a_steady_step_allocates_nothing(void **state)
{
    (void)state;
    dataset *set = open_synthetic(&picture);
    batches_config config = training(set, 0, 1);
    config.augment = DATA_AUGMENT_CROP;
    batch_source *source = open_source(&config);
    int before = 0;
    for (int64_t step = 0; step < 10 * source->steps_per_epoch; step++) {
        batch_view b;
        expect_ok(batch_source_next(source, step, &b));
        batch_source_return(source, &b);
        if (step == 0) before = allocations_so_far();
    }
    assert_true(before > 0);
    assert_int_equal(allocations_so_far(), before);
    batch_source_close(&source);
    dataset_close(&set);
}

static void configurations_that_cannot_run_are_refused(void **state)
{
    (void)state;
    batch_source *source;
    dataset *set = open_synthetic(&vector);
    batches_config config = training(set, 0, SAMPLES + 1);
    expect_failure(batches_open(&config, &source), STATUS_CONFIG, "found 23 samples for 24 ranks");
    assert_null(source);
    config = training(set, 0, 1);
    config.model.features = 4;
    expect_failure(batches_open(&config, &source), STATUS_CONFIG, "allowed is what the model takes: 4 features");
    config = training(set, 0, 1);
    config.augment = DATA_AUGMENT_FLIP;
    expect_failure(batches_open(&config, &source), STATUS_CONFIG, "--augment: found a model that takes 3 features");
    config = training(set, 0, 4);
    config.drop_last = true;
    config.batch = 6;
    expect_failure(batches_open(&config, &source), STATUS_CONFIG, "--drop-last: found 23 samples for 4 ranks");
    dataset_close(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_trains_on_the_samples_that_the_sampler_names),
        cmocka_unit_test(the_whole_batch_is_that_of_the_ranks_in_rank_order),
        cmocka_unit_test(batches_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(a_run_that_resumes_sees_what_the_whole_run_saw),
        cmocka_unit_test(seeds_and_epochs_change_order_and_augmentation),
        cmocka_unit_test(a_samples_augmentation_does_not_depend_on_the_ranks),
        cmocka_unit_test(evaluation_counts_every_sample_once),
        cmocka_unit_test(regression_counts_elements_without_padding),
        cmocka_unit_test(token_batches_count_the_positions_that_have_targets),
        cmocka_unit_test_setup_teardown(grey_images_of_28_become_colour_images_of_32, folder_open, folder_close),
        cmocka_unit_test(ranks_that_are_threads_share_one_set),
        cmocka_unit_test(a_steady_step_allocates_nothing),
        cmocka_unit_test(configurations_that_cannot_run_are_refused),
    };
    return cmocka_run_group_tests_name("batches", tests, NULL, NULL);
}
