#include "harness/report/report.h"

#include "harness/report/report_impl.h"
#include "harness/report/report_overlap.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { LABEL_WIDTH = 42, COLUMN_WIDTH = 18 };

/* How a figure is written. */
typedef enum cell_format { CELL_TIME, CELL_PERCENT, CELL_RATE, CELL_BYTES, CELL_RATIO, CELL_LOSS, CELL_COUNT } cell_format;

static char *format_cell(char *buffer, size_t size, cell_format format, double value)
{
    if (isnan(value)) {
        snprintf(buffer, size, "-");
        return buffer;
    }
    switch (format) {
    case CELL_TIME: return text_format_duration(buffer, size, 1e9 * value);
    case CELL_BYTES: return text_format_bytes(buffer, size, value);
    case CELL_PERCENT: snprintf(buffer, size, "%.1f %%", 100 * value); break;
    case CELL_RATE: snprintf(buffer, size, value < 100 ? "%.2f" : "%.0f", value); break;
    case CELL_RATIO: snprintf(buffer, size, "%.3f", value); break;
    case CELL_LOSS: snprintf(buffer, size, "%.4f", value); break;
    case CELL_COUNT: snprintf(buffer, size, "%.0f", value); break;
    }
    return buffer;
}

static void row_of_jobs(const json_t *jobs, const char *label, cell_format format, const char *path, text_buffer *out)
{
    text_append(out, "%-*s", LABEL_WIDTH, label);
    size_t i;
    json_t *job;
    json_array_foreach((json_t *)jobs, i, job)
    {
        char cell[32];
        text_append(out, "%*s", COLUMN_WIDTH, format_cell(cell, sizeof cell, format, report_number_at(job, path)));
    }
    text_append(out, "\n");
}

/* A rank's traffic in the median of the ranks would hide the server: the busiest rank stands for all. */
static double busiest_rank(const json_t *job, const char *key)
{
    double most = NAN;
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(json_object_get(job, "traffic"), "per_rank"), i, row)
        most = fmax(most, report_number_at(row, key)); /* of a number and none, fmax takes the number */
    return most;
}

static void traffic_rows(const json_t *jobs, text_buffer *out)
{
    static const char *const keys[] = {"bytes_sent_per_step", "bytes_received_per_step"};
    static const char *const labels[] = {"bytes sent per step, max over ranks",
                                         "bytes received per step, max over ranks"};
    for (int k = 0; k < 2; k++) {
        text_append(out, "%-*s", LABEL_WIDTH, labels[k]);
        size_t i;
        json_t *job;
        json_array_foreach((json_t *)jobs, i, job)
        {
            char cell[32];
            text_append(out, "%*s", COLUMN_WIDTH, format_cell(cell, sizeof cell, CELL_BYTES, busiest_rank(job, keys[k])));
        }
        text_append(out, "\n");
    }
}

static void comparison_rows(const json_t *result, text_buffer *out)
{
    static const char *const keys[] = {"speedup", "efficiency_per_rank", "efficiency_per_core"};
    static const char *const labels[] = {"speed-up over none", "weak-scaling efficiency", "efficiency per core"};
    const json_t *rows = report_at(result, "comparison.against_none");
    if (json_array_size(rows) == 0) return;
    for (int k = 0; k < 3; k++) {
        text_append(out, "%-*s", LABEL_WIDTH, labels[k]);
        size_t i;
        json_t *row;
        json_array_foreach((json_t *)rows, i, row)
        {
            char cell[32];
            cell_format format = k == 0 ? CELL_RATIO : CELL_PERCENT;
            text_append(out, "%*s", COLUMN_WIDTH, format_cell(cell, sizeof cell, format, report_number_at(row, keys[k])));
        }
        text_append(out, "\n");
    }
}

static void header(const json_t *result, text_buffer *out)
{
    const json_t *c = json_object_get(result, "workload");
    text_append(out, "%s: %.0f parameters, %s, batch %.0f per rank, %s, seed %.0f\n",
                report_text_at(c, "model"), report_number_at(c, "parameters"), report_text_at(c, "data"),
                report_number_at(c, "batch_per_rank"), report_text_at(c, "optimizer"),
                report_number_at(c, "seed"));
    text_append(out, "%s, %s\n", report_text_at(result, "host.processor"), report_text_at(result, "hardware_note"));
    if (json_is_true(json_object_get(result, "simulated")))
        text_append(out, "SIMULATED: times are those of a model of the hardware, not measured; memory is exact.\n");
    report_emulated(result, out);
    if (json_is_true(json_object_get(result, "stopped_early"))) text_append(out, "Stopped early on request.\n");
    text_append(out, "\n");
}

