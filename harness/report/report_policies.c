/* Writes the memory of a model under several policies, and the GPUs on which the model fits. The table has a
 * row per policy and kind of rank. */
#include "harness/report/report_impl.h"

#include <math.h>
#include <string.h>

enum { LABEL_COLUMN = 18, CLASS_COLUMN = 7 };

/* Columns of the table. The value of a column is a sum of memory classes at the peak. */
static const struct {
    const char *head, *classes[3];
} columns[] = {{"params", {"parameters", "replicas", "gathered_units"}},
               {"grads", {"gradients"}},
               {"optim", {"optimizer_state"}},
               {"bucket", {"buckets"}},
               {"activ", {"activations", "outputs_and_loss"}},
               {"other", {"workspace", "batch"}}};

static void append_gib(double bytes, text_buffer *out)
{
    double gib = bytes / 1073741824;
    text_append(out, "%*.*f", CLASS_COLUMN, gib < 0.0995 ? 3 : gib < 9.95 ? 2 : 1, gib);
}

static void append_figures(const json_t *rank, const json_t *gpus, text_buffer *out)
{
    const json_t *peak = report_at(rank, "memory.peak_classes");
    double total = report_number_at(rank, "memory.total.peak_bytes"), gpu = 0;
    double evaluation = report_number_at(rank, "evaluation_peak_bytes");
    double most = evaluation > total ? evaluation : total;
    size_t g = 0;
    while (g < json_array_size(gpus) && !(gpu >= most))
        gpu = report_number_at(json_array_get(gpus, g++), "memory_bytes");
    for (size_t i = 0; i < COUNT_OF(columns); i++) {
        double sum = 0;
        for (int c = 0; c < 3 && columns[i].classes[c]; c++) {
            double bytes = report_number_at(peak, columns[i].classes[c]);
            sum += isnan(bytes) ? 0 : bytes;
        }
        append_gib(sum, out);
    }
    append_gib(total, out);
    append_gib(evaluation, out);
    if (gpu >= most)
        text_append(out, "%5.0f\n", gpu / 1073741824);
    else
        text_append(out, "%5s\n", "none");
}

/* Writes the row of rank 0, and a row of the last rank if its printed figures differ. */
static void append_job(const json_t *job, const json_t *gpus, text_buffer *out)
{
    const json_t *ranks = json_object_get(job, "ranks");
    const char *row = report_text_at(job, "row");
    text_buffer first = {0}, last = {0};
    append_figures(json_array_get(ranks, 0), gpus, &first);
    append_figures(json_array_get(ranks, json_array_size(ranks) - 1), gpus, &last);
    if (first.data && last.data && strcmp(first.data, last.data) == 0)
        text_append(out, "%-*.*s%s", LABEL_COLUMN, LABEL_COLUMN - 1, row, first.data);
    else
        text_append(out, "%-.11s%-*s%s%-*s%s", row, LABEL_COLUMN - (int)(strlen(row) < 11 ? strlen(row) : 11),
                    " rank 0", first.data ? first.data : "", LABEL_COLUMN, "  another rank",
                    last.data ? last.data : "");
    text_free(&first);
    text_free(&last);
}

void report_memory_of_policies(const json_t *result, text_buffer *out)
{
    const json_t *jobs = json_object_get(result, "jobs"), *gpus = json_object_get(result, "gpus");
    size_t i;
    json_t *row;
    report_workload(result, out);
    double ranks = report_number_at(json_array_get(jobs, 0), "world_size");
    text_append(out, "; %.0f rank%s\n\n", ranks, ranks == 1 ? "" : "s");
    text_append(out, "%-*s", LABEL_COLUMN, "GiB at the peak");
    for (i = 0; i < COUNT_OF(columns); i++) text_append(out, "%*s", CLASS_COLUMN, columns[i].head);
    text_append(out, "%*s%*s%5s\n", CLASS_COLUMN, "total", CLASS_COLUMN, "eval", "GPU");
    json_array_foreach(jobs, i, row) append_job(row, gpus, out);
    json_array_foreach(json_object_get(result, "refused"), i, row) text_append(
        out, "%-*s  %s\n", LABEL_COLUMN, report_text_at(row, "row"), report_text_at(row, "reason"));
    text_append(out, "\ntotal: the peak of a training step, which the columns before it divide;\n"
                     "eval: the peak of an evaluation; GPU: the smallest memory in harness\n"
                     "profiles that holds both, in GiB. Planned, nothing has run.\n");
}
