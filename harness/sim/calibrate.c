#include "harness/sim/calibrate.h"

#include "common/base/clock.h"
#include "common/checkpoint/atomic_file.h"
#include "common/reduce/reduce.h"
#include "common/sim/profile.h"
#include "harness/train/local_ranks.h"
#include "ring/bench/bench.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PAIR = 2, BYTES = 32 << 20, TURNS = 9, ALL_REDUCE_BYTES = 25 << 20, SMALL_BYTES = 4096 };

/* ---- memory ----------------------------------------------------------------------------------- */

static double best_gbs(double bytes, int64_t best_ns)
{
    return best_ns > 0 ? bytes / (double)best_ns : 0;
}

/* Bytes read and written a second by a copy. */
static status measure_copy(double *gbs)
{
    char *from = malloc(BYTES), *to = malloc(BYTES);
    int64_t best = 0;
    status rc = from && to ? STATUS_OK : fail(STATUS_SYSTEM, "no memory to copy");
    if (rc == STATUS_OK) memset(from, 1, BYTES);
    for (int i = 0; i < TURNS && rc == STATUS_OK; i++) {
        int64_t begin = clock_now_ns();
        memcpy(to, from, BYTES);
        int64_t spent = clock_now_ns() - begin;
        if (best == 0 || spent < best) best = spent;
    }
    *gbs = best_gbs(2.0 * BYTES, best);
    free(from);
    free(to);
    return rc;
}

/* Bytes that pass a thread that adds two vectors into a third. */
static status measure_sum(double *gbs)
{
    float *a = calloc(1, BYTES), *b = calloc(1, BYTES), *out = calloc(1, BYTES);
    int64_t best = 0;
    status rc = a && b && out ? STATUS_OK : fail(STATUS_SYSTEM, "no memory to add");
    for (int i = 0; i < TURNS && rc == STATUS_OK; i++) {
        const void *sources[] = {a, b};
        void *outs[] = {out};
        int64_t begin = clock_now_ns();
        reduce_many(DTYPE_F32, REDUCE_SUM, outs, 1, sources, 2, BYTES / (int64_t)sizeof(float));
        int64_t spent = clock_now_ns() - begin;
        if (best == 0 || spent < best) best = spent;
    }
    *gbs = best_gbs(3.0 * BYTES, best);
    free(a);
    free(b);
    free(out);
    return rc;
}

/* ---- two at a time ---------------------------------------------------------------------------- */

typedef struct pair {
    int threads;
    double copies_gbs[PAIR], steps_ms[PAIR];
    uint64_t token;
    double small_us, large_gbs;
} pair;

static void take_row(void *context, const ring_bench_row *row)
{
    pair *p = context;
    if (row->bytes <= SMALL_BYTES)
        p->small_us = row->in_place.median_us;
    else
        p->large_gbs = row->in_place.bus_gbs;
}

static status run_pair(local_ranks *group, int rank, void *context)
{
    pair *p = context;
    ring_bench_options options;
    option_binding binding = {.table = &ring_bench_option_table, .storage = &options};
    TRY(local_ranks_barrier(group));
    TRY(measure_copy(&p->copies_gbs[rank]));
    TRY(local_ranks_barrier(group));
    TRY(calibrate_step(p->threads, &p->steps_ms[rank]));
    TRY(local_ranks_barrier(group));
    TRY(options_defaults(&binding, 1));
    options.collectives = "auto";
    options.operations = "all_reduce";
    options.check = false;
    options.begin = SMALL_BYTES;
    options.end = ALL_REDUCE_BYTES;
    options.factor = ALL_REDUCE_BYTES / SMALL_BYTES;
    ring_bench_config bench = {.rank = rank,
                               .world = PAIR,
                               .job_token = p->token,
                               .threads_per_rank = 1,
                               .timeout_ns = 30 * NS_PER_S,
                               .options = &options};
    return ring_bench(&bench, take_row, p);
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

status calibrate(int threads, calibration *out)
{
    *out = (calibration){.threads = threads};
    double alone_ms = 0;
    pair p = {.threads = threads, .token = (uint64_t)clock_now_ns()};
    TRY(measure_sum(&out->host_sum_gbs));
    TRY(calibrate_operations(out, &alone_ms));
    TRY(local_ranks_run(PAIR, run_pair, &p));
    out->host_memory_gbs = p.copies_gbs[0] + p.copies_gbs[1];
    out->kappa = larger(1, larger(p.steps_ms[0], p.steps_ms[1]) / alone_ms);
    out->allreduce_us = p.small_us;
    out->allreduce_gbs = p.large_gbs;
    return STATUS_OK;
}

/* ---- writing ---------------------------------------------------------------------------------- */

status calibration_path(char *path, unsigned long size)
{
    char folder[PATH_MAX];
    TRY(sim_profile_user_folder(folder, sizeof folder));
    snprintf(path, size, "%s/this-machine.json", folder);
    return STATUS_OK;
}

/* Makes the folders that lead to a file; whether they are there shows when it is opened. */
static void make_folders(const char *path)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *at = strchr(folder + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        mkdir(folder, 0777);
        *at = '/';
    }
}

