#include "harness/compare/compare.h"

#include "harness/report/report.h"
#include "harness/report/significance.h"
#include "harness/run/result_check.h"
#include "harness/sweep/sweep.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEED 1

/* Compared figures of a job. The first figure decides the comparison. */
static const struct {
    const char *name, *path;
} metrics[] = {{COMPARE_STEP_TIME, "step_time.median_s"},
               {"samples/s", "throughput.samples_per_s"},
               {"exposed communication", "phases.exposed_communication_s.median_s"},
               {"communication", "phases.communication_s.median_s"},
               {"peak memory, max over ranks", "memory_imbalance.maximum_bytes"}};
enum { METRIC_COUNT = sizeof metrics / sizeof metrics[0] };

typedef struct tested {
    json_t *row;
    significance found;
    bool decides;
} tested;

/* Result of a comparison. `list` has one element per job and point. The p values of the tests are
 * corrected in two families: step times, and the rest. */
typedef struct comparison {
    json_t *list;
    tested *tests;
    int count;
} comparison;

/* Runs of one side: new references, NULL for a round without a result. */
typedef struct side {
    json_t **runs;
    int count;
} side;

static status no_memory(void)
{
    return fail(STATUS_SYSTEM, "no memory for the comparison");
}

static status side_add(side *s, json_t *run)
{
    json_t **runs = realloc(s->runs, (size_t)(s->count + 1) * sizeof *runs);
    if (!runs) {
        json_decref(run);
        return no_memory();
    }
    s->runs = runs;
    s->runs[s->count++] = run;
    return STATUS_OK;
}

/* Adds the runs of a result: its repetitions, or the result itself. */
static status side_add_result(side *s, const json_t *result)
{
    const json_t *runs = report_at(result, "repetitions.runs");
    size_t i;
    json_t *run;
    if (json_array_size(runs) == 0) return side_add(s, json_incref((json_t *)result));
    json_array_foreach(runs, i, run) TRY(side_add(s, json_incref(run)));
    return STATUS_OK;
}

static void side_free(side *s)
{
    for (int i = 0; i < s->count; i++) json_decref(s->runs[i]);
    free(s->runs);
    *s = (side){0};
}

/* ---- one comparison ---------------------------------------------------------------------------------- */

/* Returns the name of a job, or its engine in results of earlier versions. */
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

static double metric_of(const json_t *run, const char *job, int metric)
{
    return report_number_at(job_of(run, job), metrics[metric].path);
}

/* Reads a metric of both sides into out[2][most]. If `rounds`, leaves out rounds in which one side has no
 * value. */
static void read_values(const side *a, const side *b, const char *job, int metric, bool rounds, double *out,
                        int most, int count[2])
{
    count[0] = count[1] = 0;
    for (int i = 0; i < most; i++) {
        double of_a = i < a->count && a->runs[i] ? metric_of(a->runs[i], job, metric) : NAN;
        double of_b = i < b->count && b->runs[i] ? metric_of(b->runs[i], job, metric) : NAN;
        if (rounds && (isnan(of_a) || isnan(of_b))) continue;
        if (!isnan(of_a)) out[count[0]++] = of_a;
        if (!isnan(of_b)) out[most + count[1]++] = of_b;
    }
}

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static status add_test(comparison *c, tested test)
{
    tested *tests = realloc(c->tests, (size_t)(c->count + 1) * sizeof *tests);
    if (!tests) return no_memory();
    c->tests = tests;
    c->tests[c->count++] = test;
    return STATUS_OK;
}

