#include "harness/report/report_overlap.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { LABEL_WIDTH = 46, COLUMN_WIDTH = 18, MOST_JOBS = 8 };

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static void append_time(const json_t *value, text_buffer *out)
{
    char cell[32] = "-";
    if (json_is_number(value)) text_format_duration(cell, sizeof cell, 1e9 * json_number_value(value));
    text_append(out, "%*s", COLUMN_WIDTH, cell);
}

static void row_of_phase(const json_t *const *jobs, int count, const char *label, const char *phase,
                         text_buffer *out)
{
    text_append(out, "%-*s", LABEL_WIDTH, label);
    for (int i = 0; i < count; i++)
        append_time(json_object_get(json_object_get(json_object_get(jobs[i], "phases"), phase), "median_s"),
                    out);
    text_append(out, "\n");
}

static const json_t *of_first_rank(const json_t *job, const char *key)
{
    return json_object_get(json_array_get(json_object_get(job, "ranks"), 0), key);
}

static void bound_row(const json_t *const *jobs, int count, text_buffer *out)
{
    bool any = false;
    for (int i = 0; i < count; i++)
        any = any || json_is_number(of_first_rank(jobs[i], "last_bucket_bound_s"));
    if (!any) return;
    text_append(out, "%-*s", LABEL_WIDTH, "  bound: its bytes over the emulated link");
    for (int i = 0; i < count; i++) append_time(of_first_rank(jobs[i], "last_bucket_bound_s"), out);
    text_append(out, "\n");
}

static void bytes_row(const json_t *const *jobs, int count, text_buffer *out)
{
    text_append(out, "%-*s", LABEL_WIDTH, "last bucket, bytes");
    for (int i = 0; i < count; i++) {
        const json_t *bytes = of_first_rank(jobs[i], "last_bucket_bytes");
        char cell[32] = "-";
        if (json_is_number(bytes)) text_format_bytes(cell, sizeof cell, json_number_value(bytes));
        text_append(out, "%*s", COLUMN_WIDTH, cell);
    }
    text_append(out, "\n");
}

void report_overlap(const json_t *result, text_buffer *out)
{
    const json_t *jobs[MOST_JOBS];
    int count = 0;
    size_t i;
    json_t *job;
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        bool alone = json_integer_value(json_object_get(job, "world_size")) < 2;
        if (!alone && count < MOST_JOBS) jobs[count++] = job;
    }
    if (count == 0) return;
    bool emulated = json_is_true(json_object_get(result, "emulated"));
    text_append(out, "\n%-*s", LABEL_WIDTH,
                emulated ? "Communication per step (emulated link)" : "Communication per step");
    for (int k = 0; k < count; k++) {
        char name[64];
        snprintf(name, sizeof name, "%s (%s)", text_of(jobs[k], "engine"), text_of(jobs[k], "policy"));
        text_append(out, "%*s", COLUMN_WIDTH, name);
    }
    text_append(out, "\n");
    row_of_phase(jobs, count, "total", "communication_s", out);
    row_of_phase(jobs, count, "  hidden (overlapped with computation)", "hidden_communication_s", out);
    row_of_phase(jobs, count, "  exposed (computation waited)", "exposed_communication_s", out);
    row_of_phase(jobs, count, "waiting for other ranks", "waiting_s", out);
    row_of_phase(jobs, count, "first all-reduce to end of backward (PyTorch)", "first_to_backward_end_s",
                 out);
    bytes_row(jobs, count, out);
    row_of_phase(jobs, count, "  from its start to its end", "last_bucket_s", out);
    bound_row(jobs, count, out);
}

void report_emulated(const json_t *result, text_buffer *out)
{
    if (!json_is_true(json_object_get(result, "emulated"))) return;
    const char *link = text_of(json_object_get(result, "configuration"), "link"); /* "10Gbit/s,50us" */
    char rate[48];
    int64_t bytes_per_second;
    snprintf(rate, sizeof rate, "%.*s", (int)strcspn(link, ","), link);
    if (text_parse_rate("link", rate, &bytes_per_second) == STATUS_OK)
        text_format_rate(rate, sizeof rate, (double)bytes_per_second);
    error_clear();
    text_append(out, "EMULATED: the ranks' network is paced to %s%s; all times and rates below are emulated.\n", rate,
                link + strcspn(link, ","));
}
