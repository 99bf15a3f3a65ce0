#include "harness/result/result_check.h"

#include "common/base/input.h"
#include "common/base/log.h"
#include "harness/report/report.h"
#include "harness/result/json_schema.h"
#include "harness/result/run_result.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- the checksum ------------------------------------------------------------------------------ */

static void compute_checksum(const json_t *result, char out[17])
{
    json_t *rest = json_copy((json_t *)result);
    json_object_del(rest, "options");
    json_object_del(rest, "provenance");
    json_object_del(rest, "checksum");
    char *text = json_dumps(rest, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    json_decref(rest);
    snprintf(out, 17, "%016" PRIx64, (uint64_t)XXH3_64bits(text, strlen(text)));
    free(text);
}

void result_seal(json_t *result)
{
    char text[17];
    compute_checksum(result, text);
    json_object_set_new(result, "checksum", json_string(text));
}

/* ---- figures that follow from others ----------------------------------------------------------- */

/* Copies the run, and computes all figures of its jobs again from the figures of the ranks. *out is a new
 * reference. */
static status compute_again(const json_t *result, json_t **out)
{
    json_t *jobs = json_array(), *job;
    const json_t *runs = report_at(result, "repetitions.runs");
    bool in_turns = !strstr(report_text_at(result, "hardware_note"), "one after the other");
    int cores = (int)json_integer_value(report_at(result, "comparison.cores"));
    size_t i;
    status rc = STATUS_OK;
    *out = json_copy((json_t *)result);
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        json_t *again = json_copy(job);
        json_object_set_new(again, "target", json_deep_copy(json_object_get(job, "target")));
        if (rc == STATUS_OK) rc = job_result_derive(again, json_object_get(job, "ranks"));
        json_array_append_new(jobs, again);
    }
    json_object_set_new(*out, "jobs", jobs);
    TRY(rc);
    job_result_compare(*out, cores, in_turns);
    if (json_array_size(runs) > 0) TRY(run_result_summarize(runs, *out));
    return run_result_judge(*out, in_turns);
}

/* ---- checks ------------------------------------------------------------------------------------- */

/* Kinds of results. The kind of a result is the first one in this list whose keys the result has.
 * `version` is the version that this program writes, or 0 if the kind has none. */
static const struct {
    const char *keys[2], *schema;
    int version;
} kinds[] = {{{"vary", "vary"}, "sweep", SWEEP_TABLE_VERSION},
             {{"cells", "cells"}, "reproduction", REPRODUCTION_SCHEMA_VERSION},
             {{"jobs", "gpus"}, "memory", 0},
             {{"jobs", "model"}, "plan", 0},
             {{"jobs", "jobs"}, "run", RESULT_SCHEMA_VERSION}};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* Results of runs and reproductions have a checksum since this version. */
enum { CHECKSUM_SINCE = 5 };

/* Checks the version and the checksum, if there is one. Only a result of an older program may lack it. */
static status check_checksum(const json_t *result, int current, bool is_older, const json_place *top)
{
    json_place at_version = {top, "schema_version", 0}, at_checksum = {top, "checksum", 0};
    const json_t *version = json_object_get(result, at_version.key),
                 *checksum = json_object_get(result, at_checksum.key);
    json_int_t found = json_integer_value(version);
    char text[17];
    int least = !checksum ? 1 : current < CHECKSUM_SINCE ? current : CHECKSUM_SINCE;
    if (current && (version || checksum) && (found < least || found > current)) {
        if (least == current) return json_refuse(&at_version, version, "%d", current);
        return json_refuse(&at_version, version, "an integer from %d to %d", least, current);
    }
    if (is_older && !checksum) return STATUS_OK;
    compute_checksum(result, text);
    if (strcmp(text, report_text_at(result, "checksum")) == 0) return STATUS_OK;
    return json_refuse(&at_checksum, checksum, "\"%s\", the checksum of the figures in the file", text);
}

static void announce_older(const char *path, json_int_t found, int current)
{
    static bool announced;
    if (found > 0 && !announced)
        log_warn(
            "%s: schema_version %d, this program writes %d: figures are not computed again, and those that "
            "are not there are shown as -",
            path, (int)found, current);
    announced = true;
}

status result_check(const char *path, json_t *result)
{
    json_place top = {.key = path};
    json_t *again = NULL;
    json_int_t version = json_integer_value(json_object_get(result, "schema_version"));
    int k = 0;
    while (k < KINDS &&
           !(json_object_get(result, kinds[k].keys[0]) && json_object_get(result, kinds[k].keys[1])))
        k++;
    if (k == KINDS)
        return fail(STATUS_DATA, "%s: expected the JSON of harness run, memory, sweep or reproduce", path);
    bool is_older = kinds[k].version ? version < kinds[k].version : !json_object_get(result, "checksum");
    TRY(check_checksum(result, kinds[k].version, is_older, &top));
    TRY(json_schema_check(kinds[k].schema, is_older, result, NULL, &top));
    if (is_older) announce_older(path, version, kinds[k].version);
    if (is_older || strcmp(kinds[k].schema, "run") != 0) return STATUS_OK;
    status rc = compute_again(result, &again);
    if (rc == STATUS_OK) rc = json_schema_check("run", false, result, again, &top);
    json_decref(again);
    return rc;
}

status result_read(const char *path, bool allows_stdin, json_t **out)
{
    text_buffer text = {0};
    *out = NULL;
    TRY(allows_stdin && strcmp(path, "-") == 0 ? input_read_fd(STDIN_FILENO, path, RESULT_MOST_BYTES, &text)
                                               : input_read(path, RESULT_MOST_BYTES, &text));
    status rc = input_json_decode(path, &text, out);
    text_free(&text);
    if (rc == STATUS_OK) rc = result_check(path, *out);
    if (rc == STATUS_OK) return rc;
    json_decref(*out);
    *out = NULL;
    return rc;
}
