/* The table of a sweep: a row per point, and the best point. The table is computed only from the JSON of the
 * runs. */
#include "harness/report/report.h"
#include "harness/report/significance.h"
#include "harness/result/run_result.h"
#include "harness/sweep/sweep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Adds the row of a point, and the origin of its results. Sets samples[rounds] and steps[rounds] to the
 * figures of its runs, NaN for rounds without a result. */
static status add_point(const sweep *s, int point, double *samples, double *steps, const json_t *failures,
                        json_t *table)
{
    json_t *values = json_object(), *of_samples = NULL, *of_steps = NULL;
    int runs = 0;
    bool simulated = false, emulated = false;
    for (int round = 0; round < s->rounds; round++) {
        json_t *result = sweep_result(s, point, round);
        samples[round] = report_number_at(result, "jobs.0.throughput.samples_per_s");
        steps[round] = report_number_at(result, "jobs.0.step_time.median_s");
        runs += result != NULL;
        simulated = simulated || json_is_true(json_object_get(result, "simulated"));
        emulated = emulated || json_is_true(json_object_get(result, "emulated"));
        sweep_add_origin(result, table);
        json_decref(result);
    }
    for (int a = 0; a < s->axis_count; a++) {
        const char *value = sweep_value(s, point, a);
        json_object_set_new(values, s->axes[a].name, value ? json_string(value) : json_null());
    }
    json_t *failure; /* the first failure of the point, or NULL */
    for (size_t i = 0; (failure = json_array_get(failures, i)); i++)
        if (json_integer_value(json_object_get(failure, "point")) == point) break;
    TRY(median_to_json(samples, s->rounds, &of_samples));
    TRY(median_to_json(steps, s->rounds, &of_steps));
    json_array_append_new(json_object_get(table, "points"),
                          json_pack("{s:o, s:i, s:b, s:b, s:o, s:o, s:O?}", "values", values, "runs", runs,
                                    "simulated", simulated, "emulated", emulated, "samples_per_s", of_samples,
                                    "step_s", of_steps, "failure", failure));
    return STATUS_OK;
}

static double rate_of(const json_t *points, int row)
{
    return report_number_at(json_array_get(points, (size_t)row), "samples_per_s.median");
}

/* For each round in which the points of both rows have a rate, copies the rate of row a to pairs[0 ..], and
 * the rate of row b to pairs[s->rounds ..]. Returns the number of these rounds. */
static int pair_rounds(const sweep *s, const double *samples, int a, int b, double *pairs)
{
    const double *of_a = samples + (size_t)a * (size_t)s->rounds,
                 *of_b = samples + (size_t)b * (size_t)s->rounds;
    int rounds = 0;
    for (int i = 0; i < s->rounds; i++) {
        if (isnan(of_a[i]) || isnan(of_b[i])) continue;
        pairs[rounds] = of_a[i];
        pairs[s->rounds + rounds++] = of_b[i];
    }
    return rounds;
}

/* Tests whether the rounds show that point `best` has a higher rate than every other point, and computes
 * the factor between `best` and `next`. `samples` has the rates [points][rounds]. `tests` [points] and
 * `pairs` [2][rounds] are scratch memory. */
static status test_best(const sweep *s, const double *samples, const json_t *points, int best, int next,
                        significance *tests, double *pairs, json_t *row)
{
    static const char *const verdicts[] = {[SIGNIFICANCE_TOO_FEW] = "too few rounds",
                                           [SIGNIFICANCE_NOT_SHOWN] = "not shown",
                                           [SIGNIFICANCE_LESS] = "not shown",
                                           [SIGNIFICANCE_GREATER] = "shown"};
    const double *rates = pairs + s->rounds;
    int others = 0, rounds;
    for (int p = 0; p < (int)json_array_size(points); p++) {
        if (p == best || isnan(rate_of(points, p))) continue;
        rounds = pair_rounds(s, samples, p, best, pairs);
        tests[others] =
            (significance){.rounds = true, .a_count = rounds, .b_count = rounds, .p = 1, .deviation = NAN};
        if (rounds > 1) TRY(significance_of_rounds(pairs, rates, rounds, &tests[others]));
        others++;
    }
    significance found = significance_of_choice(tests, others);
    interval of;
    json_object_update_new(row,
                           json_pack("{s:s, s:i, s:i, s:i}", "verdict", verdicts[found.verdict], "rounds",
                                     found.a_count, "tests", others, "least_rounds", found.least));
    if (found.a_count < 2) return STATUS_OK;
    json_object_set_new(row, "p", json_real(found.p));
    json_object_set_new(row, "detectable", json_real(found.detectable));
    json_object_set_new(row, "rounds_for_5_percent", json_integer(found.runs_for_5));
    rounds = pair_rounds(s, samples, next, best, pairs);
    if (rounds < 2) return STATUS_OK;
    TRY(bootstrap_ratio(pairs, rounds, rates, rounds, true, INTERVAL_SEED, &of));
    json_object_set_new(row, "factor_low", json_real(of.low));
    json_object_set_new(row, "factor_high", json_real(of.high));
    return STATUS_OK;
}

