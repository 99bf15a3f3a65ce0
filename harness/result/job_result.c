#include "harness/result/run_result.h"

#include "harness/report/lost_time.h"
#include "harness/report/report.h"
#include "harness/report/significance.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static int64_t get_int(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static void add_traffic(json_t *job, const json_t *ranks)
{
    static const char *const keys[][2] = {{"bytes_sent_per_step", "bytes_sent"},
                                          {"bytes_received_per_step", "bytes_received"},
                                          {"messages_sent_per_step", "messages_sent"},
                                          {"messages_received_per_step", "messages_received"}};
    json_t *per_rank = json_array();
    size_t r;
    json_t *rank;
    json_array_foreach(ranks, r, rank)
    {
        json_t *row = json_object();
        double steps = (double)get_int(rank, "measured_steps");
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
            json_object_set_new(row, keys[i][0],
                                report_json_number((double)get_int(rank, keys[i][1]) / steps));
        json_array_append_new(per_rank, row);
    }
    json_object_set_new(job, "traffic", json_pack("{s:o}", "per_rank", per_rank));
}

void job_result_add_memory(json_t *job, const json_t *ranks)
{
    static const char peak[] = "memory.total.peak_bytes";
    double most = report_largest(ranks, peak), least = report_smallest(ranks, peak),
           mean = report_sum(ranks, peak) / (double)json_array_size(ranks);
    size_t largest = 0;
    while (report_number_at(json_array_get(ranks, largest), peak) < most) largest++;
    json_object_set_new(job, "memory_imbalance",
                        json_pack("{s:f, s:I, s:I, s:I, s:s}", "maximum_over_mean",
                                  mean > 0 ? most / mean : 1.0, "maximum_minus_minimum_bytes",
                                  (json_int_t)(most - least), "maximum_bytes", (json_int_t)most, "rank",
                                  (json_int_t)largest, "phase",
                                  report_text_at(json_array_get(ranks, largest), "memory.total.peak_phase")));
}

/* Returns the mean of the ranks' losses at `path`. If `index` is not negative, each value at `path` is an
 * array, and its element `index` is the loss. Leaves out ranks without a loss: a rank may have no samples,
 * and under some policies rank 0 computes one loss for all. */
static json_t *mean_loss(const json_t *ranks, const char *path, int index)
{
    double sum = 0;
    int numbers = 0;
    for (size_t r = 0; r < json_array_size(ranks); r++) {
        const json_t *value = report_at(json_array_get(ranks, r), path);
        if (index >= 0) value = json_array_get(value, (size_t)index);
        numbers += json_is_number(value);
        sum += json_number_value(value);
    }
    return numbers ? json_real(sum / numbers) : json_null();
}

static json_t *mean_losses(const json_t *ranks, const char *path)
{
    json_t *losses = json_array();
    int count = (int)json_array_size(report_at(json_array_get(ranks, 0), path));
    for (int i = 0; i < count; i++) json_array_append_new(losses, mean_loss(ranks, path, i));
    return losses;
}

static void add_losses(json_t *job, const json_t *ranks)
{
    json_t *losses = mean_losses(ranks, "losses"), *stretches = json_object_get(job, "stretches");
    json_object_set(job, "loss_first", json_array_size(losses) > 0 ? json_array_get(losses, 0) : json_null());
    json_object_set_new(job, "loss_last", mean_loss(ranks, "loss_last", -1));
    json_object_set_new(job, "losses", losses);
    if (json_is_object(stretches))
        json_object_set_new(stretches, "losses", mean_losses(ranks, "stretches.losses"));
}

/* Returns the timeline of a step of a rank, or NULL if the step has none. */
static json_t *timeline_of(const json_t *rank, int64_t step)
{
    const json_t *all = json_object_get(rank, "timeline");
    for (size_t i = 0; i < json_array_size(all); i++)
        if (get_int(json_array_get(all, i), "step") == step) return json_array_get(all, i);
    return NULL;
}

/* Keeps in the "timeline" of each rank only the step whose time is nearest to the job's median step time. */
static void choose_timeline(const json_t *job, const json_t *ranks)
{
    const json_t *first = json_array_get(ranks, 0), *indices = json_object_get(first, "step_index"), *step;
    double median = json_number_value(report_at(job, "step_time.median_s")), nearest = INFINITY;
    int64_t chosen = -1;
    size_t i;
    json_t *rank;
    json_array_foreach(json_object_get(job, "step_s"), i, step)
    {
        double off = fabs(json_number_value(step) - median);
        int64_t index = json_integer_value(json_array_get(indices, i));
        if (off >= nearest || !timeline_of(first, index)) continue;
        nearest = off;
        chosen = index;
    }
    json_array_foreach((json_t *)ranks, i, rank)
    {
        json_t *mine = timeline_of(rank, chosen);
        json_object_set(rank, "timeline", mine ? mine : json_null());
    }
}

status job_result_derive(json_t *job, const json_t *ranks)
{
    TRY(job_result_add_times(job, ranks));
    add_traffic(job, ranks);
    job_result_add_memory(job, ranks);
    add_losses(job, ranks);
    job_result_add_evaluations(job, ranks);
    /* The servers count skipped updates. The count that a rank has received may be too small, so the largest
     * count is used. */
    json_object_set_new(job, "updates_skipped",
                        json_integer((json_int_t)fmax(0, report_largest(ranks, "updates_skipped"))));
    return STATUS_OK;
}

status job_result_finish(json_t *job, json_t *ranks)
{
    TRY(job_result_derive(job, ranks));
    choose_timeline(job, ranks);
    json_object_set(job, "ranks", ranks);
    return STATUS_OK;
}

