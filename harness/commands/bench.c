/* harness bench OPERATION: measures collectives between processes of this machine. Prints the columns of
 * nccl-tests. */
#include "harness/commands/commands.h"

#include "common/base/log.h"
#include "common/device/host/host.h"
#include "harness/launch/environment.h"
#include "harness/launch/launch.h"
#include "harness/launch/processors.h"
#include "harness/options/run_options.h"
#include "harness/report/fit.h"
#include "harness/report/report.h"
#include "harness/result/output.h"
#include "harness/result/run_result.h"
#include "ring/bench/bench.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench_setup {
    int64_t gpus;
    const char *json;
    bool tune, fit;
    int64_t timeout_ns;

    ring_bench_options ring;
    char operations[256];
    ring_bench_row *rows;
    int row_count;
    bool only_json, out_of_memory, wrong, stopped;
} bench_setup;

#define FIELD(name) offsetof(bench_setup, name)
static const option bench_option_list[] = {
    {"gpus", OPTION_INT, FIELD(gpus), .letter = 'g', .alias = "ngpus", .argument = "N", .initial = "2",
     .low = 1, .high = 64, .help = "ranks, each a CPU process"},
    {"tune", OPTION_FLAG, FIELD(tune),
     .help = "measure which algorithm is fastest for each size with up to N ranks, and print the table for "
             "--collective-table"},
    {"fit", OPTION_FLAG, FIELD(fit),
     .help = "fit latency and bandwidth to the times of all sizes, with 95 % intervals"},
    {"json", OPTION_TEXT, FIELD(json), .argument = "FILE",
     .help = "write the rows as JSON there (- for stdout, instead of the table)"},
    {"timeout", OPTION_DURATION, FIELD(timeout_ns), .argument = "TIME", .initial = "60s", .low = 1e6,
     .help = "longest time to connect, and for a call"},
};

static size_t bind_bench(void *options, option_binding *bindings)
{
    bench_setup *s = options;
    bindings[0] = (option_binding){.table = &ring_bench_option_table, .storage = &s->ring};
    return 1;
}

/* Joins the words: "all-reduce broadcast" becomes "all_reduce,broadcast". */
static status name_operations(bench_setup *s, const char **words, int count)
{
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        int more =
            snprintf(s->operations + used, sizeof s->operations - used, "%s%s", i ? "," : "", words[i]);
        used += (size_t)more;
        if (used >= sizeof s->operations) return fail(STATUS_USAGE, "bench: expected fewer operations");
    }
    for (char *c = s->operations; *c; c++)
        if (*c == '-') *c = '_';
    if (count) s->ring.operations = s->operations;
    return STATUS_OK;
}

static status check_options(const command_line *line)
{
    const option_binding *b = line->bindings;
    const bench_setup *s = line->options;
    if (line->word_count && (s->tune || options_given(&b[1], "operations")))
        return fail(STATUS_USAGE, "bench: unexpected argument '%s' with --%s", line->words[0],
                    s->tune ? "tune" : "operations");
    for (int t = 0; s->tune && t < 2; t++)
        for (size_t i = 0; i < b[t].table->count; i++)
            if (b[t].given >> i & 1 &&
                !run_option_is_among(b[t].table->options[i].name, "gpus tune timeout link"))
                return fail(STATUS_USAGE, "--%s: unexpected with --tune", b[t].table->options[i].name);
    return STATUS_OK;
}

static void take_row(void *context, const ring_bench_row *row)
{
    bench_setup *s = context;
    ring_bench_row *rows = realloc(s->rows, (size_t)(s->row_count + 1) * sizeof *rows);
    if (!rows) {
        s->out_of_memory = true;
        return;
    }
    s->rows = rows;
    s->rows[s->row_count++] = *row;
    if (s->only_json) return;
    text_buffer line = {0};
    ring_bench_line(row, s->row_count > 1 ? &s->rows[s->row_count - 2] : NULL, &line);
    output_text(&line);
}

/* ---- latency and bandwidth ---- */

static bool same_series(const ring_bench_row *a, const ring_bench_row *b)
{
    return a->kind == b->kind && strcmp(a->collective, b->collective) == 0 &&
           strcmp(a->algorithm, b->algorithm) == 0;
}

/* Fits a line to the rows with the same kind, collective and algorithm as row `first`. Uses the best times,
 * because they are disturbed least by other load on the machine. */
