#include "harness/report/significance.h"

#include "common/base/least.h"
#include "common/base/random.h"
#include "harness/report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BOOTSTRAP_DRAWS 2000
/* Largest number of rounds for which all choices of signs are counted. Tests of more rounds use the normal
 * distribution. */
#define EXACT_ROUNDS 200
/* Largest number of runs of both sides together for which all choices of runs are counted. */
#define EXACT_RUNS 60
#define ROUNDING 1e-12 /* statistics with a smaller relative difference count as equal */
#define Z_POWER 1.6449 /* normal quantile at SIGNIFICANCE_POWER */

static status no_memory(void)
{
    return fail(STATUS_SYSTEM, "no memory for the statistics of the runs");
}

double median_of(double *values, int count)
{
    if (count == 0) return NAN;
    qsort(values, (size_t)count, sizeof *values, ascending_doubles);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* ---- bootstrap --------------------------------------------------------------------------------------- */

static double copied_median(const double *values, int count, double *scratch)
{
    memcpy(scratch, values, (size_t)count * sizeof *values);
    return median_of(scratch, count);
}

/* Returns the median of `count` values drawn with replacement. Uses the random numbers from *index on. */
static double drawn_median(const double *values, int count, uint64_t start, uint64_t *index, double *scratch)
{
    for (int i = 0; i < count; i++) scratch[i] = values[random_below(start, (*index)++, (uint64_t)count)];
    return median_of(scratch, count);
}

static interval percentiles(double *draws)
{
    qsort(draws, BOOTSTRAP_DRAWS, sizeof *draws, ascending_doubles);
    return (interval){draws[BOOTSTRAP_DRAWS / 40], draws[BOOTSTRAP_DRAWS - 1 - BOOTSTRAP_DRAWS / 40]};
}

status bootstrap_median(const double *values, int count, uint64_t seed, interval *out)
{
    double *draws = malloc((size_t)(BOOTSTRAP_DRAWS + count) * sizeof *draws);
    if (!draws) return no_memory();
    uint64_t start = random_start(seed, random_fnv1a64("bootstrap")), index = 0;
    for (int d = 0; d < BOOTSTRAP_DRAWS; d++)
        draws[d] = drawn_median(values, count, start, &index, draws + BOOTSTRAP_DRAWS);
    *out = percentiles(draws);
    free(draws);
    return STATUS_OK;
}

status median_to_json(const double *values, int count, json_t **out)
{
    interval of = {NAN, NAN};
    int found = 0;
    double *known = malloc((size_t)(count + 1) * sizeof *known);
    if (!known) return no_memory();
    for (int i = 0; i < count; i++)
        if (!isnan(values[i])) known[found++] = values[i];
    status rc = found > 1 ? bootstrap_median(known, found, INTERVAL_SEED, &of) : STATUS_OK;
    *out = json_pack("{s:o, s:o, s:o}", "median", report_json_number(median_of(known, found)), "low",
                     report_json_number(of.low), "high", report_json_number(of.high));
    free(known);
    return rc;
}

status bootstrap_ratio(const double *a, int a_count, const double *b, int b_count, bool rounds, uint64_t seed,
                       interval *out)
{
    int most = a_count > b_count ? a_count : b_count;
    double *draws = malloc((size_t)(BOOTSTRAP_DRAWS + most) * sizeof *draws);
    if (!draws) return no_memory();
    double *scratch = draws + BOOTSTRAP_DRAWS;
    uint64_t start = random_start(seed, random_fnv1a64("bootstrap")), index = 0;
    for (int d = 0; d < BOOTSTRAP_DRAWS; d++) {
        uint64_t first = index;
        double of_a = drawn_median(a, a_count, start, &index, scratch);
        if (rounds) index = first; /* b draws the same rounds as a */
        draws[d] = drawn_median(b, b_count, start, &index, scratch) / of_a;
    }
    *out = percentiles(draws);
    free(draws);
    return STATUS_OK;
}

/* ---- ratio of sums ----------------------------------------------------------------------------------- */

double student_quantile(int freedom)
{
    static const double table[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228};
    const double z = 1.959964, z3 = z * z * z, z5 = z3 * z * z, v = freedom;
    if (freedom <= 10) return table[freedom - 1];
    return z + (z3 + z) / (4 * v) + (5 * z5 + 16 * z3 + 3 * z) / (96 * v * v);
}

interval ratio_of_sums_interval(const double *a, const double *b, int rounds)
{
    double of_a = 0, of_b = 0, squares = 0;
    for (int i = 0; i < rounds; i++) {
        of_a += a[i];
        of_b += b[i];
    }
    double ratio = of_b / of_a;
    for (int i = 0; i < rounds; i++) squares += (b[i] - ratio * a[i]) * (b[i] - ratio * a[i]);
    double error = sqrt(squares * rounds / (rounds - 1)) / of_b; /* standard error of log(ratio) */
    double factor = exp(student_quantile(rounds - 1) * error);
    return (interval){ratio / factor, ratio * factor};
}

/* ---- tests ------------------------------------------------------------------------------------------- */

typedef struct ranked {
    double value;
    int at;
} ranked;

/* Computes the mid-ranks of values[count], times 2, so that the ranks of equal values are integers, too.
 * Returns STATUS_SYSTEM if out of memory. */
static status double_ranks(const double *values, int count, int *ranks)
{
    ranked *sorted = malloc((size_t)count * sizeof *sorted);
    if (!sorted) return no_memory();
    for (int i = 0; i < count; i++) sorted[i] = (ranked){values[i], i};
    qsort(sorted, (size_t)count, sizeof *sorted, ascending_doubles);
    for (int i = 0, end; i < count; i = end) {
        for (end = i; end < count && sorted[end].value == sorted[i].value; end++) {
        }
        for (int j = i; j < end; j++) ranks[sorted[j].at] = i + 1 + end;
    }
    free(sorted);
    return STATUS_OK;
}

/* A choice is a subset of ranks[count] with `chosen` elements, or with any number of elements if `chosen` is
 * -1. Computes the share of all choices whose sum is at least as far from the mean sum as `observed`. Counts
 * the choices by size and sum, and adds one rank at a time. */
static status share_as_extreme(const int *ranks, int count, int chosen, int observed, double *out)
{
    int largest = 0, sizes = chosen < 0 ? 1 : chosen + 1;
    for (int i = 0; i < count; i++) largest += ranks[i];
    size_t row = (size_t)largest + 1;
    double *choices = calloc(row * (size_t)sizes, sizeof *choices); /* [sizes][row] */
    if (!choices) return no_memory();
    choices[0] = 1;
    for (int i = 0, sum = 0; i < count; i++) {
        sum += ranks[i];
        for (int k = sizes - 1; k >= (chosen < 0 ? 0 : 1); k--) {
            double *to = choices + row * (size_t)k;
            const double *from = chosen < 0 ? to : to - row;
            for (int s = sum; s >= ranks[i]; s--) to[s] += from[s - ranks[i]];
        }
    }
    const double *last = choices + row * (size_t)(sizes - 1);
    double mean = chosen < 0 ? largest / 2.0 : (double)largest * chosen / count, all = 0, extreme = 0;
    double least = fabs(observed - mean) * (1 - ROUNDING);
    for (int s = 0; s <= largest; s++) {
        all += last[s];
        if (fabs(s - mean) >= least) extreme += last[s];
    }
    free(choices);
    *out = extreme / all;
    return STATUS_OK;
}

/* Returns the two-sided p of a rank sum by the normal approximation. The ranks are doubled, so the sum
 * changes in steps of 2, and the continuity correction is 1. */
static double normal_p(double distance, double variance)
{
    return variance > 0 ? erfc(fmax(0, distance - 1) / sqrt(2 * variance)) : 1;
}

/* Ranks logs[count] by absolute value, and computes p of the rank sum of the positive logs. The null
 * hypothesis is that both signs are equally likely. */
static status signed_rank_p(const double *logs, int count, double *out)
{
    double *sizes = calloc((size_t)count, sizeof *sizes + sizeof(int));
    if (!sizes) return no_memory();
    int *ranks = (int *)(sizes + count), used = 0, observed = 0;
    for (int i = 0; i < count; i++)
        if (logs[i] != 0) sizes[used++] = fabs(logs[i]);
    status rc = double_ranks(sizes, used, ranks);
    double mean = 0, variance = 0;
    for (int i = 0, at = 0; rc == STATUS_OK && i < count; i++) {
        if (logs[i] == 0) continue;
        if (logs[i] > 0) observed += ranks[at];
        mean += ranks[at] / 2.0;
        variance += (double)ranks[at] * ranks[at] / 4;
        at++;
    }
    if (rc == STATUS_OK) {
        if (used <= EXACT_ROUNDS)
            rc = share_as_extreme(ranks, used, -1, observed, out);
        else
            *out = normal_p(fabs(observed - mean), variance);
    }
    free(sizes);
    return rc;
}

/* Computes p of the rank sum of the runs of b. These runs are the last b_count of logs[a_count + b_count].
 * The null hypothesis is that every choice of b_count runs is equally likely. *direction is above 0 if the
 * runs of b have larger logs. */
static status rank_sum_p(const double *logs, int a_count, int b_count, double *direction, double *out)
{
    int n = a_count + b_count, observed = 0;
    int *ranks = malloc((size_t)n * sizeof *ranks);
    if (!ranks) return no_memory();
    status rc = double_ranks(logs, n, ranks);
    if (rc == STATUS_OK) {
        double squares = 0; /* sum of the squared distances from the mean rank */
        for (int i = 0; i < n; i++) {
            if (i >= a_count) observed += ranks[i];
            squares += (double)(ranks[i] - n - 1) * (ranks[i] - n - 1);
        }
        *direction = observed - (double)b_count * (n + 1);
        if (n <= EXACT_RUNS)
            rc = share_as_extreme(ranks, n, b_count, observed, out);
        else
            *out = normal_p(fabs(*direction), (double)a_count * b_count / ((double)n * (n - 1)) * squares);
    }
    free(ranks);
    return rc;
}

/* ---- power of the tests ---------------------------------------------------------------------- */

static double deviation(const double *values, int count)
{
    double mean = 0, squares = 0;
    for (int i = 0; i < count; i++) mean += values[i] / count;
    for (int i = 0; i < count; i++) squares += (values[i] - mean) * (values[i] - mean);
    return count > 1 ? sqrt(squares / (count - 1)) : NAN;
}

/* Returns the quantile of Student's t for the probability at which the normal quantile is z (Abramowitz and
 * Stegun, 26.7.5). */
static double student(double z, double freedom)
{
    double z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
    return z + (z3 + z) / (4 * freedom) + (5 * z5 + 16 * z3 + 3 * z) / (96 * freedom * freedom) +
           (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * freedom * freedom * freedom);
}

/* Returns the quantile of the normal distribution at 1 - tail, for tail < 1 / 2. */
static double normal_quantile(double tail)
{
    double low = 0, high = 40;
    for (int i = 0; i < 60; i++) {
        double middle = (low + high) / 2;
        if (erfc(middle / sqrt(2)) / 2 > tail)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Returns the smallest difference of logs that a test would find with probability SIGNIFICANCE_POWER. `error`
 * is the standard error of the difference, and `z` the normal quantile at the level of the verdict. A test by
 * ranks needs 1 / 0.955 times as many runs as a t-test of normal values (Hodges and Lehmann, 1956). */
static double detectable_log(double z, double error, double freedom)
{
    return (student(z, freedom) + Z_POWER) * error / sqrt(0.955);
}

/* Returns the smallest p that a_count rounds, or a_count and b_count runs of two sides, can give. The p is
 * smallest if all rounds or runs agree. */
static double least_p(const significance *s, int a_count, int b_count)
{
    if (s->rounds) return ldexp(2, -a_count);
    return 2 * exp(lgamma(a_count + 1.0) + lgamma(b_count + 1.0) - lgamma(a_count + b_count + 1.0));
}

/* Sets the number of runs that a verdict needs, and the smallest change that could have been found, if p
 * must be below `alpha`. */
static void set_power(significance *s, double alpha)
{
    double z = normal_quantile(alpha / 2), sides = s->rounds ? 1 : 2;
    int count = s->a_count < s->b_count ? s->a_count : s->b_count;
    s->least = s->rounds ? SIGNIFICANCE_LEAST_ROUNDS : SIGNIFICANCE_LEAST_RUNS;
    while (!(least_p(s, s->least, s->least) < alpha)) s->least++;
    s->detectable = expm1(detectable_log(z, s->deviation * sqrt(sides / count), sides * (count - 1)));
    s->runs_for_5 = isnan(s->detectable) ? 0 : s->least;
    for (; s->runs_for_5 > 0 && s->runs_for_5 < 1000000; s->runs_for_5 += 1 + s->runs_for_5 / 100) {
        double error = s->deviation * sqrt(sides / s->runs_for_5);
        if (!(detectable_log(z, error, sides * (s->runs_for_5 - 1)) > log(1.05))) break;
    }
}

/* Sets the verdict from p, which is already corrected for `tests` tests. */
static void set_verdict(significance *s, int tests)
{
    double alpha = SIGNIFICANCE_ALPHA / tests;
    int least = s->rounds ? SIGNIFICANCE_LEAST_ROUNDS : SIGNIFICANCE_LEAST_RUNS;
    set_power(s, alpha);
    if (s->a_count < least || s->b_count < least || !(least_p(s, s->a_count, s->b_count) < alpha))
        s->verdict = SIGNIFICANCE_TOO_FEW;
    else if (s->p >= SIGNIFICANCE_ALPHA)
        s->verdict = SIGNIFICANCE_NOT_SHOWN;
    else
        s->verdict = s->direction < 0 ? SIGNIFICANCE_LESS : SIGNIFICANCE_GREATER;
}

status significance_of_rounds(const double *a, const double *b, int rounds, significance *out)
{
    double *logs = malloc((size_t)rounds * 2 * sizeof *logs), *scratch = logs + rounds;
    if (!logs) return no_memory();
    *out = (significance){.rounds = true, .a_count = rounds, .b_count = rounds};
    for (int i = 0; i < rounds; i++) logs[i] = log(b[i] / a[i]);
    status rc = signed_rank_p(logs, rounds, &out->p);
    out->deviation = deviation(logs, rounds);
    out->direction = copied_median(logs, rounds, scratch);
    out->ratio = copied_median(b, rounds, scratch) / copied_median(a, rounds, scratch);
    set_verdict(out, 1);
    free(logs);
    return rc;
}

status significance_of_runs(const double *a, int a_count, const double *b, int b_count, significance *out)
{
    int n = a_count + b_count;
    double *logs = malloc((size_t)n * 2 * sizeof *logs), *scratch = logs + n;
    if (!logs) return no_memory();
    *out = (significance){.a_count = a_count, .b_count = b_count};
    for (int i = 0; i < n; i++) logs[i] = log(i < a_count ? a[i] : b[i - a_count]);
    status rc = rank_sum_p(logs, a_count, b_count, &out->direction, &out->p);
    double of_a = deviation(logs, a_count), of_b = deviation(logs + a_count, b_count);
    out->deviation = sqrt((of_a * of_a + of_b * of_b) / 2);
    out->ratio = copied_median(b, b_count, scratch) / copied_median(a, a_count, scratch);
    set_verdict(out, 1);
    free(logs);
    return rc;
}

status holm_adjust(double *p, int count)
{
    ranked *sorted = malloc((size_t)count * sizeof *sorted);
    if (count && !sorted) return no_memory();
    for (int i = 0; i < count; i++) sorted[i] = (ranked){p[i], i};
    if (count) qsort(sorted, (size_t)count, sizeof *sorted, ascending_doubles);
    double least = 0;
    for (int i = 0; i < count; i++) {
        double adjusted = fmin(1, (count - i) * sorted[i].value);
        least = fmax(least, adjusted);
        p[sorted[i].at] = least;
    }
    free(sorted);
    return STATUS_OK;
}

status significance_correct(significance *tests, int count)
{
    double *p = malloc((size_t)count * sizeof *p);
    if (count && !p) return no_memory();
    for (int i = 0; i < count; i++) p[i] = tests[i].p;
    status rc = holm_adjust(p, count);
    for (int i = 0; i < count && rc == STATUS_OK; i++) {
        tests[i].p = p[i];
        set_verdict(&tests[i], count);
    }
    free(p);
    return rc;
}

significance significance_of_choice(const significance *tests, int count)
{
    significance least = {0};
    for (int i = 0; i < count; i++) {
        significance t = tests[i];
        t.p = t.direction > 0 ? fmin(1, count * t.p) : 1;
        set_verdict(&t, count);
        if (i == 0 || t.verdict < least.verdict || (t.verdict == least.verdict && t.p > least.p)) least = t;
    }
    return least;
}
