/* Derives the times of a job from the times of its ranks: its time per step, its throughput, and its
 * training time until each evaluation. */
#include "harness/report/report.h"
#include "harness/report/statistics.h"
#include "harness/result/record.h"
#include "harness/result/run_result.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Measured steps of all ranks on the job's clock: either the kept steps, or the stretches, which cover all
 * steps. */
typedef struct job_steps {
    const json_t *ranks;
    bool stretches;
    size_t world, count; /* number of ranks, and of the steps or stretches that every rank has measured */
} job_steps;

static int64_t ns_of(const json_t *seconds)
{
    return llround(1e9 * json_number_value(seconds));
}

/* Returns the object with the arrays of a rank's steps. */
static const json_t *row_of(const job_steps *j, size_t rank)
{
    const json_t *row = json_array_get(j->ranks, rank);
    return j->stretches ? report_steps_of(row).of : row;
}

static size_t count_of(const job_steps *j, size_t rank)
{
    return json_array_size(json_object_get(row_of(j, rank), "step_end_s"));
}

/* Returns the value at `key` of a rank's step in ns, or 0 if the step has no value. */
static int64_t ns_at(const job_steps *j, size_t rank, const char *key, size_t step)
{
    return ns_of(json_array_get(json_object_get(row_of(j, rank), key), step));
}

/* Converts statistics to JSON. `s` describes the kept steps. `count` is the number of all measured steps, and
 * `sum` is the sum of their times in seconds. */
static json_t *statistics_to_json(const statistics *s, double count, double sum)
{
    double second = s->count > 0 ? 1e9 : NAN; /* Without kept steps, all times are null. */
    return json_pack(
        "{s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "count", (json_int_t)llround(count), "kept",
        (json_int_t)s->count, "minimum_s", report_json_number(s->minimum / second), "p25_s",
        report_json_number(s->p25 / second), "median_s", report_json_number(s->median / second), "p75_s",
        report_json_number(s->p75 / second), "p95_s", report_json_number(s->p95 / second), "maximum_s",
        report_json_number(s->maximum / second), "mean_s", report_json_number(1e9 * sum / count / second),
        "spread", report_json_number(s->count > 1 ? s->spread : NAN));
}

/* Returns the stretches if `stretches` is true, else the kept steps. */
static job_steps steps_of(const json_t *ranks, bool stretches)
{
    job_steps j = {.ranks = ranks, .stretches = stretches, .world = json_array_size(ranks)};
    j.count = count_of(&j, 0);
    for (size_t r = 1; r < j.world; r++)
        if (count_of(&j, r) < j.count) j.count = count_of(&j, r);
    return j;
}

/* Returns the latest of the times of all ranks at `key` of a step. */
static int64_t latest(const job_steps *j, const char *key, size_t step)
{
    int64_t last = INT64_MIN;
    for (size_t r = 0; r < j->world; r++) {
        int64_t ns = ns_at(j, r, key, step);
        if (ns > last) last = ns;
    }
    return last;
}

/* Returns true if each rank begins the step at the end of the previous measured step, without a gap. */
static bool follows(const job_steps *j, size_t step)
{
    for (size_t r = 0; r < j->world; r++)
        if (ns_at(j, r, "step_begin_s", step) != ns_at(j, r, "step_end_s", step - 1)) return false;
    return true;
}

/* ---- throughput ------------------------------------------------------------------------------- */

typedef struct rate {
    double samples;
    int64_t ns;
} rate;

/* Returns the time of a step, or the time of a stretch without the gaps between its steps. The gap of the job
 * is the mean of the gaps of the ranks. */
static int64_t time_of(const job_steps *j, size_t step)
{
    int64_t gaps = 0;
    for (size_t r = 0; r < j->world; r++) gaps += ns_at(j, r, "gaps_s", step);
    return latest(j, "step_end_s", step) - latest(j, "step_begin_s", step) - gaps / (int64_t)j->world;
}

static double samples_of(const job_steps *j, size_t rank, size_t step)
{
    return json_number_value(json_array_get(json_object_get(row_of(j, rank), "step_samples"), step));
}

/* Returns the rate of synchronous ranks: all samples over the sum of the job's step times. */
static rate over_steps(const job_steps *j)
{
    rate out = {0};
    for (size_t i = 0; i < j->count; i++) {
        out.ns += time_of(j, i);
        for (size_t r = 0; r < j->world; r++) out.samples += samples_of(j, r, i);
    }
    return out;
}

/* Returns the samples that a rank trains between from_ns and until_ns in its steps [first, end). A step that
 * lies only partly in this time counts in proportion. */
