/* Writes a run in at most ten lines of 80 columns. The lines say which engine is faster and by which factor,
 * what the slower engine's step consists of, how much memory the reducer costs, which part limits each
 * engine, and what to try next. */
#include "harness/report/report_impl.h"
#include "harness/report/significance.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Groups of the parts of a step that the sentences of the report name. */
typedef enum part { COMPUTATION, COMMUNICATION, WAITING, DATA, OTHER, PARTS } part;
static const char *const part_names[PARTS] = {"computation", "exposed communication",
                                              "waiting for other ranks", "loading data", "other"};

typedef struct shares {
    double of[PARTS]; /* shares of the mean step of a rank */
    part largest;
} shares;

static const json_t *job_named(const json_t *result, const char *name)
{
    return report_find(json_object_get(result, "jobs"), "name", name);
}

/* ---- which is faster ---------------------------------------------------------------------------- */

bool report_verdict_is_open(const json_t *verdict)
{
    const json_t *shown = json_object_get(verdict, "shown");
    if (json_is_boolean(shown)) return !json_is_true(shown);
    return !(report_number_at(verdict, "low") > 1) &&
           strcmp(report_text_at(verdict, "over"), "virtual time") != 0;
}

static void faster_lines(const json_t *result, const json_t *verdict, text_buffer *out)
{
    const char *first = report_text_at(verdict, "faster"), *second = report_text_at(verdict, "slower");
    const json_t *rates = json_object_get(verdict, "samples_per_s");
    short_text faster = report_job_name(job_named(result, first)),
               slower = report_job_name(job_named(result, second)),
               rate = report_value(CELL_RATE, report_number_at(rates, first)),
               other = report_value(CELL_RATE, report_number_at(rates, second));
    double factor = report_number_at(verdict, "factor"), low = report_number_at(verdict, "low");
    if (!report_verdict_is_open(verdict))
        text_append(out, "%s trains %.3f times as fast as %s: %s and %s samples/s", faster.text, factor,
                    slower.text, rate.text, other.text);
    else
        text_append(out, "No difference is shown: %s %s and %s %s samples/s, a factor of %.3f", faster.text,
                    rate.text, slower.text, other.text, factor);
    const char *over = report_text_at(verdict, "over");
    if (!isnan(low))
        text_append(out, ", 95 %% interval %.3f to %.3f over %d %s", low, report_number_at(verdict, "high"),
                    (int)report_number_at(verdict, "count"),
                    strcmp(over, "runs") == 0 ? "runs" : "turns of one run");
    else if (strcmp(over, "virtual time") != 0)
        text_append(out, ", a single measurement");
    text_append(out, ".\n");
}

/* Returns the mean step time of a job, from which samples/s follow. For several runs, returns the median of
 * the runs' means. */
static double mean_step_s(const json_t *result, const json_t *job)
{
    const json_t *runs = report_at(result, "repetitions.runs"), *run;
    double *means = calloc(json_array_size(runs) + 1, sizeof *means), median = NAN;
    int count = 0;
    size_t i;
    if (!means) return NAN;
    json_array_foreach((json_t *)runs, i, run)
    {
        double mean = report_number_at(job_named(run, report_text_at(job, "name")), "step_time.mean_s");
        if (!isnan(mean)) means[count++] = mean;
    }
    median = count > 0 ? median_of(means, count) : report_number_at(job, "step_time.mean_s");
    free(means);
    return median;
}

static void rate_lines(const json_t *result, const json_t *job, text_buffer *out)
{
    short_text name = report_job_name(job);
    const json_t *of_runs =
        report_find(report_at(result, "repetitions.jobs"), "name", report_text_at(job, "name"));
    double samples = report_number_at(of_runs ? of_runs : job,
                                      of_runs ? "samples_per_s.median" : "throughput.samples_per_s"),
           seconds = mean_step_s(result, job);
    if (isnan(samples) || isnan(seconds)) {
        text_append(out, "%s: nothing was measured.\n", name.text);
        return;
    }
    text_append(out, "%s trains %s samples/s", name.text, report_value(CELL_RATE, samples).text);
    if (of_runs)
        text_append(out, ", 95 %% interval %s to %s over %.0f runs",
                    report_value(CELL_RATE, report_number_at(of_runs, "samples_per_s.low")).text,
                    report_value(CELL_RATE, report_number_at(of_runs, "samples_per_s.high")).text,
                    report_number_at(result, "repetitions.count"));
    else if (!json_is_true(json_object_get(result, "simulated")))
        text_append(out, ", a single measurement");
    text_append(out, "; a mean step takes %s.\n", report_value(CELL_TIME, seconds).text);
}

