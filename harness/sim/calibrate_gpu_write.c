/* The profile of a calibrated GPU. */
#include "harness/sim/calibrate_gpu.h"
#include "harness/sim/calibrate_program.h"

#include <string.h>

/* The built-in profile whose constants for NCCL are those of the GPU's generation. */
static const char *base_of(const gpu_calibration *c)
{
    return c->major >= 9 ? "dgx-h100" : c->major == 8 ? "dgx-a100-80g" : "volta";
}

static double within(const sim_constant_info *info, double value)
{
    return value < info->least ? info->least : value > info->most ? info->most : value;
}

static void pair(const gpu_calibration *c, text_buffer *out, sim_constant k, double first, double second,
                 const char *source)
{
    const sim_constant_info *info = &sim_constant_table[k];
    text_append(out, "%s\n    \"%s\": {\"value\": ", out->data[out->length - 1] == '{' ? "" : ",", info->name);
    if (info->count == 1) text_append(out, "%.6g", within(info, first));
    else text_append(out, "[%.6g, %.6g]", within(info, first), within(info, second));
    text_append(out, ", \"unit\": \"%s\", \"tag\": \"calibrated on %s\",\n", info->unit,
                c->emulated ? "the emulator: means nothing" : "this GPU");
    text_append(out, "      \"source\": \"harness calibrate --device cuda: %s\"}", source);
}

static void number(const gpu_calibration *c, text_buffer *out, sim_constant k, double value, const char *source)
{
    pair(c, out, k, value, value, source);
}

static void write_constants(const gpu_calibration *c, text_buffer *out)
{
    number(c, out, SIM_GPU_MEMORY, c->memory_gib, "what the driver states");
    number(c, out, SIM_PEAK_FP32, c->peak_tflops, "a large matrix product in float32");
    if (c->tf32_tflops > 0) number(c, out, SIM_PEAK_TF32, c->tf32_tflops, "a large matrix product in TF32");
    number(c, out, SIM_MEMORY_BANDWIDTH, c->memory_gbs, "a large copy, bytes read and written");
    for (int k = 0; k < GPU_CLASSES; k++)
        if (c->efficiency[k][0] > 0)
            pair(c, out, (sim_constant)(SIM_CONVOLUTION_FORWARD + k), c->efficiency[k][0], c->efficiency[k][1],
                 "operations within training steps, against a roofline");
    number(c, out, SIM_LAUNCH_TIME, c->launch_us, "the host's time of an operation on one element");
    number(c, out, SIM_KERNEL_OVERHEAD, c->kernel_us, "the GPU's time of an operation on one element, launched before");
    number(c, out, SIM_SYNCHRONIZE_TIME, c->synchronize_us, "an operation on one element and a wait, less the two above");
    number(c, out, SIM_PCIE, c->pcie_gbs, "pinned memory to the GPU and back, the slower");
    number(c, out, SIM_COPY_LATENCY, c->copy_us, "four bytes to pinned memory");
    number(c, out, SIM_HOST_MEMORY, c->host_gbs, "a copy by one thread, read and written");
}

static void write_topology(const gpu_calibration *c, text_buffer *out)
{
    text_append(out, "  \"topology\": {\n    \"machines\": 1,\n    \"peer_access\": true,\n    \"source\": \"harness "
                     "calibrate --device cuda: the GPUs that were found; links between them are taken for PCIe\",\n"
                     "    \"links\": [");
    for (int i = 0; i < c->gpus; i++) text_append(out, "%s[\"gpu%d\", \"socket0\", \"pcie\"]", i ? ", " : "", i);
    text_append(out, "]\n  }\n");
}

status gpu_calibration_path(char *path, size_t size)
{
    TRY(calibration_file_path("this-gpu.json", path, size));
    calibration_make_folders(path);
    return STATUS_OK;
}

status gpu_calibration_write(const gpu_calibration *c, const char *path)
{
    text_buffer out = {0};
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    text_append(&out, "{\n  \"profile\": \"%.*s\",\n  \"summary\": \"%s, as harness calibrate --device cuda found it%s\",\n",
                (int)strcspn(name, "."), name, c->name, c->emulated ? "; EMULATED on the host: figures mean nothing" : "");
    text_append(&out, "  \"base\": \"%s\",\n  \"constants\": {", base_of(c));
    if (!out.out_of_memory) write_constants(c, &out);
    text_append(&out, "\n  },\n");
    write_topology(c, &out);
    text_append(&out, "}\n");
    return calibration_file_write(&out, path);
}