static double samples_within(const job_steps *j, size_t rank, size_t first, size_t end, int64_t from_ns,
                             int64_t until_ns)
{
    double samples = 0;
    for (size_t i = first; i < end; i++) {
        int64_t begin = ns_at(j, rank, "step_begin_s", i), stop = ns_at(j, rank, "step_end_s", i);
        int64_t within = (stop < until_ns ? stop : until_ns) - (begin > from_ns ? begin : from_ns);
        if (within > 0) samples += samples_of(j, rank, i) * (double)within / (double)(stop - begin);
    }
    return samples;
}

/* Adds to `sum` the time in which all ranks train the steps [first, end), and the samples of this time. There
 * are no gaps between these steps. Ranks do not wait for each other, so a fast rank finishes its steps early.
 * If `last` is true, counts the steps of each rank up to its last step instead of `end`. */
static void add_window(const job_steps *j, size_t first, size_t end, bool last, rate *sum)
{
    int64_t from = latest(j, "step_begin_s", first), until = INT64_MAX;
    for (size_t r = 0; r < j->world; r++) {
        int64_t ended = ns_at(j, r, "step_end_s", (last ? count_of(j, r) : end) - 1);
        if (ended < until) until = ended;
    }
    if (until <= from) return;
    sum->ns += until - from;
    for (size_t r = 0; r < j->world; r++)
        sum->samples += samples_within(j, r, first, last ? count_of(j, r) : end, from, until);
}

/* Returns the rate for stretches with gaps. Uses the shortest training time of a rank, and assumes that each
 * rank trains at its mean rate for this time. */
static rate over_own_time(const json_t *ranks)
{
    rate out = {.ns = llround(1e9 * report_smallest(ranks, "wall_s"))};
    size_t r;
    json_t *rank;
    json_array_foreach((json_t *)ranks, r, rank) out.samples +=
        report_number_at(rank, "samples") * 1e-9 * (double)out.ns / report_number_at(rank, "wall_s");
    return out;
}

static rate over_windows(const job_steps *j)
{
    rate out = {0};
    for (size_t r = 0; r < j->world; r++)
        for (size_t i = 0; i < count_of(j, r); i++)
            if (ns_at(j, r, "gaps_s", i) > 0) return over_own_time(j->ranks);
    for (size_t first = 0, end; first < j->count; first = end) {
        for (end = first + 1; end < j->count && follows(j, end);) end++;
        add_window(j, first, end, end == j->count, &out);
    }
    return out;
}

/* Converts the rate to JSON. In virtual time `present` ranks may stand for the `world` ranks of the job. */
static json_t *rate_to_json(rate r, double present, double world, bool synchronous)
{
    double samples = r.samples * world / present,
           per_second = r.ns > 0 ? samples / ((double)r.ns * 1e-9) : NAN;
    return json_pack("{s:o, s:o, s:f, s:o, s:s}", "samples_per_s", report_json_number(per_second),
                     "samples_per_s_per_rank", report_json_number(per_second / world), "samples", samples,
                     "wall_s", record_seconds(r.ns), "over",
                     synchronous ? "steps" : "time in which all ranks train");
}

/* ---- the job ---------------------------------------------------------------------------------- */

static json_t *times_to_json(const job_steps *j)
{
    json_t *list = json_array();
    for (size_t i = 0; i < j->count; i++) json_array_append_new(list, record_seconds(time_of(j, i)));
    return list;
}

/* Adds "step_s" of the kept steps, "stretches", and "step_time", whose mean is over all steps. */
static status add_steps(json_t *job, const job_steps *kept, const job_steps *all)
{
    int64_t *steps = calloc(kept->count + 1, sizeof *steps);
    if (!steps) return fail(STATUS_SYSTEM, "no memory for the results");
    for (size_t i = 0; i < kept->count; i++) steps[i] = time_of(kept, i);
    statistics s = statistics_of(steps, (int64_t)kept->count);
    free(steps);
    json_object_set_new(job, "step_s", times_to_json(kept));
    double fewest = report_smallest(all->ranks, "measured_steps");
    size_t shortest = 0; /* rank with the fewest steps */
    while (report_number_at(json_array_get(all->ranks, shortest), "measured_steps") > fewest) shortest++;
    const json_t *counts = report_steps_of(json_array_get(all->ranks, shortest)).counts;
    json_object_set_new(job, "stretches",
                        counts
                            ? json_pack("{s:O, s:o}", "steps", (json_t *)counts, "step_s", times_to_json(all))
                            : json_null());
    double count, sum = report_steps_sum(job, "step_s", 0, 1, &count);
    json_object_set_new(job, "step_time", statistics_to_json(&s, count, sum));
    return STATUS_OK;
}

