/* Tests which samples each batch holds, and that nothing else changes the content of a batch. */
#include "tests/common/data/batches_fixture.h"

#include "tests/common/data/allocations.h"

#include <pthread.h>
#include <string.h>

/* ---- which samples ---------------------------------------------------------------------------- */

static void expect_samples(const batch_view *b, const dataset *set, const sampler *s,
                           const sampler_span *span, const int32_t *order)
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
    dataset *set = open_synthetic(&vector_form);
    for (int mode = SAMPLER_DISTRIBUTED; mode <= SAMPLER_GLOBAL; mode++) {
        for (int rank = 0; rank < WORLD; rank++) {
            sampler s;
            int32_t order[SAMPLES];
            batches_config config = training(set, rank, WORLD);
            config.sampler = mode;
            batch_source *source = open_source(&config);
            must(sampler_init(&s, &(sampler_config){mode, SAMPLES, BATCH, WORLD, false}));
            assert_int_equal(source->steps_per_epoch, s.steps);
            for (int64_t step = 0; step < EPOCHS * s.steps; step++) {
                batch_view b;
                sampler_span span = sampler_span_of(&s, rank, step % s.steps);
                sampler_shuffle(&s, config.seed, step / s.steps, order);
                must(batch_source_next(source, step, &b));
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
    dataset *set = open_synthetic(&vector_form);
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
            must(batch_source_next(whole, step, &all));
            for (int rank = 0; rank < WORLD; rank++) {
                must(batch_source_next(ranks[rank], step, &one));
                assert_memory_equal((const float *)all.inputs + done * FEATURES, one.inputs,
                                    input_bytes(whole, &one));
                assert_memory_equal((const int32_t *)all.targets + done, one.targets,
                                    target_bytes(whole, &one));
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
    dataset *set = open_synthetic(&picture_form);
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
    dataset *set = open_synthetic(&picture_form);
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
    dataset *set = open_synthetic(&picture_form);
    batches_config config = training(set, 0, 1);
    config.batch = SAMPLES;
    config.augment = DATA_AUGMENT_CROP;
    record(&config, 0, 1, &one);
    record(&config, 1, 2, &other);

    assert_memory_not_equal(one.bytes + RECORDED_FIGURES, other.bytes + RECORDED_FIGURES,
                            one.size - RECORDED_FIGURES);
    config.seed++;
    record(&config, 0, 1, &other);
    assert_memory_not_equal(one.bytes, other.bytes, one.size);
    dataset_close(&set);
}

/* Collects the augmented pictures of all samples in an epoch. Any rank may have used a sample. */
static void collect_pictures(const dataset *set, int world, int64_t epoch, float pictures[SAMPLES][PICTURE])
{
    int32_t order[SAMPLES];
    sampler s;
    must(sampler_init(&s, &(sampler_config){SAMPLER_DISTRIBUTED, SAMPLES, BATCH, world, false}));
    for (int rank = 0; rank < world; rank++) {
        batches_config config = training(set, rank, world);
        config.augment = DATA_AUGMENT_CROP | DATA_AUGMENT_FLIP;
        batch_source *source = open_source(&config);
        sampler_shuffle(&s, config.seed, epoch, order);
        for (int64_t step = 0; step < s.steps; step++) {
            batch_view b;
            sampler_span span = sampler_span_of(&s, rank, step);
            must(batch_source_next(source, epoch * s.steps + step, &b));
            for (int64_t i = 0; i < b.count; i++)
                memcpy(pictures[order[sampler_position(&s, &span, i)]], (const float *)b.inputs + i * PICTURE,
                       sizeof pictures[0]);
            batch_source_return(source, &b);
        }
        batch_source_close(&source);
    }
}

static void a_samples_augmentation_does_not_depend_on_the_ranks(void **state)
{
    (void)state;
    static float alone[SAMPLES][PICTURE], shared[SAMPLES][PICTURE], later[SAMPLES][PICTURE];
    dataset *set = open_synthetic(&picture_form);
    collect_pictures(set, 1, 2, alone);
    collect_pictures(set, 4, 2, shared);
    collect_pictures(set, 1, 3, later);
    assert_memory_equal(alone, shared, sizeof alone);
    assert_memory_not_equal(alone, later, sizeof alone);
    dataset_close(&set);
}

/* ---- threads, memory, refusals ---------------------------------------------------------------- */

typedef struct rank_thread {
    const dataset *set;
    int rank, world;
    /* Number of times that each sample occurred. The first feature identifies the sample. */
    int64_t counts[SAMPLES];
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
    dataset *set = open_synthetic(&vector_form);
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
    dataset *set = open_synthetic(&picture_form);
    batches_config config = training(set, 0, 1);
    config.augment = DATA_AUGMENT_CROP;
    batch_source *source = open_source(&config);
    int before = 0;
    for (int64_t step = 0; step < 10 * source->steps_per_epoch; step++) {
        batch_view b;
        must(batch_source_next(source, step, &b));
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
    dataset *set = open_synthetic(&vector_form);
    batches_config config = training(set, 0, SAMPLES + 1);
    assert_fails(batches_open(&config, &source), STATUS_CONFIG,
                 "expected at least one sample per rank, got 23 for 24 ranks");
    assert_null(source);
    config = training(set, 0, 1);
    config.model.features = 4;
    assert_fails(batches_open(&config, &source), STATUS_CONFIG, "expected what the model takes, 4 features");
    config = training(set, 0, 1);
    config.augment = DATA_AUGMENT_FLIP;
    assert_fails(batches_open(&config, &source), STATUS_CONFIG,
                 "--augment: expected a model that takes images, got one that takes 3 features");
    config = training(set, 0, 4);
    config.drop_last = true;
    config.batch = 6;
    assert_fails(batches_open(&config, &source), STATUS_CONFIG,
                 "--drop-last: expected at least one full batch per rank, got 23 samples for 4 ranks");
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
        cmocka_unit_test(ranks_that_are_threads_share_one_set),
        cmocka_unit_test(a_steady_step_allocates_nothing),
        cmocka_unit_test(configurations_that_cannot_run_are_refused),
    };
    return cmocka_run_group_tests_name("batches", tests, NULL, NULL);
}