static status fit_series(const bench_setup *s, int first, line_fit *out)
{
    double *bytes = calloc((size_t)s->row_count, 2 * sizeof *bytes), *seconds = bytes + s->row_count;
    int count = 0;
    if (!bytes) return fail(STATUS_SYSTEM, "no memory for the fit");
    for (int i = first; i < s->row_count; i++) {
        const ring_bench_row *row = &s->rows[i];
        if (!same_series(row, &s->rows[first])) continue;
        bytes[count] = (double)row->bytes;
        seconds[count++] = (row->in_place.run ? row->in_place.best_us : row->out_of_place.best_us) / 1e6;
    }
    status rc = fit_line(bytes, seconds, count, out);
    free(bytes);
    return rc;
}

static bool begins_series(const bench_setup *s, int row)
{
    for (int k = 0; k < row; k++)
        if (same_series(&s->rows[k], &s->rows[row])) return false;
    return true;
}

static status print_fits(const bench_setup *s, text_buffer *out)
{
    for (int i = 0; i < s->row_count; i++) {
        line_fit f;
        if (!begins_series(s, i)) continue;
        TRY(fit_series(s, i, &f));
        text_append(out,
                    "# Fit %s %s: latency %.1f us (%.1f to %.1f), bandwidth %.4g GB/s (%.4g to %.4g), R^2 "
                    "%.4f, %d sizes\n",
                    s->rows[i].collective, s->rows[i].algorithm, f.latency_s * 1e6,
                    f.latency_interval.low * 1e6, f.latency_interval.high * 1e6,
                    f.bandwidth_bytes_per_s / 1e9, f.bandwidth_interval.low / 1e9,
                    f.bandwidth_interval.high / 1e9, f.r_squared, f.points);
    }
    return STATUS_OK;
}

static status write_json(const bench_setup *s)
{
    json_t *rows = json_array(), *fits = s->fit ? json_array() : NULL;
    status rc = STATUS_OK;
    for (int i = 0; i < s->row_count && rc == STATUS_OK; i++) {
        const ring_bench_row *row = &s->rows[i];
        line_fit f;
        json_array_append_new(rows, ring_bench_json(row));
        if (!fits || !begins_series(s, i)) continue;
        rc = fit_series(s, i, &f);
        json_array_append_new(
            fits,
            json_pack("{s:s, s:s, s:f, s:f, s:f, s:o, s:o, s:o, s:f, s:i}", "collective", row->collective,
                      "algorithm", row->algorithm, "latency_s", f.latency_s, "latency_low_s",
                      f.latency_interval.low, "latency_high_s", f.latency_interval.high,
                      "bandwidth_bytes_per_s", report_json_number(f.bandwidth_bytes_per_s),
                      "bandwidth_low_bytes_per_s", report_json_number(f.bandwidth_interval.low),
                      "bandwidth_high_bytes_per_s", report_json_number(f.bandwidth_interval.high),
                      "r_squared", f.r_squared, "points", f.points));
    }
    json_t *result = json_pack("{s:i, s:b, s:o, s:o*}", "schema_version", BENCH_SCHEMA_VERSION,
                               "stopped_early", (int)s->stopped, "rows", rows, "fits", fits);
    if (rc == STATUS_OK) return output_json(result, s->json);
    json_decref(result);
    return rc;
}

static status bench_rank0(bench_setup *s, const ring_bench_config *config)
{
    text_buffer text = {0};
    if (!s->only_json) {
        ring_bench_header(config, &text);
        TRY(output_text(&text));
    }
    status rc = ring_bench(config, take_row, s);
    if (rc != STATUS_OK && rc != STATUS_STOPPED) return rc;
    s->stopped = rc == STATUS_STOPPED;
    s->fit = s->fit && !s->stopped; /* A fit needs all sizes. */
    error_clear();
    for (int i = 0; i < s->row_count; i++)
        s->wrong = s->wrong || s->rows[i].out_of_place.wrong > 0 || s->rows[i].in_place.wrong > 0;
    if (s->out_of_memory) return fail(STATUS_SYSTEM, "no memory for the results");
    if (!s->only_json) {
        if (s->row_count > 0) ring_bench_footer(s->rows, s->row_count, &text);
        if (s->stopped) text_append(&text, "# Stopped early on request.\n");
        if (s->fit) TRY(print_fits(s, &text));
        TRY(output_text(&text));
    }
    if (s->json) TRY(write_json(s));
    return s->wrong ? fail(STATUS_MISMATCH, "bench: found wrong values") : STATUS_OK;
}

