/* Writes the verdict of a run in at most ten lines of 80 columns after the workload. The lines say which
 * engine is faster and by which factor, how training went, what a step of the slower engine loses and why,
 * how much memory the reducer costs, and what to try next. */
#include "harness/report/lost_time.h"
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
} shares;

/* ---- which is faster ---------------------------------------------------------------------------- */

bool report_verdict_is_open(const json_t *verdict)
{
    const json_t *shown = json_object_get(verdict, "shown");
    if (json_is_boolean(shown)) return !json_is_true(shown);
    return !(report_number_at(verdict, "low") > 1) &&
           strcmp(report_text_at(verdict, "over"), "virtual time") != 0;
}

/* The verdict has at most ten lines. It names fewer causes of lost time if it would have more. */
enum { MOST_LINES = 10, MOST_CAUSES = 5 };

/* Ends a sentence about speed. Says if other programs took more than 5 % of the processors. */
static void end_speed(const json_t *result, text_buffer *out)
{
    double used = report_number_at(result, "host.other_programs_processors");
    text_append(out, ".");
    if (used > 0.05 * report_number_at(result, "host.processors"))
        text_append(out, " Others used %.1f CPUs.", used);
    text_append(out, "\n");
}

/* Returns the part of a step in which it does not load data. */
static double without_loading(const json_t *job)
{
    return 1 - report_phase(job, "data_s") / report_phase(job, "step_s");
}

/* Says by which factor dp is slower because of its scheme, its Python process, and the data that it loads. */
static void dp_factors(const json_t *dp, const json_t *ring, text_buffer *out)
{
    static const char rate[] = "throughput.samples_per_s";
    const json_t *scheme = json_object_get(dp, "without_python");
    if (!scheme) return;
    double without = report_number_at(scheme, "samples_per_s") / without_loading(scheme),
           loading = without_loading(ring) / without_loading(dp);
    text_append(out, ": %.2f times by the scheme, %.2f by dp's single Python process",
                report_number_at(ring, rate) / without_loading(ring) / without,
                without * without_loading(dp) / report_number_at(dp, rate));
    if (fabs(loading - 1) >= 0.005) text_append(out, ", %.2f by loading data", loading);
    text_append(out, ". The ring's interpreter is not modeled");
}

/* Says which engine is faster. A single run does not decide, so it says only what this run measured. */
static void faster_lines(const json_t *result, const json_t *verdict, text_buffer *out)
{
    const char *first = report_text_at(verdict, "faster"), *second = report_text_at(verdict, "slower"),
               *over = report_text_at(verdict, "over");
    const json_t *rates = json_object_get(verdict, "samples_per_s");
    short_text faster = report_job_name(report_job(result, first)),
               slower = report_job_name(report_job(result, second)),
               rate = report_value(CELL_RATE, report_number_at(rates, first)),
               other = report_value(CELL_RATE, report_number_at(rates, second));
    double factor = report_number_at(verdict, "factor"), low = report_number_at(verdict, "low");
    bool single = strcmp(over, "runs") != 0 && strcmp(over, "virtual time") != 0;
    if (single)
        text_append(out,
                    "In this run %s trained %.2f times as fast as %s: %s and %s samples/s. One run cannot "
                    "decide; --repeat %d can",
                    faster.text, factor, slower.text, rate.text, other.text, SIGNIFICANCE_LEAST_ROUNDS);
    else if (!report_verdict_is_open(verdict))
        text_append(out, "%s trains %.3f times as fast as %s: %s and %s samples/s", faster.text, factor,
                    slower.text, rate.text, other.text);
    else
        text_append(out, "No difference is shown: %s %s and %s %s samples/s, a factor of %.3f", faster.text,
                    rate.text, slower.text, other.text, factor);
    if (!isnan(low) && !single)
        text_append(out, ", 95 %% interval %.3f to %.3f over %d runs", low, report_number_at(verdict, "high"),
                    (int)report_number_at(verdict, "count"));
    dp_factors(report_job(result, second), report_job(result, first), out);
    end_speed(result, out);
}

