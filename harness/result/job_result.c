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
    static const char *const keys[] = {"bytes_sent", "bytes_received", "messages_sent", "messages_received"};
    json_t *traffic = json_object(), *per_rank = json_array();
    size_t r;
    json_t *rank;
    json_array_foreach(ranks, r, rank)
    {
        json_t *row = json_object();
        double steps = (double)get_int(rank, "measured_steps");
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
            char name[64] = "";
            strcat(strcat(name, keys[i]), "_per_step");
            json_object_set_new(row, name, report_json_number((double)get_int(rank, keys[i]) / steps));
        }
        json_array_append_new(per_rank, row);
    }
    json_object_set_new(traffic, "per_rank", per_rank);
    json_object_set_new(job, "traffic", traffic);
}

void job_result_add_memory(json_t *job, const json_t *ranks)
{
    int64_t most = -1, least = INT64_MAX, sum = 0;
    size_t largest = 0;
    for (size_t r = 0; r < json_array_size(ranks); r++) {
        int64_t peak = get_int(report_at(json_array_get(ranks, r), "memory.total"), "peak_bytes");
        sum += peak;
        if (peak < least) least = peak;
        if (peak <= most) continue;
        most = peak;
        largest = r;
    }
    double mean = (double)sum / (double)json_array_size(ranks);
    json_object_set_new(job, "memory_imbalance",
                        json_pack("{s:f, s:I, s:I, s:I, s:s}", "maximum_over_mean",
                                  mean > 0 ? (double)most / mean : 1.0, "maximum_minus_minimum_bytes",
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

/* Keeps in the "timeline" of each rank only the step whose time is nearest to the job's median step time. */
static void choose_timeline(const json_t *job, const json_t *ranks)
{
    const json_t *steps = json_object_get(job, "step_s"),
                 *indices = json_object_get(json_array_get(ranks, 0), "step_index");
    double median = json_number_value(json_object_get(json_object_get(job, "step_time"), "median_s")),
           nearest = INFINITY;
    int64_t chosen = -1;
    size_t i, r;
    json_t *rank, *timeline;
    json_array_foreach(json_object_get(json_array_get(ranks, 0), "timeline"), i, timeline)
    {
        for (size_t s = 0; s < json_array_size(steps); s++) {
            double off = fabs(json_number_value(json_array_get(steps, s)) - median);
            int64_t index = json_integer_value(json_array_get(indices, s));
            if (index != get_int(timeline, "step") || off >= nearest) continue;
            nearest = off;
            chosen = index;
        }
    }
    json_array_foreach((json_t *)ranks, r, rank)
    {
        json_t *mine = json_null();
        json_array_foreach(json_object_get(rank, "timeline"), i, timeline)
        {
            if (get_int(timeline, "step") == chosen) mine = json_incref(timeline);
        }
        json_object_set_new(rank, "timeline", mine);
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

const json_t *run_result_job(const json_t *result, const char *name)
{
    return report_find(json_object_get(result, "jobs"), "name", name);
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
    const json_t *base = run_result_job(result, baseline);
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

/* Returns the seconds per step of the forward and the backward pass, as the mean over the ranks and over the
 * steps of turn `turn`. The steps of a job are divided into RUN_TURNS turns. */
static double computed(const json_t *job, int turn)
{
    const json_t *ranks = json_object_get(job, "ranks"), *rank;
    double sum = 0, count = 0, known;
    size_t r;
    json_array_foreach(ranks, r, rank)
    {
        report_steps s = report_steps_of(rank);
        sum += report_steps_sum(&s, "forward_s", turn, RUN_TURNS, &known) +
               report_steps_sum(&s, "backward_s", turn, RUN_TURNS, &known);
        count += known;
    }
    return count > 0 ? sum / count : NAN;
}

/* Returns by how many seconds per step `job` computes longer than `isolated`, as the mean over the turns. The
 * 95 % interval of the mean uses Student's t with RUN_TURNS - 1 degrees of freedom. */
static json_t *slowdown_against(const json_t *job, const json_t *isolated)
{
    double differences[RUN_TURNS], mean = 0, squares = 0;
    for (int t = 0; t < RUN_TURNS; t++) {
        differences[t] = computed(job, t) - computed(isolated, t);
        mean += differences[t] / RUN_TURNS;
    }
    if (!isfinite(mean)) return json_null();
    for (int t = 0; t < RUN_TURNS; t++) squares += (differences[t] - mean) * (differences[t] - mean);
    double half = student_quantile(RUN_TURNS - 1) * sqrt(squares / (RUN_TURNS - 1) / RUN_TURNS);
    return json_pack("{s:f, s:f, s:f}", "mean_s", mean, "low_s", mean - half, "high_s", mean + half);
}

/* Adds "slowdown". In virtual time the simulation gives the slowdown. On real devices the job is compared
 * with the job `isolated`, which has the same ranks without communication, and took turns with the other
 * jobs. */
static void add_slowdown(const json_t *result, const json_t *isolated)
{
    size_t i;
    json_t *job;
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        json_t *modeled = (json_t *)report_at(job, "phases.slowdown_s.mean_s");
        bool exchanges =
            isolated && job != isolated && get_int(job, "world_size") == get_int(isolated, "world_size");
        json_object_set_new(job, "slowdown",
                            json_is_number(modeled)
                                ? json_pack("{s:O, s:n, s:n}", "mean_s", modeled, "low_s", "high_s")
                            : exchanges ? slowdown_against(job, isolated)
                                        : json_null());
    }
}

/* Adds "lost" (harness/report/lost_time.h). It is null for jobs without exchange, if `none` did not
 * run with the same batch per rank, or if a rank has only a stage of the model. */
static void add_lost_time(const json_t *result, const json_t *isolated)
{
    const json_t *none = run_result_job(result, "none");
    size_t i;
    json_t *job;
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        bool staged = json_object_get(job, "pipeline") || json_object_get(job, "remote_stage"),
             alike = none && get_int(job, "batch_per_rank") == get_int(none, "batch_per_rank"),
             exchanges = strcmp(report_text_at(job, "engine"), "none") != 0;
        lost_time l = {.step_s = NAN};
        if (exchanges && alike && !staged)
            l = lost_time_between(job, none, isolated, json_is_true(json_object_get(job, "simulated")));
        json_object_set_new(job, "lost", lost_time_to_json(&l));
    }
}

void job_result_compare(json_t *result, int cores, bool in_turns)
{
    const json_t *isolated = in_turns ? run_result_job(result, "isolated") : NULL;
    if (isnan(report_number_at(isolated, "phases.forward_s.mean_s")))
        isolated = NULL; /* A run was stopped. */
    add_slowdown(result, isolated);
    add_lost_time(result, isolated);
    json_object_set_new(result, "comparison",
                        json_pack("{s:I, s:o, s:o}", "cores", (json_int_t)cores, "against_none",
                                  compare_with(result, "none", cores), "against_all_cores",
                                  compare_with(result, "all-cores", cores)));
}
