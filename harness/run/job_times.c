/* A job's times from those of its ranks: what the job takes for a step, on how many samples per second it
 * trains, and how long it has trained until an evaluation. */
#include "harness/report/statistics.h"
#include "harness/run/record.h"
#include "harness/run/run_result.h"

#include <math.h>
#include <stdlib.h>

/* The measured steps of a rank on the job's clock, and its samples in each. */
typedef struct rank_steps {
    size_t count;
    int64_t *begin_ns, *end_ns, *samples; /* [count] */
} rank_steps;

typedef struct job_steps {
    size_t world, count; /* ranks; steps that every rank has measured */
    rank_steps *ranks;   /* [world] */
} job_steps;

static int64_t ns_of(const json_t *seconds)
{
    return llround(1e9 * json_number_value(seconds));
}

/* What was not measured is null. */
static json_t *real_or_null(bool measured, double value)
{
    return measured ? json_real(value) : json_null();
}

static json_t *statistics_to_json(const statistics *s)
{
    const struct {
        const char *key;
        double ns;
    } figures[] = {{"minimum_s", s->minimum}, {"p25_s", s->p25}, {"median_s", s->median},
                   {"p75_s", s->p75},         {"p95_s", s->p95}, {"maximum_s", s->maximum},
                   {"mean_s", s->mean}};
    json_t *object = json_object();
    json_object_set_new(object, "count", json_integer(s->count));
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
        json_object_set_new(object, figures[i].key, real_or_null(s->count > 0, figures[i].ns / 1e9));
    json_object_set_new(object, "spread", real_or_null(s->count > 1, s->spread));
    return object;
}

static void free_steps(job_steps *j)
{
    for (size_t r = 0; j->ranks && r < j->world; r++) free(j->ranks[r].begin_ns);
    free(j->ranks);
}

static status read_rank(const json_t *rank, rank_steps *out)
{
    const json_t *begins = json_object_get(rank, "step_begin_s"), *ends = json_object_get(rank, "step_end_s"),
                 *samples = json_object_get(rank, "step_samples");
    size_t n = json_array_size(ends);
    int64_t *memory = calloc(3 * n + 1, sizeof *memory);
    if (!memory) return fail(STATUS_SYSTEM, "no memory for the results");
    *out = (rank_steps){.count = n, .begin_ns = memory, .end_ns = memory + n, .samples = memory + 2 * n};
    for (size_t i = 0; i < n; i++) {
        out->begin_ns[i] = ns_of(json_array_get(begins, i));
        out->end_ns[i] = ns_of(json_array_get(ends, i));
        out->samples[i] = json_integer_value(json_array_get(samples, i));
    }
    return STATUS_OK;
}

static status read_steps(const json_t *ranks, job_steps *out)
{
    *out = (job_steps){.world = json_array_size(ranks)};
    out->ranks = calloc(out->world, sizeof *out->ranks);
    if (!out->ranks) return fail(STATUS_SYSTEM, "no memory for the results");
    for (size_t r = 0; r < out->world; r++) {
        TRY(read_rank(json_array_get(ranks, r), &out->ranks[r]));
        if (r == 0 || out->ranks[r].count < out->count) out->count = out->ranks[r].count;
    }
    return STATUS_OK;
}

static int64_t latest_begin(const job_steps *j, size_t step)
{
    int64_t latest = INT64_MIN;
    for (size_t r = 0; r < j->world; r++)
        if (j->ranks[r].begin_ns[step] > latest) latest = j->ranks[r].begin_ns[step];
    return latest;
}

static int64_t latest_end(const job_steps *j, size_t step)
{
    int64_t latest = INT64_MIN;
    for (size_t r = 0; r < j->world; r++)
        if (j->ranks[r].end_ns[step] > latest) latest = j->ranks[r].end_ns[step];
    return latest;
}

/* Whether all ranks begin the step where their last measured one ended: nothing lies between that is not
 * measured. */
