/* Summarizes the runs of one configuration, or a single run: medians, intervals and the verdict on ps
 * against ring. */
#include "harness/report/report.h"
#include "harness/report/significance.h"
#include "harness/run/run_result.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define INTERVAL_SEED 1
enum { TURNS = 6 };

static status no_memory(void)
{
    return fail(STATUS_SYSTEM, "no memory for the verdict of the runs");
}

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static const json_t *job_named(const json_t *run, const char *name)
{
    size_t i;
    json_t *job;
    json_array_foreach(json_object_get(run, "jobs"), i,
                       job) if (strcmp(report_text_at(job, "name"), name) == 0) return job;
    return NULL;
}

/* ---- medians and intervals --------------------------------------------------------------------------- */

/* Computes {"median": .., "low": .., "high": ..} of the figure at `path` of a job over the runs. */
static status summary(const json_t *runs, const char *name, const char *path, json_t **out)
{
    int count = 0;
    size_t i;
    json_t *run;
    interval of = {NAN, NAN};
    double *values = malloc((json_array_size(runs) + 1) * sizeof *values);
    if (!values) return no_memory();
    json_array_foreach(runs, i, run)
    {
        double value = report_number_at(job_named(run, name), path);
        if (!isnan(value)) values[count++] = value;
    }
    status rc = count > 1 ? bootstrap_median(values, count, INTERVAL_SEED, &of) : STATUS_OK;
    *out = json_pack("{s:o, s:o, s:o}", "median", number(median_of(values, count)), "low", number(of.low),
                     "high", number(of.high));
    free(values);
    return rc != STATUS_OK || *out ? rc : no_memory();
}

/* Copies a job without its ranks and its steps. */
static json_t *job_in_short(const json_t *job)
{
    static const char *const keys[] = {
        "name",       "engine",    "policy",   "step_time",        "phases",
        "throughput", "loss_last", "accuracy", "memory_imbalance", "parameter_hash"};
    json_t *out = json_object();
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        json_object_set(out, keys[i], json_object_get(job, keys[i]));
    return out;
}

static json_t *runs_in_short(const json_t *runs)
{
    json_t *out = json_array(), *run, *job;
    size_t i, j;
    json_array_foreach(runs, i, run)
    {
        json_t *jobs = json_array();
        json_array_foreach(json_object_get(run, "jobs"), j, job)
            json_array_append_new(jobs, job_in_short(job));
        json_array_append_new(
            out, json_pack("{s:O, s:o}", "started_at", json_object_get(run, "started_at"), "jobs", jobs));
    }
    return out;
}

/* Returns the sum of the jobs' median step times. */
static double step_of_all(const json_t *run)
{
    double sum = 0;
    size_t j;
    json_t *job;
    json_array_foreach(json_object_get(run, "jobs"), j, job) sum +=
        report_number_at(job, "step_time.median_s");
    return sum;
}

/* Returns the run with the median time. If the number of runs is even, returns the faster of the two in
 * the middle. */
static size_t middle(const json_t *runs)
{
    size_t count = json_array_size(runs);
    for (size_t i = 0; i < count; i++) {
        double mine = step_of_all(json_array_get(runs, i));
        size_t faster = 0;
        for (size_t j = 0; j < count; j++) {
            double other = step_of_all(json_array_get(runs, j));
            faster += other < mine || (other == mine && j < i);
        }
        if (faster == (count - 1) / 2) return i;
    }
    return 0;
}

status run_result_summarize(const json_t *runs, json_t *result)
{
    size_t shown = middle(runs), j;
    json_t *jobs = json_array(), *job;
    status rc = jobs ? STATUS_OK : no_memory();
    json_array_foreach(json_object_get(result, "jobs"), j, job)
    {
        json_t *step = NULL, *samples = NULL;
        const char *name = report_text_at(job, "name");
        if (rc == STATUS_OK) rc = summary(runs, name, "step_time.median_s", &step);
        if (rc == STATUS_OK) rc = summary(runs, name, "throughput.samples_per_s", &samples);
        if (rc == STATUS_OK)
            json_array_append_new(
                jobs, json_pack("{s:s, s:o, s:o}", "name", name, "step_s", step, "samples_per_s", samples));
    }
    json_t *repetitions =
        rc == STATUS_OK ? json_pack("{s:I, s:I, s:O, s:o}", "count", (json_int_t)json_array_size(runs),
                                    "shown", (json_int_t)shown, "jobs", jobs, "runs", runs_in_short(runs))
                        : NULL;
    if (rc == STATUS_OK && json_object_set_new(result, "repetitions", repetitions) != 0) rc = no_memory();
    json_decref(jobs);
    return rc;
}

status run_result_repeat(const json_t *runs, json_t **out)
{
    *out = json_deep_copy(json_array_get(runs, middle(runs)));
    status rc = *out ? run_result_summarize(runs, *out) : no_memory();
    if (rc == STATUS_OK) rc = run_result_judge(*out, false);
    if (rc == STATUS_OK) return STATUS_OK;
    json_decref(*out);
    *out = NULL;
    return rc;
}

/* ---- the verdict -------------------------------------------------------------------------------------- */

/* Computes the seconds per sample in each turn of a job's steps, scaled to sum to the seconds per sample
 * of all steps. Returns false if there are too few steps. */
