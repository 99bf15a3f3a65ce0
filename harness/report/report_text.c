#include "harness/report/lost_time.h"
#include "harness/report/report_impl.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Returns the largest figure of a rank. A median over the ranks would hide the load of a rank that also runs
 * the server. */
static double busiest_rank(const json_t *job, const char *key)
{
    return report_largest(report_at(job, "traffic.per_rank"), key);
}

/* Returns the sum of the figure `key` over all ranks, divided by the number of measured steps of all ranks.
 * Returns NaN if the sum or the number of steps is 0. */
static double mean_per_step(const json_t *job, const char *key)
{
    const json_t *ranks = json_object_get(job, "ranks");
    double sum = report_sum(ranks, key), steps = report_sum(ranks, "measured_steps");
    return sum > 0 && steps > 0 ? sum / steps : NAN;
}

double report_longest_wait(const json_t *job, const char *path)
{
    const json_t *ranks = json_object_get(job, "ranks");
    double most = 0, slowest = NAN;
    for (size_t late = 0; late < json_array_size(ranks); late++) {
        char key[32];
        double sum = 0, steps = 0;
        snprintf(key, sizeof key, "%zu", late);
        for (size_t r = 0; r < report_ranks_of_step(job, ranks); r++) {
            const json_t *rank = json_array_get(ranks, r);
            sum += json_number_value(json_object_get(json_object_get(rank, "waited_for_s"), key));
            steps += report_number_at(rank, "measured_steps");
        }
        if (!(sum / steps > most)) continue;
        most = sum / steps;
        slowest = (double)late;
    }
    return isnan(slowest) || strcmp(path, "rank") == 0 ? slowest : most;
}

static const report_row step_rows[] = {
    {"ranks", CELL_COUNT, .path = "world_size"},
    {"threads per rank", CELL_COUNT, .path = "threads_per_rank"},
    {"batch per rank", CELL_COUNT, .path = "batch_per_rank"},
    {"trained steps", CELL_COUNT, .path = "trained_steps"},
    {"measured steps", CELL_COUNT, .path = "step_time.count"},
    {"step time, mean", CELL_TIME, .path = "step_time.mean_s"},
    {"  median", CELL_TIME, .path = "step_time.median_s"},
    {"  p95", CELL_TIME, .path = "step_time.p95_s"},
    {"  spread (p75-p25)/median", CELL_PERCENT, .path = "step_time.spread"},
    /* Only a run on a calibrated machine has the following rows. */
    {"  SIMULATED: predicted", CELL_TIME, .path = "prediction.step_median_s", .optional = true},
    {"  own steps, median", CELL_TIME, .path = "prediction.measured_s", .optional = true},
    {"  prediction / own steps - 1", CELL_PERCENT, .path = "prediction.error", .optional = true},
    {"a rank's step, mean", CELL_TIME, .path = "phases.step_s.mean_s"},
    {"  data", CELL_TIME, .path = "phases.data_s.mean_s"},
    {"  forward", CELL_TIME, .path = "phases.forward_s.mean_s"},
    {"  backward", CELL_TIME, .path = "phases.backward_s.mean_s"},
    {"  exposed communication", CELL_TIME, .path = "phases.exposed_communication_s.mean_s"},
    {"  waiting for other ranks", CELL_TIME, .path = "phases.waiting_s.mean_s"},
    {"  optimizer", CELL_TIME, .path = "phases.optimizer_s.mean_s"},
    {"  other", CELL_TIME, .path = "phases.other_s.mean_s"},
    {"slowdown by communication", CELL_TIME, .path = "slowdown.mean_s"},
    {"  95 % interval, from", CELL_TIME, .path = "slowdown.low_s", .optional = true},
    {"    to", CELL_TIME, .path = "slowdown.high_s", .optional = true},
    {"off the CPU, compute thread", CELL_TIME, .path = "off_cpu_s", .value = mean_per_step, .optional = true},
    {"CPU time of a rank's agents", CELL_TIME, .path = "agents_cpu_s", .value = mean_per_step,
     .optional = true},
    {"updates on other threads", CELL_TIME, .path = "update_aside_s", .value = mean_per_step,
     .optional = true},
    {"copy of the next batch", CELL_TIME, .path = "phases.batch_copy_s.mean_s", .optional = true},
    {"samples/s, all ranks", CELL_RATE, .path = "throughput.samples_per_s"},
    {"  per rank", CELL_RATE, .path = "throughput.samples_per_s_per_rank"}};