/* Where the machine has been calibrated. */
static void prediction_rows(const json_t *jobs, text_buffer *out)
{
    if (!report_at(json_array_get(jobs, 0), "prediction")) return;
    row_of_jobs(jobs, "  SIMULATED: predicted", CELL_TIME, "prediction.step_median_s", out);
    row_of_jobs(jobs, "  own steps of each rank, median", CELL_TIME, "prediction.measured_s", out);
    row_of_jobs(jobs, "  prediction / own steps - 1", CELL_PERCENT, "prediction.error", out);
}

/* Where a job copies its batches ahead. */
static void copied_ahead_row(const json_t *jobs, text_buffer *out)
{
    static const char path[] = "phases.batch_copy_s.median_s";
    bool any = false;
    size_t i;
    json_t *job;
    json_array_foreach((json_t *)jobs, i, job) any = any || isfinite(report_number_at(job, path));
    if (any) row_of_jobs(jobs, "  copy of the next batch (overlapped)", CELL_TIME, path, out);
}

static void job_table(const json_t *result, text_buffer *out)
{
    const json_t *jobs = json_object_get(result, "jobs");
    text_append(out, "%-*s", LABEL_WIDTH, "");
    size_t i;
    json_t *job;
    json_array_foreach((json_t *)jobs, i, job)
    {
        char name[64];
        bool plain = strcmp(report_text_at(job, "engine"), report_text_at(job, "policy")) == 0;
        if (plain) snprintf(name, sizeof name, "%s", report_text_at(job, "engine"));
        else snprintf(name, sizeof name, "%s (%s)", report_text_at(job, "engine"), report_text_at(job, "policy"));
        text_append(out, "%*s", COLUMN_WIDTH, name);
    }
    text_append(out, "\n");
    row_of_jobs(jobs, "ranks", CELL_COUNT, "world_size", out);
    row_of_jobs(jobs, "measured steps", CELL_COUNT, "step_time.count", out);
    row_of_jobs(jobs, "step time, median", CELL_TIME, "step_time.median_s", out);
    row_of_jobs(jobs, "  p95", CELL_TIME, "step_time.p95_s", out);
    row_of_jobs(jobs, "  spread (p75-p25)/median", CELL_PERCENT, "step_time.spread", out);
    prediction_rows(jobs, out);
    row_of_jobs(jobs, "  forward", CELL_TIME, "phases.forward_s.median_s", out);
    row_of_jobs(jobs, "  backward", CELL_TIME, "phases.backward_s.median_s", out);
    row_of_jobs(jobs, "  exposed communication", CELL_TIME, "phases.exposed_communication_s.median_s", out);
    row_of_jobs(jobs, "  waiting for other ranks", CELL_TIME, "phases.waiting_s.median_s", out);
    row_of_jobs(jobs, "  optimizer", CELL_TIME, "phases.optimizer_s.median_s", out);
    row_of_jobs(jobs, "  batch and other", CELL_TIME, "rest_median_s", out);
    copied_ahead_row(jobs, out);
    row_of_jobs(jobs, "samples/s, all ranks", CELL_RATE, "throughput.samples_per_s", out);
    row_of_jobs(jobs, "  per rank", CELL_RATE, "throughput.samples_per_s_per_rank", out);
    comparison_rows(result, out);
    traffic_rows(jobs, out);
    row_of_jobs(jobs, "peak memory, max over ranks", CELL_BYTES, "memory_imbalance.maximum_bytes", out);
    row_of_jobs(jobs, "  memory imbalance, max/mean", CELL_RATIO, "memory_imbalance.maximum_over_mean", out);
    row_of_jobs(jobs, "  memory imbalance, max-min", CELL_BYTES, "memory_imbalance.maximum_minus_minimum_bytes", out);
    row_of_jobs(jobs, "loss, first measured step", CELL_LOSS, "loss_first", out);
    row_of_jobs(jobs, "  last step", CELL_LOSS, "loss_last", out);
    row_of_jobs(jobs, "accuracy on the test data", CELL_PERCENT, "accuracy", out);
}

/* ---- memory ------------------------------------------------------------------------------------ */

enum { MEMORY_COLUMN = 9 };