static bool cut_in_turns(const json_t *job, double turns[TURNS])
{
    report_steps steps = report_steps_of(job);
    double count, known, all = report_steps_sum(&steps, "step_s", 0, 1, &count);
    if (count < TURNS || !(all > 0)) return false;
    for (int t = 0; t < TURNS; t++)
        turns[t] = report_steps_sum(&steps, "step_s", t, TURNS, &known) / all /
                   report_number_at(job, "throughput.samples_per_s");
    return true;
}

/* Collects the samples per second of ps and ring. Returns the number of runs that have both. */
static int rates_of_runs(const json_t *runs, double *ps, double *ring)
{
    int count = 0;
    size_t i;
    json_t *run;
    json_array_foreach(runs, i, run)
    {
        ps[count] = report_number_at(job_named(run, "ps"), "throughput.samples_per_s");
        ring[count] = report_number_at(job_named(run, "ring"), "throughput.samples_per_s");
        count += ps[count] > 0 && ring[count] > 0;
    }
    return count;
}

static json_t *verdict_of(bool ring_first, double factor, interval of, const char *over, int count)
{
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:s?, s:i, s:n, s:n, s:n, s:n}", "faster",
                     ring_first ? "ring" : "ps", "slower", ring_first ? "ps" : "ring", "factor",
                     number(factor), "low", number(of.low), "high", number(of.high), "over", over, "count",
                     count, "shown", "p", "detectable", "runs_for_5_percent");
}

static status add_test(json_t *verdict, const double *slower, const double *faster, int count)
{
    significance found;
    TRY(significance_of_rounds(slower, faster, count, &found));
    json_object_set_new(verdict, "detectable", number(found.detectable));
    json_object_set_new(verdict, "runs_for_5_percent",
                        found.runs_for_5 > 0 ? json_integer(found.runs_for_5) : json_null());
    if (found.verdict == SIGNIFICANCE_TOO_FEW) return STATUS_OK;
    json_object_set_new(verdict, "p", number(found.p));
    json_object_set_new(verdict, "shown", json_boolean(found.verdict == SIGNIFICANCE_GREATER));
    return STATUS_OK;
}

typedef struct judged {
    double ps, ring; /* samples per second */
    const char *over;
    int count;
    interval factor; /* interval of the factor of the faster over the slower engine */
} judged;

static status judge_runs(const json_t *runs, double *ps, double *ring, judged *j)
{
    j->count = rates_of_runs(runs, ps, ring);
    j->over = j->count > 1 ? "runs" : NULL;
    double *copy = malloc((size_t)j->count * sizeof *copy + 1);
    if (!copy) return no_memory();
    j->ps = median_of(memcpy(copy, ps, (size_t)j->count * sizeof *copy), j->count);
    j->ring = median_of(memcpy(copy, ring, (size_t)j->count * sizeof *copy), j->count);
    free(copy);
    bool ring_first = j->ring > j->ps;
    if (j->count < 2) return STATUS_OK;
    return bootstrap_ratio(ring_first ? ps : ring, j->count, ring_first ? ring : ps, j->count, true,
                           INTERVAL_SEED, &j->factor);
}

static status judge_run(const json_t *result, bool in_turns, judged *j)
{
    const json_t *ps = job_named(result, "ps"), *ring = job_named(result, "ring");
    double of_ps[TURNS], of_ring[TURNS];
    j->ps = report_number_at(ps, "throughput.samples_per_s");
    j->ring = report_number_at(ring, "throughput.samples_per_s");
    if (json_is_true(json_object_get(result, "simulated")))
        j->over = "virtual time";
    else if (in_turns && cut_in_turns(ps, of_ps) && cut_in_turns(ring, of_ring)) {
        bool ring_first = j->ring > j->ps;
        j->over = "turns";
        j->count = TURNS;
        j->factor = ratio_of_sums_interval(ring_first ? of_ring : of_ps, ring_first ? of_ps : of_ring, TURNS);
    }
    return STATUS_OK;
}

static status judge(const json_t *result, bool in_turns, double *ps, double *ring, json_t **out)
{
    const json_t *runs = report_at(result, "repetitions.runs");
    judged j = {.factor = {NAN, NAN}};
    TRY(runs ? judge_runs(runs, ps, ring, &j) : judge_run(result, in_turns, &j));
    if (!(j.ps > 0) || !(j.ring > 0)) return STATUS_OK; /* ps or ring did not run, or was not measured */
    bool ring_first = j.ring > j.ps;
    *out = verdict_of(ring_first, ring_first ? j.ring / j.ps : j.ps / j.ring, j.factor, j.over, j.count);
    if (!*out) return no_memory();
    json_object_set_new(*out, "samples_per_s", json_pack("{s:f, s:f}", "ps", j.ps, "ring", j.ring));
    return runs && j.count > 1 ? add_test(*out, ring_first ? ps : ring, ring_first ? ring : ps, j.count)
                               : STATUS_OK;
}

status run_result_judge(json_t *result, bool in_turns)
{
    size_t most = json_array_size(report_at(result, "repetitions.runs")) + 1;
    double *memory = malloc(2 * most * sizeof *memory);
    json_t *verdict = NULL;
    status rc = memory ? judge(result, in_turns, memory, memory + most, &verdict) : no_memory();
    free(memory);
    if (json_object_set_new(result, "verdict", verdict ? verdict : json_null()) != 0 && rc == STATUS_OK)
        rc = no_memory();
    return rc;
}
