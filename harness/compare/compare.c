#include "harness/compare/compare.h"

#include "harness/report/report.h"
#include "harness/report/significance.h"
#include "harness/result/result_check.h"
#include "harness/sweep/sweep.h"

#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEED 1

/* Figures of a job that are compared. The first figure decides the comparison. */
static const struct {
    const char *name, *path;
} metrics[] = {{COMPARE_STEP_TIME, "step_time.median_s"},
               {"samples/s", "throughput.samples_per_s"},
               {"exposed communication", "phases.exposed_communication_s.median_s"},
               {"communication", "phases.communication_s.median_s"},
               {"peak memory, max over ranks", "memory_imbalance.maximum_bytes"}};
enum { METRIC_COUNT = sizeof metrics / sizeof metrics[0] };

/* Tests whose p values are corrected together, and their rows in the result. */
typedef struct family {
    json_t *rows;
    significance *tests;
    int count;
} family;

typedef struct comparison {
    json_t *a, *b; /* runs of the two sides to compare next; null stands for a round without a result */
    json_t *list;  /* one element per job and point */
    family steps, others; /* tests of step times, and of all other figures */
    family simulated;     /* figures of jobs of which a side ran in virtual time, which are not tested */
} comparison;

static status no_memory(void)
{
    return fail(STATUS_SYSTEM, "no memory for the comparison");
}

/* Adds the runs of --repeat if the result has them, else the result itself. */
static status add_result(json_t *side, const json_t *result)
{
    json_t *runs = (json_t *)report_at(result, "repetitions.runs");
    int failed =
        json_array_size(runs) > 0 ? json_array_extend(side, runs) : json_array_append(side, (json_t *)result);
    return failed ? no_memory() : STATUS_OK;
}

/* ---- one comparison ---------------------------------------------------------------------------------- */

/* Returns the name of a job. Jobs in results of earlier versions have no name, so returns the engine. */
static const char *name_of(const json_t *job)
{
    return json_object_get(job, "name") ? report_text_at(job, "name") : report_text_at(job, "engine");
}

static const json_t *job_of(const json_t *run, const char *name)
{
    size_t i;
    json_t *job;
    json_array_foreach(json_object_get(run, "jobs"), i, job) if (strcmp(name_of(job), name) == 0) return job;
    return NULL;
}

/* Reads the values of a metric on both sides into out[2][most]. If `rounds` is true, leaves out a round if
 * either side has no value in this round. */
static void read_values(const json_t *a, const json_t *b, const char *job, int metric, bool rounds,
                        double *out, int most, int count[2])
{
    count[0] = count[1] = 0;
    for (int i = 0; i < most; i++) {
        double of_a = report_number_at(job_of(json_array_get(a, (size_t)i), job), metrics[metric].path);
        double of_b = report_number_at(job_of(json_array_get(b, (size_t)i), job), metrics[metric].path);
        if (rounds && (isnan(of_a) || isnan(of_b))) continue;
        if (!isnan(of_a)) out[count[0]++] = of_a;
        if (!isnan(of_b)) out[most + count[1]++] = of_b;
    }
}

/* Compares two sides exactly if both are simulated, because all their runs are identical. */
static significance compare_exactly(double a, double b, int simulated)
{
    return (significance){.ratio = b / a,
                          .p = NAN,
                          .detectable = NAN,
                          .verdict = simulated < 2 ? SIGNIFICANCE_TOO_FEW
                                     : b > a       ? SIGNIFICANCE_GREATER
                                     : b < a       ? SIGNIFICANCE_LESS
                                                   : SIGNIFICANCE_NOT_SHOWN};
}

/* Adds a row and a test for a metric. Adds nothing if a side has no value, or if a value is not positive.
 * `simulated` is the number of sides that ran in virtual time. */
