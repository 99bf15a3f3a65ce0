/* Compares positions with PyTorch's DistributedSampler, DataLoader and torch.chunk. Compares orders with an
 * independent computation, and checks that they are permutations. */
#include "tests/common/data/fixture.h"

#include "common/base/random.h"
#include "common/data/sampler.h"
#include "tests/common/data/cases.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 4096 };

static sampler open_sampler(sampler_mode mode, int64_t samples, int world, int64_t batch, bool drop_last)
{
    sampler s;
    must(sampler_init(&s, &(sampler_config){mode, samples, batch, world, drop_last}));
    return s;
}

/* Writes the positions of a rank as text, with a | between steps, as in "0 2 4|6". */
static void render(const sampler *s, int rank, char *text)
{
    text[0] = '\0';
    for (int64_t step = 0; step < s->steps; step++) {
        sampler_span span = sampler_span_of(s, rank, step);
        if (step) strcat(text, "|");
        for (int64_t i = 0; i < span.count; i++)
            sprintf(text + strlen(text), i ? " %d" : "%d", (int)sampler_position(s, &span, i));
    }
}

static void every_rank_gets_the_positions_that_pytorch_gives_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof sampler_cases / sizeof sampler_cases[0]; i++) {
        const struct sampler_case *c = &sampler_cases[i];
        char text[TEXT];
        sampler s = open_sampler(c->mode, c->samples, c->world, c->batch, c->drop_last);
        render(&s, c->rank, text);
        if (strcmp(text, c->steps) != 0)
            fail_msg(
                "mode %d, %d samples, %d ranks, batch %d, drop_last %d, rank %d: found '%s', wanted '%s'",
                c->mode, c->samples, c->world, c->batch, c->drop_last, c->rank, text, c->steps);
    }
}

/* Checks which samples are marked as padding, and counts how often each sample comes in an epoch, with and
 * without padding. */
static void all_samples_count_once_and_padding_is_told(void **state)
{
    (void)state;
    for (int samples = 1; samples <= 40; samples++) {
        for (int world = 1; world <= samples && world <= 9; world++) {
            for (int mode = SAMPLER_DISTRIBUTED; mode <= SAMPLER_GLOBAL; mode++) {
                int counted[40] = {0}, padding = 0;
                sampler s = open_sampler(mode, samples, world, 3, false);
                for (int rank = 0; rank < world; rank++) {
                    for (int64_t step = 0; step < s.steps; step++) {
                        sampler_span span = sampler_span_of(&s, rank, step);
                        padding += (int)span.padding;
                        for (int64_t j = 0; j < span.count - span.padding; j++)
                            counted[sampler_position(&s, &span, j)]++;
                    }
                }
                for (int j = 0; j < samples; j++) assert_int_equal(counted[j], 1);
                assert_int_equal(padding, mode == SAMPLER_GLOBAL ? 0 : (world - samples % world) % world);
            }
        }
    }
}

static void more_ranks_than_samples_are_refused(void **state)
{
    (void)state;
    sampler s;
    for (int mode = SAMPLER_DISTRIBUTED; mode <= SAMPLER_GLOBAL; mode++)
        assert_fails(sampler_init(&s, &(sampler_config){mode, 3, 2, 4, false}), STATUS_CONFIG,
                     "data set: expected at least one sample per rank, got 3 for 4 ranks");
    assert_int_equal(status_exit_code(STATUS_CONFIG), 78);
}

static void an_epoch_without_a_full_batch_is_refused(void **state)
{
    (void)state;
    sampler s;
    for (int mode = SAMPLER_DISTRIBUTED; mode <= SAMPLER_GLOBAL; mode++) {
        assert_fails(sampler_init(&s, &(sampler_config){mode, 15, 4, 4, true}), STATUS_CONFIG,
                     "--drop-last: expected at least one full batch per rank, got 15 samples for 4 ranks "
                     "with batches of 4");
        must(sampler_init(&s, &(sampler_config){mode, 16, 4, 4, true}));
        assert_int_equal(s.steps, 1);
    }
}

static void orders_are_those_of_the_documented_shuffle(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof order_cases / sizeof order_cases[0]; i++) {
        const struct order_case *c = &order_cases[i];
        int32_t order[32];
        char text[TEXT] = "";
        sampler s = open_sampler(SAMPLER_DISTRIBUTED, c->samples, 1, 1, false);
        sampler_shuffle(&s, c->seed, c->epoch, order);
        for (int j = 0; j < c->samples; j++) sprintf(text + strlen(text), j ? " %d" : "%d", order[j]);
        assert_string_equal(text, c->order);
    }
}