static const char *value_at(const json_t *point, const char *axis)
{
    const char *text = json_string_value(json_object_get(json_object_get(point, "values"), axis));
    return text ? text : "-"; /* The engine does not have the option. */
}

typedef enum axes { ALL_AXES, SCHEME_AXES, OTHER_AXES } axes;

/* The axes that choose a scheme are mode, policy, and every axis that one of the engines does not have. */
static bool is_among(const json_t *table, axes which, const char *name)
{
    const json_t *points = json_object_get(table, "points");
    bool scheme = strcmp(name, "mode") == 0 || strcmp(name, "policy") == 0;
    for (size_t p = 0; p < json_array_size(points); p++)
        scheme = scheme || strcmp(value_at(json_array_get(points, p), name), "-") == 0;
    return which == ALL_AXES || scheme == (which == SCHEME_AXES);
}

/* Returns the number of axes among `which` at which the values of two points differ. */
static int differences(const json_t *table, int a, int b, axes which)
{
    const json_t *points = json_object_get(table, "points");
    int count = 0;
    size_t i;
    json_t *axis;
    json_array_foreach(json_object_get(table, "vary"), i, axis)
    {
        const char *name = json_string_value(axis);
        count +=
            is_among(table, which, name) && strcmp(value_at(json_array_get(points, (size_t)a), name),
                                                   value_at(json_array_get(points, (size_t)b), name)) != 0;
    }
    return count;
}

/* Finds the two points with the most samples/s: among all points or, if `like` is not negative, among those
 * with the values of point `like` on the axes that choose no scheme. A point that does not exist is -1. */
static void two_fastest(const json_t *table, int like, int *best, int *next)
{
    const json_t *points = json_object_get(table, "points");
    *best = *next = -1;
    for (int p = 0; p < (int)json_array_size(points); p++) {
        double value = rate_of(points, p);
        if (isnan(value) || (like >= 0 && differences(table, like, p, OTHER_AXES) > 0)) continue;
        if (*best < 0 || value > rate_of(points, *best)) {
            *next = *best;
            *best = p;
        } else if (*next < 0 || value > rate_of(points, *next)) {
            *next = p;
        }
    }
}

/* Adds the point with the highest throughput, the factor between this throughput and the second highest, and
 * the verdict of the test. */
static status add_best(const sweep *s, const double *samples, json_t *table)
{
    const json_t *points = json_object_get(table, "points");
    int best, next;
    two_fastest(table, -1, &best, &next);
    if (best < 0) return STATUS_OK;
    json_t *row = json_pack("{s:i}", "row", best);
    json_object_set_new(table, "best", row);
    if (next < 0) return STATUS_OK;
    json_object_set_new(row, "next_row", json_integer(next));
    json_object_set_new(row, "factor", json_real(rate_of(points, best) / rate_of(points, next)));
    const json_t *first = json_array_get(points, (size_t)best),
                 *second = json_array_get(points, (size_t)next);
    if (json_is_true(json_object_get(first, "simulated")) &&
        json_is_true(json_object_get(second, "simulated"))) {
        json_object_set_new(row, "verdict", json_string("virtual"));
        return STATUS_OK;
    }
    significance *tests = malloc(json_array_size(points) * sizeof *tests);
    double *pairs = malloc((size_t)s->rounds * 2 * sizeof *pairs);
    status rc = tests && pairs ? test_best(s, samples, points, best, next, tests, pairs, row)
                               : fail(STATUS_SYSTEM, "no memory for the table of the sweep");
    free(pairs);
    free(tests);
    return rc;
}

