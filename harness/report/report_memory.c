/* Where a job's memory is: of every rank, and by phase under DataParallel. */
#include "harness/report/report_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MEMORY_COLUMN = 9 };

/* Column heads of the ledger's classes, by their names in JSON. */
static const char *short_class_name(const char *name)
{
    static const char *const names[][2] = {{"parameters", "params"},        {"gradients", "grads"},
                                           {"optimizer_state", "optim"},    {"activations", "activ"},
                                           {"outputs_and_loss", "outputs"}, {"workspace", "scratch"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i][0], name) == 0) return names[i][1];
    return name;
}

/* What the figures of a job's table are given in: small models would be all zeros in MiB. */
typedef struct memory_unit {
    const char *name;
    double bytes;
} memory_unit;

static memory_unit unit_of(bool small)
{
    return small ? (memory_unit){"KiB", 1024} : (memory_unit){"MiB", 1048576};
}

static void memory_row(const char *label, const json_t *rank, const char *which, double unit,
                       text_buffer *out)
{
    const json_t *memory = json_object_get(rank, "memory"), *classes = json_object_get(memory, "classes");
    const json_t *peak = json_object_get(memory, "peak_classes");
    bool at_peak = strcmp(which, "peak") == 0;
    const char *key = at_peak ? "total.peak_bytes" : "total.current_bytes";
    text_append(out, "%5s %-8s %*.1f", label, which, MEMORY_COLUMN, report_number_at(memory, key) / unit);
    const char *name;
    json_t *account;
    json_object_foreach((json_t *)classes, name, account)
    {
        double bytes = at_peak ? report_number_at(peak, name) : report_number_at(account, "current_bytes");
        text_append(out, "%*.1f", MEMORY_COLUMN, bytes / unit);
    }
    if (at_peak) text_append(out, "  %s", report_text_at(memory, "total.peak_phase"));
    text_append(out, "\n");
}

/* How many ranks from `first` on hold the same memory. */
static size_t alike(const json_t *ranks, size_t first)
{
    const json_t *memory = json_object_get(json_array_get(ranks, first), "memory");
    size_t end = first + 1;
    while (json_equal(memory, json_object_get(json_array_get(ranks, end), "memory"))) end++;
    return end - first;
}

void report_memory(const json_t *job, text_buffer *out)
{
    const json_t *ranks = json_object_get(job, "ranks");
    const json_t *classes = report_at(json_array_get(ranks, 0), "memory.classes");
    memory_unit unit = unit_of(report_number_at(job, "memory_imbalance.maximum_bytes") < 1048576);
    char job_name[64];
    text_append(out, "\nMemory of %s, %s: the ledger's logical bytes at the peak and after the last step\n",
                report_job_name(job, job_name, sizeof job_name), unit.name);
    text_append(out, "%5s %-8s %*s", "rank", "", MEMORY_COLUMN, "total");
    const char *name;
    json_t *account;
    json_object_foreach((json_t *)classes, name, account)
    {
        text_append(out, "%*s", MEMORY_COLUMN, short_class_name(name));
    }
    text_append(out, "  phase\n");
    for (size_t first = 0, count; first < json_array_size(ranks); first += count) {
        const json_t *rank = json_array_get(ranks, first);
        char label[32];
        count = alike(ranks, first);
        if (count == 1)
            snprintf(label, sizeof label, "%zu", first);
        else
            snprintf(label, sizeof label, "%zu-%zu", first, first + count - 1);
        memory_row(label, rank, "peak", unit.bytes, out);
        memory_row(label, rank, "current", unit.bytes, out);
    }
    const json_t *servers = json_object_get(job, "servers");
    for (size_t i = 0; i < json_array_size(servers); i++) {
        char label[32];
        snprintf(label, sizeof label, "s%zu", i);
        memory_row(label, json_array_get(servers, i), "peak", unit.bytes, out);
    }
    text_append(out, "Largest on rank %.0f in %s. Memory imbalance: max/mean %.3f, max-min %.1f %s.",
                report_number_at(job, "memory_imbalance.rank"), report_text_at(job, "memory_imbalance.phase"),
                report_number_at(job, "memory_imbalance.maximum_over_mean"),
                report_number_at(job, "memory_imbalance.maximum_minus_minimum_bytes") / unit.bytes,
                unit.name);
    double pss = report_number_at(json_array_get(ranks, 0), "process.proportional_bytes");
    if (!isnan(pss) && pss > 0)
        text_append(out, " Process of rank 0, measured: %.1f MiB, shared pages counted by share.",
                    pss / 1048576);
    double used = report_number_at(json_array_get(ranks, 0), "process.device_used_bytes");
    if (!isnan(used)) text_append(out, " Its GPU, as the driver reports: %.1f MiB in use by all.", used / 1048576);
    text_append(out, "\n");
}

/* ---- DataParallel, phase by phase -------------------------------------------------------------- */

static void list_sizes(const json_t *m, double unit, text_buffer *out)
{
    static const char *const keys[][2] = {{"P", "parameters_bytes"},      {"G", "kept_gradients_bytes"},
                                          {"S", "optimizer_state_bytes"}, {"O", "outputs_bytes"},
                                          {"L", "loss_outputs_bytes"},    {"O/n", "other_output_bytes"},
                                          {"batch", "batch_bytes"},       {"ahead", "ahead_bytes"}};
    bool bf16 = report_number_at(m, "loss_outputs_bytes") != report_number_at(m, "outputs_bytes");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        bool shown = (bf16 || strcmp(keys[i][0], "L") != 0) &&
                    (strcmp(keys[i][0], "ahead") != 0 || report_number_at(m, "ahead_bytes") > 0);
        if (shown)
            text_append(out, "%s%s = %.2f", i ? ", " : "", keys[i][0],
                        report_number_at(m, keys[i][1]) / unit);
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

static void explain(const json_t *m, memory_unit unit, text_buffer *out)
{
    const json_t *p = largest_phase(m);
    if (!p) return;
    text_append(
        out,
        "Device 0 holds most above another, %.1f %s, at '%s' (%s): it alone keeps the parameters between "
        "steps (P)",
        report_number_at(p, "difference_bytes") / unit.bytes, unit.name, report_text_at(p, "phase"),
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
    memory_unit unit = unit_of(report_number_at(m, "parameters_bytes") < 10 * 1048576.0);
    text_append(
        out,
        "\nMemory by phase under dp, %s: device 0, another device, and DataParallel's formula for the "
        "difference\n"
        "(lifetimes %s; the formula's figures include the batch, and the buffers where the parameters are)\n",
        unit.name, strcmp(report_text_at(m, "lifetimes"), "torch") == 0 ? "as in PyTorch" : "lean");
    list_sizes(m, unit.bytes, out);
    text_append(out, "%-36s%12s%12s%12s%12s  %s\n", "", "device 0", "another", "difference", "formula", "");
    size_t i;
    json_t *p;
    json_array_foreach(json_object_get(m, "phases"), i, p)
    {
        text_append(out, "%-36s%12.2f%12.2f%12.2f%12.2f  %s\n", report_text_at(p, "phase"),
                    report_number_at(p, "device0_bytes") / unit.bytes,
                    report_number_at(p, "other_bytes") / unit.bytes,
                    report_number_at(p, "difference_bytes") / unit.bytes,
                    report_number_at(p, "formula_bytes") / unit.bytes, report_text_at(p, "formula"));
    }
    explain(m, unit, out);
    text_append(
        out, "All traffic goes through rank 0, over ZeroMQ; DataParallel over NCCL replicates and reduces in "
             "pipelined rings.\n");
}