/* Column heads of the ledger's classes, by their names in JSON. */
static const char *short_class_name(const char *name)
{
    static const char *const names[][2] = {{"parameters", "params"},  {"gradients", "grads"},
                                           {"optimizer_state", "optim"}, {"activations", "activ"},
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

static memory_unit unit_of(const json_t *job)
{
    bool small = report_number_at(job, "memory_imbalance.maximum_bytes") < 1048576;
    return small ? (memory_unit){"KiB", 1024} : (memory_unit){"MiB", 1048576};
}

static void memory_row(const char *label, const json_t *rank, const char *which, double unit, text_buffer *out)
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

static void memory_table(const json_t *job, text_buffer *out)
{
    const json_t *ranks = json_object_get(job, "ranks");
    const json_t *classes = report_at(json_array_get(ranks, 0), "memory.classes");
    memory_unit unit = unit_of(job);
    text_append(out, "\nMemory of %s (%s), %s: the ledger's logical bytes at the peak and after the last step\n",
                report_text_at(job, "engine"), report_text_at(job, "policy"), unit.name);
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
        if (count == 1) snprintf(label, sizeof label, "%zu", first);
        else snprintf(label, sizeof label, "%zu-%zu", first, first + count - 1);
        memory_row(label, rank, "peak", unit.bytes, out);
        memory_row(label, rank, "current", unit.bytes, out);
    }
    const json_t *servers = json_object_get(job, "servers");
    for (size_t i = 0; i < json_array_size(servers); i++) {
        char label[32];
        snprintf(label, sizeof label, "s%zu", i);
        memory_row(label, json_array_get(servers, i), "peak", unit.bytes, out);
    }
    text_append(out, "Largest on rank %.0f in %s: %.3f of the mean, %.1f %s above the smallest.",
                report_number_at(job, "memory_imbalance.rank"), report_text_at(job, "memory_imbalance.phase"),
                report_number_at(job, "memory_imbalance.maximum_over_mean"),
                report_number_at(job, "memory_imbalance.maximum_minus_minimum_bytes") / unit.bytes, unit.name);
    double pss = report_number_at(json_array_get(ranks, 0), "process.proportional_bytes");
    if (!isnan(pss) && pss > 0)
        text_append(out, " Process of rank 0, measured: %.1f MiB, shared pages counted by share.", pss / 1048576);
    double used = report_number_at(json_array_get(ranks, 0), "process.device_used_bytes");
    if (!isnan(used))
        text_append(out, " Its GPU, says the driver: %.1f MiB in use by all.", used / 1048576);
    text_append(out, "\n");
}

/* A profile that was calibrated with ranks bound otherwise foretells another run. */
static void prediction_note(const json_t *result, text_buffer *out)
{
    const json_t *job = json_array_get(json_object_get(result, "jobs"), 0);
    if (!json_is_true(report_at(job, "prediction.other_binding"))) return;
    bool bound = strcmp(report_text_at(job, "binding"), "none") != 0;
    text_append(out, "\nThe prediction is of ranks that are %sbound: calibrate anew with --bind %s.\n", bound ? "not " : "",
                bound ? "core" : "none");
}

static void agreement(const json_t *result, text_buffer *out)
{
    const json_t *a = json_object_get(result, "agreement");
    if (!a) return;
    if (json_is_true(json_object_get(a, "parameters_equal")))
        text_append(out, "\nParameters of ps and ring at the end: bit-identical (XXH3 %s).\n", report_text_at(a, "hash_ps"));
    else
        text_append(
            out,
            "\nParameters of ps and ring at the end: largest difference %.3g in %s (XXH3 %s and %s); engines "
            "that add in\nanother order differ by rounding.\n",
            report_number_at(a, "largest_difference"), report_text_at(a, "largest_difference_in"),
            report_text_at(a, "hash_ps"), report_text_at(a, "hash_ring"));
}

void report_text(const json_t *result, text_buffer *out)
{
    header(result, out);
    job_table(result, out);
    report_overlap(result, out);
    prediction_note(result, out);
    agreement(result, out);
    size_t i;
    json_t *job;
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        memory_table(job, out);
        report_dataparallel_memory(job, out);
        report_updates(job, out);
        report_staleness(job, out);
    }
}

void report_plan(const json_t *plan, text_buffer *out)
{
    text_append(out, "%s: %.0f parameters, batch %.0f a rank; planned, nothing has run\n", report_text_at(plan, "model"),
                report_number_at(plan, "parameters"), report_number_at(plan, "batch_per_rank"));
    size_t i;
    json_t *job;
    json_array_foreach(json_object_get(plan, "jobs"), i, job)
    {
        memory_table(job, out);
        report_dataparallel_memory(job, out);
    }
}
