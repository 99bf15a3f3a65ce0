/* What several runs of one configuration show together, and what a single one does: medians, intervals and the verdict on ps
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
    json_array_foreach(json_object_get(run, "jobs"), i, job) if (strcmp(report_text_at(job, "name"), name) == 0) return job;
    return NULL;
}

/* ---- medians and intervals --------------------------------------------------------------------------- */

/* {"median": .., "low": .., "high": ..} of the figure at `path` of a job over the runs. */
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
    *out = json_pack("{s:o, s:o, s:o}", "median", number(median_of(values, count)), "low", number(of.low), "high",
                     number(of.high));
    free(values);
    return rc != STATUS_OK || *out ? rc : no_memory();
}

/* A job without what every rank and every step has. */
static json_t *job_in_short(const json_t *job)
{
    static const char *const keys[] = {"name",       "engine",     "policy",           "step_time", "phases",
                                       "throughput", "loss_last",  "accuracy",         "memory_imbalance",
                                       "parameter_hash"};
    json_t *out = json_object();
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) json_object_set(out, keys[i], json_object_get(job, keys[i]));
    return out;
}

static json_t *runs_in_short(const json_t *runs)
{
    json_t *out = json_array(), *run, *job;
    size_t i, j;
    json_array_foreach(runs, i, run)
    {
        json_t *jobs = json_array();
        json_array_foreach(json_object_get(run, "jobs"), j, job) json_array_append_new(jobs, job_in_short(job));
        json_array_append_new(out, json_pack("{s:O, s:o}", "started_at", json_object_get(run, "started_at"), "jobs", jobs));
    }
    return out;
}

/* The time of a step of all jobs together. */
static double step_of_all(const json_t *run)
{
    double sum = 0;
    size_t j;
    json_t *job;
    json_array_foreach(json_object_get(run, "jobs"), j, job) sum += report_number_at(job, "step_time.median_s");
    return sum;
}

/* The run that has as many slower ones as faster ones; of an even number the faster of two. */
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

status run_result_repeat(const json_t *runs, json_t **out)
{
    size_t shown = middle(runs), j;
    json_t *jobs = json_array(), *job;
    *out = json_deep_copy(json_array_get(runs, shown));
    status rc = *out && jobs ? STATUS_OK : no_memory();
    json_array_foreach(json_object_get(*out, "jobs"), j, job)
    {
        json_t *step = NULL, *samples = NULL;
        const char *name = report_text_at(job, "name");
        if (rc == STATUS_OK) rc = summary(runs, name, "step_time.median_s", &step);
        if (rc == STATUS_OK) rc = summary(runs, name, "throughput.samples_per_s", &samples);
        if (rc == STATUS_OK)
            json_array_append_new(jobs, json_pack("{s:s, s:o, s:o}", "name", name, "step_s", step, "samples_per_s", samples));
    }
    json_t *repetitions = rc == STATUS_OK ? json_pack("{s:I, s:I, s:O, s:o}", "count", (json_int_t)json_array_size(runs), "shown",
                                                      (json_int_t)shown, "jobs", jobs, "runs", runs_in_short(runs))
                                          : NULL;
    if (rc == STATUS_OK && json_object_set_new(*out, "repetitions", repetitions) != 0) rc = no_memory();
    if (rc == STATUS_OK) rc = run_result_judge(*out, false);
    json_decref(jobs);
    if (rc == STATUS_OK) return STATUS_OK;
    json_decref(*out);
    *out = NULL;
    return rc;
}

/* ---- the verdict -------------------------------------------------------------------------------------- */

/* Samples per second of a job in each of its turns: its rate over all steps, times the mean step over the turn's. */
static int rates_of_turns(const json_t *job, double rates[TURNS])
{
    const json_t *steps = json_object_get(job, "step_s");
    size_t count = json_array_size(steps);
    double all = 0;
    for (size_t i = 0; i < count; i++) all += json_number_value(json_array_get(steps, i));
    if (count < TURNS || !(all > 0)) return 0;
    for (size_t t = 0; t < TURNS; t++) {
        size_t begin = count * t / TURNS, end = count * (t + 1) / TURNS;
        double sum = 0;
        for (size_t i = begin; i < end; i++) sum += json_number_value(json_array_get(steps, i));
        rates[t] = report_number_at(job, "throughput.samples_per_s") * (all / (double)count) / (sum / (double)(end - begin));
    }
    return TURNS;
}

