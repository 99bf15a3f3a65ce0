/* Writes the memory of a job: of every rank, and by phase under DataParallel. */
#include "harness/report/report_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LABEL = 20, COLUMN = 10, MOST_GROUPS = (80 - LABEL) / (2 * COLUMN) };

/* Unit of a job's table. In MiB, a small model would have only zeros. */
typedef struct memory_unit {
    const char *name;
    double bytes;
} memory_unit;

static memory_unit unit_of(bool small)
{
    return small ? (memory_unit){"KiB", 1024} : (memory_unit){"MiB", 1048576};
}

short_text report_rank_name(const json_t *job, double number)
{
    const json_t *rank = json_array_get(json_object_get(job, "ranks"), number > 0 ? (size_t)number : 0);
    short_text name;
    if (json_object_get(rank, "stage"))
        snprintf(name.text, sizeof name.text, "device %.0f of rank %.0f", report_number_at(rank, "stage"),
                 report_number_at(rank, "of_rank"));
    else
        snprintf(name.text, sizeof name.text, "rank %.0f", number);
    return name;
}

/* Counts the consecutive ranks, from `first` on, whose memory is equal. If the ranks are devices with stages,
 * their stages must be equal, too. */
static size_t alike(const json_t *ranks, size_t first)
{
    size_t of_memory = report_alike(ranks, first, "memory"), of_stage = report_alike(ranks, first, "stage");
    bool has_stages = json_object_get(json_array_get(ranks, first), "stage");
    return has_stages && of_stage < of_memory ? of_stage : of_memory;
}

/* Ranks with equal memory, or a server. The table has two columns for each group: bytes at the peak and at
 * the end. */
typedef struct group {
    char label[48];
    const json_t *memory;
} group;

static void name_group(group *g, const json_t *ranks, size_t first, size_t count)
{
    const json_t *rank = json_array_get(ranks, first), *stage = json_object_get(rank, "stage");
    char device[24] = "";
    if (stage) {
        snprintf(device, sizeof device, "device %.0f, ", json_number_value(stage));
        first = (size_t)report_number_at(rank, "of_rank");
    }
    if (count == 1)
        snprintf(g->label, sizeof g->label, "%srank %zu", device, first);
    else
        snprintf(g->label, sizeof g->label, "%sranks %zu-%zu", device, first, first + count - 1);
}

static void append_bytes(double bytes, double unit, text_buffer *out)
{
    if (isnan(bytes))
        text_append(out, "%*s", COLUMN, "-");
    else
        text_append(out, "%*.1f", COLUMN, bytes / unit);
}

static void memory_row(const group *groups, int count, const char *name, double unit, text_buffer *out)
{
    bool any = false, total = strcmp(name, "total") == 0;
    char peak[64] = "total.peak_bytes", end[64] = "total.current_bytes", label[LABEL];
    if (!total) {
        snprintf(peak, sizeof peak, "peak_classes.%s", name);
        snprintf(end, sizeof end, "classes.%s.current_bytes", name);
    }
    for (int i = 0; i < count; i++)
        any = any || total || report_number_at(groups[i].memory, peak) > 0 ||
              report_number_at(groups[i].memory, end) > 0;
    if (!any) return;
    snprintf(label, sizeof label, "  %s", name);
    for (char *at = label; *at; at++)
        if (*at == '_') *at = ' ';
    text_append(out, "%-*s", LABEL, total ? name : label);
    for (int i = 0; i < count; i++) {
        append_bytes(report_number_at(groups[i].memory, peak), unit, out);
        append_bytes(report_number_at(groups[i].memory, end), unit, out);
    }
    text_append(out, "\n");
}

static void memory_columns(const group *groups, int count, double unit, text_buffer *out)
{
    const char *name;
    json_t *account;
    text_append(out, "%-*s", LABEL, "");
    for (int i = 0; i < count; i++) text_append(out, "%*s", 2 * COLUMN, groups[i].label);
    text_append(out, "\n%-*s", LABEL, "");
    for (int i = 0; i < count; i++) text_append(out, "%*s%*s", COLUMN, "peak", COLUMN, "current");
    text_append(out, "\n");
    memory_row(groups, count, "total", unit, out);
    json_object_foreach((json_t *)json_object_get(groups[0].memory, "classes"), name, account)
        memory_row(groups, count, name, unit, out);
    text_append(out, "%-*s", LABEL, "phase of the peak");
    for (int i = 0; i < count; i++)
        text_append(out, "%*.*s", 2 * COLUMN, 2 * COLUMN - 1,
                    report_text_at(groups[i].memory, "total.peak_phase"));
    text_append(out, "\n");
}

/* Writes the ranks, and then the servers. Puts as many of them side by side as fit in 80 columns. */
static void memory_table(const json_t *ranks, const json_t *servers, double unit, text_buffer *out)
{
    group groups[MOST_GROUPS];
    int used = 0;
    size_t world = json_array_size(ranks), all = world + json_array_size(servers);
    for (size_t first = 0, count; first < all; first += count) {
        const json_t *member =
            first < world ? json_array_get(ranks, first) : json_array_get(servers, first - world);
        group *g = &groups[used++];
        count = first < world ? alike(ranks, first) : 1;
        g->memory = json_object_get(member, "memory");
        if (first >= world)
            snprintf(g->label, sizeof g->label, "server %zu", first - world);
        else
            name_group(g, ranks, first, count);
        if (used < MOST_GROUPS && first + count < all) continue;
        memory_columns(groups, used, unit, out);
        used = 0;
    }
}