static void constant(text_buffer *out, const char *name, const char *value, const char *unit,
                     const char *source)
{
    text_append(out,
                ",\n    \"%s\": {\"value\": %s, \"unit\": \"%s\", \"tag\": \"calibrated on this machine\",\n",
                name, value, unit);
    text_append(out, "      \"source\": \"harness calibrate: %s\"}", source);
}

static void number(text_buffer *out, sim_constant c, double value, const char *source)
{
    const sim_constant_info *info = &sim_constant_table[c];
    char text[64];
    if (value < info->least) value = info->least;
    if (value > info->most) value = info->most;
    if (info->count == 1)
        snprintf(text, sizeof text, "%.6g", value);
    else if (info->count == 2)
        snprintf(text, sizeof text, "[%.6g, %.6g]", value, value);
    else
        snprintf(text, sizeof text, "[%.6g, %.6g, %.6g]", value, value, value);
    constant(out, info->name, text, info->unit, source);
}

static void write_constants(const calibration *c, text_buffer *out)
{
    number(out, SIM_MEMORY_BANDWIDTH, c->memory_gbs,
           "the operation that moves most bytes a second, caches included");
    for (int k = 0; k < CALIBRATED_CLASSES; k++)
        if (c->efficiency[k] > 0)
            number(out, (sim_constant)(SIM_CONVOLUTION_FORWARD + k), c->efficiency[k],
                   "operations within steps of ResNet-18 and a small BERT, against a roofline");
    number(out, SIM_LAUNCH_TIME, c->launch_us, "the shortest operation");
    number(out, SIM_KERNEL_OVERHEAD, 0, "in launch_time");
    number(out, SIM_KAPPA, c->kappa, "two ranks that compute at a time against one");
    number(out, SIM_HOST_MEMORY, larger(c->host_memory_gbs, 4 * c->allreduce_gbs),
           "copies by two threads at a time");
    number(out, SIM_HOST_SUM, c->host_sum_gbs, "two vectors added into a third by one thread");
    number(out, SIM_PCIE, c->allreduce_gbs, "bus bandwidth of an all-reduce of 25 MiB between two ranks");
    number(out, SIM_NCCL_BASE_RING, c->allreduce_us, "an all-reduce of 4 KiB between two ranks");
    number(out, SIM_NCCL_RING_PCI, 0, "in nccl_base_ring");
    number(out, SIM_COPY_LATENCY, 0, "a copy begins at once");
}

status calibration_write(const calibration *c, const char *path)
{
    text_buffer out = {0};
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    char peak[32];
    snprintf(peak, sizeof peak, "%.6g", c->peak_tflops);
    text_append(&out, "{\n  \"profile\": \"%.*s\",\n", (int)strcspn(name, "."), name);
    text_append(&out, "  \"summary\": \"the machine that harness calibrate ran on, %d thread%s a rank\",\n",
                c->threads, c->threads == 1 ? "" : "s");
    text_append(&out, "  \"base\": \"cpu\",\n  \"constants\": {\n");
    text_append(&out,
                "    \"peak_fp32\": {\"value\": %s, \"unit\": \"TFLOP/s\", \"tag\": \"calibrated on this "
                "machine\",\n",
                peak);
    text_append(
        &out,
        "      \"source\": \"harness calibrate: the fastest operation of a ResNet-18 and a small BERT\"}");
    write_constants(c, &out);
    text_append(&out, "\n  }\n}\n");
    make_folders(path);
    atomic_file file;
    status rc =
        out.out_of_memory ? fail(STATUS_SYSTEM, "no memory for a profile") : atomic_file_open(path, &file);
    if (rc == STATUS_OK) {
        rc = atomic_file_append(&file, out.data, out.length);
        if (rc == STATUS_OK)
            rc = atomic_file_commit(&file);
        else
            atomic_file_abandon(&file);
    }
    text_free(&out);
    return rc;
}
