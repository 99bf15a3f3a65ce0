/* Writes a run in at most ten lines of 80 columns: the faster engine and its factor, the parts of the
 * slower one's step, the memory cost of the reducer, the limit of both, and a next step to try. */
#include "harness/report/report_impl.h"
#include "harness/report/significance.h"

#include "common/net/link.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 80, MOST_TEXT = 400 };

/* Parts of a step, grouped for a reader. */
typedef enum part { COMPUTATION, COMMUNICATION, WAITING, DATA, OTHER, PARTS } part;
static const char *const part_names[PARTS] = {"computation", "exposed communication",
                                              "waiting for other ranks", "loading data", "other"};

typedef struct shares {
    double of[PARTS]; /* shares of the mean step of a rank */
    part largest;
} shares;

/* ---- lines -------------------------------------------------------------------------------------- */

static void append_sentence(const char *text, text_buffer *out)
{
    text_append(out, "%s\n", text);
}

/* Appends the text in at most `most` lines of at most COLUMNS. Indents all lines after the first. Drops the
 * words that do not fit, and cuts a word that is longer than a line. */
static void append_lines(const char *text, int most, text_buffer *out)
{
    enum { INDENT = 2 };
    int used = 0;
    bool first = true; /* true if the next word begins a line */
    for (const char *at = text + strspn(text, " "); *at; at += strspn(at, " ")) {
        int length = (int)strcspn(at, " ");
        while (at[length] == ' ' && at[length + 1] == '%')
            length += 1 + (int)strcspn(at + length + 1, " "); /* "95 %" */
        int shown = length;
        if (!first && used + 1 + length > COLUMNS) {
            if (--most == 0) break;
            text_append(out, "\n%*s", INDENT, "");
            used = INDENT;
            first = true;
        }
        if (shown > COLUMNS - used) shown = COLUMNS - used;
        text_append(out, "%s%.*s", first ? "" : " ", shown, at);
        used += shown + !first;
        first = false;
        at += length;
    }
    text_append(out, "\n");
}

static void append_wrapped(const char *text, text_buffer *out)
{
    append_lines(text, INT_MAX, out);
}

static const json_t *job_named(const json_t *result, const char *name)
{
    size_t i;
    json_t *job;
    json_array_foreach(json_object_get(result, "jobs"), i,
                       job) if (strcmp(report_text_at(job, "name"), name) == 0) return job;
    return NULL;
}

static char *format_rate(double value, char *buffer, size_t size)
{
    snprintf(buffer, size, "%.*f", value < 100 ? 2 : 0, value);
    return buffer;
}

static void context_lines(const json_t *result, text_buffer *out)
{
    char line[MOST_TEXT];
    const json_t *jobs = json_object_get(result, "jobs"),
                 *last = json_array_get(jobs, json_array_size(jobs) - 1);
    double ranks = report_number_at(last, "world_size");
    text_buffer algorithm = {0};
    report_all_reduce(result, &algorithm);
    /* The input must fit in two lines. */
    const char *input = report_text_at(result, "workload.input"), *with = strstr(input, " with ");
    int length = (int)(with && strstr(with, " targets") ? (size_t)(with - input) : strlen(input));
    snprintf(line, sizeof line, "%s: %.*s, %.0f parameters, %s, %.0f %s rank%s, batch %.0f per rank%s%s",
             report_text_at(result, "workload.model"), length, input,
             report_number_at(result, "workload.parameters"), report_text_at(result, "workload.data"), ranks,
             report_text_at(last, "device"), ranks == 1 ? "" : "s",
             report_number_at(result, "workload.batch_per_rank"), algorithm.data ? algorithm.data : "",
             json_is_true(json_object_get(result, "stopped_early")) ? "; stopped early" : "");
    text_free(&algorithm);
    append_lines(line, 2, out);
    if (json_is_true(json_object_get(result, "simulated"))) {
        snprintf(line, sizeof line, "SIMULATED on %s: times are modeled; memory is exact.",
                 report_text_at(last, "profile"));
        append_lines(line, 1, out);
    }
    if (json_is_true(json_object_get(result, "emulated"))) {
        net_link link;
        char shown[80] = "";
        if (net_link_parse(report_text_at(result, "configuration.link"), &link) == STATUS_OK)
            net_link_format(&link, shown, sizeof shown);
        error_clear();
        snprintf(line, sizeof line, "EMULATED network, paced to %s; all times include it.", shown);
        append_lines(line, 1, out);
    }
}