static double cores_of(const json_t *job, int cores)
{
    int64_t threads = get_int(job, "world_size") * get_int(job, "threads_per_rank");
    return (double)(threads < cores ? threads : cores);
}

/* Adds the efficiency of a job relative to the job `none`. The weak-scaling efficiency is null unless the two
 * jobs have the same batch per rank. The efficiency per core is null unless the ranks compute on this host's
 * cores. */
static void add_efficiency(json_t *row, const json_t *job, const json_t *none, double speedup, int cores)
{
    const char *device = report_text_at(job, "device");
    bool weak = get_int(job, "batch_per_rank") == get_int(none, "batch_per_rank"),
         on_cores = strcmp(device, "cpu") == 0 || strcmp(device, "reference") == 0;
    double per_rank = speedup / (double)get_int(job, "world_size"),
           per_core = speedup / (cores_of(job, cores) / cores_of(none, cores));
    json_object_set_new(row, "weak_scaling_efficiency", report_json_number(weak ? per_rank : NAN));
    json_object_set_new(row, "efficiency_per_core", report_json_number(on_cores ? per_core : NAN));
}

/* Compares each job with the baseline. Returns a row for each job, or no rows if the baseline did not run. */
static json_t *compare_with(const json_t *result, const char *baseline, int cores)
{
    static const char rate[] = "throughput.samples_per_s";
    const json_t *base = report_job(result, baseline);
    json_t *rows = json_array(), *job;
    size_t i;
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        if (!(report_number_at(base, rate) > 0)) break;
        double speedup = report_number_at(job, rate) / report_number_at(base, rate);
        json_t *row = json_pack("{s:O, s:o}", "name", json_object_get(job, "name"), "speedup",
                                report_json_number(speedup));
        if (strcmp(baseline, "none") == 0) add_efficiency(row, job, base, speedup, cores);
        json_array_append_new(rows, row);
    }
    return rows;
}

/* ---- slowdown of computation by communication ------------------------------------------------- */

/* Returns the seconds per step of the forward and the backward pass, as the mean over the ranks (dp: of rank
 * 0) and over the steps of turn `turn`. The steps of a job are divided into RUN_TURNS turns. */
static double computed(const json_t *job, int turn)
{
    const json_t *ranks = json_object_get(job, "ranks");
    double sum = 0, count = 0, known;
    for (size_t r = 0; r < report_ranks_of_step(job, ranks); r++) {
        const json_t *rank = json_array_get(ranks, r);
        sum += report_steps_sum(rank, "forward_s", turn, RUN_TURNS, &known) +
               report_steps_sum(rank, "backward_s", turn, RUN_TURNS, &known);
        count += known;
    }
    return count > 0 ? sum / count : NAN;
}

/* Returns "slowdown", which is null for jobs without exchange. In virtual time the simulation gives it. On
 * real devices the job is compared with the job `isolated`, which has the same ranks without communication,
 * and took turns with the other jobs: by how many seconds per step `job` computes longer than `isolated`, as
 * the mean over the turns. The 95 % interval of the mean uses Student's t with RUN_TURNS - 1 degrees of
 * freedom. */
static json_t *slowdown_of(const json_t *job, const json_t *isolated)
{
    double differences[RUN_TURNS], mean = 0, squares = 0;
    json_t *modeled = (json_t *)report_at(job, "phases.slowdown_s.mean_s");
    if (!report_communicates(job)) return json_null();
    if (json_is_number(modeled)) return json_pack("{s:O, s:n, s:n}", "mean_s", modeled, "low_s", "high_s");
    if (!isolated || get_int(job, "world_size") != get_int(isolated, "world_size")) return json_null();
    for (int t = 0; t < RUN_TURNS; t++) {
        differences[t] = computed(job, t) - computed(isolated, t);
        mean += differences[t] / RUN_TURNS;
    }
    if (!isfinite(mean)) return json_null();
    for (int t = 0; t < RUN_TURNS; t++) squares += (differences[t] - mean) * (differences[t] - mean);
    double half = student_quantile(RUN_TURNS - 1) * sqrt(squares / (RUN_TURNS - 1) / RUN_TURNS);
    return json_pack("{s:f, s:f, s:f}", "mean_s", mean, "low_s", mean - half, "high_s", mean + half);
}

/* Returns "lost" (harness/report/lost_time.h). It is null for jobs without exchange, if `none` did not
 * run with the same batch per rank, or if a rank has only a stage of the model. */
static json_t *lost_time_of(const json_t *job, const json_t *none, const json_t *isolated)
{
    bool staged = json_object_get(job, "pipeline") || json_object_get(job, "remote_stage"),
         alike = none && get_int(job, "batch_per_rank") == get_int(none, "batch_per_rank");
    if (!report_communicates(job) || !alike || staged) return json_null();
    lost_time l = lost_time_between(job, none, isolated, json_is_true(json_object_get(job, "simulated")));
    return lost_time_to_json(&l);
}

void job_result_compare(json_t *result, int cores, bool in_turns)
{
    const json_t *none = report_job(result, "none"),
                 *isolated = in_turns ? report_job(result, "isolated") : NULL;
    size_t i;
    json_t *job;
    if (isnan(report_phase(isolated, "forward_s"))) isolated = NULL; /* A run was stopped. */
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        json_object_set_new(job, "slowdown", slowdown_of(job, isolated));
        json_object_set_new(job, "lost", lost_time_of(job, none, isolated));
    }
    json_object_set_new(result, "comparison",
                        json_pack("{s:I, s:o, s:o}", "cores", (json_int_t)cores, "against_none",
                                  compare_with(result, "none", cores), "against_all_cores",
                                  compare_with(result, "all-cores", cores)));
}
