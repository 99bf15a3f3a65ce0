/* Tests the placement of buffers with known lifetimes. Buffers that are needed at the same time must not
 * overlap, so no plan can be smaller than the largest sum of buffers that are needed at the same time. */
#include "common/memory/plan.h"

#include "common/base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

enum { MOST_RANGES = 60, STEPS = 40 };

/* Returns the largest sum of aligned bytes that are needed in the same step. No plan can be smaller. */
static int64_t lower_bound(const plan_range *ranges, int count)
{
    int64_t most = 0;
    for (int step = 0; step < STEPS; step++) {
        int64_t alive = 0;
        for (int i = 0; i < count; i++)
            if (ranges[i].first <= step && step <= ranges[i].last) alive += plan_align(ranges[i].bytes);
        if (alive > most) most = alive;
    }
    return most;
}

static void check_plan(const plan_range *ranges, int count, int64_t total)
{
    int64_t sum = 0;
    for (int i = 0; i < count; i++) {
        const plan_range *a = &ranges[i];
        assert_int_equal(a->offset % PLAN_ALIGNMENT, 0);
        assert_true(a->offset >= 0 && a->offset + a->bytes <= total);
        sum += plan_align(a->bytes);
        for (int j = 0; j < i; j++) {
            const plan_range *b = &ranges[j];
            bool together = a->first <= b->last && b->first <= a->last && a->bytes > 0 && b->bytes > 0;
            bool overlap = a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
            if (together && overlap)
                fail_msg("ranges %d and %d of %d overlap at %lld and %lld", j, i, count, (long long)b->offset,
                         (long long)a->offset);
        }
    }
    assert_true(total >= lower_bound(ranges, count));
    assert_true(total <= sum);
}

static int draw_ranges(uint64_t seed, plan_range *ranges)
{
    uint64_t start = random_start(seed, random_fnv1a64("plan")), draw = 0;
    int count = (int)random_below(start, draw++, MOST_RANGES + 1);
    for (int i = 0; i < count; i++) {
        int first = (int)random_below(start, draw++, STEPS);
        int length = (int)random_below(start, draw++, seed % 2 ? 5 : STEPS);
        int64_t bytes = (int64_t)random_below(start, draw++, seed % 3 ? 5000 : 200);
        ranges[i] = (plan_range){
            .bytes = bytes, .first = first, .last = first + length < STEPS ? first + length : STEPS - 1};
    }
    return count;
}

static void random_lifetimes_never_overlap(void **context)
{
    (void)context;
    for (uint64_t seed = 0; seed < 500; seed++) {
        plan_range ranges[MOST_RANGES];
        int count = draw_ranges(seed, ranges);
        int64_t total;
        assert_int_equal(plan_place(ranges, count, &total), STATUS_OK);
        check_plan(ranges, count, total);
    }
}

static void same_ranges_are_placed_alike(void **context)
{
    (void)context;
    plan_range once[MOST_RANGES], again[MOST_RANGES];
    int count = draw_ranges(17, once);
    int64_t total, total_again;
    draw_ranges(17, again);
    assert_int_equal(plan_place(once, count, &total), STATUS_OK);
    assert_int_equal(plan_place(again, count, &total_again), STATUS_OK);
    assert_int_equal(total, total_again);
    for (int i = 0; i < count; i++) assert_int_equal(once[i].offset, again[i].offset);
}

typedef struct known_plan {
    const char *what;
    plan_range ranges[4];
    int count;
    int64_t offsets[4], total;
} known_plan;

static const known_plan known[] = {
    {"nothing", {{0}}, 0, {0}, 0},
    {"one byte takes one alignment", {{1, 0, 0, 0}}, 1, {0}, 64},
    {"empty ranges need no place", {{0, 0, 5, 0}, {100, 0, 5, 0}}, 2, {0, 0}, 128},
    {"disjoint lifetimes share memory", {{100, 0, 1, 0}, {300, 2, 3, 0}, {200, 4, 4, 0}}, 3, {0, 0, 0}, 320},
    {"touching lifetimes do not: steps are inclusive", {{64, 0, 2, 0}, {64, 2, 3, 0}}, 2, {0, 64}, 128},
    {"the largest comes first", {{64, 0, 1, 0}, {640, 1, 2, 0}}, 2, {640, 0}, 704},
    {"a gap is filled from below",
     {{640, 0, 1, 0}, {320, 0, 3, 0}, {128, 2, 3, 0}, {256, 2, 3, 0}},
     4,
     {0, 640, 256, 0},
     960},
};

static void known_lifetimes_are_placed_as_expected(void **context)
{
    (void)context;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        known_plan plan = known[i];
        int64_t total = -1;
        assert_int_equal(plan_place(plan.ranges, plan.count, &total), STATUS_OK);
        if (total != plan.total)
            fail_msg("%s: total %lld, should be %lld", plan.what, (long long)total, (long long)plan.total);
        for (int j = 0; j < plan.count; j++)
            if (plan.ranges[j].offset != plan.offsets[j])
                fail_msg("%s: range %d at %lld, should be at %lld", plan.what, j,
                         (long long)plan.ranges[j].offset, (long long)plan.offsets[j]);
    }
}

/* The activations of a network are made one after another, and used again in reverse order. Each is needed
 * until its backward step. At the peak all of them are needed, and greedy placement must reach this lower
 * bound. */
static void forward_and_backward_reach_the_lower_bound(void **context)
{
    (void)context;
    enum { LAYERS = 20 };
    plan_range ranges[LAYERS];
    int64_t total, sum = 0;
    for (int i = 0; i < LAYERS; i++) {
        ranges[i] = (plan_range){.bytes = 1000 * (i % 5 + 1), .first = i, .last = 2 * LAYERS - 1 - i};
        sum += plan_align(ranges[i].bytes);
    }
    assert_int_equal(plan_place(ranges, LAYERS, &total), STATUS_OK);
    check_plan(ranges, LAYERS, total);
    assert_int_equal(total, sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_lifetimes_never_overlap),
        cmocka_unit_test(same_ranges_are_placed_alike),
        cmocka_unit_test(known_lifetimes_are_placed_as_expected),
        cmocka_unit_test(forward_and_backward_reach_the_lower_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