/* ---- which is faster ---------------------------------------------------------------------------- */

static const char *over_of(const json_t *verdict, char *buffer, size_t size)
{
    const char *over = report_text_at(verdict, "over");
    int count = (int)report_number_at(verdict, "count");
    if (strcmp(over, "runs") == 0)
        snprintf(buffer, size, "over %d runs", count);
    else
        snprintf(buffer, size, "over %d turns of one run", count);
    return buffer;
}

bool report_verdict_is_open(const json_t *verdict)
{
    const json_t *shown = json_object_get(verdict, "shown");
    if (json_is_boolean(shown)) return !json_is_true(shown);
    return !(report_number_at(verdict, "low") > 1) &&
           strcmp(report_text_at(verdict, "over"), "virtual time") != 0;
}

static void faster_lines(const json_t *result, const json_t *verdict, text_buffer *out)
{
    char faster[64], slower[64], rate[32], other[32], line[MOST_TEXT], tail[MOST_TEXT / 2] = "", over[48];
    const char *first = report_text_at(verdict, "faster"), *second = report_text_at(verdict, "slower");
    char path[48];
    report_job_name(job_named(result, first), faster, sizeof faster);
    report_job_name(job_named(result, second), slower, sizeof slower);
    snprintf(path, sizeof path, "samples_per_s.%s", first);
    format_rate(report_number_at(verdict, path), rate, sizeof rate);
    snprintf(path, sizeof path, "samples_per_s.%s", second);
    format_rate(report_number_at(verdict, path), other, sizeof other);
    double factor = report_number_at(verdict, "factor"), low = report_number_at(verdict, "low");
    bool is_virtual = strcmp(report_text_at(verdict, "over"), "virtual time") == 0;
    if (!isnan(low))
        snprintf(tail, sizeof tail, ", 95 %% interval %.3f to %.3f %s", low,
                 report_number_at(verdict, "high"), over_of(verdict, over, sizeof over));
    else if (!is_virtual)
        snprintf(tail, sizeof tail, ", a single measurement");
    if (!report_verdict_is_open(verdict))
        snprintf(line, sizeof line, "%s trains %.3f times as fast as %s: %s and %s samples/s%s.", faster,
                 factor, slower, rate, other, tail);
    else
        snprintf(line, sizeof line, "No difference is shown: %s %s and %s %s samples/s, a factor of %.3f%s.",
                 faster, rate, slower, other, factor, tail);
    append_sentence(line, out);
}

