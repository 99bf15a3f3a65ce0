/* harness report FILE...: prints the report of a run, a comparison, a plan or a reproduction from its
 * JSON. For runs, also writes a page, the figures and their numbers. */
#include "harness/commands/commands.h"

#include "harness/report/report.h"
#include "harness/result/output.h"
#include "harness/result/result_check.h"
#include "harness/result/run_result.h"
#include "harness/sweep/sweep.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct report_command {
    const char *page, *svg, *csv;
    bool verbose;
} report_command;

#define FIELD(name) offsetof(report_command, name)
static const option option_list[] = {
    {"out", OPTION_TEXT, FIELD(page), .letter = 'o', .argument = "FILE.html",
     .help = "write one page with figures instead of printing text"},
    {"svg", OPTION_TEXT, FIELD(svg), .argument = "DIR", .help = "write each figure there as an SVG file"},
    {"csv", OPTION_TEXT, FIELD(csv), .argument = "DIR",
     .help = "write the numbers of each figure there as a CSV file"},
    {"verbose", OPTION_FLAG, FIELD(verbose), .letter = 'v',
     .help = "print the tables of a run after the verdict"},
};

/* Makes the table of a sweep from its results, because the folder has no table.json. */
static status read_sweep(const char *folder, json_t **out)
{
    json_t *definition = NULL;
    sweep s;
    status rc = sweep_read(folder, &definition, &s);
    if (rc == STATUS_OK && !definition)
        rc = fail(STATUS_DATA, "%s: expected the folder of a sweep: sweep.json and table.json", folder);
    if (rc == STATUS_OK && s.rounds == 0)
        rc = fail(STATUS_DATA, "%s: expected a finished run of the sweep, got none", folder);
    json_t *failures = rc == STATUS_OK ? sweep_failures(&s) : NULL;
    if (rc == STATUS_OK) rc = sweep_table(&s, failures, out);
    json_decref(failures);
    sweep_free(&s);
    json_decref(definition);
    return rc;
}

static status load(const char *path, json_t **out)
{
    struct stat found;
    char table[PATH_MAX];
    if (stat(path, &found) == 0 && S_ISDIR(found.st_mode)) {
        snprintf(table, sizeof table, "%s/table.json", path);
        if (access(table, F_OK) != 0) return read_sweep(path, out);
        path = table;
    }
    return result_read(path, true, out);
}

/* Adds a verdict if an earlier version of the program wrote the result without one. */
static status judge(json_t *result)
{
    if (json_object_get(result, "verdict")) return STATUS_OK;
    return run_result_judge(result, !strstr(report_text_at(result, "hardware_note"), "one after the other"));
}

static status render(const char *path, json_t *result, bool verbose, text_buffer *out)
{
    if (json_object_get(result, "vary"))
        sweep_report(result, out);
    else if (json_object_get(result, "cells"))
        report_reproduction(result, false, out);
    else if (json_object_get(result, "workload") && json_object_get(result, "jobs")) {
        TRY(judge(result));
        report_run(result, verbose, out);
    } else if (json_object_get(result, "jobs"))
        report_plan(result, out);
    else
        return fail(STATUS_DATA, "%s: expected the JSON of harness run, run --plan or reproduce", path);
    return STATUS_OK;
}

/* ---- pages and figures -------------------------------------------------------------------------- */

static status add_results(const char *path, json_t *result, json_t *results)
{
    json_array_append(results, result);
    if (json_array_size(json_object_get(result, "points")) > 0 &&
        json_array_size(json_object_get(result, "vary")) > 0)
        return STATUS_OK;
    bool is_run = json_is_object(json_object_get(result, "workload")) &&
                  json_array_size(report_at(result, "jobs.0.ranks")) > 0 &&
                  json_is_object(report_at(result, "jobs.0.step_time"));
    return is_run ? judge(result)
                  : fail(STATUS_DATA, "%s: expected the JSON of harness run, or a sweep's folder", path);
}

static bool are_equal(const json_t *a, const json_t *b, const char *const keys[3])
{
    bool equal = true;
    for (int k = 0; k < 3; k++)
        equal = equal && json_equal(json_object_get(a, keys[k]), json_object_get(b, keys[k]));
    return equal;
}

