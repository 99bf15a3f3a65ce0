#include "harness/sim/calibrate_gpu.h"

#include "harness/sim/calibrate_impl.h"
#include "common/base/clock.h"
#include "common/device/cuda/cuda_module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 9, LAUNCHES = 200, SMALL = 1, MARK_BEGIN = 1, MARK_END = 2 };

/* Sizes that fill a GPU, and such as the emulator does in a moment. */
typedef struct sizes {
    int64_t product;       /* rows, columns and depth of a matrix product */
    int64_t copy_elements; /* float32 */
    int64_t bus_bytes;
} sizes;

static const sizes on_gpu = {8192, 64 << 20, 256 << 20}, on_emulator = {48, 1 << 16, 1 << 16};

static const sizes *sizes_of(const gpu_calibration *c)
{
    return c->emulated ? &on_emulator : &on_gpu;
}

static void keep_least(int64_t *best, int64_t ns)
{
    if (ns > 0 && (*best == 0 || ns < *best)) *best = ns;
}

/* Between the two marks. */
static status take(device_stream *s, int64_t *best)
{
    TRY(device_mark(s, MARK_END));
    TRY(device_stream_synchronize(s));
    keep_least(best, device_mark_ns(s, MARK_END) - device_mark_ns(s, MARK_BEGIN));
    return STATUS_OK;
}

/* ---- memory and the bus ----------------------------------------------------------------------- */

static status measure_memory(device *d, device_stream *s, gpu_calibration *c)
{
    int64_t count = sizes_of(c)->copy_elements, best = 0;
    device_memory from, to;
    TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, (size_t)count * sizeof(float), &from));
    status rc = device_allocate(d, DEVICE_MEMORY_PRIVATE, (size_t)count * sizeof(float), &to);
    for (int i = 0; i < TURNS && rc == STATUS_OK; i++) {
        rc = device_mark(s, MARK_BEGIN);
        if (rc == STATUS_OK) rc = device_convert(s, to.data, DTYPE_F32, from.data, DTYPE_F32, count, 1);
        if (rc == STATUS_OK) rc = take(s, &best);
    }
    device_free(d, &from);
    device_free(d, &to);
    if (best > 0) c->memory_gbs = 2.0 * (double)count * sizeof(float) / (double)best;
    return rc;
}

typedef enum way { WAY_UP, WAY_DOWN } way;

static status copy(device_stream *s, way w, device_memory *host, device_memory *gpu, int64_t bytes, int64_t *best)
{
    for (int i = 0; i < TURNS; i++) {
        TRY(device_mark(s, MARK_BEGIN));
        if (w == WAY_UP) TRY(device_upload(s, gpu->data, host->data, DTYPE_U8, DTYPE_U8, bytes));
        else TRY(device_download(s, host->data, gpu->data, DTYPE_U8, DTYPE_U8, bytes));
        TRY(take(s, best));
    }
    return STATUS_OK;
}

static status measure_bus(device *d, device_stream *s, gpu_calibration *c)
{
    int64_t bytes = sizes_of(c)->bus_bytes, best[2] = {0, 0}, small = 0;
    device_memory host, gpu = {.fd = -1};
    TRY(device_allocate(d, DEVICE_MEMORY_STAGING, (size_t)bytes, &host));
    status rc = device_allocate(d, DEVICE_MEMORY_PRIVATE, (size_t)bytes, &gpu);
    if (rc == STATUS_OK) rc = copy(s, WAY_UP, &host, &gpu, bytes, &best[WAY_UP]);
    if (rc == STATUS_OK) rc = copy(s, WAY_DOWN, &host, &gpu, bytes, &best[WAY_DOWN]);
    if (rc == STATUS_OK) rc = copy(s, WAY_DOWN, &host, &gpu, sizeof(float), &small);
    device_free(d, &host);
    device_free(d, &gpu);
    int64_t slower = best[WAY_UP] > best[WAY_DOWN] ? best[WAY_UP] : best[WAY_DOWN];
    if (slower > 0) c->pcie_gbs = (double)bytes / (double)slower;
    c->copy_us = (double)small * 1e-3;
    return rc;
}

