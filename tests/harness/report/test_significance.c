/* Tests verdicts on differences: p values that can be counted by hand, corrections from the literature, and
 * how often samples of recorded times give a wrong verdict or hide a change. */
#include "harness/report/significance.h"

#include "common/base/random.h"
#include "tests/support/sanitized.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect_near(double found, double expected, double within)
{
    if (!(fabs(found - expected) <= within)) fail_msg("expected %.9g, got %.9g", expected, found);
}

static void eight_rounds_that_agree_have_two_sign_patterns_of_256(void **context)
{
    (void)context;
    double a[] = {1, 1, 1, 1, 1, 1, 1, 1}, b[] = {1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8};
    significance s;
    assert_int_equal(significance_of_rounds(a, b, 8, &s), STATUS_OK);
    expect_near(s.p, 2.0 / 256, 0);
    assert_int_equal(s.verdict, SIGNIFICANCE_GREATER);
    expect_near(s.ratio, 1.45, 1e-12);
    assert_int_equal(significance_of_rounds(b, a, 8, &s), STATUS_OK);
    assert_int_equal(s.verdict, SIGNIFICANCE_LESS);
}

static void one_round_of_four_that_disagrees_least_leaves_four_patterns_of_sixteen(void **context)
{
    (void)context;
    /* The ratios have ranks 2, 3, 4 above 0, and rank 1 below. The mean of the sum is 5. Sums at least 4 from
     * it are 0, 1, 9 and 10. */
    double a[] = {1, 1, 1, 1}, b[] = {exp(1), exp(2), exp(4), exp(-0.5)};
    significance s;
    assert_int_equal(significance_of_rounds(a, b, 4, &s), STATUS_OK);
    expect_near(s.p, 4.0 / 16, 0);
    assert_int_equal(s.verdict, SIGNIFICANCE_TOO_FEW);
}

static void many_rounds_have_the_p_of_the_normal_distribution_nearly(void **context)
{
    (void)context;
    /* For 200 rounds p is counted, and for 201 it is approximated. The values are nearly the same, so p must
     * be nearly the same. */
    double a[201], b[201];
    for (int i = 0; i < 201; i++) {
        a[i] = 1;
        b[i] = exp((i % 5 < 2 ? -1 : 1) * (0.3 - i * 0.001));
    }
    significance exact, normal;
    assert_int_equal(significance_of_rounds(a, b, 200, &exact), STATUS_OK);
    assert_int_equal(significance_of_rounds(a, b, 201, &normal), STATUS_OK);
    expect_near(normal.p / exact.p, 1, 0.2);
}

static void equal_rounds_have_p_1(void **context)
{
    (void)context;
    double a[20];
    for (int i = 0; i < 20; i++) a[i] = 1 + i;
    significance s;
    assert_int_equal(significance_of_rounds(a, a, 20, &s), STATUS_OK);
    expect_near(s.p, 1, 0);
    assert_int_equal(s.verdict, SIGNIFICANCE_NOT_SHOWN);
    interval of;
    assert_int_equal(bootstrap_ratio(a, 20, a, 20, true, 1, &of), STATUS_OK);
    expect_near(of.low, 1, 0);
    expect_near(of.high, 1, 0);
}

static void interval_of_sums_holds_their_ratio_and_has_no_width_where_all_rounds_agree(void **context)
{
    (void)context;
    double a[] = {1, 2, 4, 8}, b[] = {3, 6, 12, 24}, c[] = {1, 1, 1, 3};
    interval of = ratio_of_sums_interval(a, b, 4);
    expect_near(of.low, 3, 1e-15); /* every round has the ratio 3 */
    expect_near(of.high, 3, 1e-15);
    of = ratio_of_sums_interval(a, c, 4);
    /* The residuals c - 0.4 a are 0.6, 0.2, -0.6, -0.2. The sum of their squares is 0.8, so the error is
     * sqrt(0.8 * 4 / 3) / 6, and t(3) = 3.182. */
    double factor = exp(3.182 * sqrt(0.8 * 4 / 3) / 6);
    expect_near(of.low, 0.4 / factor, 1e-12);
    expect_near(of.high, 0.4 * factor, 1e-12);
}

