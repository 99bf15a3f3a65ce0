/* Summarizes the runs of one configuration, or a single run: medians, intervals and the verdict on ps
 * against ring. */
#include "harness/report/report.h"
#include "harness/report/significance.h"
#include "harness/result/run_result.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- medians and intervals --------------------------------------------------------------------------- */

/* Sets *out to the median of the figure at `path` of a job over the runs, with its interval. */
static status summary(const json_t *runs, const char *name, const char *path, json_t **out)
{
    size_t most = json_array_size(runs);
    double *values = malloc((most + 1) * sizeof *values);
    if (!values) return fail(STATUS_SYSTEM, "no memory for the verdict of the runs");
    for (size_t i = 0; i < most; i++)
        values[i] = report_number_at(report_job(json_array_get(runs, i), name), path);
    status rc = median_to_json(values, (int)most, out);
    free(values);
    return rc;
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
    return report_sum(json_object_get(run, "jobs"), "step_time.median_s");
}

/* Returns the index of the run with the median time. If the number of runs is even, returns the faster of the
 * two in the middle. */
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
    const json_t *all = json_object_get(result, "jobs");
    json_t *jobs = json_array();
    status rc = STATUS_OK;
    for (size_t j = 0; j < json_array_size(all) && rc == STATUS_OK; j++) {
        const char *name = report_text_at(json_array_get(all, j), "name");
        json_t *step = NULL, *samples = NULL;
        rc = summary(runs, name, "step_time.median_s", &step);
        if (rc == STATUS_OK) rc = summary(runs, name, "throughput.samples_per_s", &samples);
        json_array_append_new(
            jobs, json_pack("{s:s, s:o*, s:o*}", "name", name, "step_s", step, "samples_per_s", samples));
    }
    json_object_set_new(result, "repetitions",
                        json_pack("{s:I, s:I, s:o, s:o}", "count", (json_int_t)json_array_size(runs), "shown",
                                  (json_int_t)middle(runs), "jobs", jobs, "runs", runs_in_short(runs)));
    return rc;
}

status run_result_repeat(const json_t *runs, json_t **out)
{
    *out = json_deep_copy(json_array_get(runs, middle(runs)));
    status rc = run_result_summarize(runs, *out);
    if (rc == STATUS_OK) rc = run_result_judge(*out, false);
    if (rc == STATUS_OK) return STATUS_OK;
    json_decref(*out);
    *out = NULL;
    return rc;
}

/* ---- the verdict -------------------------------------------------------------------------------------- */

/* Divides the seconds per sample of a job among the turns of its steps, in proportion to the time of each
 * turn. Returns false if there are too few steps. */
static bool cut_in_turns(const json_t *job, double turns[RUN_TURNS])
{
    double count, known, all = report_steps_sum(job, "step_s", 0, 1, &count);
    if (count < RUN_TURNS || !(all > 0)) return false;
    for (int t = 0; t < RUN_TURNS; t++)
        turns[t] = report_steps_sum(job, "step_s", t, RUN_TURNS, &known) / all /
                   report_number_at(job, "throughput.samples_per_s");
    return true;
}

typedef struct judged {
    double ps, ring; /* samples per second */
    const char *over;
    int count;
    interval factor;   /* interval of the rate of the faster engine divided by the rate of the slower one */
    significance test; /* result of the test if there are several runs */
} judged;

static const char rate[] = "throughput.samples_per_s";

/* Compares the engines in the runs that have both engines. `rates` has room for 4 rates per run. */
static status judge_runs(const json_t *runs, double *rates, judged *j)
{
    size_t most = json_array_size(runs);
    double *ps = rates, *ring = rates + most, *sorted[2] = {ring + most, ring + 2 * most};
    for (size_t i = 0; i < most; i++) {
        const json_t *run = json_array_get(runs, i);
        ps[j->count] = report_number_at(report_job(run, "ps"), rate);
        ring[j->count] = report_number_at(report_job(run, "ring"), rate);
        j->count += ps[j->count] > 0 && ring[j->count] > 0;
    }
    size_t bytes = (size_t)j->count * sizeof *rates;
    j->ps = median_of(memcpy(sorted[0], ps, bytes), j->count);
    j->ring = median_of(memcpy(sorted[1], ring, bytes), j->count);
    if (j->count < 2) return STATUS_OK;
    const double *slower = j->ring > j->ps ? ps : ring, *faster = j->ring > j->ps ? ring : ps;
    j->over = "runs";
    TRY(bootstrap_ratio(slower, j->count, faster, j->count, true, INTERVAL_SEED, &j->factor));
    return significance_of_rounds(slower, faster, j->count, &j->test);
}

static void judge_run(const json_t *result, bool in_turns, judged *j)
{
    const json_t *ps = report_job(result, "ps"), *ring = report_job(result, "ring");
    double of_ps[RUN_TURNS], of_ring[RUN_TURNS];
    j->ps = report_number_at(ps, rate);
    j->ring = report_number_at(ring, rate);
    if (json_is_true(json_object_get(result, "simulated"))) {
        j->over = "virtual time";
    } else if (in_turns && cut_in_turns(ps, of_ps) && cut_in_turns(ring, of_ring)) {
        bool ring_first = j->ring > j->ps;
        j->over = "turns";
        j->count = RUN_TURNS;
        j->factor =
            ratio_of_sums_interval(ring_first ? of_ring : of_ps, ring_first ? of_ps : of_ring, RUN_TURNS);
    }
}

/* Returns the verdict, or null if ps or ring did not run, or was not measured. */
static json_t *verdict_to_json(const judged *j)
{
    if (!(j->ps > 0) || !(j->ring > 0)) return json_null();
    bool ring_first = j->ring > j->ps, tested = j->over && strcmp(j->over, "runs") == 0,
         enough = tested && j->test.verdict != SIGNIFICANCE_TOO_FEW;
    double factor = ring_first ? j->ring / j->ps : j->ps / j->ring;
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:s?, s:i, s:o, s:o, s:o, s:o, s:{s:f, s:f}}", "faster",
                     ring_first ? "ring" : "ps", "slower", ring_first ? "ps" : "ring", "factor",
                     report_json_number(factor), "low", report_json_number(j->factor.low), "high",
                     report_json_number(j->factor.high), "over", j->over, "count", j->count, "shown",
                     enough ? json_boolean(j->test.verdict == SIGNIFICANCE_GREATER) : json_null(), "p",
                     report_json_number(enough ? j->test.p : NAN), "detectable",
                     report_json_number(tested ? j->test.detectable : NAN), "runs_for_5_percent",
                     tested && j->test.runs_for_5 > 0 ? json_integer(j->test.runs_for_5) : json_null(),
                     "samples_per_s", "ps", j->ps, "ring", j->ring);
}

status run_result_judge(json_t *result, bool in_turns)
{
    const json_t *runs = report_at(result, "repetitions.runs");
    judged j = {.factor = {NAN, NAN}};
    status rc = STATUS_OK;
    if (runs) {
        double *rates = malloc((4 * json_array_size(runs) + 1) * sizeof *rates);
        rc = rates ? judge_runs(runs, rates, &j)
                   : fail(STATUS_SYSTEM, "no memory for the verdict of the runs");
        free(rates);
    } else {
        judge_run(result, in_turns, &j);
    }
    json_object_set_new(result, "verdict", verdict_to_json(&j));
    return rc;
}