/* Adds a row and a test for a metric. Adds nothing if a value is missing or zero. */
static status compare_metric(const side *a, const side *b, const char *job, int metric, bool rounds,
                             json_t *rows, comparison *c)
{
    int most = a->count > b->count ? a->count : b->count, count[2];
    double *values = malloc((size_t)most * 2 * sizeof *values);
    if (!values) return no_memory();
    read_values(a, b, job, metric, rounds, values, most, count);
    bool positive = count[0] > 0 && count[1] > 0;
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < count[s]; i++) positive = positive && values[s * most + i] > 0;
    tested test = {.decides = metric == 0};
    interval of = {NAN, NAN};
    status rc = STATUS_OK;
    if (positive) {
        rc = rounds ? significance_of_rounds(values, values + most, count[0], &test.found)
                    : significance_of_runs(values, count[0], values + most, count[1], &test.found);
        if (rc == STATUS_OK && count[0] > 1 && count[1] > 1)
            rc = bootstrap_ratio(values, count[0], values + most, count[1], rounds, SEED, &of);
    }
    if (rc == STATUS_OK && positive) {
        test.row = json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:i, s:i}", "metric", metrics[metric].name,
                             "a_median", number(median_of(values, count[0])), "b_median",
                             number(median_of(values + most, count[1])), "ratio", number(test.found.ratio),
                             "ratio_low", number(of.low), "ratio_high", number(of.high), "a_runs", count[0],
                             "b_runs", count[1]);
        rc = json_array_append_new(rows, test.row) == 0 ? add_test(c, test) : no_memory();
    }
    free(values);
    return rc;
}

static status compare_job(const side *a, const side *b, const char *job, bool rounds, json_t *rows,
                          comparison *c)
{
    for (int m = 0; m < METRIC_COUNT; m++) TRY(compare_metric(a, b, job, m, rounds, rows, c));
    return STATUS_OK;
}

static void add_verdict(const tested *t)
{
    static const char *const verdicts[] = {[SIGNIFICANCE_TOO_FEW] = "too few runs",
                                           [SIGNIFICANCE_NOT_SHOWN] = "not shown",
                                           [SIGNIFICANCE_LESS] = "less",
                                           [SIGNIFICANCE_GREATER] = "more"};
    const significance *s = &t->found;
    json_object_set_new(t->row, "p", number(s->verdict == SIGNIFICANCE_TOO_FEW ? NAN : s->p));
    json_object_set_new(t->row, "verdict", json_string(verdicts[s->verdict]));
    json_object_set_new(t->row, "detectable", number(s->detectable));
    json_object_set_new(t->row, "runs_for_5_percent", json_integer(s->runs_for_5));
    json_object_set_new(t->row, "least_runs", json_integer(s->least));
}

/* Corrects and adds the verdicts of one family of tests: the step times, or all other metrics. */
static status add_verdicts(const comparison *c, bool decides, int *count)
{
    significance *family = malloc(((size_t)c->count + 1) * sizeof *family);
    *count = 0;
    if (!family) return no_memory();
    for (int i = 0; i < c->count; i++)
        if (c->tests[i].decides == decides) family[(*count)++] = c->tests[i].found;
    status rc = significance_correct(family, *count);
    for (int i = 0, at = 0; rc == STATUS_OK && i < c->count; i++) {
        if (c->tests[i].decides != decides) continue;
        c->tests[i].found = family[at++];
        add_verdict(&c->tests[i]);
    }
    free(family);
    return rc;
}

static const json_t *first_run(const side *s)
{
    for (int i = 0; i < s->count; i++)
        if (s->runs[i]) return s->runs[i];
    return NULL;
}

/* Adds an element to the list for each job that both sides have. */
static status compare_sides(const side *a, const side *b, bool rounds, const char *label, comparison *c)
{
    const json_t *run_a = first_run(a), *run_b = first_run(b);
    size_t j;
    json_t *job;
    if (!run_a || !run_b) return STATUS_OK;
    json_array_foreach(json_object_get(run_a, "jobs"), j, job)
    {
        const char *name = name_of(job);
        if (!job_of(run_b, name)) continue;
        json_t *rows = json_array();
        if (json_array_append_new(c->list, json_pack("{s:s, s:s, s:s, s:s, s:o}", "label", label, "name",
                                                     report_text_at(job, "name"), "engine",
                                                     report_text_at(job, "engine"), "policy",
                                                     report_text_at(job, "policy"), "metrics", rows)) != 0)
            return no_memory();
        TRY(compare_job(a, b, name, rounds, rows, c));
    }
    return STATUS_OK;
}