/* A percentile bootstrap of only six values would cover the ratio in only about 85 of 100 samples. */
static void interval_of_six_turns_covers_the_ratio_in_19_of_20_samples(void **context)
{
    (void)context;
    uint64_t start = random_start(5, random_fnv1a64("test.turns"));
    int covered = 0, draws = SANITIZED ? 400 : 4000;
    for (int k = 0; k < draws; k++) {
        double a[6], b[6];
        for (int i = 0; i < 6; i++) {
            uint64_t at = (uint64_t)(12 * k + 2 * i);
            a[i] = exp(0.05 * random_normal(start, at));
            b[i] = 1.1 * exp(0.05 * random_normal(start, at + 1));
        }
        interval of = ratio_of_sums_interval(a, b, 6);
        covered += of.low <= 1.1 && 1.1 <= of.high;
    }
    if (covered < 0.935 * draws || covered > 0.965 * draws)
        fail_msg("expected about 95 of 100 intervals to hold the ratio, got %d of %d", covered, draws);
}

static void five_runs_above_five_others_are_one_choice_of_252_on_each_side(void **context)
{
    (void)context;
    double a[] = {5, 1, 4, 2, 3}, b[] = {9, 7, 6, 8, 10};
    significance s;
    assert_int_equal(significance_of_runs(a, 5, b, 5, &s), STATUS_OK);
    expect_near(s.p, 2.0 / 252, 1e-12);
    assert_int_equal(s.verdict, SIGNIFICANCE_GREATER);
    assert_int_equal(significance_of_runs(b, 5, a, 5, &s), STATUS_OK);
    assert_int_equal(s.verdict, SIGNIFICANCE_LESS);
    assert_int_equal(significance_of_runs(a, 4, b, 5, &s), STATUS_OK);
    assert_int_equal(s.verdict, SIGNIFICANCE_TOO_FEW);
}

static void equal_values_share_their_mean_rank(void **context)
{
    (void)context;
    /* If all values are equal, every choice has the same rank sum. In the second case, each side has a 5. The
     * ranks are 1 to 4, 5.5, 5.5, and 7 to 10, and b's sum differs from its mean by 12. There are 252 choices
     * of five ranks, and 2 + 2 differ as much. */
    double same[] = {3, 3, 3, 3, 3}, a[] = {1, 2, 3, 4, 5}, b[] = {5, 7, 8, 9, 10};
    significance s;
    assert_int_equal(significance_of_runs(same, 5, same, 5, &s), STATUS_OK);
    expect_near(s.p, 1, 0);
    assert_int_equal(significance_of_runs(a, 5, b, 5, &s), STATUS_OK);
    expect_near(s.p, 4.0 / 252, 1e-12);
}

static void holm_multiplies_by_what_is_left_and_never_decreases(void **context)
{
    (void)context;
    double p[] = {0.01, 0.04, 0.03, 0.005};
    assert_int_equal(holm_adjust(p, 4), STATUS_OK);
    static const double expected[] = {0.03, 0.06, 0.06,
                                      /* R computes the same: p.adjust(c(.01, .04, .03, .005), "holm") */
                                      0.02};
    for (int i = 0; i < 4; i++) expect_near(p[i], expected[i], 1e-15);
    assert_int_equal(holm_adjust(p, 0), STATUS_OK);
}