static status measure_host(gpu_calibration *c)
{
    size_t bytes = (size_t)sizes_of(c)->bus_bytes;
    char *from = malloc(bytes), *to = malloc(bytes);
    int64_t best = 0;
    status rc = from && to ? STATUS_OK : fail(STATUS_SYSTEM, "no memory to copy");
    if (rc == STATUS_OK) memset(from, 1, bytes);
    for (int i = 0; i < TURNS && rc == STATUS_OK; i++) {
        int64_t begin = clock_now_ns();
        memcpy(to, from, bytes);
        keep_least(&best, clock_now_ns() - begin);
    }
    if (best > 0) c->host_gbs = 2.0 * (double)bytes / (double)best;
    free(from);
    free(to);
    return rc;
}

/* ---- products --------------------------------------------------------------------------------- */

/* TFLOP/s of a square product in the device's precision. */
static status measure_product(device *d, device_stream *s, int64_t size, double *tflops)
{
    op_desc op = {.kind = OP_linear_forward, .type = DTYPE_F32, .u.linear = {.m = size, .in = size, .out = size}};
    device_kernel *kernel = NULL;
    device_memory m[4] = {{.fd = -1}, {.fd = -1}, {.fd = -1}, {.fd = -1}};
    int64_t best = 0;
    status rc = device_prepare(d, &op, NULL, &kernel);
    size_t bytes = (size_t)(size * size) * sizeof(float), workspace = kernel ? device_kernel_workspace(kernel) : 0;
    for (int i = 0; i < 4 && rc == STATUS_OK; i++)
        rc = device_allocate(d, DEVICE_MEMORY_PRIVATE, i < 3 ? bytes : workspace, &m[i]);
    void *operands[OP_MAX_OPERANDS] = {
        [LINEAR_FWD_X] = m[0].data, [LINEAR_FWD_W] = m[1].data, [LINEAR_FWD_Y] = m[2].data};
    for (int i = 0; i < TURNS && rc == STATUS_OK; i++) {
        rc = device_mark(s, MARK_BEGIN);
        if (rc == STATUS_OK) rc = device_launch(s, kernel, operands, NULL, m[3].data);
        if (rc == STATUS_OK) rc = take(s, &best);
    }
    if (best > 0) *tflops = op_cost_of(&op).flops / (double)best * 1e-3;
    for (int i = 0; i < 4; i++) device_free(d, &m[i]);
    if (kernel) device_release(&kernel);
    return rc;
}

/* A device of its own: the precision is chosen when it is opened. A GPU without TF32 has none. */
static status measure_tf32(gpu_calibration *c)
{
    device_config config = {.name = "cuda", .world = 1, .threads = 1, .precision = DEVICE_PRECISION_TF32};
    device *d = NULL;
    device_stream *s = NULL;
    status rc = device_open(&config, &d);
    if (rc == STATUS_CONFIG) {
        error_clear();
        return STATUS_OK;
    }
    if (rc == STATUS_OK) rc = device_stream_open(d, DEVICE_STREAM_COMPUTE, &s);
    if (rc == STATUS_OK) rc = measure_product(d, s, sizes_of(c)->product, &c->tf32_tflops);
    device_stream_close(&s);
    device_close(&d);
    return rc;
}

/* ---- launches --------------------------------------------------------------------------------- */

typedef struct tiny {
    device_kernel *kernel;
    device_memory memory;
    void *operands[OP_MAX_OPERANDS];
} tiny;

static status launch_many(device_stream *s, const tiny *t)
{
    for (int i = 0; i < LAUNCHES; i++) TRY(device_launch(s, t->kernel, (void *const *)t->operands, NULL, NULL));
    return STATUS_OK;
}

/* The host's time of a launch; and the GPU's where launches wait behind a fence, so that it finds them all
 * there: fewer than a stream holds, and of a kernel that is loaded, since loading waits for all streams. The
 * emulator's streams run at once and must not wait. */
