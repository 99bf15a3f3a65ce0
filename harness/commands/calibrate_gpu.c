/* harness calibrate --device cuda. */
#include "harness/commands/calibrate_gpu.h"

#include "harness/run/output.h"
#include "harness/sim/calibrate.h"
#include "harness/sim/calibrate_gpu.h"

#include <limits.h>
#include <stdio.h>

static void show(const gpu_calibration *c, const char *path, text_buffer *out)
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
    for (int k = 0; k < SIM_EFFICIENCIES; k++)
        if (c->efficiency[k][0] > 0)
            text_append(out, "%-32s %5.3f of the peak, %5.3f of the memory\n",
                        sim_constant_table[SIM_CONVOLUTION_FORWARD + k].name, c->efficiency[k][0], c->efficiency[k][1]);
    if (c->peer_gbs > 0) {
        text_append(out, "copy from GPU to GPU      %10.2f GB/s\n", c->peer_gbs);
        text_append(out, "copy of eight bytes there %10.2f us\n", c->peer_us);
    }
    if (c->all_reduce_gbs > 0) {
        text_append(out, "all-reduce, bus bandwidth %10.2f GB/s, %d GPUs\n", c->all_reduce_gbs, c->gpus);
        text_append(out, "all-reduce of eight bytes %10.2f us\n", c->all_reduce_us);
    }
    if (c->gpus < 2) text_append(out, "one GPU: links between GPUs are assumed to be PCIe, and NCCL's constants as published\n");
    else if (c->all_reduce_gbs <= 0) text_append(out, "no NCCL: its constants are assumed as published\n");
    text_append(out, "written to %s\n", path);
}

status calibrate_gpu_command(const char *out)
{
    char path[PATH_MAX];
    gpu_calibration c;
    text_buffer text = {0};
    if (out) snprintf(path, sizeof path, "%s", out);
    else TRY(calibration_path("this-gpu.json", path, sizeof path));
    TRY(calibrate_gpu(&c));
    TRY(gpu_calibration_write(&c, path));
    show(&c, path, &text);
    return output_text(&text);
}
