#include "harness/sim/calibrate.h"

#include "common/base/clock.h"
#include "common/checkpoint/atomic_file.h"
#include "common/device/host/host.h"
#include "common/sim/profile.h"
#include "harness/launch/processors.h"
#include "harness/sim/calibrate_impl.h"
#include "harness/train/local_ranks.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PAIR = 2, BYTES = 32 << 20, TURNS = 9 };

typedef struct copy_test {
    const calibration *result;
    double gbs[PAIR];
} copy_test;

status calibration_bind(const calibration *c, int rank)
{
    if (!c->sets || sched_setaffinity(0, sizeof *c->sets, &c->sets[rank]) == 0) return STATUS_OK;
    return fail_errno(STATUS_SYSTEM, "calibration: rank %d cannot be bound", rank);
}

static status copy_on_rank(local_ranks *group, int rank, void *context)
{
    copy_test *test = context;
    double *gbs = &test->gbs[rank];
    char *from = malloc(BYTES), *to = malloc(BYTES);
    int64_t best = 0;
    status rc = from && to ? calibration_bind(test->result, rank) : fail(STATUS_SYSTEM, "no memory to copy");
    if (rc == STATUS_OK) rc = local_ranks_barrier(group);
    if (rc == STATUS_OK) memset(from, 1, BYTES);
    for (int i = 0; i < TURNS && rc == STATUS_OK; i++) {
        int64_t begin = clock_now_ns();
        memcpy(to, from, BYTES);
        int64_t spent = clock_now_ns() - begin;
        if (best == 0 || spent < best) best = spent;
    }
    *gbs = best > 0 ? 2.0 * BYTES / (double)best : 0;
    free(from);
    free(to);
    return rc;
}

static status measure(calibration *c)
{
    copy_test copies = {.result = c};
    TRY(calibration_bind(c, 0));
    TRY(calibrate_operations(c));
    TRY(local_ranks_run(PAIR, copy_on_rank, &copies));
    c->host_memory_gbs = copies.gbs[0] + copies.gbs[1];
    TRY(calibrate_pair(c));
    return calibrate_messages(c);
}

status calibrate(int threads, int bind, calibration *out)
{
    cpu_set_t before;
    *out = (calibration){.threads = threads, .cores = host_processors()};
    TRY(bind_plan((bind_mode)bind, (bind_group){PAIR, threads}, &out->sets));
    if (out->sets) out->processors = CPU_COUNT(&out->sets[0]);
    bool known = sched_getaffinity(0, sizeof before, &before) == 0;
    status rc = measure(out);
    if (known && out->sets) sched_setaffinity(0, sizeof before, &before);
    free(out->sets);
    out->sets = NULL;
    return rc;
}

/* ---- A calibration as a profile ---- */

status calibration_path(char *path, unsigned long size)
{
    return calibration_file_path("this-machine.json", path, size);
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

static void numbers(text_buffer *out, sim_constant c, const double *values, const char *source)
{
    const sim_constant_info *info = &sim_constant_table[c];
    text_buffer text = {0};
    for (int i = 0; i < info->count; i++) text_append(&text, "%s%.6g", i ? ", " : "[", values[i]);
    text_append(&text, "]");
    constant(out, info->name, text.data ? text.data : "[]", info->unit, source);
    text_free(&text);
}

static void write_pair(const calibration *c, text_buffer *out)
{
    number(out, SIM_KAPPA, 1, "in contention");
    numbers(out, SIM_CONTENTION, c->contention, "two ranks that compute at a time, exchanging nothing, against one");
    number(out, SIM_HOST_CORES, c->cores, "processors that it may run on");
    number(out, SIM_RANK_THREADS, c->threads, "its option --threads");
    if (c->processors) number(out, SIM_RANK_PROCESSORS, c->processors, "its option --bind core");
    double exchange = 4 * c->allreduce_gbs; /* its passes by two ranks */
    number(out, SIM_HOST_MEMORY, c->host_memory_gbs > exchange ? c->host_memory_gbs : exchange,
           "copies by two threads at a time, or the all-reduce's passes");
    number(out, SIM_HOST_PACK, c->pack_gbs, "gradients of a ResNet-18 into a bucket, after a step, by each of two ranks");
    number(out, SIM_HOST_SUM, c->host_sum_gbs,
           "half the gradients of two ranks summed, parameters updated, by each of two, after a step");
    number(out, SIM_HOST_COPY, c->copy_gbs, "half the parameters of the other rank, copied by each of two");
    number(out, SIM_MESSAGE_TIME, c->message_us, "messages to and fro over ZeroMQ: processor time, half of it for each end");
    if (c->message_copy_gbs > 0)
        number(out, SIM_MESSAGE_COPY, c->message_copy_gbs, "messages of 4 MiB against empty ones, half for each end");
    number(out, SIM_WAKE_TIME, c->wake_us, "two sleeping agents that wake each other by turns: processor time");
    number(out, SIM_PCIE, c->allreduce_gbs, "half the buckets of two ranks summed to both, by each: processor time");
    number(out, SIM_NCCL_BASE_RING, c->allreduce_us, "an all-reduce of 4 KiB between two ranks");
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
    write_pair(c, out);
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
    text_append(&out, "  \"summary\": \"the machine that harness calibrate ran on, %d thread%s a rank%s\",\n",
                c->threads, c->threads == 1 ? "" : "s", c->processors ? ", bound to cores" : "");
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
    calibration_make_folders(path);
    return calibration_file_write(&out, path);
}

/* ---- Where calibrated profiles lie, and how they are written ---- */

status calibration_file_path(const char *file, char *path, size_t size)
{
    char folder[PATH_MAX];
    TRY(sim_profile_user_folder(folder, sizeof folder));
    snprintf(path, size, "%s/%s", folder, file);
    return STATUS_OK;
}

void calibration_make_folders(const char *path)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *at = strchr(folder + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        mkdir(folder, 0777);
        *at = '/';
    }
}

static status write_text(const text_buffer *text, const char *path)
{
    atomic_file file;
    if (text->out_of_memory) return fail(STATUS_SYSTEM, "no memory for a profile");
    TRY(atomic_file_open(path, &file));
    status rc = atomic_file_append(&file, text->data, text->length);
    if (rc == STATUS_OK) return atomic_file_commit(&file);
    atomic_file_abandon(&file);
    return rc;
}

status calibration_file_write(text_buffer *text, const char *path)
{
    status rc = write_text(text, path);
    text_free(text);
    return rc;
}
