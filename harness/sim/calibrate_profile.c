/* Writes the results of a calibration as a profile that extends a built-in one. */
#include "common/sim/profile.h"
#include "harness/result/output.h"
#include "harness/sim/calibrate.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Text of a profile. Each constant names its source: the measured device (`on`) and the command. */
typedef struct profile_text {
    text_buffer text;
    const char *on, *command;
    bool has_constants;
} profile_text;

static void begin(profile_text *p, const char *path, const char *summary, const char *base)
{
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    text_append(
        &p->text,
        "{\n  \"profile\": \"%.*s\",\n  \"summary\": \"%s\",\n  \"base\": \"%s\",\n  \"constants\": {",
        (int)strcspn(name, "."), name, summary, base);
}

/* Appends a constant, with each value limited to its range. If there are fewer `values` than the constant
 * has, the last one is repeated. */
static void constant(profile_text *p, sim_constant c, const double *values, int count, const char *source)
{
    const sim_constant_info *info = &sim_constant_table[c];
    bool array = info->count > 1;
    text_append(&p->text, "%s\n    \"%s\": {\"value\": %s", p->has_constants ? "," : "", info->name,
                array ? "[" : "");
    for (int i = 0; i < info->count; i++)
        text_append(&p->text, "%s%.6g", i ? ", " : "",
                    fmin(fmax(values[i < count ? i : count - 1], info->least), info->most));
    text_append(&p->text,
                "%s, \"unit\": \"%s\", \"tag\": \"calibrated on %s\",\n      \"source\": \"%s: %s\"}",
                array ? "]" : "", info->unit, p->on, p->command, source);
    p->has_constants = true;
}

static void number(profile_text *p, sim_constant c, double value, const char *source)
{
    constant(p, c, &value, 1, source);
}

static void efficiencies(profile_text *p, const double values[SIM_EFFICIENCIES][2], const char *source)
{
    for (int k = 0; k < SIM_EFFICIENCIES; k++)
        if (values[k][0] > 0) constant(p, (sim_constant)(SIM_CONVOLUTION_FORWARD + k), values[k], 2, source);
}

status calibration_path(const char *file, char *path, size_t size)
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

/* ---- the machine ------------------------------------------------------------------------------ */

static void write_pair(profile_text *p, const calibration *c)
{
    number(p, SIM_KAPPA, 1, "in contention");
    constant(p, SIM_CONTENTION, c->contention, CALIBRATED_CONTENTIONS,
             "two ranks that compute at a time, exchanging nothing, against one");
    number(p, SIM_HOST_CORES, c->cores, "processors that it may run on");
    number(p, SIM_RANK_THREADS, c->threads, "its option --threads");
    if (c->processors) number(p, SIM_RANK_PROCESSORS, c->processors, "its option --bind core");
    double exchange = 5 * c->allreduce_gbs; /* Memory traffic of the all-reduce of two ranks. */
    number(p, SIM_HOST_MEMORY, c->host_memory_gbs > exchange ? c->host_memory_gbs : exchange,
           "copies by two threads at a time, or the all-reduce's passes");
    number(p, SIM_HOST_PACK, c->pack_gbs,
           "gradients of a ResNet-18 into a bucket, after a step, by each of two ranks");
    number(p, SIM_HOST_SUM, c->host_sum_gbs,
           "half the gradients of two ranks summed, parameters updated, by each of two, after a step");
    number(p, SIM_HOST_COPY, c->copy_gbs, "half the parameters of the other rank, copied by each of two");
    number(p, SIM_MESSAGE_TIME, c->message_us,
           "messages to and fro over ZeroMQ: processor time, half of it for each end");
    if (c->message_copy_gbs > 0)
        number(p, SIM_MESSAGE_COPY, c->message_copy_gbs,
               "messages of 4 MiB against empty ones, half for each end");
    number(p, SIM_WAKE_TIME, c->wake_us, "two sleeping agents that wake each other by turns: processor time");
    number(p, SIM_PCIE, c->allreduce_gbs,
           "half the buckets of two ranks summed, the other half copied, by each: processor time");
    number(p, SIM_NCCL_BASE_RING, c->allreduce_us, "an all-reduce of 4 KiB between two ranks");
}

status calibration_write(const calibration *c, const char *path)
{
    profile_text p = {.on = "this machine", .command = "harness calibrate"};
    char summary[128];
    snprintf(summary, sizeof summary, "the machine that harness calibrate ran on, %d thread%s a rank%s",
             c->threads, c->threads == 1 ? "" : "s", c->processors ? ", bound to cores" : "");
    begin(&p, path, summary, "cpu");
    number(&p, SIM_PEAK_FP32, c->peak_tflops,
           "the fastest operation of a ResNet-18 and a small BERT, 3 x 3 convolutions apart");
    number(&p, SIM_MEMORY_BANDWIDTH, c->memory_gbs,
           "the operation that moves most bytes a second, caches included");
    efficiencies(&p, c->efficiency,
                 "operations within steps of ResNet-18 and small BERTs, against a roofline");
    if (c->weight_gbs > 0)
        number(&p, SIM_WEIGHT_BANDWIDTH, c->weight_gbs,
               "part of the time of convolutions, except 3 x 3, that does not grow with the batch");
    number(&p, SIM_LAUNCH_TIME, c->launch_us, "the shortest operation");
    number(&p, SIM_KERNEL_OVERHEAD, 0, "in launch_time");
    write_pair(&p, c);
    number(&p, SIM_NCCL_RING_PCI, 0, "in nccl_base_ring");
    number(&p, SIM_COPY_LATENCY, 0, "a copy begins at once");
    text_append(&p.text, "\n  }\n}\n");
    calibration_make_folders(path);
    return output_file(&p.text, path);
}