static void a_choice_is_as_sure_as_its_least_sure_test_times_their_number(void **context)
{
    (void)context;
    double one[10], clear[10], close[10], above[10];
    significance tests[3];
    for (int i = 0; i < 10; i++) {
        one[i] = 1;
        clear[i] = 2 + i * 0.1;
        close[i] =
            i == 0 ? 0.99 : 1.1 + i * 0.1; /* one of the ten rounds, the smallest, disagrees: p = 4 / 1024 */
        above[i] = 0.5;
    }
    assert_int_equal(significance_of_rounds(one, clear, 10, &tests[0]), STATUS_OK);
    assert_int_equal(significance_of_rounds(one, close, 10, &tests[1]), STATUS_OK);
    significance both = significance_of_choice(tests, 2);
    expect_near(both.p, 2 * 4.0 / 1024, 1e-15);
    assert_int_equal(both.verdict, SIGNIFICANCE_GREATER);
    assert_int_equal(significance_of_rounds(one, clear, 10, &tests[2]), STATUS_OK);
    significance three = significance_of_choice(tests, 3);
    expect_near(three.p, 3 * 4.0 / 1024, 1e-15);
    /* Each of them would be shown if it were the only one. */
    assert_int_equal(three.verdict, SIGNIFICANCE_NOT_SHOWN);
    assert_int_equal(significance_of_rounds(one, clear, 8, &tests[1]), STATUS_OK);
    three = significance_of_choice(tests, 3);
    assert_int_equal(three.verdict, SIGNIFICANCE_TOO_FEW);
    assert_int_equal(three.least, 10);
    assert_int_equal(significance_of_rounds(one, above, 10, &tests[1]), STATUS_OK);
    three = significance_of_choice(tests, 3);
    expect_near(three.p, 1, 0);
    assert_int_equal(three.verdict, SIGNIFICANCE_NOT_SHOWN);
}

/* One of the points is always the fastest, although all are equal. One point is steady, and five are
 * noisy. */
static void of_equal_points_the_best_is_rarely_shown(void **context)
{
    (void)context;
    enum { POINTS = 6, ROUNDS = 12, CHOICES = SANITIZED ? 400 : 4000 };
    uint64_t start = random_start(9, random_fnv1a64("test.choice")), at = 0;
    int shown = 0;
    for (int k = 0; k < CHOICES; k++) {
        double rates[POINTS][ROUNDS], copy[ROUNDS], most = 0;
        int best = 0, others = 0;
        for (int p = 0; p < POINTS; p++) {
            for (int i = 0; i < ROUNDS; i++)
                rates[p][i] = exp((p ? 0.05 : 0.0005) * random_normal(start, at++));
            memcpy(copy, rates[p], sizeof copy);
            double median = median_of(copy, ROUNDS);
            if (median > most) most = median, best = p;
        }
        significance tests[POINTS - 1];
        for (int p = 0; p < POINTS; p++)
            if (p != best)
                assert_int_equal(significance_of_rounds(rates[p], rates[best], ROUNDS, &tests[others++]),
                                 STATUS_OK);
        shown += significance_of_choice(tests, others).verdict == SIGNIFICANCE_GREATER;
    }
    if (shown > 0.01 * CHOICES)
        fail_msg("expected at most 1 of 100 choices to be shown, got %d of %d", shown, CHOICES);
}

static void several_tests_take_more_rounds_and_a_smaller_p(void **context)
{
    (void)context;
    double a[14], b[14];
    for (int i = 0; i < 14; i++) {
        a[i] = 1;
        b[i] = 1.1 + 0.01 * i;
    }
    /* If all n rounds agree, p = 2 / 2^n. The smallest p of m tests must be below 0.01 / m. */
    static const struct {
        int rounds, tests, least;
        significance_verdict verdict;
    } cases[] = {{8, 1, 8, SIGNIFICANCE_GREATER},   {8, 2, 9, SIGNIFICANCE_TOO_FEW},
                 {9, 2, 9, SIGNIFICANCE_GREATER},   {9, 4, 10, SIGNIFICANCE_TOO_FEW},
                 {10, 4, 10, SIGNIFICANCE_GREATER}, {13, 72, 14, SIGNIFICANCE_TOO_FEW},
                 {14, 72, 14, SIGNIFICANCE_GREATER}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        significance of[72];
        for (int t = 0; t < cases[c].tests; t++)
            assert_int_equal(significance_of_rounds(a, t ? a : b, cases[c].rounds, &of[t]), STATUS_OK);
        double detectable = of[0].detectable;
        assert_int_equal(significance_correct(of, cases[c].tests), STATUS_OK);
        assert_int_equal(of[0].verdict, cases[c].verdict);
        assert_int_equal(of[0].least, cases[c].least);
        expect_near(of[0].p, cases[c].tests * ldexp(2, -cases[c].rounds), 1e-12);
        if (cases[c].tests > 1) {
            assert_true(of[0].detectable > detectable);
            assert_int_not_equal(of[1].verdict, SIGNIFICANCE_GREATER);
            assert_true(of[1].runs_for_5 >= cases[c].least);
        }
    }
    significance runs; /* 2 / C(10, 5) = 0.0079, 2 / C(12, 6) = 0.0022 */
    significance two[2];
    for (int n = 5; n <= 6; n++) {
        assert_int_equal(significance_of_runs(a, n, b, n, &runs), STATUS_OK);
        assert_int_equal(runs.verdict, SIGNIFICANCE_GREATER);
        two[0] = two[1] = runs;
        assert_int_equal(significance_correct(two, 2), STATUS_OK);
        assert_int_equal(two[0].verdict, n == 5 ? SIGNIFICANCE_TOO_FEW : SIGNIFICANCE_GREATER);
        assert_int_equal(two[0].least, 6);
    }
}