static const report_row comparison_rows[] = {
    {"speed-up over none", CELL_RATIO, .path = "speedup"},
    {"weak-scaling efficiency", CELL_PERCENT, .path = "weak_scaling_efficiency"},
    {"efficiency per core", CELL_PERCENT, .path = "efficiency_per_core", .optional = true}};
static const report_row all_cores_row[] = {{"speed-up over none (all cores)", CELL_RATIO, .path = "speedup"}};
static const report_row job_rows[] = {
    {"bytes sent per step, max", CELL_BYTES, .path = "bytes_sent_per_step", .value = busiest_rank},
    {"bytes received per step, max", CELL_BYTES, .path = "bytes_received_per_step", .value = busiest_rank},
    {"peak memory, max over ranks", CELL_BYTES, .path = "memory_imbalance.maximum_bytes"},
    {"  memory imbalance, max/mean", CELL_RATIO, .path = "memory_imbalance.maximum_over_mean"},
    {"  memory imbalance, max-min", CELL_BYTES, .path = "memory_imbalance.maximum_minus_minimum_bytes"},
    {"loss, first measured step", CELL_LOSS, .path = "loss_first"},
    {"  last step", CELL_LOSS, .path = "loss_last"},
    {"accuracy on the test data", CELL_PERCENT, .path = "accuracy"}};
static const report_row communication_rows[] = {
    {"total", CELL_TIME, .path = "phases.communication_s.mean_s"},
    {"  hidden while computing", CELL_TIME, .path = "phases.hidden_while_computing_s.mean_s"},
    {"  hidden while waiting for another rank", CELL_TIME, .path = "phases.hidden_while_waiting_s.mean_s"},
    {"  exposed (computation waited for it)", CELL_TIME, .path = "phases.exposed_communication_s.mean_s"},
    {"waiting for other ranks", CELL_TIME, .path = "phases.waiting_s.mean_s"},
    {"  of it, for the rank waited for longest", CELL_TIME, .path = "s", .value = report_longest_wait,
     .optional = true},
    {"    that rank", CELL_COUNT, .path = "rank", .value = report_longest_wait, .optional = true},
    {"first all-reduce to end of backward (PyTorch)", CELL_TIME,
     .path = "phases.first_to_backward_end_s.mean_s"},
    {"last bucket, bytes", CELL_BYTES, .path = "ranks.0.last_bucket_bytes"},
    {"  from its start to its end", CELL_TIME, .path = "phases.last_bucket_s.mean_s"},
    {"  bound: its bytes over the emulated link", CELL_TIME, .path = "ranks.0.last_bucket_bound_s",
     .optional = true}};

/* Writes the lost time of each job, and its causes. */
static void lost_rows(report_layout layout, const json_t *jobs, text_buffer *out)
{
    static const report_row total = {"lost against one rank alone", CELL_TIME, .path = "lost.total_s",
                                     .optional = true};
    report_rows(layout, jobs, &total, 1, out);
    for (int c = 0; c < LOST_CAUSES; c++) {
        char label[40], path[40];
        snprintf(label, sizeof label, "  by %s", lost_causes[c].name);
        snprintf(path, sizeof path, "lost.%s", lost_causes[c].key);
        if (report_largest(jobs, path) < 5e-10 && report_smallest(jobs, path) > -5e-10) continue;
        report_rows(layout, jobs, &(report_row){label, CELL_TIME, .path = path, .optional = true}, 1, out);
    }
}

static void comparison_table(report_layout layout, const json_t *result, text_buffer *out)
{
    const json_t *none = report_at(result, "comparison.against_none"),
                 *all_cores = report_at(result, "comparison.against_all_cores");
    if (json_array_size(none) > 0) report_rows(layout, none, comparison_rows, COUNT_OF(comparison_rows), out);
    if (json_array_size(all_cores) > 0) report_rows(layout, all_cores, all_cores_row, 1, out);
    if (json_array_size(none) > 0 && json_is_true(json_object_get(result, "oversubscribed")))
        text_append(out, "  more ranks than devices: the cost of the implementation, not of the scheme on "
                         "separate devices\n");
}