static bool follows(const job_steps *j, size_t step)
{
    for (size_t r = 0; r < j->world; r++)
        if (j->ranks[r].begin_ns[step] != j->ranks[r].end_ns[step - 1]) return false;
    return true;
}

/* ---- throughput ------------------------------------------------------------------------------- */

typedef struct rate {
    double samples;
    int64_t ns;
} rate;

/* Ranks keep step: all samples, over the sum of the job's steps. */
static rate over_steps(const job_steps *j)
{
    rate out = {0};
    for (size_t i = 0; i < j->count; i++) {
        out.ns += latest_end(j, i) - latest_begin(j, i);
        for (size_t r = 0; r < j->world; r++) out.samples += (double)j->ranks[r].samples[i];
    }
    return out;
}

/* The samples of a rank's steps [first, end) in the window; of a step that is partly in it, as large a part.
 */
static double samples_within(const rank_steps *s, size_t first, size_t end, int64_t from_ns, int64_t until_ns)
{
    double samples = 0;
    for (size_t i = first; i < end; i++) {
        int64_t begin = s->begin_ns[i] > from_ns ? s->begin_ns[i] : from_ns;
        int64_t stop = s->end_ns[i] < until_ns ? s->end_ns[i] : until_ns;
        if (stop > begin)
            samples +=
                (double)s->samples[i] * (double)(stop - begin) / (double)(s->end_ns[i] - s->begin_ns[i]);
    }
    return samples;
}

/* Ranks do not wait for each other: each trains at its own rate until it has done its steps, so only the time
 * counts in which none has finished yet. Steps `first` and on, up to the next that does not follow its
 * predecessor. */
static void add_window(const job_steps *j, size_t first, size_t end, bool last, rate *sum)
{
    int64_t from = latest_begin(j, first), until = INT64_MAX;
    for (size_t r = 0; r < j->world; r++) {
        const rank_steps *s = &j->ranks[r];
        int64_t ended = s->end_ns[(last ? s->count : end) - 1];
        if (ended < until) until = ended;
    }
    if (until <= from) return;
    sum->ns += until - from;
    for (size_t r = 0; r < j->world; r++)
        sum->samples += samples_within(&j->ranks[r], first, last ? j->ranks[r].count : end, from, until);
}

static rate over_windows(const job_steps *j)
{
    rate out = {0};
    for (size_t first = 0, end; first < j->count; first = end) {
        for (end = first + 1; end < j->count && follows(j, end);) end++;
        add_window(j, first, end, end == j->count, &out);
    }
    return out;
}

/* In virtual time fewer ranks, `present`, may stand for the `world` of the job. */
static json_t *rate_to_json(rate r, double present, double world, bool synchronous)
{
    bool measured = r.ns > 0;
    double samples = r.samples * world / present, per_second = measured ? samples / ((double)r.ns * 1e-9) : 0;
    return json_pack("{s:o, s:o, s:f, s:o, s:s}", "samples_per_s", real_or_null(measured, per_second),
                     "samples_per_s_per_rank", real_or_null(measured, per_second / world), "samples", samples,
                     "wall_s", record_seconds(r.ns), "over",
                     synchronous ? "steps" : "time in which all ranks train");
}

/* ---- the job ---------------------------------------------------------------------------------- */

static status add_steps(json_t *job, const job_steps *j)
{
    int64_t *steps = calloc(j->count + 1, sizeof *steps);
    json_t *list = json_array();
    statistics s;
    if (!steps) return fail(STATUS_SYSTEM, "no memory for the results");
    for (size_t i = 0; i < j->count; i++) {
        steps[i] = latest_end(j, i) - latest_begin(j, i);
        json_array_append_new(list, record_seconds(steps[i]));
    }
    status rc = statistics_of(steps, (int64_t)j->count, &s);
    free(steps);
    json_object_set_new(job, "step_s", list);
    json_object_set_new(job, "step_time", statistics_to_json(&s));
    return rc;
}

static bool is_measured(const json_t *ranks, size_t rank, const char *key, size_t step)
{
    return !json_is_null(json_array_get(json_object_get(json_array_get(ranks, rank), key), step));
}