static void bootstrap_interval_covers_the_median_in_19_of_20_samples(void **context)
{
    (void)context;
    uint64_t start = random_start(7, random_fnv1a64("test.coverage"));
    int covered = 0;
    for (int k = 0; k < 400; k++) {
        double values[25];
        for (int i = 0; i < 25; i++) values[i] = exp(0.05 * random_normal(start, (uint64_t)(25 * k + i)));
        interval of;
        assert_int_equal(bootstrap_median(values, 25, (uint64_t)k, &of), STATUS_OK);
        covered += of.low <= 1 && 1 <= of.high;
    }
    if (covered < 366 || covered > 396)
        fail_msg("expected about 380 of 400 intervals to hold the median, got %d", covered);
}

/* ---- recorded samples ------------------------------------------------------------------------------ */

typedef struct samples {
    /* Logarithms of step times, minus the mean of their group, divided by its standard deviation. */
    double logs[256];
    int count;
} samples;

/* Reads the samples in results/samples/step-times.csv. Column 2 has milliseconds. Column 1 names the groups
 * of equal runs. */
static samples recorded(void)
{
    char path[512];
    const char *source = getenv("SOURCE_DIR");
    snprintf(path, sizeof path, "%s/results/samples/step-times.csv", source ? source : ".");
    FILE *file = fopen(path, "r");
    if (!file) fail_msg("%s cannot be opened", path);
    samples s = {.count = 0};
    char line[256], group[64] = "", name[64];
    int first = 0;
    double sum = 0, squares = 0;
    for (bool more = true; more;) {
        more = fgets(line, sizeof line, file);
        double ms = 0;
        bool row = more && line[0] != '#' && sscanf(line, "%63[^,],%lf", name, &ms) == 2;
        if (more && !row) continue;
        if (!more || strcmp(name, group) != 0) { /* The group is complete. */
            double count = s.count - first, mean = sum / count,
                   deviation = sqrt(squares / count - mean * mean);
            for (int i = first; i < s.count; i++) s.logs[i] = (s.logs[i] - mean) / deviation;
            snprintf(group, sizeof group, "%s", name);
            first = s.count;
            sum = squares = 0;
        }
        if (row && s.count < 256) {
            s.logs[s.count] = log(ms);
            sum += s.logs[s.count];
            squares += s.logs[s.count] * s.logs[s.count];
            s.count++;
        }
    }
    fclose(file);
    assert_true(s.count >= 100);
    return s;
}

enum { DRAWS = SANITIZED ? 1000 : 10000 };

/* The quantity that varies: the time of each run, the ratio of the two runs of a round, or both runs of each
 * round together. */
typedef enum drawn { RUNS, RATIOS, BOTH_RUNS_OF_ROUNDS } drawn;

/* Makes `draws` comparisons, and returns how many of them end with a verdict. A comparison has `n` rounds, or
 * `n` runs per side, which are drawn from the samples. The quantity `what` has the coefficient of variation
 * `variation`, and b takes `factor` times as long as a. */
