/* Writes how jobs exchange gradients: who sums them, by which algorithm, and over which transport. */
#include "harness/report/report_impl.h"

#include <string.h>

void report_algorithms(const json_t *job, bool counts, text_buffer *out)
{
    const json_t *rows = json_object_get(job, "algorithms"), *row;
    size_t i;
    if (json_array_size(rows) == 0) text_append(out, "%s", report_text_at(job, "algorithm"));
    json_array_foreach(rows, i, row)
    {
        text_append(out, "%s%s", i == 0 ? "" : counts ? ", " : " and ", report_text_at(row, "algorithm"));
        double calls = report_number_at(row, "calls_per_step");
        if (counts)
            text_append(out, " %.4g call%s of %s", calls, calls == 1 ? "" : "s",
                        report_value(CELL_BYTES, report_number_at(row, "bytes_per_step")).text);
    }
}

/* Writes for example "ring all-reduce, shm" or "shm, messages over ipc". */
static void way_of(const json_t *job, bool counts, text_buffer *out)
{
    const char *collective = report_text_at(job, "collective");
    text_append(out, "%s: ", report_job_name(job).text);
    if (collective[0]) {
        report_algorithms(job, counts, out);
        text_append(out, counts && json_object_get(job, "algorithms") ? " per step, %s" : " all-reduce, %s",
                    collective);
    } else
        text_append(out, "%s, messages over %s", report_text_at(job, "payload"),
                    report_text_at(job, "transport"));
}

static bool exchanges(const json_t *job)
{
    return report_text_at(job, "collective")[0] || report_text_at(job, "payload")[0];
}

void report_transports(const json_t *job, text_buffer *out)
{
    if (!exchanges(job)) return;
    text_append(out, "\n");
    way_of(job, true, out);
    text_append(out, ".\n");
}

void report_ways(const json_t *result, const char *between, text_buffer *out)
{
    const char *separator = "";
    size_t i;
    json_t *job;
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        if (!exchanges(job)) continue;
        text_append(out, "%s", separator);
        way_of(job, false, out);
        separator = between;
    }
}

void report_all_reduce(const json_t *result, text_buffer *out)
{
    size_t i;
    json_t *job;
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        if (strcmp(report_text_at(job, "payload"), "nccl") == 0) text_append(out, "; dp: nccl");
        if (!report_text_at(job, "collective")[0]) continue;
        text_append(out, "; all-reduce: ");
        report_algorithms(job, false, out);
        text_append(out, ", %s", report_text_at(job, "collective"));
    }
}