/* Returns the mean step of a job, which determines samples/s, or of several runs the median of their
 * means. */
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
    char name[64], rate[32], step[32], line[MOST_TEXT], low[32], high[32], tail[MOST_TEXT / 2] = "";
    const json_t *of_runs = NULL, *row;
    size_t i;
    json_array_foreach((json_t *)report_at(result, "repetitions.jobs"), i,
                       row) if (strcmp(report_text_at(row, "name"), report_text_at(job, "name")) == 0)
        of_runs = row;
    double samples = report_number_at(of_runs ? of_runs : job,
                                      of_runs ? "samples_per_s.median" : "throughput.samples_per_s"),
           seconds = mean_step_s(result, job);
    if (of_runs)
        snprintf(tail, sizeof tail, ", 95 %% interval %s to %s over %.0f runs",
                 format_rate(report_number_at(of_runs, "samples_per_s.low"), low, sizeof low),
                 format_rate(report_number_at(of_runs, "samples_per_s.high"), high, sizeof high),
                 report_number_at(result, "repetitions.count"));
    else if (!json_is_true(json_object_get(result, "simulated")))
        snprintf(tail, sizeof tail, ", a single measurement");
    if (isnan(samples) || isnan(seconds)) {
        snprintf(line, sizeof line, "%s: nothing was measured.", report_job_name(job, name, sizeof name));
    } else {
        snprintf(line, sizeof line, "%s trains %s samples/s%s; a mean step takes %s.",
                 report_job_name(job, name, sizeof name), format_rate(samples, rate, sizeof rate), tail,
                 text_format_duration(step, sizeof step, 1e9 * seconds));
    }
    append_sentence(line, out);
}

/* ---- where the time goes ------------------------------------------------------------------------ */

static double phase(const json_t *job, const char *key)
{
    char path[64];
    snprintf(path, sizeof path, "phases.%s.mean_s", key);
    double value = report_number_at(job, path);
    return isnan(value) ? 0 : value;
}

/* Returns false if a step had more waits and transfers than fit in its record. */
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
    char name[64], line[MOST_TEXT], step[32];
    shares s = shares_of(job);
    double seconds = phase(job, "step_s");
    bool done[PARTS] = {false};
    if (!(seconds > 0) || !has_parts(job)) return;
    int used = snprintf(line, sizeof line, "Of a step of %s, %s:", report_job_name(job, name, sizeof name),
                        text_format_duration(step, sizeof step, 1e9 * seconds));
    for (int n = 0; n < PARTS; n++) {
        int next = -1;
        for (int p = 0; p < PARTS; p++)
            if (!done[p] && (next < 0 || s.of[p] > s.of[next])) next = p;
        done[next] = true;
        if (s.of[next] < 0.0005) break;
        used += snprintf(line + used, sizeof line - (size_t)used, "%s %.1f %% %s", n ? "," : "",
                         100 * s.of[next], part_names[next]);
    }
    snprintf(line + used, sizeof line - (size_t)used, ".");
    append_sentence(line, out);
}

static void pipeline_lines(const json_t *job, text_buffer *out)
{
    const json_t *p = json_object_get(job, "pipeline");
    char line[MOST_TEXT];
    if (!p) return;
    size_t stages = json_array_size(json_object_get(p, "stages"));
    double idle = 100 * report_number_at(p, "bubble"),
           equal = 100 * report_number_at(p, "bubble_of_equal_stages");
    double batches = report_number_at(p, "micro_batches");
    if (strcmp(report_text_at(p, "on"), "devices") == 0)
        snprintf(line, sizeof line,
                 "Stages: %zu on devices of each rank, one after the other; a device is idle %.1f %% "
                 "(equal stages: %.1f %%).",
                 stages, idle, equal);
    else
        snprintf(line, sizeof line,
                 "Pipeline: %zu stages, %s, %.0f micro-batch%s; bubble %.1f %% (equal: %.1f %%).", stages,
                 report_text_at(p, "schedule"), batches, batches == 1 ? "" : "es", idle, equal);
    append_sentence(line, out);
}

static void remote_stage_line(const json_t *job, text_buffer *out)
{
    const json_t *r = json_object_get(job, "remote_stage");
    char line[MOST_TEXT];
    if (!r) return;
    const char *address = report_text_at(r, "address");
    bool local = strcmp(address, "local") == 0;
    snprintf(line, sizeof line, "Remote stage%s%s: layers from %s on, %.0f parameters, for all ranks.",
             local ? "" : " at ", local ? "" : address, report_text_at(r, "begins_at"),
             report_number_at(r, "parameters"));
    append_sentence(line, out);
}

/* ---- memory ------------------------------------------------------------------------------------- */