static bool has_job(const json_t *result, const json_t *job)
{
    static const char *const same[] = {"name", "policy", "settings"};
    size_t i;
    json_t *other;
    json_array_foreach(json_object_get(result, "jobs"), i, other)
    {
        if (are_equal(job, other, same)) return true;
    }
    return false;
}

/* Returns true if `result` can be shown together with `into`. Both must be virtual runs of the same workload,
 * with different engines or policies. */
static bool joins(const json_t *into, const json_t *result)
{
    static const char *const same[] = {"workload", "hardware_note", "simulated"};
    bool equal = json_is_true(json_object_get(result, "simulated")) && are_equal(into, result, same);
    size_t i;
    json_t *job;
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        if (report_communicates(job) && has_job(into, job)) return false;
    }
    return equal;
}

static void join_results(json_t *results)
{
    for (size_t i = 1; i < json_array_size(results); i++) {
        json_t *into = json_array_get(results, i - 1), *result = json_array_get(results, i), *job;
        size_t j;
        if (!joins(into, result)) continue;
        json_array_foreach(json_object_get(result, "jobs"), j, job)
        {
            if (!has_job(into, job)) json_array_append(json_object_get(into, "jobs"), job);
        }
        json_t *joined = json_object_get(into, "joined");
        if (!joined) json_object_set_new(into, "joined", joined = json_array());
        json_array_append(joined, result);
        json_array_remove(results, i--);
    }
}

static status load_runs(const command_line *line, json_t *results)
{
    for (int i = 0; i < line->word_count; i++) {
        json_t *result = NULL;
        TRY(load(line->words[i], &result));
        status rc = add_results(line->words[i], result, results);
        json_decref(result);
        TRY(rc);
    }
    join_results(results);
    return STATUS_OK;
}

/* Writes the figures of all results. From the second result on, file names begin with the result's number. */
static status write_figures(const json_t *results, const char *folder, bool csv)
{
    size_t i;
    json_t *result;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) return fail_errno(STATUS_CANNOT_CREATE, "%s", folder);
    json_array_foreach((json_t *)results, i, result)
    {
        text_buffer out = {0};
        const char *name;
        for (int number = 0; (name = report_figure_file(result, number, csv, &out)); number++) {
            char path[PATH_MAX], which[24] = "";
            if (i > 0) snprintf(which, sizeof which, "%zu-", i + 1);
            snprintf(path, sizeof path, "%s/%s%s.%s", folder, which, name, csv ? "csv" : "svg");
            if (out.length > 0) TRY(output_file(&out, path));
            text_free(&out);
        }
    }
    return STATUS_OK;
}

static status write_pages(const report_command *c, const json_t *results)
{
    text_buffer out = {0};
    if (c->svg) TRY(write_figures(results, c->svg, false));
    if (c->csv) TRY(write_figures(results, c->csv, true));
    if (!c->page) return STATUS_OK;
    report_page(results, &out);
    return output_file(&out, c->page);
}

static status run_report(command_line *line)
{
    const report_command *c = line->options;
    bool pages = c->page || c->svg || c->csv;
    json_t *results = json_array(), *result = NULL;
    status rc;
    if (line->word_count < 1 || (!pages && line->word_count != 1))
        rc = fail(STATUS_USAGE, "report: expected one file, got %d; several need -o FILE.html",
                  line->word_count);
    else if ((rc = output_check(&(output_name){"out", c->page}, 1, line->words, line->word_count)) ==
             STATUS_OK)
        rc = pages ? load_runs(line, results) : load(line->words[0], &result);
    if (rc == STATUS_OK)
        rc = pages ? write_pages(c, results) : render(line->words[0], result, c->verbose, line->out);
    json_decref(results);
    json_decref(result);
    return rc;
}

const command command_report = {.name = "report",
                                .usage = "FILE... [options]",
                                .summary = "show a run, plan or reproduction from JSON: text, page, figures",
                                .options_size = sizeof(report_command),
                                .table = {"Report", option_list, sizeof option_list / sizeof option_list[0]},
                                .most_words = 64,
                                .run = run_report};
