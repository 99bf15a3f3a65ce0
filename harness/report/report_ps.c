/* What the report says of a parameter server alone: how stale reads were, and where device 0's memory goes.
 */
#include "harness/report/report_impl.h"

#include <math.h>
#include <string.h>

/* ---- staleness -------------------------------------------------------------------------------- */

enum { MOST_BINS = 64, SHOWN_BINS = 10 };

/* The ranks' histograms added up; returns the number of bins. */
static int add_up(const json_t *job, double bins[MOST_BINS], double *reads, double *largest, double *mean)
{
    size_t r, i;
    json_t *rank, *count;
    int used = 0;
    *reads = *largest = *mean = 0;
    json_array_foreach(json_object_get(job, "ranks"), r, rank)
    {
        const json_t *s = json_object_get(rank, "staleness");
        double own = json_number_value(json_object_get(s, "reads"));
        *reads += own;
        *mean += own * json_number_value(json_object_get(s, "mean"));
        *largest = fmax(*largest, json_number_value(json_object_get(s, "largest")));
        json_array_foreach(json_object_get(s, "histogram"), i, count)
        {
            if (i >= MOST_BINS) break;
            bins[i] += json_number_value(count);
            if ((int)i + 1 > used) used = (int)i + 1;
        }
    }
    if (*reads > 0) *mean /= *reads;
    return used;
}

void report_staleness(const json_t *job, text_buffer *out)
{
    double bins[MOST_BINS] = {0}, reads, largest, mean;
    int used = add_up(job, bins, &reads, &largest, &mean);
    if (reads == 0) return;
    text_append(
        out,
        "\nStaleness under %s: updates that parameters got between their read and the update made from it;\n"
        "%.0f reads, mean %.2f, largest %.0f\n",
        report_text_at(job, "policy"), reads, mean, largest);
    double rest = 0;
    for (int i = 0; i < used; i++) {
        if (i >= SHOWN_BINS)
            rest += bins[i];
        else
            text_append(out, "  %2d  %5.1f %%  %.*s\n", i, 100 * bins[i] / reads,
                        (int)lround(40 * bins[i] / reads), "########################################");
    }
    if (rest > 0) text_append(out, "  more %4.1f %%\n", 100 * rest / reads);
}

/* ---- who updates ------------------------------------------------------------------------------ */

void report_updates(const json_t *job, text_buffer *out)
{
    if (strcmp(report_text_at(job, "device"), "cuda") != 0 || !json_is_string(json_object_get(job, "updates_on"))) return;
    bool gpu = strcmp(report_text_at(job, "updates_on"), "gpu") == 0;
    bool own = json_array_size(json_object_get(job, "servers")) > 0;
    const char *who = gpu    ? "by the GPUs next to the servers"
                      : own  ? "by the processors: servers of their own have no GPU"
                             : "by the processors";
    if (strcmp(report_text_at(job, "policy"), "dp") == 0) who = "by device 0";
    text_append(out, "\nGradients of %s are summed, and parameters updated, %s.\n", report_text_at(job, "policy"), who);
}

/* ---- memory by phase --------------------------------------------------------------------------- */

static const double MIB = 1048576;

static void list_sizes(const json_t *m, double unit, text_buffer *out)
{
    static const char *const keys[][2] = {{"P", "parameters_bytes"},      {"G", "kept_gradients_bytes"},
                                          {"S", "optimizer_state_bytes"}, {"O", "outputs_bytes"},
                                          {"L", "loss_outputs_bytes"},    {"O/n", "other_output_bytes"},
                                          {"batch", "batch_bytes"},       {"ahead", "ahead_bytes"}};
    bool bf16 = report_number_at(m, "loss_outputs_bytes") != report_number_at(m, "outputs_bytes");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        bool told = (bf16 || strcmp(keys[i][0], "L") != 0) &&
                    (strcmp(keys[i][0], "ahead") != 0 || report_number_at(m, "ahead_bytes") > 0);
        if (told) text_append(out, "%s%s = %.2f", i ? ", " : "", keys[i][0], report_number_at(m, keys[i][1]) / unit);
    }
    text_append(out, "\n");
}

/* The phase of the largest difference; NULL: none. */
static const json_t *largest_phase(const json_t *m)
{
    const json_t *most = NULL;
    size_t i;
    json_t *p;
    json_array_foreach(json_object_get(m, "phases"), i,
                       p) if (!most || report_number_at(p, "difference_bytes") >
                                           report_number_at(most, "difference_bytes")) most = p;
    return most;
}

static void explain(const json_t *m, const char *unit_name, double unit, text_buffer *out)
{
    const json_t *p = largest_phase(m);
    if (!p) return;
    text_append(
        out,
        "Device 0 holds most above another, %.1f %s, at '%s' (%s): it alone keeps the parameters between "
        "steps (P)",
        report_number_at(p, "difference_bytes") / unit, unit_name, report_text_at(p, "phase"),
        report_text_at(p, "formula"));
    if (report_number_at(m, "optimizer_state_bytes") > 0) text_append(out, " and the optimizer's state (S)");
    if (report_number_at(m, "kept_gradients_bytes") > 0) text_append(out, ", keeps the last gradients (G)");
    text_append(out, ", sums all ranks' gradients%s.\n",
                report_number_at(m, "outputs_bytes") > 0 ? ", and gathers all outputs for the loss (O)" : "");
}

void report_dataparallel_memory(const json_t *job, text_buffer *out)
{
    const json_t *m = json_object_get(job, "dataparallel_memory");
    if (!json_is_object(m)) return;
    bool small = report_number_at(m, "parameters_bytes") < 10 * MIB;
    const char *unit_name = small ? "KiB" : "MiB";
    double unit = small ? 1024 : MIB;
    text_append(
        out,
        "\nMemory by phase under dp, %s: device 0, another device, and DataParallel's formula for the "
        "difference\n"
        "(lifetimes %s; the formula's figures include the batch, and the buffers where the parameters are)\n",
        unit_name, strcmp(report_text_at(m, "lifetimes"), "torch") == 0 ? "as in PyTorch" : "lean");
    list_sizes(m, unit, out);
    text_append(out, "%-36s%12s%12s%12s%12s  %s\n", "", "device 0", "another", "difference", "formula", "");
    size_t i;
    json_t *p;
    json_array_foreach(json_object_get(m, "phases"), i, p)
    {
        text_append(out, "%-36s%12.2f%12.2f%12.2f%12.2f  %s\n", report_text_at(p, "phase"),
                    report_number_at(p, "device0_bytes") / unit, report_number_at(p, "other_bytes") / unit,
                    report_number_at(p, "difference_bytes") / unit,
                    report_number_at(p, "formula_bytes") / unit, report_text_at(p, "formula"));
    }
    explain(m, unit_name, unit, out);
    text_append(
        out, "Traffic is a star over ZeroMQ through rank 0; DataParallel over NCCL replicates and reduces in "
             "pipelined rings.\n");
}