/* Appends ", its 2 servers at most 85.3 MiB" if servers have separate processes. */
static void append_servers(const json_t *job, text_buffer *out)
{
    const json_t *servers = json_object_get(job, "servers");
    size_t count = json_array_size(servers);
    double most = 0;
    char text[32];
    for (size_t i = 0; i < count; i++)
        most = fmax(most, report_number_at(json_array_get(servers, i), "memory.total.peak_bytes"));
    text_format_bytes(text, sizeof text, most);
    if (count == 1) text_append(out, ", its server %s", text);
    if (count > 1) text_append(out, ", its %zu servers at most %s", count, text);
}

static void memory_lines(const json_t *ps, const json_t *other, text_buffer *out)
{
    char most[32], more[32], others[32], rank[48];
    text_buffer line = {0};
    const json_t *job = ps ? ps : other;
    bool reduces = ps && json_array_size(json_object_get(ps, "servers")) == 0;
    double difference = report_number_at(job, "memory_imbalance.maximum_minus_minimum_bytes");
    text_format_bytes(most, sizeof most, report_number_at(job, "memory_imbalance.maximum_bytes"));
    if (difference > 0)
        text_append(&line, "Memory: %s %s%s %s, %s over others", report_text_at(job, "engine"),
                    report_rank_name(job, report_number_at(job, "memory_imbalance.rank"), rank, sizeof rank),
                    reduces ? " (reducer)" : "", most, text_format_bytes(more, sizeof more, difference));
    else
        text_append(&line, "Memory: every rank of %s %s", report_text_at(job, "engine"), most);
    append_servers(job, &line);
    if (ps && other)
        text_append(&line, "; %s %s", report_text_at(other, "engine"),
                    text_format_bytes(others, sizeof others,
                                      report_number_at(other, "memory_imbalance.maximum_bytes")));
    if (line.data) text_append(out, "%s.\n", line.data);
    text_free(&line);
}

/* ---- limits and what to try --------------------------------------------------------------------- */

/* Returns the largest part of a step: computation, loading, or synchronization, which is communication and
 * waiting. */
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
    char line[MOST_TEXT];
    if (!has_parts(slower) || (faster && !has_parts(faster))) return;
    shares s = shares_of(slower), f = shares_of(faster ? faster : slower);
    double of_slower, of_faster;
    const char *a = report_text_at(slower, "engine"), *b = report_text_at(faster, "engine");
    const char *limit = limit_of(&s, &of_slower), *other = limit_of(&f, &of_faster);
    if (!faster)
        snprintf(line, sizeof line, "Limit: %s, %.0f %% of a step.", limit, of_slower);
    else if (strcmp(limit, other) == 0)
        snprintf(line, sizeof line, "Limit of both: %s, %.0f %% of a step of %s, %.0f %% of %s.", limit,
                 of_slower, a, of_faster, b);
    else
        snprintf(line, sizeof line, "Limits: %s (%.0f %%) of %s, %s (%.0f %%) of %s.", limit, of_slower, a,
                 other, of_faster, b);
    append_sentence(line, out);
}

/* Suggests how stages can wait less for each other. */
static void advise_stages(const json_t *job, const json_t *pipeline, char *out, size_t size)
{
    double ranks = report_number_at(job, "world_size"),
           stages = (double)json_array_size(json_object_get(pipeline, "stages"));
    double batches = report_number_at(pipeline, "micro_batches");
    bool equal =
        2 * report_number_at(pipeline, "bubble_of_equal_stages") >= report_number_at(pipeline, "bubble");
    if (strcmp(report_text_at(pipeline, "on"), "devices") == 0)
        snprintf(out, size, "a pipeline: --gpus %.0f --stages %.0f --accumulate %.0f", ranks * stages, stages,
                 fmax(batches, 4 * stages));
    else if (strcmp(report_text_at(pipeline, "schedule"), "sequential") == 0)
        snprintf(out, size, "--schedule 1f1b, whose stages compute at the same time");
    else if (equal)
        snprintf(out, size, "--accumulate %.0f: more micro-batches make the bubble shorter", 2 * batches);
    else
        snprintf(out, size, "fewer --stages: these are unequal, as -v shows");
}

