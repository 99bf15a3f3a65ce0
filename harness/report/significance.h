/* Tests whether a difference between runs is shown. The sample is a run, not a step. Steps of one run
 * share the causes that make the run fast or slow (placement of memory, other load), so more steps add no
 * evidence.
 *
 *   interleaved rounds   One run of each side per round. The test ranks the log ratios by size, and
 *                        considers every choice of their signs (Wilcoxon, "Individual Comparisons by
 *                        Ranking Methods", 1945).
 *   separate runs        The test considers every choice of one side's runs, and sums the ranks of the
 *                        chosen runs (Mann and Whitney, 1947).
 *
 * The tests use ranks because times of steps have long tails: single slow runs would hide a difference from a
 * test of means. For usual numbers of runs, the tests count all permutations exactly. Equal values get the
 * mean of their ranks. Values are positive, for example seconds per step. Intervals depend only on the values
 * and the seed. */
#ifndef HARNESS_REPORT_SIGNIFICANCE_H
#define HARNESS_REPORT_SIGNIFICANCE_H

#include "common/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define SIGNIFICANCE_ALPHA 0.01     /* two-sided level of a verdict */
#define SIGNIFICANCE_POWER 0.95     /* probability with which a change of `detectable` is found */
#define SIGNIFICANCE_LEAST_ROUNDS 8 /* rounds that a verdict on interleaved rounds needs */
#define SIGNIFICANCE_LEAST_RUNS 5   /* runs of each side that a verdict on separate runs needs */

typedef struct interval {
    double low, high;
} interval;

typedef enum significance_verdict {
    SIGNIFICANCE_TOO_FEW,   /* too few rounds or runs for a verdict */
    SIGNIFICANCE_NOT_SHOWN, /* p is not below SIGNIFICANCE_ALPHA */
    SIGNIFICANCE_LESS,      /* b is less than a */
    SIGNIFICANCE_GREATER
} significance_verdict;

typedef struct significance {
    significance_verdict verdict;
    double ratio;      /* ratio of the medians, b / a */
    double p;          /* two-sided p value */
    double detectable; /* smallest change that would be found, as a ratio minus 1: 0.05 is 5 % */
    int runs_for_5;    /* rounds, or runs per side, that would find a change of 5 % */
    int least;         /* rounds, or runs per side, that a verdict needs */
    /* The following fields are the input of significance_correct(). */
    bool rounds;
    int a_count, b_count;
    double deviation; /* standard deviation of the logs of single runs, or of the log ratios of rounds */
    double direction; /* negative if b is less than a */
} significance;

/* Returns the median of values[count], or NaN if there are none. Sorts the values. */
double median_of(double *values, int count);

/* Computes the 95 % percentile interval of the median of values[count] (Efron, "Bootstrap Methods", 1979).
 * Returns STATUS_SYSTEM if out of memory. */
status bootstrap_median(const double *values, int count, uint64_t seed, interval *out);

/* Seed of the intervals that results contain. */
enum { INTERVAL_SEED = 1 };

/* Sets *out to an object with "median", and with "low" and "high", its 95 % interval, of the values that are
 * not NaN. The interval is null if there is only one. */
status median_to_json(const double *values, int count, json_t **out);

/* Computes the 95 % percentile interval of the ratio of medians b / a. If `rounds` is true, a[i] and b[i]
 * belong to round i, and each round is resampled as a whole, so both counts must be equal. */
status bootstrap_ratio(const double *a, int a_count, const double *b, int b_count, bool rounds, uint64_t seed,
                       interval *out);

/* Returns the 95 % interval of the ratio of sums b / a over two or more rounds. The turns of a run are too
 * few rounds for a bootstrap, so the log of the ratio uses Student's t with the standard error of a ratio
 * estimator (Cochran, "Sampling Techniques", 1977, 6.4). */
interval ratio_of_sums_interval(const double *a, const double *b, int rounds);

/* Returns the 0.975 quantile of Student's t with 1 or more degrees of freedom. Reads the quantile from a
 * table up to 10 degrees of freedom. For more, computes the quantile by the expansion in 1 / freedom
 * (Abramowitz and Stegun, 26.7.5), exact to 0.1 %. */
double student_quantile(int freedom);

/* Tests interleaved rounds: a[i] and b[i] are the two sides of round i. Returns STATUS_SYSTEM if out of
 * memory. */
status significance_of_rounds(const double *a, const double *b, int rounds, significance *out);

/* Tests runs that were not interleaved, so a drift of the machine between the two sides is not excluded. */
status significance_of_runs(const double *a, int a_count, const double *b, int b_count, significance *out);

/* Applies Holm's correction ("A Simple Sequentially Rejective Multiple Test Procedure", 1979). Replaces
 * p[count] by adjusted values, which are then compared with SIGNIFICANCE_ALPHA. Returns STATUS_SYSTEM if out
 * of memory. */
status holm_adjust(double *p, int count);

/* Corrects tests[count] of one comparison, because each test could lead to a verdict by chance. p becomes
 * Holm's adjusted value, which decides the verdict. `least`, `detectable` and `runs_for_5` are computed again
 * for SIGNIFICANCE_ALPHA / count, the level that Holm's correction sets for the smallest p. Returns
 * STATUS_SYSTEM if out of memory. */
status significance_correct(significance *tests, int count);

/* Tests whether the candidate with the greatest median is better than all other candidates. Each of
 * tests[count] compares one of the other candidates (a) with this candidate (b), and `count` is at least 1.
 * The verdict is positive only if every test, with p multiplied by `count`, shows the difference. The factor
 * `count` (Bonferroni) is needed because any of the candidates could have had the greatest median by chance.
 * Returns the test with the weakest verdict. */
significance significance_of_choice(const significance *tests, int count);

#endif