/* Statistics over the steps of one phase, each step's value being the mean of its ranks; steps in which rank
 * 0, or one of the first `of`, did not measure it are left out. */
static status phase_statistics(const json_t *ranks, const char *key, size_t of, statistics *out)
{
    size_t world = json_array_size(ranks);
    size_t steps = json_array_size(json_object_get(json_array_get(ranks, 0), key));
    int64_t *values = calloc(steps + 1, sizeof *values);
    if (!values) return fail(STATUS_SYSTEM, "no memory for the results");
    int64_t count = 0;
    for (size_t s = 0; s < steps; s++) {
        int64_t sum = 0;
        bool measured = is_measured(ranks, 0, key, s);
        for (size_t r = 1; r < of && measured; r++) measured = is_measured(ranks, r, key, s);
        if (!measured) continue;
        for (size_t r = 0; r < world; r++)
            sum += ns_of(json_array_get(json_object_get(json_array_get(ranks, r), key), s));
        values[count++] = sum / (int64_t)world;
    }
    status rc = statistics_of(values, count, out);
    free(values);
    return rc;
}

static status add_phases(json_t *job, const json_t *ranks)
{
    json_t *phases = json_object();
    status rc = STATUS_OK;
    for (int i = 0; i < RECORD_PHASES && rc == STATUS_OK; i++) {
        statistics s = {0};
        rc = phase_statistics(ranks, record_phases[i].key, i < RECORD_ANATOMY ? json_array_size(ranks) : 1,
                              &s);
        json_object_set_new(phases, record_phases[i].key, statistics_to_json(&s));
    }
    json_object_set_new(job, "phases", phases);
    return rc;
}

status job_result_add_times(json_t *job, const json_t *ranks)
{
    job_steps j = {0};
    bool synchronous = json_is_true(json_object_get(job, "synchronous"));
    double world = json_number_value(json_object_get(job, "world_size"));
    const json_t *simulated = json_object_get(job, "simulated_ranks");
    double present =
        simulated ? json_number_value(simulated) : world; /* a rank with several devices has a row for each */
    status rc = read_steps(ranks, &j);
    if (rc == STATUS_OK) rc = add_steps(job, &j);
    rate r = rc != STATUS_OK ? (rate){0} : synchronous ? over_steps(&j) : over_windows(&j);
    json_object_set_new(job, "throughput", rate_to_json(r, present, world, synchronous));
    free_steps(&j);
    return rc == STATUS_OK ? add_phases(job, ranks) : rc;
}

/* ---- evaluations ------------------------------------------------------------------------------ */

/* The job has trained as long as the rank that trained longest. */
static double longest_training(const json_t *ranks, size_t evaluation)
{
    double longest = 0;
    size_t r;
    json_t *rank;
    json_array_foreach((json_t *)ranks, r, rank)
    {
        const json_t *e = json_array_get(json_object_get(rank, "evaluations"), evaluation);
        longest = fmax(longest, json_number_value(json_object_get(e, "training_s")));
    }
    return longest;
}

/* The training time of the first evaluation whose figure is at most, or at least, what was chosen; null: none
 * is. */
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
    size_t count = json_array_size(evaluations);
    for (size_t i = 0; i < count; i++)
        json_object_set_new(json_array_get(evaluations, i), "training_s",
                            json_real(longest_training(ranks, i)));
    json_t *accuracy = count ? json_object_get(json_array_get(evaluations, count - 1), "accuracy") : NULL;
    json_object_set(job, "accuracy", accuracy ? accuracy : json_null());
    if (json_is_object(target)) {
        json_object_set_new(target, "loss_s",
                            time_to(evaluations, "loss", json_object_get(target, "loss"), true));
        json_object_set_new(target, "accuracy_s",
                            time_to(evaluations, "accuracy", json_object_get(target, "accuracy"), false));
    }
    json_object_set_new(job, "evaluations", evaluations);
}