status sweep_table(const sweep *s, const json_t *failures, json_t **out)
{
    size_t rounds = (size_t)s->rounds;
    double *samples = malloc((size_t)s->points * rounds * sizeof *samples),
           *steps = malloc(rounds * sizeof *steps);
    json_t *axes = json_array();
    for (int i = 0; i < s->axis_count; i++) json_array_append_new(axes, json_string(s->axes[i].name));
    *out = json_pack("{s:i, s:o, s:i, s:[], s:n}", "schema_version", SWEEP_TABLE_VERSION, "vary", axes,
                     "rounds", s->rounds, "points", "best");
    status rc = samples && steps ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for the table of the sweep");
    sweep_add_command(s, *out);
    for (int p = 0, row = 0; p < s->points && rc == STATUS_OK; p++)
        if (sweep_has(s, p)) rc = add_point(s, p, samples + rounds * (size_t)row++, steps, failures, *out);
    if (rc == STATUS_OK) rc = add_best(s, samples, *out);
    if (rc == STATUS_OK) sweep_add_losses(s, *out);
    free(samples);
    free(steps);
    if (rc == STATUS_OK) return rc;
    json_decref(*out);
    *out = NULL;
    return rc;
}

/* ---- as text ----------------------------------------------------------------------------------------- */

static int width_of(const json_t *points, const char *axis)
{
    size_t i, width = strlen(axis);
    json_t *point;
    json_array_foreach(points, i, point) width =
        strlen(value_at(point, axis)) > width ? strlen(value_at(point, axis)) : width;
    return (int)(width > 24 ? 24 : width) + 2;
}

static void describe(const json_t *table, double row, axes which, text_buffer *out)
{
    const json_t *point = json_array_get(json_object_get(table, "points"), (size_t)row);
    const char *space = "";
    size_t i;
    json_t *axis;
    json_array_foreach(json_object_get(table, "vary"), i, axis)
    {
        const char *name = json_string_value(axis), *value = value_at(point, name);
        if (strcmp(value, "-") == 0 || !is_among(table, which, name)) continue;
        text_append(out, "%s%s=%s", space, name, value);
        space = " ";
    }
}

/* Writes for each point of the other axes which scheme is fastest, and where the fastest scheme changes.
 * Returns false if the sweep does not vary both a scheme and something else. */
static bool append_winners(const json_t *table, text_buffer *out)
{
    const json_t *points = json_object_get(table, "points");
    text_buffer changes = {0};
    int count = (int)json_array_size(points), schemes = 0, others = 0;
    int best, next, before = -1, before_best = -1;
    size_t i;
    json_t *axis;
    json_array_foreach(json_object_get(table, "vary"), i, axis) *
        (is_among(table, SCHEME_AXES, json_string_value(axis)) ? &schemes : &others) += 1;
    if (schemes == 0 || others == 0) return false;
    text_append(out, "\nfastest scheme, by median samples/s:\n");
    for (int p = 0; p < count; p++) {
        bool seen = false;
        for (int q = 0; q < p; q++) seen = seen || differences(table, p, q, OTHER_AXES) == 0;
        if (seen) continue;
        two_fastest(table, p, &best, &next);
        if (best < 0) continue;
        text_append(out, "  ");
        describe(table, p, OTHER_AXES, out);
        text_append(out, ": ");
        describe(table, best, SCHEME_AXES, out);
        if (next >= 0) {
            text_append(out, ", %.3f times ", rate_of(points, best) / rate_of(points, next));
            describe(table, next, SCHEME_AXES, out);
        }
        text_append(out, "\n");
        if (before >= 0 && differences(table, p, before, OTHER_AXES) == 1 &&
            differences(table, best, before_best, SCHEME_AXES) > 0) {
            text_append(&changes, "It changes between ");
            describe(table, before, OTHER_AXES, &changes);
            text_append(&changes, " and ");
            describe(table, p, OTHER_AXES, &changes);
            text_append(&changes, ".\n");
        }
        before = p;
        before_best = best;
    }
    text_append(out, "%s", changes.data ? changes.data : "");
    text_free(&changes);
    return true;
}

/* Returns true if a point has an interval. Intervals need two rounds. */
static bool has_intervals(const json_t *table)
{
    return !isnan(report_largest(json_object_get(table, "points"), "samples_per_s.low"));
}