static status time_launches(device_stream *s, device_fence *fence, const tiny *t, gpu_calibration *c)
{
    int64_t host = 0, gpu = 0, wait = 0;
    TRY(launch_many(s, t));
    TRY(device_mark(s, MARK_BEGIN));
    TRY(device_mark(s, MARK_END));
    TRY(device_stream_synchronize(s));
    for (int i = 1; i <= TURNS; i++) {
        if (!c->emulated) TRY(device_stream_wait(s, fence, (uint64_t)i));
        TRY(device_mark(s, MARK_BEGIN));
        int64_t begin = clock_now_ns();
        TRY(launch_many(s, t));
        keep_least(&host, clock_now_ns() - begin);
        TRY(device_mark(s, MARK_END));
        device_fence_reach(fence, (uint64_t)i);
        TRY(device_stream_synchronize(s));
        keep_least(&gpu, device_mark_ns(s, MARK_END) - device_mark_ns(s, MARK_BEGIN));
    }
    for (int i = 0; i < LAUNCHES; i++) {
        int64_t begin = clock_now_ns();
        TRY(device_launch(s, t->kernel, (void *const *)t->operands, NULL, NULL));
        TRY(device_stream_synchronize(s));
        keep_least(&wait, clock_now_ns() - begin);
    }
    c->launch_us = (double)host * 1e-3 / LAUNCHES;
    c->kernel_us = (double)gpu * 1e-3 / LAUNCHES;
    double rest = (double)wait * 1e-3 - c->launch_us - c->kernel_us;
    c->synchronize_us = rest > 0 ? rest : 0;
    return STATUS_OK;
}

static status measure_launches(device *d, device_stream *s, gpu_calibration *c)
{
    op_desc op = {.kind = OP_add, .type = DTYPE_F32, .u.elementwise = {.count = SMALL}};
    tiny t = {.memory = {.fd = -1}};
    device_fence *fence = NULL;
    status rc = device_prepare(d, &op, NULL, &t.kernel);
    if (rc == STATUS_OK) rc = device_allocate(d, DEVICE_MEMORY_PRIVATE, SMALL * sizeof(float), &t.memory);
    if (rc == STATUS_OK) rc = device_fence_open(d, &fence);
    t.operands[ADD_A] = t.operands[ADD_B] = t.operands[ADD_Y] = t.memory.data;
    if (rc == STATUS_OK) rc = launch_many(s, &t);
    if (rc == STATUS_OK) rc = device_stream_synchronize(s);
    if (rc == STATUS_OK) rc = time_launches(s, fence, &t, c);
    device_fence_close(&fence);
    device_free(d, &t.memory);
    if (t.kernel) device_release(&t.kernel);
    return rc;
}

/* ---- all of it -------------------------------------------------------------------------------- */

static status describe(gpu_calibration *c)
{
    const cuda_module *module;
    cuda_probe *probe = calloc(1, sizeof *probe);
    if (!probe) return fail(STATUS_SYSTEM, "no memory to look for GPUs");
    status rc = cuda_module_open(&module);
    if (rc == STATUS_OK) module->probe(probe);
    c->emulated = probe->emulated;
    c->gpus = probe->gpu_count < GPU_MOST ? probe->gpu_count : GPU_MOST;
    c->major = probe->gpus[0].major;
    c->memory_gib = (double)probe->gpus[0].memory_bytes / (double)(1 << 30);
    snprintf(c->name, sizeof c->name, "%s", probe->gpus[0].name);
    free(probe);
    return rc;
}

status calibrate_gpu(gpu_calibration *c)
{
    device_config config = {.name = "cuda", .world = 1, .threads = 1};
    device *d = NULL;
    device_stream *s = NULL;
    *c = (gpu_calibration){0};
    status rc = device_open(&config, &d);
    if (rc == STATUS_OK) rc = describe(c);
    if (rc == STATUS_OK) rc = device_stream_open(d, DEVICE_STREAM_COMPUTE, &s);
    if (rc == STATUS_OK) rc = measure_product(d, s, sizes_of(c)->product, &c->peak_tflops);
    if (rc == STATUS_OK) rc = measure_tf32(c);
    if (rc == STATUS_OK) rc = measure_memory(d, s, c);
    if (rc == STATUS_OK) rc = measure_bus(d, s, c);
    if (rc == STATUS_OK) rc = measure_host(c);
    if (rc == STATUS_OK) rc = measure_launches(d, s, c);
    if (rc == STATUS_OK) rc = calibrate_gpu_operations(d, s, c);
    device_stream_close(&s);
    device_close(&d);
    return rc == STATUS_OK ? calibrate_gpu_peers(c) : rc;
}

/* ---- The profile of a calibrated GPU ---- */

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