static void rate_lines(const json_t *result, const json_t *job, text_buffer *out)
{
    short_text name = report_job_name(job);
    const json_t *of_runs =
        report_find(report_at(result, "repetitions.jobs"), "name", report_text_at(job, "name"));
    double samples = report_number_at(of_runs ? of_runs : job,
                                      of_runs ? "samples_per_s.median" : "throughput.samples_per_s");
    if (isnan(samples)) {
        text_append(
            out, "%s: %s.\n", name.text,
            report_phase(job, "step_s") > 0
                ? "no samples/s, because there was no time in which all ranks trained: take more --steps"
                : "nothing was measured");
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
    end_speed(result, out);
}

/* ---- where the time goes ------------------------------------------------------------------------ */

static double phase(const json_t *job, const char *key)
{
    double value = report_phase(job, key);
    return isnan(value) ? 0 : value;
}

/* Returns false if the parts of a step are unknown, because a step had more waits and transfers than fit in
 * its record. */
static bool has_parts(const json_t *job)
{
    return isfinite(report_phase(job, "forward_s"));
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
    for (int p = 0; p < PARTS; p++) s.of[p] = step > 0 ? s.of[p] / step : 0;
    return s;
}

/* Returns the index of the value of[count] with the largest magnitude among those that are not NaN and not
 * done, and marks it as done. Returns -1 if there is none. */
static int take_largest(const double *of, int count, bool *done)
{
    int largest = -1;
    for (int i = 0; i < count; i++)
        if (!done[i] && !isnan(of[i]) && (largest < 0 || fabs(of[i]) > fabs(of[largest]))) largest = i;
    if (largest >= 0) done[largest] = true;
    return largest;
}

static void time_lines(const json_t *job, text_buffer *out)
{
    shares s = shares_of(job);
    double seconds = phase(job, "step_s");
    bool done[PARTS] = {false};
    if (!(seconds > 0) || !has_parts(job)) return;
    bool together = !json_is_false(json_object_get(job, "synchronous"));
    text_append(out, "Of %s of %s, %s:", together ? "a step" : "a rank's mean step",
                report_job_name(job).text, report_value(CELL_TIME, seconds).text);
    for (int n = 0; n < PARTS; n++) {
        int next = take_largest(s.of, PARTS, done);
        if (s.of[next] < 0.0005) break;
        text_append(out, "%s %.1f %% %s", n ? "," : "", 100 * s.of[next], part_names[next]);
    }
    text_append(out, ".\n");
}

/* Names a cause of lost time. If one rank is waited for during most of the waiting time, names this rank. */
static short_text cause_name(const json_t *job, const lost_time *l, int cause)
{
    short_text name;
    if (cause == LOST_EXCHANGE && isnan(l->of[LOST_NEIGHBORS]))
        snprintf(name.text, sizeof name.text, "slower computation");
    else if (cause == LOST_WAITING && 2 * report_longest_wait(job, "s") > phase(job, "waiting_s"))
        snprintf(name.text, sizeof name.text, "waiting mostly for rank %.0f",
                 report_longest_wait(job, "rank"));
    else
        snprintf(name.text, sizeof name.text, "%s", lost_causes[cause].name);
    return name;
}

static void lost_part(double seconds, const char *before, const char *name, text_buffer *out)
{
    text_append(out, "%s %s%s %s", before, seconds < 0 ? "-" : "",
                report_value(CELL_TIME, fabs(seconds)).text, name);
}

/* Says by how much a step takes longer than a step of one rank alone, and why. Adds up the causes after the
 * first `most`, and the last causes if each of them, and their sum, are shorter than 5 % of the lost time, or
 * than 0.1 % of the step. */
static void lost_lines(const json_t *job, const lost_time *l, int most, text_buffer *out)
{
    double total = l->step_s - l->alone_s, least = fmax(0.05 * fabs(total), 0.001 * l->step_s), rest = total;
    bool done[LOST_CAUSES] = {false};
    text_append(out, "A step of %s takes %s, of one rank alone %s", report_job_name(job).text,
                report_value(CELL_TIME, l->step_s).text, report_value(CELL_TIME, l->alone_s).text);
    int n = 0;
    for (; n < most; n++) {
        int next = take_largest(l->of, LOST_CAUSES, done);
        if (next < 0 || (fabs(l->of[next]) < least && fabs(rest) <= least)) break;
        rest -= l->of[next];
        lost_part(l->of[next], n ? "," : ". Lost:", cause_name(job, l, next).text, out);
    }
    if (fabs(rest) >= 0.2 * least) lost_part(rest, n ? "," : ". Lost:", "other", out);
    text_append(out, ".\n");
}

/* Says what share of the samples/s of as many ranks alone the job reaches. On a CPU also says what share it
 * reaches of the same ranks without exchange, which is the most that this machine can reach. */
static void efficiency_lines(const json_t *result, const json_t *job, text_buffer *out)
{
    const json_t *row =
        report_find(report_at(result, "comparison.against_none"), "name", report_text_at(job, "name"));
    double of_alone = report_number_at(row, "weak_scaling_efficiency"),
           of_isolated = report_number_at(job, "throughput.samples_per_s") /
                         report_number_at(report_job(result, "isolated"), "throughput.samples_per_s");
    if (isnan(of_alone)) return;
    text_append(out, "%s: %.0f %% of %.0f times one rank alone", report_text_at(job, "engine"),
                100 * of_alone, report_number_at(job, "world_size"));
    if (!isnan(of_isolated)) text_append(out, "; %.0f %% of these ranks without exchange", 100 * of_isolated);
    text_append(out, ".\n");
}

/* ---- what else the run found -------------------------------------------------------------------- */

static void losses(const json_t *job, text_buffer *out)
{
    text_append(out, "%.3f to %.3f", report_number_at(job, "loss_first"), report_number_at(job, "loss_last"));
}

/* Says how training went: the losses of the first measured step and of the last step, and the accuracy. `b`
 * is NULL if there is only one engine. */
static void training_line(const json_t *result, const json_t *a, const json_t *b, text_buffer *out)
{
    bool equal = json_is_true(report_at(result, "agreement.parameters_equal"));
    bool unsaved = report_number_at(a, "checkpoints") == 0;
    const char *saved = unsaved ? "" : report_text_at(result, "configuration.save");
    double accuracy = report_number_at(a, "accuracy"), other = report_number_at(b, "accuracy"),
           step = report_number_at(a, "saved_step");
    char how[40] = "saved in";
    if (step < report_number_at(a, "steps")) snprintf(how, sizeof how, "step %.0f saved in", step);
    if (isnan(report_number_at(a, "loss_last"))) { /* no step was measured */
        if (!isnan(accuracy)) text_append(out, "Test accuracy %.1f %%.\n", 100 * accuracy);
        if (*saved) text_append(out, "Checkpoint: %s %s.\n", how, saved);
        return;
    }
    if (equal)
        text_append(out, "Equal parameters, bit for bit; loss ");
    else
        text_append(out, "Loss: %s ", report_text_at(a, "engine"));
    losses(a, out);
    if (b && !equal) {
        text_append(out, ", %s ", report_text_at(b, "engine"));
        losses(b, out);
    }
    if (!isnan(accuracy))
        text_append(out, "%s test accuracy %.1f %%", b && !equal ? ";" : ",", 100 * accuracy);
    if (!isnan(other) && other != accuracy) text_append(out, " and %.1f %%", 100 * other);
    if (*saved) text_append(out, "; %s %s", how, saved);
    text_append(out, ".\n");
}

/* Compares the engines with one process on all cores. */
static void all_cores_line(const json_t *result, const json_t *slower, const json_t *faster, text_buffer *out)
{
    double one = report_number_at(report_job(result, "all-cores"), "throughput.samples_per_s"),
           least = report_number_at(slower, "throughput.samples_per_s"),
           most = report_number_at(faster, "throughput.samples_per_s");
    if (isnan(one) || isnan(least) || isnan(most)) return;
    text_append(out, "One process on all cores trains %s samples/s, %s.\n", report_value(CELL_RATE, one).text,
                one > most    ? "more than either"
                : one < least ? "less than either"
                              : "more than one of them");
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
    double difference = report_number_at(job, "memory_imbalance.maximum_minus_minimum_bytes"),
           between_steps = report_between_steps(job);
    short_text most = report_value(CELL_BYTES, report_number_at(job, peak)),
               of_servers = report_value(CELL_BYTES, report_largest(servers, "memory.total.peak_bytes"));
    if (difference > 0)
        text_append(out, "Memory: %s %s%s %s, %s over others", report_text_at(job, "engine"),
                    report_rank_name(job, report_number_at(job, "memory_imbalance.rank")).text,
                    ps && count == 0 ? " (reducer)" : "", most.text,
                    report_value(CELL_BYTES, difference).text);
    else
        text_append(out, "Memory: every rank of %s %s", report_text_at(job, "engine"), most.text);
    if (difference > 0 && between_steps > 0 && !(ps && other)) /* ten lines have no room for more */
        text_append(out, " at the peak, %s between steps", report_value(CELL_BYTES, between_steps).text);
    if (count == 1) text_append(out, ", its server %s", of_servers.text);
    if (count > 1) text_append(out, ", its %zu servers at most %s", count, of_servers.text);
    if (ps && other)
        text_append(out, "; %s %s", report_text_at(other, "engine"),
                    report_value(CELL_BYTES, report_number_at(other, peak)).text);
    text_append(out, ".\n");
}

/* ---- what to try --------------------------------------------------------------------------------- */

/* Suggests how stages can wait less for each other. `communication` is its share of a step. */
static void advise_stages(const json_t *job, const json_t *pipeline, double communication, text_buffer *out)
{
    double ranks = report_number_at(job, "world_size"),
           stages = (double)json_array_size(json_object_get(pipeline, "stages"));
    double batches = report_number_at(pipeline, "micro_batches");
    bool equal = 2 * report_number_at(pipeline, "bubble_of_equal_stages") >=
                 report_number_at(pipeline, "bubble") - communication;
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

void report_next(const json_t *next, text_buffer *out)
{
    const char *options = report_text_at(next, "options");
    const json_t *tried = json_object_get(next, "settings");
    if (*options && isfinite(report_number_at(next, "more")))
        text_append(out, "%s trains %.0f %% more samples/s under %s", options,
                    100 * report_number_at(next, "more"), report_text_at(next, "policy"));
    else if (*options)
        text_append(out, "%s shortens a step of %s by %.0f %%", options, report_text_at(next, "policy"),
                    100 * report_number_at(next, "shorter"));
    else
        text_append(out, "%s shortens a step of %s by 5 %%",
                    json_array_size(tried) > 0 ? "nothing tried" : "no setting that can be tried",
                    report_text_at(next, "policy"));
    if (json_array_size(tried) > 0) text_append(out, ". Tried:");
    for (size_t i = 0; i < json_array_size(tried); i++)
        text_append(out, "%s %s", i ? "," : "", json_string_value(json_array_get(tried, i)));
}

/* Suggests what helps against the largest cause of lost time or, if no rank ran alone, against the largest
 * part of the step apart from computation. */
static void advise_against(const json_t *job, const lost_time *lost, text_buffer *out)
{
    shares s = shares_of(job);
    bool known = !isnan(lost->step_s), on_cpu = strcmp(report_text_at(job, "device"), "cpu") == 0;
    double step = known ? lost->step_s : phase(job, "step_s"),
           waiting = known ? lost->of[LOST_WAITING] : step * s.of[WAITING],
           data = known ? lost->of[LOST_DATA] : step * s.of[DATA],
           most = known ? 0 : step * s.of[COMMUNICATION];
    for (int c = 0; known && c < LOST_CAUSES; c++)
        if (c != LOST_WAITING && c != LOST_DATA) most = fmax(most, lost->of[c]);
    if (known && lost->of[LOST_NEIGHBORS] >= fmax(0.05 * step, fmax(most, fmax(waiting, data))))
        text_append(out, "fewer ranks with more --threads: ranks slow each other");
    else if (fmax(most, fmax(waiting, data)) < 0.05 * step)
        text_append(out, "more or faster %s; nothing else saves 5 %% of a step",
                    on_cpu ? "cores per rank" : "devices");
    else if (waiting > fmax(most, data))
        text_append(out, "equally fast ranks%s; -v shows which is waited for",
                    on_cpu ? ", as with --bind core" : "");
    else if (data > most)
        text_append(out, "more --loader-%s",
                    json_is_true(json_object_get(job, "simulated")) ? "workers" : "threads");
    else
        text_append(out, "a larger --batch: fewer exchanges per sample");
}

static void advise(const json_t *result, const json_t *job, text_buffer *out)
{
    lost_time lost = lost_time_from_json(json_object_get(job, "lost"));
    const json_t *pipeline = json_object_get(job, "pipeline"), *next = json_object_get(result, "next");
    shares s = shares_of(job);
    if (!(report_number_at(job, "step_time.count") > 0))
        text_append(out, "--warmup 0 or more steps: no step was measured");
    else if (json_is_true(json_object_get(result, "oversubscribed")))
        text_append(out, "fewer ranks (--gpus): these share cores");
    else if (json_is_object(next))
        report_next(next, out);
    else if (!has_parts(job))
        text_append(out, "a smaller --accumulate, so that the parts of a step are measured");
    else if (pipeline && (report_number_at(pipeline, "bubble_of_equal_stages") >= 0.1 ||
                          s.of[WAITING] >= fmax(0.1, s.of[COMMUNICATION])))
        advise_stages(job, pipeline, s.of[COMMUNICATION], out);
    else
        advise_against(job, &lost, out);
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
    double runs = report_number_at(result, "repetitions.count");
    if (open && runs < SIGNIFICANCE_LEAST_ROUNDS)
        text_append(&line, "--repeat %d, the least that decides", SIGNIFICANCE_LEAST_ROUNDS);
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

/* The verdict names at most `causes` causes of lost time, and leaves out one process on all cores if it may
 * name only one. */
static void sentences(const json_t *result, int causes, text_buffer *out)
{
    const json_t *jobs = json_object_get(result, "jobs"), *verdict = json_object_get(result, "verdict");
    const json_t *ps = report_job(result, "ps"), *ring = report_job(result, "ring");
    const json_t *only = ps && ring ? NULL : ps ? ps : ring ? ring : report_job(result, "none");
    const json_t *slower = only, *faster = NULL;
    if (!json_is_object(verdict)) verdict = NULL;
    if (!only && verdict) {
        slower = report_job(result, report_text_at(verdict, "slower"));
        faster = report_job(result, report_text_at(verdict, "faster"));
    }
    if (verdict)
        faster_lines(result, verdict, out);
    else if (only)
        rate_lines(result, only, out);
    else if (ps) {
        rate_lines(result, ps, out);
        rate_lines(result, ring, out);
    } else
        text_append(out, "nothing was measured.\n");
    if (!slower) slower = json_array_get(jobs, json_array_size(jobs) - 1);
    if (!slower) return;
    lost_time lost = lost_time_from_json(json_object_get(slower, "lost"));
    training_line(result, only ? only : ps, only ? NULL : ring, out);
    if (causes > 1) all_cores_line(result, slower, faster, out);
    efficiency_lines(result, slower, out);
    if (isnan(lost.step_s))
        time_lines(slower, out);
    else
        lost_lines(slower, &lost, causes, out);
    pipeline_lines(slower, out);
    remote_stage_line(slower, out);
    memory_lines(only && only != ps ? NULL : ps, only == ps ? NULL : only ? only : ring, out);
    if (only && only != report_job(result, "none"))
        text_append(out, "--mode both compares it with a %s.\n", only == ps ? "ring" : "parameter server");
    next_lines(result, verdict, slower, out);
}

void report_sentences(const json_t *result, text_buffer *out)
{
    sentences(result, MOST_CAUSES, out);
}

/* Appends the verdict in lines. Returns their number. */
static int verdict_lines(const json_t *result, int causes, text_buffer *out)
{
    text_buffer text = {0};
    int count = 0;
    size_t begin = out->length;
    sentences(result, causes, &text);
    for (char *rest = text.data, *line; (line = strsep(&rest, "\n"));)
        if (*line) report_lines(line, INT_MAX, out);
    text_free(&text);
    for (size_t i = begin; i < out->length; i++) count += out->data[i] == '\n';
    return count;
}

void report_run(const json_t *result, bool verbose, text_buffer *out)
{
    report_context(result, out);
    size_t begin = out->length;
    for (int causes = MOST_CAUSES; verdict_lines(result, causes, out) > MOST_LINES && causes > 1; causes--)
        out->length = begin;
    if (!verbose) return;
    text_append(out, "\n");
    report_tables(result, out);
}
