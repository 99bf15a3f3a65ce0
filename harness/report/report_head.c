/* Writes the first lines of a run's reports: the workload, and whether its times are simulated or
 * emulated. */
#include "common/net/link.h"
#include "harness/report/report_impl.h"

#include <string.h>

void report_lines(const char *text, int most, text_buffer *out)
{
    enum { INDENT = 2 };
    int used = 0;
    bool first = true; /* true if the next word begins a line */
    for (const char *at = text ? text + strspn(text, " ") : ""; *at; at += strspn(at, " ")) {
        int length = (int)strcspn(at, " ");
        while (at[length] == ' ' && at[length + 1] == '%')
            length += 1 + (int)strcspn(at + length + 1, " "); /* Keeps "95 %" on one line. */
        int shown = length;
        if (!first && used + 1 + length > REPORT_COLUMNS) {
            if (--most == 0) break;
            text_append(out, "\n%*s", INDENT, "");
            used = INDENT;
            first = true;
        }
        if (shown > REPORT_COLUMNS - used) shown = REPORT_COLUMNS - used;
        text_append(out, "%s%.*s", first ? "" : " ", shown, at);
        used += shown + !first;
        first = false;
        at += length;
    }
    text_append(out, "\n");
}

/* Appends the emulated link. */
static void append_link(const json_t *result, text_buffer *out)
{
    net_link link;
    char shown[80] = "";
    if (net_link_parse(report_text_at(result, "configuration.link"), &link) == STATUS_OK)
        net_link_format(&link, shown, sizeof shown);
    error_clear();
    text_append(out, "%s", shown);
}

void report_context(const json_t *result, text_buffer *out)
{
    const json_t *jobs = json_object_get(result, "jobs"),
                 *last = json_array_get(jobs, json_array_size(jobs) - 1);
    double ranks = report_number_at(last, "world_size");
    text_buffer line = {0};
    /* Leaves out the targets, so that the line fits in two lines. */
    const char *input = report_text_at(result, "workload.input"), *with = strstr(input, " with ");
    int length = (int)(with && strstr(with, " targets") ? (size_t)(with - input) : strlen(input));
    text_append(&line, "%s: %.*s, %.0f parameters, %s, %.0f %s rank%s, batch %.0f per rank",
                report_text_at(result, "workload.model"), length, input,
                report_number_at(result, "workload.parameters"), report_text_at(result, "workload.data"),
                ranks, report_text_at(last, "device"), ranks == 1 ? "" : "s",
                report_number_at(result, "workload.batch_per_rank"));
    report_all_reduce(result, &line);
    if (json_is_true(json_object_get(result, "stopped_early"))) text_append(&line, "; stopped early");
    report_lines(line.data, 2, out);
    text_free(&line);
    if (json_is_true(json_object_get(result, "simulated"))) {
        text_append(&line, "SIMULATED on %s: times are modeled; memory is exact.",
                    report_text_at(last, "profile"));
        report_lines(line.data, 1, out);
        text_free(&line);
    }
    if (json_is_true(json_object_get(result, "emulated"))) {
        text_append(&line, "EMULATED network, paced to ");
        append_link(result, &line);
        text_append(&line, "; all times include it.");
        report_lines(line.data, 1, out);
        text_free(&line);
    }
}

void report_workload(const json_t *workload, text_buffer *out)
{
    const char *precision = report_text_at(workload, "precision");
    text_append(out, "%s: %s, %.0f parameters, %s, batch %.0f per rank, %s, %s%sseed %.0f",
                report_text_at(workload, "model"), report_text_at(workload, "input"),
                report_number_at(workload, "parameters"), report_text_at(workload, "data"),
                report_number_at(workload, "batch_per_rank"), report_text_at(workload, "optimizer"),
                precision, *precision ? ", " : "", report_number_at(workload, "seed"));
}

void report_header(const json_t *result, text_buffer *out)
{
    report_workload(json_object_get(result, "workload"), out);
    text_append(out, "\n%s, %s\n", report_text_at(result, "host.processor"),
                report_text_at(result, "hardware_note"));
    if (json_is_true(json_object_get(result, "simulated")))
        text_append(out, "SIMULATED: times are modeled, not measured; memory is exact.\n");
    if (json_is_true(json_object_get(result, "emulated"))) {
        text_append(out, "EMULATED: the ranks' network is paced to ");
        append_link(result, out);
        text_append(out, "; all times and rates below are emulated.\n");
    }
    if (json_is_true(json_object_get(result, "stopped_early")))
        text_append(out, "Stopped before its last step.\n");
    text_append(out, "\n");
}
