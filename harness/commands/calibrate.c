/* harness calibrate: measures this machine and writes a profile. Simulations use the profile to predict runs
 * on this machine. */
#include "harness/commands/commands.h"

#include "common/device/host/host.h"
#include "harness/launch/processors.h"
#include "harness/result/output.h"
#include "harness/sim/calibrate.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>

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
     .help = "compute threads per rank; use the number of the runs to be predicted [half of the processors, "
             "at least 1]"},
    {"device", OPTION_CHOICE, FIELD(device), .initial = "cpu", .choices = device_names,
     .help = "device to measure; cuda: only the first GPU"},
    {"bind", OPTION_CHOICE, FIELD(bind), .initial = "none", .choices = bind_names,
     .help = "bind two ranks to separate cores (core); use the value of the runs to be predicted"},
    {"out", OPTION_TEXT, FIELD(out), .argument = "FILE",
     .help = "file of the profile [this-machine.json, or this-gpu.json for cuda, in the folder where harness "
             "looks for profiles]"},
};

static void show_efficiencies(const double efficiency[][2], text_buffer *out)
{
    for (int k = 0; k < SIM_EFFICIENCIES; k++)
        if (efficiency[k][0] > 0)
            text_append(out, "%-36s %5.3f of the peak, %5.3f of the memory\n",
                        sim_constant_table[SIM_CONVOLUTION_FORWARD + k].name, efficiency[k][0],
                        efficiency[k][1]);
}

static void show(const calibration *c, const char *path, text_buffer *out)
{
    text_append(out, "fastest operation        %10.1f GFLOP/s\n", c->peak_tflops * 1000);
    text_append(out, "most bytes moved         %10.2f GB/s\n", c->memory_gbs);
    text_append(out, "copies, two threads      %10.2f GB/s\n", c->host_memory_gbs);
    text_append(out, "shortest operation       %10.2f us\n", c->launch_us);
    text_append(out, "cores, threads per rank  %10d %d%s\n", c->cores, c->threads,
                c->processors ? ", bound to cores" : "");
    text_append(out, "two ranks against one    %10.3f convolutions, %.3f products, %.3f the rest\n",
                c->contention[0], c->contention[1], c->contention[2]);
    text_append(out, "gradients into buckets   %10.2f GB/s\n", c->pack_gbs);
    text_append(out, "all-reduce, 4 KiB        %10.2f us\n", c->allreduce_us);
    text_append(out, "all-reduce, a rank's own %10.2f GB/s\n", c->allreduce_gbs);
    text_append(out, "a message, each end      %10.2f us, %.2f GB/s\n", c->message_us, c->message_copy_gbs);
    text_append(out, "an agent's wake-up       %10.2f us\n", c->wake_us);
    text_append(out, "a server's sum           %10.2f GB/s\n", c->host_sum_gbs);
    text_append(out, "copies between ranks     %10.2f GB/s\n", c->copy_gbs);
    show_efficiencies(c->efficiency, out);
    if (c->weight_gbs > 0)
        text_append(out, "weights of convolutions  %10.2f GB/s, except those of 3 x 3\n", c->weight_gbs);
    text_append(out, "written to %s\n", path);
}

static void show_gpu(const gpu_calibration *c, const char *path, text_buffer *out)
{
    text_append(out, "%s%s\n", c->name, c->emulated ? ", EMULATED on the host: figures mean nothing" : "");
    text_append(out, "matrix product, float32  %10.3f TFLOP/s\n", c->peak_tflops);
    if (c->tf32_tflops > 0) text_append(out, "matrix product, TF32     %10.3f TFLOP/s\n", c->tf32_tflops);
    text_append(out, "copy on the GPU          %10.2f GB/s\n", c->memory_gbs);
    text_append(out, "copy over the bus        %10.2f GB/s\n", c->pcie_gbs);
    text_append(out, "copy of four bytes       %10.2f us\n", c->copy_us);
    text_append(out, "copy on the host         %10.2f GB/s\n", c->host_gbs);
    text_append(out, "launch, the host's time  %10.2f us\n", c->launch_us);
    text_append(out, "launch, the GPU's time   %10.2f us\n", c->kernel_us);
    text_append(out, "return from a wait       %10.2f us\n", c->synchronize_us);
    show_efficiencies(c->efficiency, out);
    if (c->peer_gbs > 0) {
        text_append(out, "copy from GPU to GPU      %10.2f GB/s\n", c->peer_gbs);
        text_append(out, "copy of eight bytes there %10.2f us\n", c->peer_us);
    }
    if (c->all_reduce_gbs > 0) {
        text_append(out, "all-reduce, bus bandwidth %10.2f GB/s, %d GPUs\n", c->all_reduce_gbs, c->gpus);
        text_append(out, "all-reduce of eight bytes %10.2f us\n", c->all_reduce_us);
    }
    if (c->gpus < 2)
        text_append(
            out, "one GPU: links between GPUs are assumed to be PCIe, and NCCL's constants as published\n");
    else if (c->all_reduce_gbs <= 0)
        text_append(out, "no NCCL: its constants are assumed as published\n");
    text_append(out, "written to %s\n", path);
}

/* Refuses --threads and --bind, which do not affect the calibration of a GPU. */
static status check_gpu_options(const option_binding *b)
{
    static const char *const names[] = {"threads", "bind"};
    for (int i = 0; i < 2; i++)
        if (options_given(b, names[i]))
            return fail(STATUS_USAGE, "--%s: expected --device cpu, got cuda", names[i]);
    return STATUS_OK;
}

static status run_calibrate(command_line *line)
{
    const calibrate_options *o = line->options;
    bool cuda = o->device == CALIBRATE_CUDA;
    char path[PATH_MAX];
    calibration c;
    gpu_calibration gpu;
    int half = host_processors() / 2;
    if (cuda) TRY(check_gpu_options(line->bindings));
    if (o->out)
        snprintf(path, sizeof path, "%s", o->out);
    else
        TRY(calibration_path(cuda ? "this-gpu.json" : "this-machine.json", path, sizeof path));
    if (cuda) {
        TRY(calibrate_gpu(&gpu));
        TRY(gpu_calibration_write(&gpu, path));
        show_gpu(&gpu, path, line->out);
        return STATUS_OK;
    }
    calibration_make_folders(path);
    TRY(output_probe(path)); /* Fails now, not after the long measurement, if the file cannot be written. */
    TRY(calibrate(o->threads ? (int)o->threads : half > 0 ? half : 1, o->bind, &c));
    TRY(calibration_write(&c, path));
    show(&c, path, line->out);
    return STATUS_OK;
}

const command command_calibrate = {
    .name = "calibrate",
    .usage = "[options]",
    .summary = "measure this machine and write a profile of it",
    .options_size = sizeof(calibrate_options),
    .table = {"Calibrate", option_list, sizeof option_list / sizeof option_list[0]},
    .run = run_calibrate};