static void job_table(const json_t *result, text_buffer *out)
{
    const json_t *jobs = json_object_get(result, "jobs");
    int count = (int)json_array_size(jobs), width = count > 2 ? 50 / count : 18;
    report_layout layout = {30, width};
    report_heads(layout, jobs, "", out);
    report_rows(layout, jobs, step_rows, COUNT_OF(step_rows), out);
    lost_rows(layout, jobs, out);
    comparison_table(layout, result, out);
    report_rows(layout, jobs, job_rows, COUNT_OF(job_rows), out);
    report_target_rows(layout, jobs, CELL_TIME, "time to loss %g", "time to %g %% accuracy", out);
}

static void communication_table(const json_t *result, text_buffer *out)
{
    static const report_layout layout = {46, 17};
    bool emulated = json_is_true(json_object_get(result, "emulated"));
    json_t *jobs = json_array(), *job;
    size_t i;
    json_array_foreach(json_object_get(result, "jobs"), i,
                       job) if (report_number_at(job, "world_size") >= 2 && report_communicates(job))
        json_array_append(jobs, job);
    if (json_array_size(jobs) > 0) {
        text_append(out, "\n");
        report_heads(layout, jobs,
                     emulated ? "Communication per step (emulated link)" : "Communication per step", out);
        report_rows(layout, jobs, communication_rows, COUNT_OF(communication_rows), out);
    }
    json_decref(jobs);
}

/* Writes the host time of data loaders and of DataParallel in virtual time, with a line per part. */
static void host_costs(const json_t *job, text_buffer *out)
{
    const json_t *host = json_object_get(job, "host_costs");
    size_t i;
    json_t *part;
    if (!host) return;
    text_append(out, "\n%s: host time per step of parts that work in parallel; slowest: %s\n",
                report_text_at(job, "policy"), report_text_at(host, "slowest"));
    json_array_foreach(json_object_get(host, "parts"), i, part)
    {
        text_append(out, "%-42s%18s\n", report_text_at(part, "name"),
                    report_value(CELL_TIME, report_number_at(part, "time_s")).text);
    }
}

/* Writes the times of the stages. Results of earlier versions have no times of stages. */
static void stage_times(const json_t *stages, bool on_devices, text_buffer *out)
{
    static const char *const times[] = {"forward_s", "backward_s", "exposed_communication_s", "waiting_s"};
    size_t s;
    json_t *stage;
    if (!json_object_get(json_array_get(stages, 0), times[0])) return;
    text_append(out, "\n%-12s%15s%15s%15s%15s\n", "per step", "forward", "backward", "exposed comm.",
                "waiting");
    json_array_foreach(stages, s, stage)
    {
        text_append(out, on_devices ? "device %-5zu" : "stage %-6zu", s);
        for (size_t i = 0; i < COUNT_OF(times); i++)
            report_cell(15, CELL_TIME, report_number_at(stage, times[i]), out);
        text_append(out, "\n");
    }
}

static void pipeline_tables(const json_t *job, text_buffer *out)
{
    const json_t *p = json_object_get(job, "pipeline"), *stages = json_object_get(p, "stages");
    size_t s;
    json_t *stage;
    if (!p) return;
    text_append(out, "\n%-5s %-30s %11s %5s %11s %7s\n", "stage", "begins at", "parameters", "live",
                "activations", "idle");
    json_array_foreach(stages, s, stage)
    {
        text_append(out, "%5zu %-30s %11.0f %5.0f %11s %5.1f %%\n", s, report_text_at(stage, "begins_at"),
                    report_number_at(stage, "parameters"), report_number_at(stage, "live_micro_batches"),
                    report_value(CELL_BYTES, report_number_at(stage, "activations_peak_bytes")).text,
                    100 * report_number_at(stage, "idle"));
    }
    text_append(out, "live: micro-batches whose activations a stage keeps; idle: of a step without data, "
                     "optimizer, other\n");
    stage_times(stages, strcmp(report_text_at(p, "on"), "devices") == 0, out);
}

/* Warns if the ranks were bound in this run but not during the calibration of the profile, or the other way
 * around. */