/* ---- DataParallel, phase by phase -------------------------------------------------------------- */

double report_between_steps(const json_t *job)
{
    return report_number_at(
        report_find(report_at(job, "dataparallel_memory.phases"), "phase", "after replicate"),
        "difference_bytes");
}

static void list_sizes(const json_t *m, double unit, text_buffer *out)
{
    static const char *const keys[][2] = {{"P", "parameters_bytes"},      {"G", "kept_gradients_bytes"},
                                          {"S", "optimizer_state_bytes"}, {"O", "outputs_bytes"},
                                          {"L", "loss_outputs_bytes"},    {"O/n", "other_output_bytes"},
                                          {"batch", "batch_bytes"},       {"ahead", "ahead_bytes"}};
    bool bf16 = report_number_at(m, "loss_outputs_bytes") != report_number_at(m, "outputs_bytes");
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        bool shown = (bf16 || strcmp(keys[i][0], "L") != 0) &&
                     (strcmp(keys[i][0], "ahead") != 0 || report_number_at(m, "ahead_bytes") > 0);
        if (shown)
            text_append(out, "%s%s = %.2f", i ? ", " : "", keys[i][0],
                        report_number_at(m, keys[i][1]) / unit);
    }
    text_append(out, "\n");
}

static void explain(const json_t *m, memory_unit unit, text_buffer *out)
{
    const json_t *phases = json_object_get(m, "phases");
    double most = report_largest(phases, "difference_bytes");
    size_t i = 0;
    while (report_number_at(json_array_get(phases, i), "difference_bytes") < most) i++;
    const json_t *p = json_array_get(phases, i); /* the phase with the largest difference */
    if (!p) return;
    text_append(
        out,
        "Device 0 holds most above another, %.1f %s, at '%s' (%s): it alone keeps the parameters between "
        "steps (P)",
        most / unit.bytes, unit.name, report_text_at(p, "phase"), report_text_at(p, "formula"));
    if (report_number_at(m, "optimizer_state_bytes") > 0) text_append(out, " and the optimizer's state (S)");
    if (report_number_at(m, "kept_gradients_bytes") > 0) text_append(out, ", keeps the last gradients (G)");
    text_append(out, ", sums all ranks' gradients%s.\n",
                report_number_at(m, "outputs_bytes") > 0 ? ", and gathers all outputs for the loss (O)" : "");
}

static void dataparallel_memory(const json_t *job, text_buffer *out)
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
    text_append(out, "%-36s%9s%9s%8s\n", "", "device 0", "another", "formula");
    size_t i;
    json_t *p;
    json_array_foreach(json_object_get(m, "phases"), i, p)
    {
        text_append(out, "%-36s%9.2f%9.2f", report_text_at(p, "phase"),
                    report_number_at(p, "device0_bytes") / unit.bytes,
                    report_number_at(p, "other_bytes") / unit.bytes);
        double difference = report_number_at(p, "difference_bytes"),
               formula = report_number_at(p, "formula_bytes");
        text_append(out, "%8.2f %s", formula / unit.bytes, report_text_at(p, "formula"));
        if (difference != formula) text_append(out, ", found %.2f", difference / unit.bytes);
        text_append(out, "\n");
    }
    explain(m, unit, out);
    text_append(
        out, "All traffic goes through rank 0, over ZeroMQ; DataParallel over NCCL replicates and reduces in "
             "pipelined rings.\n");
}

/* ---- all -------------------------------------------------------------------------------------- */

void report_memory(const json_t *job, text_buffer *out)
{
    const json_t *ranks = json_object_get(job, "ranks");
    memory_unit unit = unit_of(report_number_at(job, "memory_imbalance.maximum_bytes") < 1048576);
    text_append(out, "\nMemory of %s, %s: the ledger's logical bytes at the peak and after the last step\n",
                report_job_name(job).text, unit.name);
    memory_table(ranks, json_object_get(job, "servers"), unit.bytes, out);
    text_append(out, "Largest on %s in %s. Memory imbalance: max/mean %.3f, max-min %.1f %s.",
                report_rank_name(job, report_number_at(job, "memory_imbalance.rank")).text,
                report_text_at(job, "memory_imbalance.phase"),
                report_number_at(job, "memory_imbalance.maximum_over_mean"),
                report_number_at(job, "memory_imbalance.maximum_minus_minimum_bytes") / unit.bytes,
                unit.name);
    double pss = report_number_at(json_array_get(ranks, 0), "process.proportional_bytes");
    if (!isnan(pss) && pss > 0)
        text_append(out, " Process of rank 0, measured: %.1f MiB, shared pages counted by share.",
                    pss / 1048576);
    double used = report_number_at(json_array_get(ranks, 0), "process.device_used_bytes");
    if (!isnan(used))
        text_append(out, " Its GPU, as the driver reports: %.1f MiB in use by all.", used / 1048576);
    text_append(out, "\n");
    dataparallel_memory(job, out);
}