static status compare_metric(const json_t *a, const json_t *b, const char *job, int metric, bool rounds,
                             int simulated, json_t *rows, family *f)
{
    int most = (int)fmax((double)json_array_size(a), (double)json_array_size(b)), count[2];
    double *values = malloc((size_t)most * 2 * sizeof *values), *of_b = values + most;
    significance *tests = realloc(f->tests, (size_t)(f->count + 1) * sizeof *tests);
    interval of = {NAN, NAN};
    status rc = values && tests ? STATUS_OK : no_memory();
    if (tests) f->tests = tests;
    if (rc != STATUS_OK) goto out;
    read_values(a, b, job, metric, rounds, values, most, count);
    bool positive = count[0] > 0 && count[1] > 0;
    for (int i = 0; i < count[0]; i++) positive = positive && values[i] > 0;
    for (int i = 0; i < count[1]; i++) positive = positive && of_b[i] > 0;
    if (!positive) goto out;
    significance *test = &tests[f->count];
    if (simulated)
        *test = compare_exactly(median_of(values, count[0]), median_of(of_b, count[1]), simulated);
    else
        TRY_GOTO(rc,
                 rounds ? significance_of_rounds(values, of_b, count[0], test)
                        : significance_of_runs(values, count[0], of_b, count[1], test),
                 out);
    if (!simulated && count[0] > 1 && count[1] > 1)
        TRY_GOTO(rc, bootstrap_ratio(values, count[0], of_b, count[1], rounds, SEED, &of), out);
    json_t *row =
        json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:i, s:i}", "metric", metrics[metric].name, "a_median",
                  report_json_number(median_of(values, count[0])), "b_median",
                  report_json_number(median_of(of_b, count[1])), "ratio", report_json_number(test->ratio),
                  "ratio_low", report_json_number(of.low), "ratio_high", report_json_number(of.high),
                  "a_runs", count[0], "b_runs", count[1]);
    f->count++;
    if (json_array_append(f->rows, row) != 0 || json_array_append_new(rows, row) != 0) rc = no_memory();
out:
    free(values);
    return rc;
}

/* Corrects the tests of a family unless it is `exact`, and adds their verdicts to the rows. */
static status add_verdicts(const family *f, bool exact)
{
    const char *const verdicts[] = {[SIGNIFICANCE_TOO_FEW] = exact ? "none" : "too few runs",
                                    [SIGNIFICANCE_NOT_SHOWN] = exact ? "equal" : "not shown",
                                    [SIGNIFICANCE_LESS] = "less",
                                    [SIGNIFICANCE_GREATER] = "more"};
    if (!exact) TRY(significance_correct(f->tests, f->count));
    for (int i = 0; i < f->count; i++) {
        const significance *s = &f->tests[i];
        json_t *row = json_array_get(f->rows, (size_t)i);
        json_object_set_new(row, "p", report_json_number(s->verdict == SIGNIFICANCE_TOO_FEW ? NAN : s->p));
        json_object_set_new(row, "verdict", json_string(verdicts[s->verdict]));
        json_object_set_new(row, "detectable", report_json_number(s->detectable));
        json_object_set_new(row, "runs_for_5_percent", json_integer(s->runs_for_5));
        json_object_set_new(row, "least_runs", json_integer(s->least));
    }
    return STATUS_OK;
}

static const json_t *first_run(const json_t *side)
{
    size_t i = 0;
    while (json_is_null(json_array_get(side, i))) i++;
    return json_array_get(side, i);
}

/* Adds an element to the list for each job that both sides have, and empties the sides. */
static status compare_sides(comparison *c, bool rounds, const char *label)
{
    const json_t *run_b = first_run(c->b), *other;
    size_t j;
    json_t *job;
    json_array_foreach(json_object_get(first_run(c->a), "jobs"), j, job)
    {
        const char *name = name_of(job);
        if (!(other = job_of(run_b, name))) continue;
        int of_a = json_is_true(json_object_get(job, "simulated")),
            of_b = json_is_true(json_object_get(other, "simulated"));
        json_t *rows = json_array();
        if (json_array_append_new(c->list, json_pack("{s:s, s:s, s:s, s:s, s:b, s:b, s:o}", "label", label,
                                                     "name", report_text_at(job, "name"), "engine",
                                                     report_text_at(job, "engine"), "policy",
                                                     report_text_at(job, "policy"), "a_simulated", of_a,
                                                     "b_simulated", of_b, "metrics", rows)) != 0)
            return no_memory();
        for (int m = 0; m < METRIC_COUNT; m++)
            TRY(compare_metric(c->a, c->b, name, m, rounds, of_a + of_b, rows,
                               of_a + of_b ? &c->simulated
                               : m == 0    ? &c->steps
                                           : &c->others));
    }
    json_array_clear(c->a);
    json_array_clear(c->b);
    return STATUS_OK;
}