/* ---- where the time goes ------------------------------------------------------------------------ */

static double phase(const json_t *job, const char *key)
{
    char path[64];
    snprintf(path, sizeof path, "phases.%s.mean_s", key);
    double value = report_number_at(job, path);
    return isnan(value) ? 0 : value;
}

/* Returns false if the parts of a step are unknown, because a step had more waits and transfers than fit in
 * its record. */
static bool has_parts(const json_t *job)
{
    return isfinite(report_number_at(job, "phases.forward_s.mean_s"));
}

static shares shares_of(const json_t *job)
{
    double step = phase(job, "step_s");
    shares s = {
        .of = {[COMPUTATION] = phase(job, "forward_s") + phase(job, "backward_s") + phase(job, "optimizer_s"),
               [COMMUNICATION] = phase(job, "exposed_communication_s"),
               [WAITING] = phase(job, "waiting_s"),
               [DATA] = phase(job, "data_s"),
               [OTHER] = phase(job, "other_s")}};
    for (int p = 0; p < PARTS; p++) {
        s.of[p] = step > 0 ? s.of[p] / step : 0;
        if (s.of[p] > s.of[s.largest]) s.largest = (part)p;
    }
    return s;
}

static void time_lines(const json_t *job, text_buffer *out)
{
    shares s = shares_of(job);
    double seconds = phase(job, "step_s");
    bool done[PARTS] = {false};
    if (!(seconds > 0) || !has_parts(job)) return;
    text_append(out, "Of a step of %s, %s:", report_job_name(job).text,
                report_value(CELL_TIME, seconds).text);
    for (int n = 0; n < PARTS; n++) {
        int next = -1;
        for (int p = 0; p < PARTS; p++)
            if (!done[p] && (next < 0 || s.of[p] > s.of[next])) next = p;
        done[next] = true;
        if (s.of[next] < 0.0005) break;
        text_append(out, "%s %.1f %% %s", n ? "," : "", 100 * s.of[next], part_names[next]);
    }
    text_append(out, ".\n");
}

static void pipeline_lines(const json_t *job, text_buffer *out)
{
    const json_t *p = json_object_get(job, "pipeline");
    if (!p) return;
    size_t stages = json_array_size(json_object_get(p, "stages"));
    double idle = 100 * report_number_at(p, "bubble"),
           equal = 100 * report_number_at(p, "bubble_of_equal_stages"),
           batches = report_number_at(p, "micro_batches");
    if (strcmp(report_text_at(p, "on"), "devices") == 0)
        text_append(out,
                    "Stages: %zu on devices of each rank, one after the other; a device is idle %.1f %% "
                    "(equal stages: %.1f %%).\n",
                    stages, idle, equal);
    else
        text_append(out, "Pipeline: %zu stages, %s, %.0f micro-batch%s; bubble %.1f %% (equal: %.1f %%).\n",
                    stages, report_text_at(p, "schedule"), batches, batches == 1 ? "" : "es", idle, equal);
}

static void remote_stage_line(const json_t *job, text_buffer *out)
{
    const json_t *r = json_object_get(job, "remote_stage");
    if (!r) return;
    const char *address = report_text_at(r, "address");
    bool local = strcmp(address, "local") == 0;
    text_append(out, "Remote stage%s%s: layers from %s on, %.0f parameters, for all ranks.\n",
                local ? "" : " at ", local ? "" : address, report_text_at(r, "begins_at"),
                report_number_at(r, "parameters"));
}

/* ---- memory ------------------------------------------------------------------------------------- */

static void memory_lines(const json_t *ps, const json_t *other, text_buffer *out)
{
    static const char peak[] = "memory_imbalance.maximum_bytes";
    const json_t *job = ps ? ps : other, *servers = json_object_get(job, "servers");
    size_t count = json_array_size(servers);
    double difference = report_number_at(job, "memory_imbalance.maximum_minus_minimum_bytes");
    short_text most = report_value(CELL_BYTES, report_number_at(job, peak)),
               of_servers = report_value(CELL_BYTES, report_largest(servers, "memory.total.peak_bytes"));
    if (difference > 0)
        text_append(out, "Memory: %s %s%s %s, %s over others", report_text_at(job, "engine"),
                    report_rank_name(job, report_number_at(job, "memory_imbalance.rank")).text,
                    ps && count == 0 ? " (reducer)" : "", most.text,
                    report_value(CELL_BYTES, difference).text);
    else
        text_append(out, "Memory: every rank of %s %s", report_text_at(job, "engine"), most.text);
    if (count == 1) text_append(out, ", its server %s", of_servers.text);
    if (count > 1) text_append(out, ", its %zu servers at most %s", count, of_servers.text);
    if (ps && other)
        text_append(out, "; %s %s", report_text_at(other, "engine"),
                    report_value(CELL_BYTES, report_number_at(other, peak)).text);
    text_append(out, ".\n");
}