static void an_order_is_a_permutation_that_changes_with_the_epoch(void **state)
{
    (void)state;
    enum { SAMPLES = 5000 };
    static int32_t orders[3][SAMPLES];
    static bool seen[SAMPLES];
    sampler s = open_sampler(SAMPLER_DISTRIBUTED, SAMPLES, 1, 1, false);
    for (int epoch = 0; epoch < 3; epoch++) {
        memset(seen, 0, sizeof seen);
        sampler_shuffle(&s, 42, epoch, orders[epoch]);
        for (int i = 0; i < SAMPLES; i++) {
            assert_in_range(orders[epoch][i], 0, SAMPLES - 1);
            assert_false(seen[orders[epoch][i]]);
            seen[orders[epoch][i]] = true;
        }
    }
    int same =
        0; /* Number of positions at which both permutations agree. 1 is expected if they are independent. */
    for (int i = 0; i < SAMPLES; i++) same += orders[0][i] == orders[1][i];
    assert_in_range(same, 0, 8);
    sampler_shuffle(&s, 43, 1, orders[0]);
    /* As in DistributedSampler, the order depends on the sum of seed and epoch. */
    assert_memory_equal(orders[0], orders[2], sizeof orders[0]);
}

/* Checks that each sample is equally likely at each position: chi-square over 20 x 20 cells. */
static void all_places_are_equally_likely(void **state)
{
    (void)state;
    enum { N = 20, ROUNDS = 20000 };
    static int counts[N][N];
    int32_t order[N];
    double chi = 0, expected = (double)ROUNDS / N;
    for (int round = 0; round < ROUNDS; round++) {
        permutation_fill(order, N, random_start((uint64_t)round, 1));
        for (int i = 0; i < N; i++) counts[i][order[i]]++;
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) chi += (counts[i][j] - expected) * (counts[i][j] - expected) / expected;
    /* 19 x 19 = 361 degrees of freedom give 361 +- 27. The limits are six deviations away on either side. */
    assert_in_range((int)chi, 200, 522);
}

static void a_split_is_stratified_and_complete(void **state)
{
    (void)state;
    /* The first line is the split of Wine. scikit-learn's train_test_split(test_size=0.2, stratify=y) holds
     * out the same numbers. */
    static const struct {
        int counts[3], held_out[3];
    } cases[] = {{{59, 71, 48}, {12, 14, 10}},
                 {{50, 50, 50}, {10, 10, 10}},
                 {{1, 1, 0}, {1, 0, 0}},
                 {{3, 8, 1}, {1, 2, 0}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t labels[200];
        int32_t picks[200];
        int64_t train;
        int count = 0, held_out[3] = {0};
        for (int c = 0; c < 3; c++)
            for (int j = 0; j < cases[i].counts[c]; j++) labels[count++] = (uint8_t)c;
        must(stratified_split(labels, count, 9, picks, &train));
        bool seen[200] = {false};
        for (int j = 0; j < count; j++) {
            assert_false(seen[picks[j]]);
            seen[picks[j]] = true;
            if (j >= train) held_out[labels[picks[j]]]++;
            if (j != 0 && j != train) assert_true(picks[j] > picks[j - 1]);
        }
        for (int c = 0; c < 3; c++) assert_int_equal(held_out[c], cases[i].held_out[c]);
    }
}

static void a_split_depends_on_the_seed(void **state)
{
    (void)state;
    uint8_t labels[100] = {0};
    int32_t one[100], other[100];
    int64_t train;
    must(stratified_split(labels, 100, 1, one, &train));
    must(stratified_split(labels, 100, 2, other, &train));
    assert_memory_not_equal(one, other, sizeof one);
    must(stratified_split(labels, 100, 1, other, &train));
    assert_memory_equal(one, other, sizeof one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_gets_the_positions_that_pytorch_gives_it),
        cmocka_unit_test(all_samples_count_once_and_padding_is_told),
        cmocka_unit_test(more_ranks_than_samples_are_refused),
        cmocka_unit_test(an_epoch_without_a_full_batch_is_refused),
        cmocka_unit_test(orders_are_those_of_the_documented_shuffle),
        cmocka_unit_test(an_order_is_a_permutation_that_changes_with_the_epoch),
        cmocka_unit_test(all_places_are_equally_likely),
        cmocka_unit_test(a_split_is_stratified_and_complete),
        cmocka_unit_test(a_split_depends_on_the_seed),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