static int verdicts(const samples *s, double variation, drawn what, int n, double factor, int draws)
{
    bool rounds = what != RUNS;
    uint64_t start = random_start(3, random_fnv1a64(rounds ? "test.rounds" : "test.runs"));
    int found = 0;
    for (int d = 0; d < draws; d++) {
        double a[64], b[64];
        for (int i = 0; i < n; i++) {
            uint64_t at = (uint64_t)2 * ((uint64_t)d * 64 + (uint64_t)i);
            a[i] = exp(variation * s->logs[random_below(start, at, (uint64_t)s->count)]);
            b[i] = exp(variation * s->logs[random_below(start, at + 1, (uint64_t)s->count)]) * factor;
            if (what == RATIOS) b[i] *= a[i];
        }
        significance of;
        assert_int_equal(
            rounds ? significance_of_rounds(a, b, n, &of) : significance_of_runs(a, n, b, n, &of), STATUS_OK);
        if (factor > 1 ? of.verdict == SIGNIFICANCE_GREATER : of.verdict >= SIGNIFICANCE_LESS) found++;
    }
    return found;
}

static void equal_runs_get_a_false_verdict_in_at_most_15_of_1000_draws(void **context)
{
    (void)context;
    samples s = recorded();
    for (int rounds = 0; rounds < 2; rounds++) {
        int found = verdicts(&s, 0.02, rounds, 10, 1, DRAWS);
        if (found > DRAWS * 0.015)
            fail_msg("expected at most 15 false verdicts of 1000, got %d of %d (rounds: %d)", found, DRAWS,
                     rounds);
    }
}

static void a_change_of_5_percent_is_found_in_95_of_100_draws(void **context)
{
    (void)context;
    samples s = recorded();
    for (int rounds = 0; rounds < 2; rounds++) {
        int found = verdicts(&s, 0.02, rounds, 10, 1.05, DRAWS);
        if (found < DRAWS * 0.95)
            fail_msg("n = 10, variation 2%%: expected 95 of 100, got %d of %d (rounds: %d)", found, DRAWS,
                     rounds);
        found = verdicts(&s, 0.05, rounds, 50, 1.05, DRAWS);
        if (found < DRAWS * 0.95)
            fail_msg("n = 50, variation 5%%: expected 95 of 100, got %d of %d (rounds: %d)", found, DRAWS,
                     rounds);
    }
}

/* If each side of a round varies independently by 2 %, the ratio varies by 2.8 %. */
static void sides_that_vary_independently_take_more_rounds_for_5_percent(void **context)
{
    (void)context;
    samples s = recorded();
    int ten = verdicts(&s, 0.02, BOTH_RUNS_OF_ROUNDS, 10, 1.05, DRAWS);
    int more = verdicts(&s, 0.02, BOTH_RUNS_OF_ROUNDS, 12, 1.05, DRAWS);
    int fifty = verdicts(&s, 0.05, BOTH_RUNS_OF_ROUNDS, 50, 1.05, DRAWS);
    /* docs/measuring.md: about 92 % by 10 rounds */
    if (ten < DRAWS * 0.91 || ten > DRAWS * 0.93)
        fail_msg("expected about 92 of 100 by 10 rounds, got %d of %d", ten, DRAWS);
    if (more < DRAWS * 0.95) fail_msg("expected 95 of 100 by 12 rounds, got %d of %d", more, DRAWS);
    if (fifty < DRAWS * 0.95)
        fail_msg("variation 5%%: expected 95 of 100 by 50 rounds, got %d of %d", fifty, DRAWS);
}

/* One comparison has twenty pairs of equal sides. Without a correction, one in six comparisons would have a
 * false verdict. */