static comparison comparison_open(void)
{
    return (comparison){.a = json_array(),
                        .b = json_array(),
                        .list = json_array(),
                        .steps.rows = json_array(),
                        .others.rows = json_array(),
                        .simulated.rows = json_array()};
}

/* Frees a comparison. `rc` is the status of the code that compared the sides. If `rc` is STATUS_OK, first
 * corrects the tests, and sets *out to the JSON of the comparison. */
static status comparison_finish(comparison *c, status rc, const char *a, const char *b, bool interleaved,
                                json_t **out)
{
    if (rc == STATUS_OK) rc = add_verdicts(&c->steps, false);
    if (rc == STATUS_OK) rc = add_verdicts(&c->others, false);
    if (rc == STATUS_OK) rc = add_verdicts(&c->simulated, true);
    if (rc == STATUS_OK)
        *out =
            json_pack("{s:i, s:s, s:s, s:b, s:f, s:i, s:i, s:O}", "schema_version", COMPARE_SCHEMA_VERSION,
                      "a", a, "b", b, "interleaved", interleaved, "alpha", SIGNIFICANCE_ALPHA, "step_tests",
                      c->steps.count, "other_tests", c->others.count, "comparisons", c->list);
    if (rc == STATUS_OK && !*out) rc = no_memory();
    json_decref(c->a);
    json_decref(c->b);
    json_decref(c->list);
    json_decref(c->steps.rows);
    json_decref(c->others.rows);
    json_decref(c->simulated.rows);
    free(c->steps.tests);
    free(c->others.tests);
    free(c->simulated.tests);
    return rc;
}

/* ---- files and folders ------------------------------------------------------------------------------- */

static status read_file(const char *path, json_t *out)
{
    json_t *run;
    TRY(result_read(path, false, &run));
    status rc = json_array_size(json_object_get(run, "jobs")) > 0
                    ? add_result(out, run)
                    : fail(STATUS_DATA, "%s: expected the JSON of harness run", path);
    json_decref(run);
    return rc;
}

static int is_json(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return length > 5 && strcmp(entry->d_name + length - 5, ".json") == 0;
}

static status read_folder(const char *folder, json_t *out)
{
    struct dirent **names;
    int count = scandir(folder, &names, is_json, alphasort);
    if (count < 0) return fail_errno(STATUS_DATA, "%s", folder);
    status rc = count > 0 ? STATUS_OK : fail(STATUS_DATA, "%s: expected files of harness run --json", folder);
    for (int i = 0; i < count; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
        if (rc == STATUS_OK) rc = read_file(path, out);
        free(names[i]);
    }
    free(names);
    return rc;
}

static status read_side(const char *path, json_t *out)
{
    struct stat about;
    if (stat(path, &about) != 0) return fail_errno(STATUS_DATA, "%s", path);
    return S_ISDIR(about.st_mode) ? read_folder(path, out) : read_file(path, out);
}

static status read_point(const sweep *s, int point, json_t *out)
{
    for (int round = 0; round < s->rounds; round++) {
        json_t *run;
        TRY(sweep_read_result(s, point, round, &run));
        if (json_array_append_new(out, run ? run : json_null()) != 0) return no_memory();
    }
    return STATUS_OK;
}

/* Compares two points, which belong to one sweep or to two. Only the rounds of points of one sweep are
 * interleaved. */
static status compare_points(const sweep *a, int point_a, const sweep *b, int point_b, const char *label,
                             comparison *c)
{
    TRY(read_point(a, point_a, c->a));
    TRY(read_point(b, point_b, c->b));
    return compare_sides(c, a == b, label);
}

static status compare_sweeps(const sweep *a, const sweep *b, comparison *c)
{
    for (int p = 0; p < a->points; p++) {
        if (!sweep_has(a, p)) continue;
        char label[256] = "";
        for (int x = 0, used = 0; x < a->axis_count && used < (int)sizeof label; x++)
            if (sweep_value(a, p, x))
                used += snprintf(label + used, sizeof label - (size_t)used, "%s%s=%s", used ? " " : "",
                                 a->axes[x].name, sweep_value(a, p, x));
        TRY(compare_points(a, p, b, p, label, c));
    }
    return STATUS_OK;
}

static status compare_runs(const char *a, const char *b, comparison *c)
{
    TRY(read_side(a, c->a));
    TRY(read_side(b, c->b));
    return compare_sides(c, false, "");
}

