/* harness calibrate: measures this machine and writes a profile, with which virtual time predicts its runs.
 */
#include "harness/commands/commands.h"

#include "common/device/host/host.h"
#include "harness/commands/calibrate_gpu.h"
#include "harness/run/output.h"
#include "harness/launch/processors.h"
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
    {"threads", OPTION_INT, FIELD(threads), .argument = "N", .low = 1, .high = 1024,
     .help =
         "compute threads per rank, as the runs to be predicted have [half of the processors, at least 1]"},
    {"device", OPTION_CHOICE, FIELD(device), .initial = "cpu", .choices = device_names,
     .help = "cuda: the first GPU, alone"},
    {"bind", OPTION_CHOICE, FIELD(bind), .initial = "none", .choices = bind_names,
     .help = "as the runs to be predicted: core gives each of two ranks cores of its own"},
    {"out", OPTION_TEXT, FIELD(out), .argument = "FILE",
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
    for (int k = 0; k < SIM_EFFICIENCIES; k++)
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
        TRY(calibration_path("this-machine.json", path, sizeof path));
    calibration_make_folders(path);
    TRY(output_probe(path)); /* lest what takes so long be for nothing */
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

static size_t bind_calibrate(void *options, option_binding *bindings)
{
    *bindings = (option_binding){.table = &calibrate_option_table, .storage = options};
    return 1;
}

static status run_calibrate(command_line *line)
{
    const calibrate_options *o = line->options;
    if (o->device != CALIBRATE_CUDA) return run_all(o);
    TRY(check_gpu_options(line->bindings));
    return calibrate_gpu_command(o->out);
}

const command command_calibrate = {.name = "calibrate",
                                   .usage = "[options]",
                                   .summary = "measure this machine and write a profile of it",
                                   .options_size = sizeof(calibrate_options),
                                   .bind = bind_calibrate,
                                   .run = run_calibrate};