static void prediction_note(const json_t *result, text_buffer *out)
{
    const json_t *job = json_array_get(json_object_get(result, "jobs"), 0);
    if (!json_is_true(report_at(job, "prediction.other_binding"))) return;
    bool bound = strcmp(report_text_at(job, "binding"), "none") != 0;
    text_append(out, "\nThe prediction is of ranks that are %sbound: calibrate anew with --bind %s.\n",
                bound ? "not " : "", bound ? "core" : "none");
}

/* Writes whether the first gradients agree. Results of earlier versions do not have this comparison. */
static void first_gradient(const json_t *g, text_buffer *out)
{
    const char *bound = report_text_at(g, "bound"), *in = report_text_at(g, "largest_share_in");
    /* The share is null if a value is not finite, or if the averages of an element differ although the
     * element is 0 in the gradients of all ranks. */
    double share = report_number_at(g, "largest_share_of_bound");
    char factor[32] = "beyond any multiple of";
    if (!g) return;
    text_append(out, "\nAveraged gradients of ps and ring in the first step: ");
    if (!json_is_true(json_object_get(g, "compared")))
        text_append(out, "not compared: %s.\n", report_text_at(g, "reason"));
    else if (json_is_true(json_object_get(g, "bit_identical")))
        text_append(out, "bit-identical.\n");
    else if (json_is_true(json_object_get(g, "within_bound")))
        text_append(out,
                    "the same but for the order of sums; largest difference %.3g of the\nbound %s, in %s.\n",
                    share, bound, in);
    else {
        if (!isnan(share)) snprintf(factor, sizeof factor, "%.3g times", share);
        text_append(out,
                    "DIFFERENT by more than orders of sums can be; largest difference %s\n"
                    "the bound %s, in %s.\n",
                    factor, bound, in);
    }
}

static void agreement(const json_t *result, text_buffer *out)
{
    const json_t *a = json_object_get(result, "agreement");
    if (!a) return;
    first_gradient(json_object_get(a, "first_gradient"), out);
    if (json_is_true(json_object_get(a, "parameters_equal")))
        text_append(out, "\nParameters of ps and ring at the end: bit-identical (XXH3 %s).\n",
                    report_text_at(a, "hash_ps"));
    else
        text_append(
            out,
            "\nParameters of ps and ring at the end: largest difference %.3g in %s (XXH3 %s and %s); engines "
            "that add in\nanother order differ by rounding.\n",
            report_number_at(a, "largest_difference"), report_text_at(a, "largest_difference_in"),
            report_text_at(a, "hash_ps"), report_text_at(a, "hash_ring"));
}

/* Writes the operations that a library of the device refused. */
static void fallback_lines(const json_t *job, text_buffer *out)
{
    const json_t *first = json_array_get(json_object_get(job, "ranks"), 0);
    size_t i;
    json_t *f;
    json_array_foreach(json_object_get(first, "fallbacks"), i, f)
        text_append(out, "\n%s runs slower than it could, in %.0f place%s: %s (%s: %s).\n",
                    report_text_at(f, "operation"), report_number_at(f, "count"),
                    report_number_at(f, "count") == 1 ? "" : "s", report_text_at(f, "instead"),
                    report_text_at(f, "shape"), report_text_at(f, "reason"));
}

/* Writes what a report says of one job after the tables of all jobs. */
static void job_details(const json_t *job, text_buffer *out)
{
    report_memory(job, out);
    report_transports(job, out);
    fallback_lines(job, out);
    report_staleness(job, out);
}

static void each_job(const json_t *result, void (*write)(const json_t *job, text_buffer *out),
                     text_buffer *out)
{
    const json_t *jobs = json_object_get(result, "jobs");
    for (size_t i = 0; i < json_array_size(jobs); i++) write(json_array_get(jobs, i), out);
}

void report_tables(const json_t *result, text_buffer *out)
{
    report_header(result, out);
    job_table(result, out);
    each_job(result, report_notes, out);
    communication_table(result, out);
    each_job(result, host_costs, out);
    each_job(result, pipeline_tables, out);
    prediction_note(result, out);
    agreement(result, out);
    each_job(result, job_details, out);
}

void report_plan(const json_t *plan, text_buffer *out)
{
    report_workload(plan, out);
    text_append(out, "; planned, nothing has run\n");
    each_job(plan, report_memory, out);
}