status compare_results(const char *path, const json_t *before, const json_t *after, json_t **out)
{
    comparison c = comparison_open();
    status rc = add_result(c.a, before);
    if (rc == STATUS_OK) rc = add_result(c.b, after);
    if (rc == STATUS_OK) rc = compare_sides(&c, false, "");
    if (rc == STATUS_OK && json_array_size(c.list) == 0)
        rc = fail(STATUS_DATA, "%s: expected a job that runs again, got none", path);
    return comparison_finish(&c, rc, path, "run again", false, out);
}

status compare_paths(const char *a, const char *b, json_t **out)
{
    json_t *definition_a = NULL, *definition_b = NULL;
    sweep sweep_a = {0}, sweep_b = {0};
    comparison c = comparison_open();
    status rc = sweep_read(a, &definition_a, &sweep_a);
    if (rc == STATUS_OK) rc = sweep_read(b, &definition_b, &sweep_b);
    if (rc == STATUS_OK && !definition_a && !definition_b)
        rc = compare_runs(a, b, &c);
    else if (rc == STATUS_OK)
        rc = definition_a && definition_b && sweep_is_same(definition_a, definition_b)
                 ? compare_sweeps(&sweep_a, &sweep_b, &c)
                 : fail(STATUS_CONFIG, "compare: expected the same sweep in %s and %s", a, b);
    if (rc == STATUS_OK && json_array_size(c.list) == 0)
        rc = fail(STATUS_DATA, "compare: expected a job of the same engine in %s and %s", a, b);
    rc = comparison_finish(&c, rc, a, b, false, out);
    sweep_free(&sweep_a);
    sweep_free(&sweep_b);
    json_decref(definition_a);
    json_decref(definition_b);
    return rc;
}

/* ---- builds ------------------------------------------------------------------------------------------ */

static status run_builds(sweep *s, int *signal, comparison *c)
{
    int lock;
    sweep_outcome outcome = {0};
    TRY(sweep_open_folder(s, &lock));
    status rc = sweep_run(s, &outcome);
    *signal = outcome.signal;
    if (rc == STATUS_OK && !outcome.signal && outcome.failed > 0) {
        const json_t *failure = json_array_get(outcome.failures, 0);
        rc = fail(STATUS_UNAVAILABLE, "compare: a run of %s failed: %s",
                  sweep_value(s, (int)json_integer_value(json_object_get(failure, "point")), 0),
                  report_text_at(failure, "message"));
    }
    if (rc == STATUS_OK && !outcome.signal) rc = compare_points(s, 0, s, 1, "", c);
    json_decref(outcome.failures);
    close(lock);
    return rc;
}

status compare_builds(const char *a, const char *b, const char **words, int count, int rounds,
                      const char *folder, int *signal, json_t **out)
{
    char *programs[2] = {NULL, NULL};
    sweep s = {.rounds = rounds,
               .points = 2,
               .axis_count = 1,
               .builds = true,
               .words = words,
               .word_count = count,
               .folder = folder};
    comparison c = comparison_open();
    status rc = STATUS_OK;
    for (int i = 0; i < 2 && rc == STATUS_OK; i++) {
        programs[i] = realpath(i ? b : a, NULL);
        if (!programs[i] || access(programs[i], X_OK) != 0)
            rc = fail_errno(STATUS_USAGE, "--builds: expected a program, got '%s'", i ? b : a);
    }
    s.axes[0] = (sweep_axis){.name = "build", .values = {programs[0], programs[1]}, .count = 2};
    if (rc == STATUS_OK) rc = run_builds(&s, signal, &c);
    rc = comparison_finish(&c, rc, a, b, true, out);
    if (*signal) {
        json_decref(*out);
        *out = NULL;
    }
    free(programs[0]);
    free(programs[1]);
    return rc;
}

const json_t *compare_step_time(const json_t *job)
{
    return report_find(json_object_get(job, "metrics"), "metric", COMPARE_STEP_TIME);
}

bool compare_is_slower(const json_t *comparison, double above)
{
    size_t i;
    json_t *job;
    json_array_foreach(json_object_get(comparison, "comparisons"), i, job)
    {
        const json_t *row = compare_step_time(job);
        if (row && strcmp(report_text_at(row, "verdict"), "more") == 0 &&
            report_number_at(row, "ratio") > 1 + above)
            return true;
    }
    return false;
}