static void append_row(const json_t *table, const json_t *point, text_buffer *out)
{
    size_t i;
    json_t *axis;
    json_array_foreach(json_object_get(table, "vary"), i, axis)
    {
        const char *name = json_string_value(axis);
        text_append(out, "%-*s", width_of(json_object_get(table, "points"), name), value_at(point, name));
    }
    const json_t *failure = json_object_get(point, "failure");
    double median = report_number_at(point, "samples_per_s.median"),
           low = report_number_at(point, "samples_per_s.low");
    if (isnan(median) && json_is_object(failure)) {
        text_append(out, "  failed (%.0f): %s\n", report_number_at(failure, "exit_code"),
                    report_text_at(failure, "message"));
        return;
    }
    report_cell(10, CELL_RATE, median, out);
    if (!isnan(low)) {
        report_cell(9, CELL_RATE, low, out);
        report_cell(9, CELL_RATE, report_number_at(point, "samples_per_s.high"), out);
    } else if (has_intervals(table)) {
        text_append(out, "%18s", "");
    }
    report_cell(9, CELL_TIME, isnan(median) ? NAN : report_number_at(point, "step_s.median"), out);
    text_append(out, "%5.0f%s\n", report_number_at(point, "runs"),
                json_is_true(json_object_get(point, "simulated"))  ? "  SIMULATED"
                : json_is_true(json_object_get(point, "emulated")) ? "  EMULATED"
                                                                   : "");
}

static void append_best(const json_t *table, text_buffer *out)
{
    const json_t *best = json_object_get(table, "best");
    if (!json_is_object(best)) return;
    text_append(out, "\nbest: ");
    describe(table, report_number_at(best, "row"), ALL_AXES, out);
    if (!json_object_get(best, "next_row")) {
        text_append(out, "\n");
        return;
    }
    const char *verdict = report_text_at(best, "verdict");
    text_append(out, "\n%.3f times the samples/s of ", report_number_at(best, "factor"));
    describe(table, report_number_at(best, "next_row"), ALL_AXES, out);
    text_append(out, "\n");
    if (strcmp(verdict, "virtual") == 0) {
        text_append(out, "In virtual time there is no spread: the figures are as good as the profile.\n");
        return;
    }
    double rounds = report_number_at(best, "rounds"), tests = report_number_at(best, "tests"),
           least = report_number_at(best, "least_rounds");
    if (json_object_get(best, "factor_low")) {
        text_append(out, "95 %% interval %.3f to %.3f, p = %.2g", report_number_at(best, "factor_low"),
                    report_number_at(best, "factor_high"), report_number_at(best, "p"));
        if (tests > 1) text_append(out, ", corrected for a choice among %.0f points", tests + 1);
        text_append(out, "\n");
    }
    if (strcmp(verdict, "shown") == 0) return;
    text_append(out, "That it is the best is not shown by %.0f round%s", rounds, rounds == 1 ? "" : "s");
    if (json_object_get(best, "detectable") && strcmp(verdict, "too few rounds") != 0)
        text_append(out, ":\n%.1f %% would be; 5 %% would take %.0f rounds (--repeat)",
                    100 * report_number_at(best, "detectable"),
                    report_number_at(best, "rounds_for_5_percent"));
    else
        text_append(out, ": at least %.0f are needed (--repeat)",
                    least > 0 ? least : SIGNIFICANCE_LEAST_ROUNDS);
    text_append(out, "\n");
}

void sweep_report(const json_t *table, text_buffer *out)
{
    const json_t *points = json_object_get(table, "points");
    size_t i;
    json_t *axis, *point;
    json_array_foreach(json_object_get(table, "vary"), i, axis)
        text_append(out, "%-*s", width_of(points, json_string_value(axis)), json_string_value(axis));
    text_append(out, "%10s%*s%9s%5s\n", "samples/s", has_intervals(table) ? 18 : 0,
                has_intervals(table) ? "95 % interval" : "", "step", "runs");
    json_array_foreach(points, i, point) append_row(table, point, out);
    /* In virtual time the fastest point of all says nothing about the scheme. */
    if (!append_winners(table, out) || strcmp(report_text_at(table, "best.verdict"), "virtual") != 0)
        append_best(table, out);
    sweep_report_losses(table, out);
}