static void equal_sides_of_20_points_get_a_false_verdict_in_at_most_15_of_1000_draws(void **context)
{
    (void)context;
    samples s = recorded();
    enum { POINTS = 20, ROUNDS = 12, DRAWS_OF_ALL = DRAWS / 5 };
    uint64_t start = random_start(11, random_fnv1a64("test.points"));
    int found = 0, alone = 0;
    for (int d = 0; d < DRAWS_OF_ALL; d++) {
        significance of[POINTS];
        bool any = false, any_alone = false;
        for (int p = 0; p < POINTS; p++) {
            double a[ROUNDS], b[ROUNDS];
            for (int i = 0; i < ROUNDS; i++) {
                uint64_t at = (uint64_t)2 * (((uint64_t)d * POINTS + (uint64_t)p) * ROUNDS + (uint64_t)i);
                a[i] = exp(0.02 * s.logs[random_below(start, at, (uint64_t)s.count)]);
                b[i] = exp(0.02 * s.logs[random_below(start, at + 1, (uint64_t)s.count)]);
            }
            assert_int_equal(significance_of_rounds(a, b, ROUNDS, &of[p]), STATUS_OK);
            any_alone = any_alone || of[p].verdict >= SIGNIFICANCE_LESS;
        }
        assert_int_equal(significance_correct(of, POINTS), STATUS_OK);
        for (int p = 0; p < POINTS; p++) any = any || of[p].verdict >= SIGNIFICANCE_LESS;
        found += any;
        alone += any_alone;
    }
    if (found > DRAWS_OF_ALL * 0.015 || alone < DRAWS_OF_ALL * 0.1)
        fail_msg("expected at most 15 of 1000 comparisons with a verdict, got %d of %d (%d without the "
                 "correction)",
                 found, DRAWS_OF_ALL, alone);
}

static void what_is_said_to_be_detectable_is_found(void **context)
{
    (void)context;
    samples s = recorded();
    uint64_t start = random_start(9, random_fnv1a64("test.detectable"));
    int draws = DRAWS / 10;
    for (int rounds = 0; rounds < 2; rounds++) {
        double detectable = 0;
        for (int d = 0; d < 200; d++) {
            double a[20], b[20];
            for (int i = 0; i < 20; i++) {
                uint64_t at = (uint64_t)(2 * (20 * d + i));
                a[i] = exp(0.04 * s.logs[random_below(start, at, (uint64_t)s.count)]);
                b[i] =
                    exp(0.04 * s.logs[random_below(start, at + 1, (uint64_t)s.count)]) * (rounds ? a[i] : 1);
            }
            significance of;
            assert_int_equal(rounds ? significance_of_rounds(a, b, 20, &of)
                                    : significance_of_runs(a, 20, b, 20, &of),
                             STATUS_OK);
            detectable += of.detectable / 200;
        }
        int found = verdicts(&s, 0.04, rounds, 20, 1 + detectable, draws);
        if (found < 0.9 * draws)
            fail_msg("expected a change of %.3f to be found in about 95 of 100 draws, got %d of %d",
                     detectable, found, draws);
        found = verdicts(&s, 0.04, rounds, 20, 1 + detectable / 4, draws);
        if (found > 0.5 * draws)
            fail_msg("expected a change of %.3f to be missed mostly, found in %d of %d", detectable / 4,
                     found, draws);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_rounds_that_agree_have_two_sign_patterns_of_256),
        cmocka_unit_test(one_round_of_four_that_disagrees_least_leaves_four_patterns_of_sixteen),
        cmocka_unit_test(many_rounds_have_the_p_of_the_normal_distribution_nearly),
        cmocka_unit_test(equal_rounds_have_p_1),
        cmocka_unit_test(five_runs_above_five_others_are_one_choice_of_252_on_each_side),
        cmocka_unit_test(equal_values_share_their_mean_rank),
        cmocka_unit_test(holm_multiplies_by_what_is_left_and_never_decreases),
        cmocka_unit_test(a_choice_is_as_sure_as_its_least_sure_test_times_their_number),
        cmocka_unit_test(of_equal_points_the_best_is_rarely_shown),
        cmocka_unit_test(several_tests_take_more_rounds_and_a_smaller_p),
        cmocka_unit_test(interval_of_sums_holds_their_ratio_and_has_no_width_where_all_rounds_agree),
        cmocka_unit_test(interval_of_six_turns_covers_the_ratio_in_19_of_20_samples),
        cmocka_unit_test(bootstrap_interval_covers_the_median_in_19_of_20_samples),
        cmocka_unit_test(equal_runs_get_a_false_verdict_in_at_most_15_of_1000_draws),
        cmocka_unit_test(a_change_of_5_percent_is_found_in_95_of_100_draws),
        cmocka_unit_test(sides_that_vary_independently_take_more_rounds_for_5_percent),
        cmocka_unit_test(equal_sides_of_20_points_get_a_false_verdict_in_at_most_15_of_1000_draws),
        cmocka_unit_test(what_is_said_to_be_detectable_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