/* Suggests how to make the job faster. The suggestion follows from the largest part of its step that is
 * not computation. */
static void advise(const json_t *result, const json_t *job, char *out, size_t size)
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
        snprintf(out, size, "fewer ranks (--gpus): these share cores");
    else if (!has_parts(job))
        snprintf(out, size, "a smaller --accumulate, so that the parts of a step are measured");
    else if (s.of[most] < 0.1)
        snprintf(out, size, "more or faster %s; no link saves over %.1f %% of a step",
                 strcmp(report_text_at(job, "device"), "cpu") == 0 ? "cores per rank" : "devices", shared);
    else if (most == WAITING && pipeline)
        advise_stages(job, pipeline, out, size);
    else if (most == WAITING)
        snprintf(out, size, "equally fast ranks%s; -v shows which is waited for",
                 is_virtual ? "" : ", as with --bind core");
    else if (most == DATA)
        snprintf(out, size, "%s", is_virtual ? "a larger --batch" : "more --loader-threads");
    else if (is_ps && strcmp(report_text_at(job, "policy"), "dp") == 0)
        snprintf(out, size, "--policy ps=sync --servers %.0f, which shards the reducer", ranks);
    else if (is_ps && servers > 0 && servers < ranks)
        snprintf(out, size, "--servers %.0f, which shards the reducer over all ranks", ranks);
    else
        snprintf(out, size,
                 only_buckets ? "a larger --batch; harness sweep --vary bucket-cap-mb=1,5,25,100 -o DIR"
                              : "a faster link or a larger --batch");
}

static void next_lines(const json_t *result, const json_t *verdict, const json_t *slower, text_buffer *out)
{
    static const char tables[] = " -v: all tables.";
    char line[MOST_TEXT], advice[MOST_TEXT / 2];
    const json_t *gradient = report_at(result, "agreement.first_gradient");
    if (json_is_true(json_object_get(gradient, "compared")) &&
        json_is_false(json_object_get(gradient, "bit_identical")) &&
        json_is_false(json_object_get(gradient, "within_bound"))) {
        append_sentence("DIFFERENT first gradients of ps and ring, by more than orders of sums: see -v.",
                        out);
        return;
    }
    double runs = report_number_at(result, "repetitions.count");
    if (verdict && report_verdict_is_open(verdict) && !(runs >= SIGNIFICANCE_LEAST_ROUNDS))
        snprintf(advice, sizeof advice, "--repeat 10, which decides whether the difference is real");
    else if (verdict && report_verdict_is_open(verdict) && report_number_at(verdict, "detectable") > 0.05)
        snprintf(advice, sizeof advice, "--repeat %.0f shows a difference of 5 %%, these runs %.1f %%",
                 report_number_at(verdict, "runs_for_5_percent"),
                 100 * report_number_at(verdict, "detectable"));
    else
        advise(result, slower, advice, sizeof advice);
    int used = snprintf(line, sizeof line, "Next: %s.", advice);
    if (used + (int)strlen(tables) <= COLUMNS)
        snprintf(line + used, sizeof line - (size_t)used, "%s", tables);
    append_sentence(line, out);
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
        append_sentence("ps and ring: nothing was measured.", out);
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
    context_lines(result, out);
    report_sentences(result, &sentences);
    for (char *rest, *at = sentences.data ? strtok_r(sentences.data, "\n", &rest) : NULL; at;
         at = strtok_r(NULL, "\n", &rest))
        append_wrapped(at, out);
    text_free(&sentences);
    if (!verbose) return;
    text_append(out, "\n");
    report_tables(result, out);
}
