/* Whether a difference between runs is shown. The sample is a run, never a step of a run: steps of one run
 * share what made the run fast or slow (placement of memory, other load), so more of them add no evidence.
 *
 *   interleaved rounds   one run of each side per round: all flips of the signs of the log ratios, ranked by
 * size (Wilcoxon, "Individual Comparisons by Ranking Methods", 1945) separate runs        all choices of one
 * side's runs, by the sum of their ranks (Mann and Whitney, 1947)
 *
 * Ranks, since times of steps have long tails: single slow runs would hide a difference from a test of means.
 * Both count their permutations exactly for the numbers of runs that are usual, with mid-ranks for equal
 * values. Values are positive, such as seconds per step. Intervals are a function of the values and the seed.
 */
#ifndef HARNESS_REPORT_SIGNIFICANCE_H
#define HARNESS_REPORT_SIGNIFICANCE_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define SIGNIFICANCE_ALPHA 0.01     /* of a verdict, two-sided */
#define SIGNIFICANCE_POWER 0.95     /* with which `detectable` would be found */
#define SIGNIFICANCE_LEAST_ROUNDS 8 /* interleaved: fewer give no verdict */
#define SIGNIFICANCE_LEAST_RUNS 5   /* separate: of each side */

typedef struct interval {
    double low, high;
} interval;

typedef enum significance_verdict {
    SIGNIFICANCE_TOO_FEW,   /* runs for any verdict: p could not be small enough */
    SIGNIFICANCE_NOT_SHOWN, /* p is not below SIGNIFICANCE_ALPHA */
    SIGNIFICANCE_LESS,      /* b is less than a */
    SIGNIFICANCE_GREATER
} significance_verdict;

typedef struct significance {
    significance_verdict verdict;
    double ratio;      /* of the medians, b / a */
    double p;          /* two-sided */
    double detectable; /* the smallest change that would be found, as a ratio less 1: 0.05 is 5 % */
    int runs_for_5;    /* rounds, or runs per side, with which a change of 5 % would be found */
    int least;         /* rounds, or runs per side, that a verdict takes */
    /* What significance_correct() needs. */
    bool rounds;
    int a_count, b_count;
    double deviation; /* of the logs of one run, or of one round's ratio */
    double direction; /* below 0: b is less */
} significance;

/* The median of values[count], which it sorts; NaN of none. */
double median_of(double *values, int count);

/* 95 % percentile interval of the median of values[count] (Efron, "Bootstrap Methods", 1979). STATUS_SYSTEM
 * without memory. */
status bootstrap_median(const double *values, int count, uint64_t seed, interval *out);

/* The same of the ratio of medians b / a; `rounds`: a[i] and b[i] are of one round, which is drawn as a
 * whole, so both counts are equal. */
status bootstrap_ratio(const double *a, int a_count, const double *b, int b_count, bool rounds, uint64_t seed,
                       interval *out);

/* 95 % interval of the ratio of sums b / a over two or more rounds, of which six are too few for a bootstrap:
 * Student's t with the standard error of a ratio estimator (Cochran, "Sampling Techniques", 1977, 6.4), of
 * its log. */
interval ratio_of_sums_interval(const double *a, const double *b, int rounds);

/* The 0.975 quantile of Student's t with 1 or more degrees of freedom: a table up to 10, above them the
 * expansion in 1 / freedom (Abramowitz and Stegun, 26.7.5), right to 0.1 %. */
double student_quantile(int freedom);

/* a[i] and b[i] are the two sides of round i. STATUS_SYSTEM without memory. */
status significance_of_rounds(const double *a, const double *b, int rounds, significance *out);

/* Runs that were not interleaved: drift of the machine between the two sides is not excluded. */
status significance_of_runs(const double *a, int a_count, const double *b, int b_count, significance *out);

/* Holm's correction ("A Simple Sequentially Rejective Multiple Test Procedure", 1979): p[count] become
 * adjusted values, which are compared with SIGNIFICANCE_ALPHA as they are. STATUS_SYSTEM without memory. */
status holm_adjust(double *p, int count);

/* For tests[count] of one comparison, each of which could lead to a verdict by chance: p becomes Holm's, and
 * the verdict, `least`, `detectable` and `runs_for_5` are those at SIGNIFICANCE_ALPHA / count, which the
 * smallest p of them must be below. STATUS_SYSTEM without memory. */
status significance_correct(significance *tests, int count);

/* For what was chosen because its median is the greatest: tests[count], 1 or more, of each other (a) against
 * it (b). The choice is shown if every test shows it with p times `count` (Bonferroni): where another is as
 * good as the chosen one, the chosen one may be any of `count`, and each must be above that other with p / 2.
 * Returns the test that shows least. */
significance significance_of_choice(const significance *tests, int count);

#endif