/* ---- limits and what to try --------------------------------------------------------------------- */

/* Returns the name of the largest part of a step, and sets *share to the share of this part in percent.
 * Communication and waiting count as one part. */
static const char *limit_of(const shares *s, double *share)
{
    double most = s->of[COMPUTATION], synchronization = s->of[COMMUNICATION] + s->of[WAITING];
    const char *name = part_names[COMPUTATION];
    for (int p = DATA; p < PARTS; p++)
        if (s->of[p] > most) {
            most = s->of[p];
            name = part_names[p];
        }
    *share = 100 * (synchronization > most ? synchronization : most);
    return synchronization > most ? "communication and waiting" : name;
}

static void limit_lines(const json_t *slower, const json_t *faster, text_buffer *out)
{
    if (!has_parts(slower) || (faster && !has_parts(faster))) return;
    shares s = shares_of(slower), f = shares_of(faster ? faster : slower);
    double of_slower, of_faster;
    const char *a = report_text_at(slower, "engine"), *b = report_text_at(faster, "engine");
    const char *limit = limit_of(&s, &of_slower), *other = limit_of(&f, &of_faster);
    if (!faster)
        text_append(out, "Limit: %s, %.0f %% of a step.\n", limit, of_slower);
    else if (strcmp(limit, other) == 0)
        text_append(out, "Limit of both: %s, %.0f %% of a step of %s, %.0f %% of %s.\n", limit, of_slower, a,
                    of_faster, b);
    else
        text_append(out, "Limits: %s (%.0f %%) of %s, %s (%.0f %%) of %s.\n", limit, of_slower, a, other,
                    of_faster, b);
}

/* Suggests how stages can wait less for each other. */
static void advise_stages(const json_t *job, const json_t *pipeline, text_buffer *out)
{
    double ranks = report_number_at(job, "world_size"),
           stages = (double)json_array_size(json_object_get(pipeline, "stages"));
    double batches = report_number_at(pipeline, "micro_batches");
    bool equal =
        2 * report_number_at(pipeline, "bubble_of_equal_stages") >= report_number_at(pipeline, "bubble");
    if (strcmp(report_text_at(pipeline, "on"), "devices") == 0)
        text_append(out, "a pipeline: --gpus %.0f --stages %.0f --accumulate %.0f", ranks * stages, stages,
                    fmax(batches, 4 * stages));
    else if (strcmp(report_text_at(pipeline, "schedule"), "sequential") == 0)
        text_append(out, "--schedule 1f1b, whose stages compute at the same time");
    else if (equal)
        text_append(out, "--accumulate %.0f: more micro-batches make the bubble shorter", 2 * batches);
    else
        text_append(out, "fewer --stages: these are unequal, as -v shows");
}

/* Suggests how to make the job faster. The suggestion follows from the largest part of the job's step, apart
 * from computation. */