static status tune(const ring_bench_config *config)
{
    collective_tuning table;
    text_buffer text = {0};
    status rc = ring_bench_tune(config, &table);
    if (config->rank != 0 || (rc != STATUS_OK && rc != STATUS_STOPPED)) return rc;
    error_clear();
    collective_tuning_write(&table, &text);
    if (rc == STATUS_STOPPED) text_append(&text, "# Stopped early on request.\n");
    return output_file(&text, "-"); /* Written in the format of a file for --collective-table. */
}

static status run_rank(bench_setup *s, const launch_environment *e)
{
    ring_bench_config config = {.rank = e->rank,
                                .world = e->world,
                                .job_token = e->token,
                                .timeout_ns = s->timeout_ns,
                                .options = &s->ring,
                                .table = e->table};
    status rc;
    if (s->tune)
        rc = tune(&config);
    else if (e->rank == 0)
        rc = bench_rank0(s, &config);
    else
        rc = ring_bench(&config, take_row, s);
    if (rc == STATUS_STOPPED) {
        error_clear();
        rc = STATUS_OK;
    }
    launch_environment_end_rank(e, rc);
    return rc;
}

static status check_fit(const bench_setup *s)
{
    int sizes = 0;
    for (int64_t bytes = s->ring.begin; bytes <= s->ring.end && sizes < 3; bytes *= s->ring.factor) sizes++;
    if (!s->fit || sizes >= 3) return STATUS_OK;
    return fail(STATUS_USAGE, "--fit: expected 3 sizes or more, got %d", sizes);
}

static status run_launcher(const bench_setup *s, command_line *line)
{
    TRY(ring_bench_check(&s->ring, (int)s->gpus));
    TRY(check_fit(s));
    if (strstr(s->ring.collectives, "mpi"))
        return fail(
            STATUS_USAGE,
            "--collective: expected mpirun to start the ranks of 'mpi': mpirun -n %d harness bench ...",
            (int)s->gpus);
    TRY(output_check(&(output_name){"json", s->json}, 1, &s->ring.table, 1));
    if (s->json) TRY(output_probe(s->json));
    launch_job job = {.name = "bench", .world = (int)s->gpus};
    /* A rank does not change its status slot while it measures a message size, which may take long. */
    launch_options options = {.jobs = &job,
                              .job_count = 1,
                              .argv = line->argv,
                              .unit = "call",
                              .stall_timeout_ns = 10 * s->timeout_ns};
    log_info("%d CPU rank%s %s %d processor%s", job.world, job.world == 1 ? "" : "s",
             job.world > host_processors() ? "share" : "on", host_processors(),
             host_processors() == 1 ? "" : "s");
    /* Two ranks bound to the same processor would measure the scheduler. */
    bind_mode bind = job.world > host_processors() ? BIND_NONE : BIND_CORE;
    cpu_set_t *sets = NULL;
    TRY(bind_plan(bind, (bind_group){job.world, 1}, &sets));
    job.processors = sets;
    status rc = launch_run_and_log(&options, &line->exit_code);
    free(sets);
    return rc;
}

static status run_bench(command_line *line)
{
    bench_setup *s = line->options;
    launch_environment e;
    TRY(check_options(line));
    TRY(name_operations(s, line->words, line->word_count));
    s->only_json = command_is_stdout(s->json);
    TRY(launch_environment_open(getenv("OMPI_COMM_WORLD_RANK") != NULL, &e));
    status rc = e.origin == LAUNCH_BY_HAND ? run_launcher(s, line) : run_rank(s, &e);
    launch_environment_close(&e);
    free(s->rows);
    return rc;
}

const command command_bench = {
    .name = "bench",
    .usage = "[all-reduce|broadcast|...] [options]",
    .summary = "time collectives between processes, with nccl-tests' columns",
    .options_size = sizeof(bench_setup),
    .table = {"Benchmark", bench_option_list, sizeof bench_option_list / sizeof bench_option_list[0]},
    .bind = bind_bench,
    .most_words = INT_MAX,
    .run = run_bench};