/* Samples per second of ps and ring in each run, or in each turn of a single run; 0: there is one measurement. */
static int rates(const json_t *result, bool in_turns, double *ps, double *ring)
{
    const json_t *runs = report_at(result, "repetitions.runs");
    int count = 0;
    size_t i;
    json_t *run;
    json_array_foreach(runs, i, run)
    {
        ps[count] = report_number_at(job_named(run, "ps"), "throughput.samples_per_s");
        ring[count] = report_number_at(job_named(run, "ring"), "throughput.samples_per_s");
        count += ps[count] > 0 && ring[count] > 0;
    }
    if (runs || !in_turns) return count;
    count = rates_of_turns(job_named(result, "ps"), ps);
    return rates_of_turns(job_named(result, "ring"), ring) == count ? count : 0;
}

static json_t *verdict_of(bool ring_first, double factor, interval of, const char *over, int count)
{
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:s?, s:i, s:n, s:n, s:n, s:n}", "faster", ring_first ? "ring" : "ps", "slower",
                     ring_first ? "ps" : "ring", "factor", number(factor), "low", number(of.low), "high", number(of.high), "over",
                     over, "count", count, "shown", "p", "detectable", "runs_for_5_percent");
}

/* Of runs: whether they show the difference. */
static status add_test(json_t *verdict, const double *slower, const double *faster, int count)
{
    significance found;
    TRY(significance_of_rounds(slower, faster, count, &found));
    json_object_set_new(verdict, "detectable", number(found.detectable));
    json_object_set_new(verdict, "runs_for_5_percent", found.runs_for_5 > 0 ? json_integer(found.runs_for_5) : json_null());
    if (found.verdict == SIGNIFICANCE_TOO_FEW) return STATUS_OK;
    json_object_set_new(verdict, "p", number(found.p));
    json_object_set_new(verdict, "shown", json_boolean(found.verdict == SIGNIFICANCE_GREATER));
    return STATUS_OK;
}

static status judge(const json_t *result, bool in_turns, double *ps, double *ring, json_t **out)
{
    const json_t *runs = report_at(result, "repetitions.runs");
    double of_ps = report_number_at(job_named(result, "ps"), "throughput.samples_per_s"),
           of_ring = report_number_at(job_named(result, "ring"), "throughput.samples_per_s");
    bool is_virtual = json_is_true(json_object_get(result, "simulated"));
    interval of = {NAN, NAN};
    int count = is_virtual ? 0 : rates(result, in_turns, ps, ring);
    if (count > 1) {
        double *copy = malloc((size_t)count * sizeof *copy);
        if (!copy) return no_memory();
        of_ps = median_of(memcpy(copy, ps, (size_t)count * sizeof *copy), count);
        of_ring = median_of(memcpy(copy, ring, (size_t)count * sizeof *copy), count);
        free(copy);
    }
    if (!(of_ps > 0) || !(of_ring > 0)) return STATUS_OK; /* one of them has not run, or was not measured */
    bool ring_first = of_ring > of_ps;
    const double *slower = ring_first ? ps : ring, *faster = ring_first ? ring : ps;
    const char *over = is_virtual ? "virtual time" : count < 2 ? NULL : runs ? "runs" : "turns";
    if (count > 1) TRY(bootstrap_ratio(slower, count, faster, count, true, INTERVAL_SEED, &of));
    *out = verdict_of(ring_first, ring_first ? of_ring / of_ps : of_ps / of_ring, of, over, count);
    if (!*out) return no_memory();
    json_object_set_new(*out, "samples_per_s", json_pack("{s:f, s:f}", "ps", of_ps, "ring", of_ring));
    return runs && count > 1 ? add_test(*out, slower, faster, count) : STATUS_OK;
}

status run_result_judge(json_t *result, bool in_turns)
{
    size_t most = json_array_size(report_at(result, "repetitions.runs")) + TURNS;
    double *memory = malloc(2 * most * sizeof *memory);
    json_t *verdict = NULL;
    status rc = memory ? judge(result, in_turns, memory, memory + most, &verdict) : no_memory();
    free(memory);
    if (json_object_set_new(result, "verdict", verdict ? verdict : json_null()) != 0 && rc == STATUS_OK) rc = no_memory();
    return rc;
}