/* Computes the statistics of a phase over the steps. The value of a step is the mean over the first `world`
 * ranks. Leaves out a step if one of the first `of` ranks did not measure the phase. */
static status phase_statistics(const json_t *ranks, size_t world, const char *key, size_t of, json_t **out)
{
    size_t steps = json_array_size(json_object_get(json_array_get(ranks, 0), key));
    int64_t *values = calloc(steps + 1, sizeof *values);
    if (!values) return fail(STATUS_SYSTEM, "no memory for the results");
    int64_t count = 0;
    for (size_t s = 0; s < steps; s++) {
        int64_t sum = 0;
        bool measured = true;
        for (size_t r = 0; r < world; r++) {
            const json_t *value = json_array_get(json_object_get(json_array_get(ranks, r), key), s);
            measured = measured && !(r < of && json_is_null(value));
            sum += ns_of(value);
        }
        if (measured) values[count++] = sum / (int64_t)world;
    }
    statistics kept = statistics_of(values, count);
    free(values);
    double sum = 0, measured = 0, known;
    for (size_t r = 0; r < world; r++) {
        sum += report_steps_sum(json_array_get(ranks, r), key, 0, 1, &known) / (double)world;
        if (r < of) measured += known / (double)of;
    }
    *out = statistics_to_json(&kept, measured, sum);
    return STATUS_OK;
}

static status add_phases(json_t *job, const json_t *ranks)
{
    json_t *phases = json_object();
    size_t world = report_ranks_of_step(job, ranks);
    status rc = STATUS_OK;
    for (int i = 0; i < RECORD_PHASES && rc == STATUS_OK; i++) {
        json_t *s = NULL;
        rc = phase_statistics(ranks, world, record_phases[i], i < RECORD_ANATOMY ? world : 1, &s);
        json_object_set_new(phases, record_phases[i], s);
    }
    json_object_set_new(job, "phases", phases);
    return rc;
}

status job_result_add_times(json_t *job, const json_t *ranks)
{
    job_steps kept = steps_of(ranks, false), all = steps_of(ranks, true);
    bool synchronous = json_is_true(json_object_get(job, "synchronous"));
    double world = json_number_value(json_object_get(job, "world_size"));
    const json_t *simulated = json_object_get(job, "simulated_ranks");
    /* `ranks` may be longer than the job's world: a rank with several devices has a row for each. */
    double present = simulated ? json_number_value(simulated) : world;
    TRY(add_steps(job, &kept, &all));
    rate r = synchronous ? over_steps(&all) : over_windows(&all);
    json_object_set_new(job, "throughput", rate_to_json(r, present, world, synchronous));
    return add_phases(job, ranks);
}

/* ---- evaluations ------------------------------------------------------------------------------ */

/* Returns the training time of the first evaluation that reaches the target `chosen`, or null if none does.
 * To reach the target, `figure` must be at most `chosen` if `at_most` is true, else at least `chosen`. */
static json_t *time_to(const json_t *evaluations, const char *figure, const json_t *chosen, bool at_most)
{
    size_t i;
    json_t *e;
    json_array_foreach((json_t *)evaluations, i, e)
    {
        const json_t *found = json_object_get(e, figure);
        if (!json_is_number(found) || !json_is_number(chosen)) continue;
        double above = json_number_value(found) - json_number_value(chosen);
        if (at_most ? above <= 0 : above >= 0) return json_incref(json_object_get(e, "training_s"));
    }
    return json_null();
}

void job_result_add_evaluations(json_t *job, const json_t *ranks)
{
    json_t *evaluations = json_deep_copy(json_object_get(json_array_get(ranks, 0), "evaluations"));
    json_t *target = json_object_get(job, "target");
    json_t *accuracy = json_null(), *e;
    size_t i;
    json_array_foreach(evaluations, i, e)
    {
        char path[64];
        snprintf(path, sizeof path, "evaluations.%zu.training_s", i);
        json_object_set_new(e, "training_s", json_real(report_largest(ranks, path)));
        accuracy = json_object_get(e, "accuracy");
    }
    json_object_set(job, "accuracy", accuracy);
    if (json_is_object(target)) {
        json_object_set_new(target, "loss_s",
                            time_to(evaluations, "loss", json_object_get(target, "loss"), true));
        json_object_set_new(target, "accuracy_s",
                            time_to(evaluations, "accuracy", json_object_get(target, "accuracy"), false));
    }
    json_object_set_new(job, "evaluations", evaluations);
}
