/* harness calibrate: measures this machine and writes a profile, with which virtual time predicts its runs.
 */
#include "harness/commands/commands.h"

#include "common/base/options.h"
#include "common/device/host/host.h"
#include "harness/commands/calibrate_gpu.h"
#include "harness/commands/output.h"
#include "harness/launch/processors.h"
#include "harness/run/run_result.h"
#include "harness/sim/calibrate.h"

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>

typedef struct calibrate_options {
    int64_t threads;
    int device, bind;
    const char *out;
} calibrate_options;

enum { CALIBRATE_CUDA = 1 };
static const char *const device_names[] = {"cpu", "cuda", NULL};

#define FIELD(name) offsetof(calibrate_options, name)
static const option option_list[] = {
    {.name = "threads",
     .argument = "N",
     .type = OPTION_INT,
     .offset = FIELD(threads),
     .low = 1,
     .high = 1024,
     .help = "compute threads per rank, as the runs to be predicted have [half of the processors, at least 1]"},
    {.name = "device",
     .type = OPTION_CHOICE,
     .offset = FIELD(device),
     .initial = "cpu",
     .choices = device_names,
     .help = "cuda: the first GPU, alone"},
    {.name = "bind",
     .type = OPTION_CHOICE,
     .offset = FIELD(bind),
     .initial = "none",
     .choices = bind_names,
     .help = "as the runs to be predicted: core gives each of two ranks cores of its own"},
    {.name = "out",
     .argument = "FILE",
     .type = OPTION_TEXT,
     .offset = FIELD(out),
     .help = "the profile [this-machine.json, cuda: this-gpu.json, where harness looks for it]"},
};
static const option_table calibrate_option_table = {"Calibrate", option_list,
                                                    sizeof option_list / sizeof option_list[0]};

static void show(const calibration *c, const char *path, text_buffer *out)
{
    text_append(out, "fastest operation        %10.1f GFLOP/s\n", c->peak_tflops * 1000);
    text_append(out, "most bytes moved         %10.2f GB/s\n", c->memory_gbs);
    text_append(out, "copies, two threads      %10.2f GB/s\n", c->host_memory_gbs);
    text_append(out, "shortest operation       %10.2f us\n", c->launch_us);
    text_append(out, "cores, threads per rank  %10d %d%s\n", c->cores, c->threads,
                c->processors ? ", bound to cores" : "");
    text_append(out, "two ranks against one    %10.3f convolutions, %.3f products, %.3f the rest\n", c->contention[0],
                c->contention[1], c->contention[2]);
    text_append(out, "gradients into buckets   %10.2f GB/s\n", c->pack_gbs);
    text_append(out, "all-reduce, 4 KiB        %10.2f us\n", c->allreduce_us);
    text_append(out, "all-reduce, a rank's own %10.2f GB/s\n", c->allreduce_gbs);
    text_append(out, "a message, each end      %10.2f us, %.2f GB/s\n", c->message_us, c->message_copy_gbs);
    text_append(out, "an agent's wake-up       %10.2f us\n", c->wake_us);
    text_append(out, "a server's sum           %10.2f GB/s\n", c->host_sum_gbs);
    text_append(out, "copies between ranks     %10.2f GB/s\n", c->copy_gbs);
    for (int k = 0; k < CALIBRATED_CLASSES; k++)
        if (c->efficiency[k] > 0)
            text_append(out, "%-32s %5.3f of the roofline\n",
                        sim_constant_table[SIM_CONVOLUTION_FORWARD + k].name, c->efficiency[k]);
    text_append(out, "written to %s\n", path);
}

static status run_all(const calibrate_options *o)
{
    char path[PATH_MAX];
    calibration c;
    text_buffer out = {0};
    int half = host_processors() / 2;
    if (o->out)
        snprintf(path, sizeof path, "%s", o->out);
    else
        TRY(calibration_path(path, sizeof path));
    calibration_make_folders(path);
    TRY(run_result_probe(path)); /* lest what takes so long be for nothing */
    TRY(calibrate(o->threads ? (int)o->threads : half > 0 ? half : 1, o->bind, &c));
    TRY(calibration_write(&c, path));
    show(&c, path, &out);
    return output_text(&out);
}

/* What is measured of a GPU has nothing to do with ranks' threads. */
static status check_gpu_options(const option_binding *b)
{
    static const char *const names[] = {"threads", "bind"};
    for (int i = 0; i < 2; i++)
        if (options_given(b, names[i]))
            return fail(STATUS_USAGE, "--%s: expected --device cpu, got cuda", names[i]);
    return STATUS_OK;
}

static status run_calibrate(int argc, char *argv[], int *exit_code)
{
    calibrate_options options;
    option_binding binding = {.table = &calibrate_option_table, .storage = &options};
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    int count = 0;
    *exit_code = 0;
    if (!words) return fail(STATUS_SYSTEM, "no memory for the command line");
    status rc = options_defaults(&binding, 1);
    if (rc == STATUS_OK) rc = options_parse(&binding, 1, argc, argv, words, &count);
    if (rc == STATUS_OK && count > 0)
        rc = fail(STATUS_USAGE, "calibrate: unexpected argument '%s'; see --help", words[0]);
    if (rc == STATUS_OK && options.device == CALIBRATE_CUDA) rc = check_gpu_options(&binding);
    if (rc == STATUS_OK) rc = options.device == CALIBRATE_CUDA ? calibrate_gpu_command(options.out) : run_all(&options);
    free(words);
    return rc;
}

static void help_calibrate(bool all, text_buffer *out)
{
    calibrate_options options;
    option_binding binding = {.table = &calibrate_option_table, .storage = &options};
    options_help(&binding, 1, all, out);
}

const command command_calibrate = {"calibrate", "[options]", "measure this machine and write a profile of it",
                                   run_calibrate, help_calibrate};