static status comparison_open(comparison *c)
{
    *c = (comparison){.list = json_array()};
    return c->list ? STATUS_OK : no_memory();
}

static status comparison_finish(comparison *c, const char *a, const char *b, bool interleaved, json_t **out)
{
    int steps, others;
    TRY(add_verdicts(c, true, &steps));
    TRY(add_verdicts(c, false, &others));
    *out = json_pack("{s:i, s:s, s:s, s:b, s:f, s:i, s:i, s:O}", "schema_version", COMPARE_SCHEMA_VERSION,
                     "a", a, "b", b, "interleaved", interleaved, "alpha", SIGNIFICANCE_ALPHA, "step_tests",
                     steps, "other_tests", others, "comparisons", c->list);
    return *out ? STATUS_OK : no_memory();
}

static void comparison_close(comparison *c)
{
    json_decref(c->list);
    free(c->tests);
}

/* ---- files and folders ------------------------------------------------------------------------------- */

static status read_file(const char *path, side *out)
{
    json_t *run;
    TRY(result_read(path, false, &run));
    status rc = json_array_size(json_object_get(run, "jobs")) > 0
                    ? side_add_result(out, run)
                    : fail(STATUS_DATA, "%s: expected the JSON of harness run", path);
    json_decref(run);
    return rc;
}

static int is_json(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return length > 5 && strcmp(entry->d_name + length - 5, ".json") == 0;
}

static status read_folder(const char *folder, side *out)
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

static status read_side(const char *path, side *out)
{
    struct stat about;
    if (stat(path, &about) != 0) return fail_errno(STATUS_DATA, "%s", path);
    return S_ISDIR(about.st_mode) ? read_folder(path, out) : read_file(path, out);
}

static status read_point(const sweep *s, int point, side *out)
{
    for (int round = 0; round < s->rounds; round++) {
        json_t *run;
        TRY(sweep_read_result(s, point, round, &run));
        TRY(side_add(out, run));
    }
    return STATUS_OK;
}

static status compare_sweeps(const sweep *a, const sweep *b, comparison *c)
{
    status rc = STATUS_OK;
    for (int p = 0; p < a->points && rc == STATUS_OK; p++) {
        if (!sweep_has(a, p)) continue;
        side of_a = {0}, of_b = {0};
        char label[256] = "";
        for (int x = 0, used = 0; x < a->axis_count && used < (int)sizeof label; x++)
            if (sweep_value(a, p, x))
                used += snprintf(label + used, sizeof label - (size_t)used, "%s%s=%s", used ? " " : "",
                                 a->axes[x].name, sweep_value(a, p, x));
        rc = read_point(a, p, &of_a);
        if (rc == STATUS_OK) rc = read_point(b, p, &of_b);
        if (rc == STATUS_OK) rc = compare_sides(&of_a, &of_b, false, label, c);
        side_free(&of_a);
        side_free(&of_b);
    }
    return rc;
}

static status compare_runs(const char *a, const char *b, comparison *c)
{
    side of_a = {0}, of_b = {0};
    status rc = read_side(a, &of_a);
    if (rc == STATUS_OK) rc = read_side(b, &of_b);
    if (rc == STATUS_OK) rc = compare_sides(&of_a, &of_b, false, "", c);
    side_free(&of_a);
    side_free(&of_b);
    return rc;
}