/* ---- a GPU ------------------------------------------------------------------------------------ */

static void write_gpu(profile_text *p, const gpu_calibration *c)
{
    number(p, SIM_GPU_MEMORY, c->memory_gib, "what the driver states");
    number(p, SIM_PEAK_FP32, c->peak_tflops, "a large matrix product in float32");
    if (c->tf32_tflops > 0) number(p, SIM_PEAK_TF32, c->tf32_tflops, "a large matrix product in TF32");
    number(p, SIM_MEMORY_BANDWIDTH, c->memory_gbs, "a large copy, bytes read and written");
    efficiencies(p, c->efficiency, "operations within training steps, against a roofline");
    number(p, SIM_LAUNCH_TIME, c->launch_us, "the host's time of an operation on one element");
    number(p, SIM_KERNEL_OVERHEAD, c->kernel_us,
           "the GPU's time of an operation on one element, launched before");
    number(p, SIM_SYNCHRONIZE_TIME, c->synchronize_us,
           "an operation on one element and a wait, less the two above");
    number(p, SIM_PCIE, c->pcie_gbs, "pinned memory to the GPU and back, the slower");
    number(p, SIM_COPY_LATENCY, c->copy_us, "four bytes to pinned memory");
    number(p, SIM_HOST_MEMORY, c->host_gbs, "a copy by one thread, read and written");
}

/* Returns true if copies between two GPUs are faster than copies between GPU and host. */
static bool has_nvlink(const gpu_calibration *c)
{
    return c->peer_gbs > 1.25 * c->pcie_gbs;
}

/* Derives NCCL's base latencies. The base latency of protocol LL is the latency of the small all-reduce minus
 * the latency of its hops. Protocols other than LL were not measured, so their published latencies are
 * shifted by the same amount as LL's. */
static void write_nccl_base(profile_text *p, const gpu_calibration *c)
{
    static const double published[] = {6.6, 14.0, 8.4}, nvlink_hop = 0.6,
                        pci_hop = 1.0; /* sim/profiles/nccl.json */
    double hops = 2.0 * (c->gpus - 1) * (has_nvlink(c) ? nvlink_hop : pci_hop), moved[3];
    for (int i = 0; i < 3; i++) moved[i] = published[i] + c->all_reduce_us - hops - published[0];
    char source[128];
    snprintf(source, sizeof source,
             "an all-reduce of eight bytes over %d GPUs takes %.4g us; less its hops, as NCCL counts them",
             c->gpus, c->all_reduce_us);
    if (!c->emulated) p->on = "these GPUs";
    constant(p, SIM_NCCL_BASE_RING, moved, 3, source);
}

/* Sets the link bandwidth to the bus bandwidth that the all-reduce has reached. */
static void write_links(profile_text *p, const gpu_calibration *c)
{
    bool nccl = c->all_reduce_gbs > 0;
    if (has_nvlink(c))
        number(p, SIM_NVLINK, nccl ? c->all_reduce_gbs : c->peer_gbs,
               nccl ? "bus bandwidth of a large all-reduce over all GPUs, as one link to a switch"
                    : "a copy out of another GPU's memory, the slowest pair; no NCCL was found");
    if (nccl) write_nccl_base(p, c);
}

static void write_topology(text_buffer *out, const gpu_calibration *c)
{
    text_append(
        out, "  \"topology\": {\n    \"machines\": 1,\n    \"peer_access\": true,\n    \"source\": \"harness "
             "calibrate --device cuda: ");
    if (c->peer_gbs > 0)
        text_append(out,
                    "%d GPUs: %.4g GB/s and %.4g us from one to another, taken for %s; all-reduce %.4g GB/s "
                    "and %.4g us%s",
                    c->gpus, c->peer_gbs, c->peer_us, has_nvlink(c) ? "NVLink through a switch" : "PCIe",
                    c->all_reduce_gbs, c->all_reduce_us,
                    c->all_reduce_gbs > 0 ? ""
                                          : ", not measured: no NCCL; its published constants are assumed");
    else
        text_append(out, "one GPU: nothing between GPUs was measured; ASSUMED are links of PCIe and NCCL's "
                         "published constants");
    text_append(out, "\",\n    \"links\": [");
    for (int i = 0; i < c->gpus; i++)
        text_append(out, "%s[\"gpu%d\", \"socket0\", \"pcie\"]", i ? ", " : "", i);
    for (int i = 0; has_nvlink(c) && i < c->gpus; i++)
        text_append(out, ", [\"gpu%d\", \"nvswitch0\", \"nvlink\"]", i);
    text_append(out, "]\n  }\n");
}

status gpu_calibration_write(const gpu_calibration *c, const char *path)
{
    profile_text p = {.on = c->emulated ? "the emulator: means nothing" : "this GPU",
                      .command = "harness calibrate --device cuda"};
    /* The built-in profile with the NCCL constants of the GPU's generation. */
    const char *base = c->major >= 9 ? "dgx-h100" : c->major == 8 ? "dgx-a100-80g" : "volta";
    char summary[256];
    snprintf(summary, sizeof summary, "%s, as harness calibrate --device cuda found it%s", c->name,
             c->emulated ? "; EMULATED on the host: figures mean nothing" : "");
    begin(&p, path, summary, base);
    write_gpu(&p, c);
    write_links(&p, c);
    text_append(&p.text, "\n  },\n");
    write_topology(&p.text, c);
    text_append(&p.text, "}\n");
    calibration_make_folders(path);
    return output_file(&p.text, path);
}
