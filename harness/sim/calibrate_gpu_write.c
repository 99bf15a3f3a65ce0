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

/* What passes between two GPUs faster than between one and the host goes over NVLink. */
static bool has_nvlink(const gpu_calibration *c)
{
    return c->peer_gbs > 1.25 * c->pcie_gbs;
}

/* What a collective gets of the links is what they are worth. */
static double link_gbs(const gpu_calibration *c)
{
    return c->all_reduce_gbs > 0 ? c->all_reduce_gbs : c->peer_gbs;
}

/* The small all-reduce, less its hops, is what a call costs by itself under LL; the other protocols, which it did not
 * take, are moved by as much. */
static void write_nccl_base(const gpu_calibration *c, text_buffer *out)
{
    static const double published[] = {6.6, 14.0, 8.4}, nvlink_hop = 0.6, pci_hop = 1.0; /* sim/profiles/nccl.json */
    const sim_constant_info *info = &sim_constant_table[SIM_NCCL_BASE_RING];
    double hops = 2.0 * (c->gpus - 1) * (has_nvlink(c) ? nvlink_hop : pci_hop);
    double moved = c->all_reduce_us - hops - published[0];
    text_append(out, ",\n    \"%s\": {\"value\": [%.6g, %.6g, %.6g], \"unit\": \"%s\", \"tag\": \"calibrated on %s\",\n",
                info->name, within(info, published[0] + moved), within(info, published[1] + moved),
                within(info, published[2] + moved), info->unit, c->emulated ? "the emulator: means nothing" : "these GPUs");
    text_append(out, "      \"source\": \"harness calibrate --device cuda: an all-reduce of eight bytes over %d GPUs takes %.4g us; "
                     "less its hops, as NCCL counts them\"}", c->gpus, c->all_reduce_us);
}

static void write_together(const gpu_calibration *c, text_buffer *out)
{
    if (has_nvlink(c))
        number(c, out, SIM_NVLINK, link_gbs(c),
               c->all_reduce_gbs > 0 ? "bus bandwidth of a large all-reduce over all GPUs, as one link to a switch"
                                     : "a copy out of another GPU's memory, the slowest pair; no NCCL was found");
    if (c->all_reduce_gbs > 0) write_nccl_base(c, out);
}

static void write_topology(const gpu_calibration *c, text_buffer *out)
{
    text_append(out, "  \"topology\": {\n    \"machines\": 1,\n    \"peer_access\": true,\n    \"source\": \"harness "
                     "calibrate --device cuda: ");
    if (c->peer_gbs > 0)
        text_append(out, "%d GPUs: %.4g GB/s and %.4g us from one to another, taken for %s; all-reduce %.4g GB/s and %.4g us%s",
                    c->gpus, c->peer_gbs, c->peer_us, has_nvlink(c) ? "NVLink through a switch" : "PCIe", c->all_reduce_gbs,
                    c->all_reduce_us, c->all_reduce_gbs > 0 ? "" : ", not measured: no NCCL; its published constants are assumed");
    else
        text_append(out, "one GPU: nothing between GPUs was measured; ASSUMED are links of PCIe and NCCL's published constants");
    text_append(out, "\",\n    \"links\": [");
    for (int i = 0; i < c->gpus; i++) text_append(out, "%s[\"gpu%d\", \"socket0\", \"pcie\"]", i ? ", " : "", i);
    for (int i = 0; has_nvlink(c) && i < c->gpus; i++) text_append(out, ", [\"gpu%d\", \"nvswitch0\", \"nvlink\"]", i);
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
    if (!out.out_of_memory) write_together(c, &out);
    text_append(&out, "\n  },\n");
    write_topology(c, &out);
    text_append(&out, "}\n");
    return calibration_file_write(&out, path);
}