status compare_results(const char *path, const json_t *before, const json_t *after, json_t **out)
{
    side a = {0}, b = {0};
    comparison c;
    status rc = comparison_open(&c);
    if (rc == STATUS_OK) rc = side_add_result(&a, before);
    if (rc == STATUS_OK) rc = side_add_result(&b, after);
    if (rc == STATUS_OK) rc = compare_sides(&a, &b, false, "", &c);
    if (rc == STATUS_OK && json_array_size(c.list) == 0)
        rc = fail(STATUS_DATA, "%s: expected a job that runs again, got none", path);
    if (rc == STATUS_OK) rc = comparison_finish(&c, path, "run again", false, out);
    side_free(&a);
    side_free(&b);
    comparison_close(&c);
    return rc;
}

status compare_paths(const char *a, const char *b, json_t **out)
{
    json_t *definition_a = NULL, *definition_b = NULL;
    sweep sweep_a = {0}, sweep_b = {0};
    comparison c;
    status rc = comparison_open(&c);
    if (rc == STATUS_OK) rc = sweep_read(a, &definition_a, &sweep_a);
    if (rc == STATUS_OK) rc = sweep_read(b, &definition_b, &sweep_b);
    if (rc == STATUS_OK && !definition_a && !definition_b)
        rc = compare_runs(a, b, &c);
    else if (rc == STATUS_OK)
        rc = definition_a && definition_b && sweep_is_same(definition_a, definition_b)
                 ? compare_sweeps(&sweep_a, &sweep_b, &c)
                 : fail(STATUS_CONFIG, "compare: expected the same sweep in %s and %s", a, b);
    if (rc == STATUS_OK && json_array_size(c.list) == 0)
        rc = fail(STATUS_DATA, "compare: expected a job of the same engine in %s and %s", a, b);
    if (rc == STATUS_OK) rc = comparison_finish(&c, a, b, false, out);
    comparison_close(&c);
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
    side of[2] = {{0}, {0}};
    TRY(sweep_open_folder(s, &lock));
    status rc = sweep_run(s, &outcome);
    *signal = outcome.signal;
    if (rc == STATUS_OK && !outcome.signal && outcome.failed > 0) {
        const json_t *failure = json_array_get(outcome.failures, 0);
        rc = fail(STATUS_UNAVAILABLE, "compare: a run of %s failed: %s",
                  sweep_value(s, (int)json_integer_value(json_object_get(failure, "point")), 0),
                  report_text_at(failure, "message"));
    }
    for (int p = 0; p < 2 && rc == STATUS_OK; p++) rc = read_point(s, p, &of[p]);
    if (rc == STATUS_OK && !outcome.signal) rc = compare_sides(&of[0], &of[1], true, "", c);
    side_free(&of[0]);
    side_free(&of[1]);
    json_decref(outcome.failures);
    close(lock);
    return rc;
}

status compare_builds(const char *a, const char *b, const char **words, int count, int rounds,
                      const char *folder, int *signal, json_t **out)
{
    char *programs[2] = {realpath(a, NULL), realpath(b, NULL)};
    sweep s = {.rounds = rounds,
               .points = 2,
               .axis_count = 1,
               .builds = true,
               .words = words,
               .word_count = count,
               .folder = folder};
    comparison c;
    status rc = comparison_open(&c);
    for (int i = 0; i < 2 && rc == STATUS_OK; i++)
        if (!programs[i] || access(programs[i], X_OK) != 0)
            rc = fail_errno(STATUS_USAGE, "--builds: expected a program, got '%s'", i ? b : a);
    s.axes[0] = (sweep_axis){.name = "build", .values = {programs[0], programs[1]}, .count = 2};
    if (rc == STATUS_OK) rc = run_builds(&s, signal, &c);
    if (rc == STATUS_OK && !*signal) rc = comparison_finish(&c, a, b, true, out);
    comparison_close(&c);
    free(programs[0]);
    free(programs[1]);
    return rc;
}

const json_t *compare_step_time(const json_t *job)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(job, "metrics"), i, row)
    {
        if (strcmp(report_text_at(row, "metric"), COMPARE_STEP_TIME) == 0) return row;
    }
    return NULL;
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
