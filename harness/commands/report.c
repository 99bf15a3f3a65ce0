/* harness report FILE: the report of a run, a comparison, a plan or a reproduction, from the JSON that it wrote. */
#include "harness/commands/commands.h"

#include "common/base/log.h"
#include "harness/report/report.h"
#include "harness/run/output.h"
#include "harness/run/run_result.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct report_options {
    bool verbose;
} report_options;

static const option option_list[] = {
    {"verbose", OPTION_FLAG, offsetof(report_options, verbose), .letter = 'v',
     .help = "print the tables of a run, too, after the verdict"},
};
static const option_table report_option_table = {"Report", option_list, sizeof option_list / sizeof option_list[0]};

static size_t bind_report(void *options, option_binding *bindings)
{
    *bindings = (option_binding){.table = &report_option_table, .storage = options};
    return 1;
}

static status load(const char *path, json_t **out)
{
    json_error_t error;
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(path, "re");
    if (!file) return fail_errno(STATUS_DATA, "%s", path);
    *out = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    if (!is_stdin) fclose(file);
    if (*out) return STATUS_OK;
    return fail(STATUS_DATA, "%s:%d:%d: %s", path, error.line, error.column, error.text);
}

/* An older file is shown as far as its keys have the names of today. */
static status render(const char *path, json_t *result, bool verbose, text_buffer *out)
{
    const json_t *runs = json_object_get(result, "runs"),
                 *version = json_object_get(result, "schema_version");
    json_int_t found = json_integer_value(version);
    if (found > RESULT_SCHEMA_VERSION)
        return fail(STATUS_DATA,
                    "%s: schema_version: expected at most %d, got %lld: a newer program wrote it", path,
                    RESULT_SCHEMA_VERSION, (long long)found);
    if (json_array_size(runs) > 0)
        report_compare(runs, out);
    else if (json_object_get(result, "cells"))
        report_reproduction(result, out);
    else if (json_object_get(result, "workload") && json_object_get(result, "jobs")) {
        if (!json_object_get(result, "verdict"))
            TRY(run_result_judge(result, !strstr(report_text_at(result, "hardware_note"), "one after the other")));
        report_run(result, verbose, out);
    }
    else if (json_object_get(result, "jobs"))
        report_plan(result, out);
    else
        return fail(STATUS_DATA, "%s: expected the JSON of harness run, run --plan, compare --policies or reproduce", path);
    if (version && found < RESULT_SCHEMA_VERSION)
        log_warn("%s: schema_version %lld, this program writes %d: figures that are not there are shown as -",
                 path, (long long)found, RESULT_SCHEMA_VERSION);
    return STATUS_OK;
}

static status run_report(command_line *line)
{
    json_t *result = NULL;
    text_buffer out = {0};
    if (line->word_count != 1)
        return fail(STATUS_USAGE, "report: expected one file, got %d", line->word_count);
    TRY(load(line->words[0], &result));
    status rc = render(line->words[0], result, ((const report_options *)line->options)->verbose, &out);
    json_decref(result);
    if (rc == STATUS_OK) return output_text(&out);
    text_free(&out);
    return rc;
}

const command command_report = {.name = "report",
                                .usage = "FILE [--verbose]",
                                .summary = "print the report of a run, plan or reproduction from its JSON",
                                .options_size = sizeof(report_options),
                                .bind = bind_report,
                                .most_words = 1,
                                .run = run_report};