static void advise(const json_t *result, const json_t *job, text_buffer *out)
{
    shares s = shares_of(job);
    const json_t *pipeline = json_object_get(job, "pipeline"), *remote = json_object_get(job, "remote_stage");
    bool is_ps = strcmp(report_text_at(job, "engine"), "ps") == 0;
    /* Without pipeline and remote stage, the ring sends only buckets, no activations. */
    bool only_buckets = strcmp(report_text_at(job, "engine"), "ring") == 0 && !pipeline && !remote;
    bool is_virtual = json_is_true(json_object_get(result, "simulated"));
    /* Settings are text, as on the command line. */
    double servers = strtod(report_text_at(job, "settings.servers"), NULL);
    double ranks = report_number_at(job, "world_size"), shared = 100 * s.of[COMMUNICATION];
    part most = COMMUNICATION;
    for (int p = COMMUNICATION; p < OTHER; p++)
        if (s.of[p] > s.of[most]) most = (part)p;
    if (json_is_true(json_object_get(result, "oversubscribed")))
        text_append(out, "fewer ranks (--gpus): these share cores");
    else if (!has_parts(job))
        text_append(out, "a smaller --accumulate, so that the parts of a step are measured");
    else if (s.of[most] < 0.1)
        text_append(out, "more or faster %s; no link saves over %.1f %% of a step",
                    strcmp(report_text_at(job, "device"), "cpu") == 0 ? "cores per rank" : "devices", shared);
    else if (most == WAITING && pipeline)
        advise_stages(job, pipeline, out);
    else if (most == WAITING)
        text_append(out, "equally fast ranks%s; -v shows which is waited for",
                    is_virtual ? "" : ", as with --bind core");
    else if (most == DATA)
        text_append(out, "%s", is_virtual ? "a larger --batch" : "more --loader-threads");
    else if (is_ps && strcmp(report_text_at(job, "policy"), "dp") == 0)
        text_append(out, "--policy ps=sync --servers %.0f, which shards the reducer", ranks);
    else if (is_ps && servers > 0 && servers < ranks)
        text_append(out, "--servers %.0f, which shards the reducer over all ranks", ranks);
    else
        text_append(out, only_buckets
                             ? "a larger --batch; harness sweep --vary bucket-cap-mb=1,5,25,100 -o DIR"
                             : "a faster link or a larger --batch");
}

static void next_lines(const json_t *result, const json_t *verdict, const json_t *slower, text_buffer *out)
{
    static const char tables[] = " -v: all tables.";
    text_buffer line = {0};
    const json_t *gradient = report_at(result, "agreement.first_gradient");
    if (json_is_true(json_object_get(gradient, "compared")) &&
        json_is_false(json_object_get(gradient, "bit_identical")) &&
        json_is_false(json_object_get(gradient, "within_bound"))) {
        text_append(out, "DIFFERENT first gradients of ps and ring, by more than orders of sums: see -v.\n");
        return;
    }
    bool open = verdict && report_verdict_is_open(verdict);
    text_append(&line, "Next: ");
    if (open && !(report_number_at(result, "repetitions.count") >= SIGNIFICANCE_LEAST_ROUNDS))
        text_append(&line, "--repeat 10, which decides whether the difference is real");
    else if (open && report_number_at(verdict, "detectable") > 0.05)
        text_append(&line, "--repeat %.0f shows a difference of 5 %%, these runs %.1f %%",
                    report_number_at(verdict, "runs_for_5_percent"),
                    100 * report_number_at(verdict, "detectable"));
    else
        advise(result, slower, &line);
    text_append(&line, ".");
    text_append(out, "%s%s\n", line.data ? line.data : "",
                line.length + strlen(tables) <= REPORT_COLUMNS ? tables : "");
    text_free(&line);
}

void report_sentences(const json_t *result, text_buffer *out)
{
    const json_t *jobs = json_object_get(result, "jobs"), *verdict = json_object_get(result, "verdict");
    const json_t *ps = job_named(result, "ps"), *ring = job_named(result, "ring");
    const json_t *only = ps && ring ? NULL : ps ? ps : ring ? ring : job_named(result, "none");
    const json_t *slower = only, *faster = NULL;
    if (!json_is_object(verdict)) verdict = NULL;
    if (!only && verdict) {
        slower = job_named(result, report_text_at(verdict, "slower"));
        faster = job_named(result, report_text_at(verdict, "faster"));
    }
    if (verdict)
        faster_lines(result, verdict, out);
    else if (only)
        rate_lines(result, only, out);
    else
        text_append(out, "ps and ring: nothing was measured.\n");
    if (!slower) slower = json_array_get(jobs, json_array_size(jobs) - 1);
    if (!slower) return;
    time_lines(slower, out);
    pipeline_lines(slower, out);
    remote_stage_line(slower, out);
    memory_lines(only && only != ps ? NULL : ps, only == ps ? NULL : only ? only : ring, out);
    limit_lines(slower, faster, out);
    next_lines(result, verdict, slower, out);
}

void report_run(const json_t *result, bool verbose, text_buffer *out)
{
    text_buffer sentences = {0};
    report_context(result, out);
    report_sentences(result, &sentences);
    for (char *rest, *at = sentences.data ? strtok_r(sentences.data, "\n", &rest) : NULL; at;
         at = strtok_r(NULL, "\n", &rest))
        report_lines(at, INT_MAX, out);
    text_free(&sentences);
    if (!verbose) return;
    text_append(out, "\n");
    report_tables(result, out);
}
