#include "harness/sim/calibrate_impl.h"

#include "common/base/clock.h"
#include "common/device/cuda/cuda_module.h"

#include <stdio.h>
#include <stdlib.h>

enum { LAUNCHES = 200, SMALL = 1, OPERANDS = 3 };

/* Problem sizes for a GPU, and small ones for the emulator. A GEMM's operands fit in the bytes of a copy. */
typedef struct sizes {
    int64_t product;       /* Rows, columns and depth of a GEMM. */
    int64_t copy_elements; /* Number of float32 values in a copy. */
    int64_t bus_bytes;     /* Bytes of bus transfers, at most the bytes of copy_elements. */
} sizes;

static const sizes on_gpu = {8192, 64 << 20, 256 << 20}, on_emulator = {48, 1 << 16, 1 << 16};

static const sizes *sizes_of(const gpu_calibration *c)
{
    return c->emulated ? &on_emulator : &on_gpu;
}

typedef struct bench {
    device *device;
    device_stream *stream;
    device_memory gpu[OPERANDS], host; /* Each buffer has copy_elements elements. */
} bench;

/* The caller closes the bench, even after a failure. */
static status open_bench(bench *b, const gpu_calibration *c, device_precision precision)
{
    device_config config = {.name = "cuda", .world = 1, .threads = 1, .precision = precision};
    size_t bytes = (size_t)sizes_of(c)->copy_elements * sizeof(float);
    *b = (bench){0};
    TRY(device_open(&config, &b->device));
    TRY(device_stream_open(b->device, DEVICE_STREAM_COMPUTE, &b->stream));
    for (int i = 0; i < OPERANDS; i++)
        TRY(device_allocate(b->device, DEVICE_MEMORY_PRIVATE, bytes, &b->gpu[i]));
    return device_allocate(b->device, DEVICE_MEMORY_STAGING, bytes, &b->host);
}

static void close_bench(bench *b)
{
    for (int i = 0; i < OPERANDS; i++) device_free(b->device, &b->gpu[i]);
    device_free(b->device, &b->host);
    device_stream_close(&b->stream);
    device_close(&b->device);
}

/* ---- memory and the bus ----------------------------------------------------------------------- */

status gpu_time_copy(device_stream *s, void *to, const void *from, int64_t count, int64_t *best)
{
    for (int i = 0; i < GPU_TURNS; i++) {
        TRY(device_mark(s, GPU_BEGIN));
        TRY(device_convert(s, to, DTYPE_F32, from, DTYPE_F32, count, 1));
        TRY(gpu_take_time(s, best));
    }
    return STATUS_OK;
}

static status measure_memory(bench *b, gpu_calibration *c)
{
    int64_t count = sizes_of(c)->copy_elements, best = 0;
    TRY(gpu_time_copy(b->stream, b->gpu[1].data, b->gpu[0].data, count, &best));
    if (best > 0) c->memory_gbs = 2.0 * (double)count * sizeof(float) / (double)best;
    return STATUS_OK;
}

static status copy(bench *b, bool up, int64_t bytes, int64_t *best)
{
    for (int i = 0; i < GPU_TURNS; i++) {
        TRY(device_mark(b->stream, GPU_BEGIN));
        if (up)
            TRY(device_upload(b->stream, b->gpu[0].data, b->host.data, DTYPE_U8, DTYPE_U8, bytes));
        else
            TRY(device_download(b->stream, b->host.data, b->gpu[0].data, DTYPE_U8, DTYPE_U8, bytes));
        TRY(gpu_take_time(b->stream, best));
    }
    return STATUS_OK;
}

static status measure_bus(bench *b, gpu_calibration *c)
{
    int64_t bytes = sizes_of(c)->bus_bytes, up = 0, down = 0, small = 0;
    TRY(copy(b, true, bytes, &up));
    TRY(copy(b, false, bytes, &down));
    TRY(copy(b, false, sizeof(float), &small));
    int64_t slower = up > down ? up : down;
    if (slower > 0) c->pcie_gbs = (double)bytes / (double)slower;
    c->copy_us = (double)small * 1e-3;
    return STATUS_OK;
}

/* ---- products --------------------------------------------------------------------------------- */

static status measure_product(bench *b, int64_t size, double *tflops)
{
    op_desc op = {
        .kind = OP_linear_forward, .type = DTYPE_F32, .u.linear = {.m = size, .in = size, .out = size}};
    device_kernel *kernel = NULL;
    device_memory workspace = {0};
    int64_t best = 0;
    TRY(device_prepare(b->device, &op, NULL, &kernel));
    status rc =
        device_allocate(b->device, DEVICE_MEMORY_PRIVATE, device_kernel_workspace(kernel), &workspace);
    void *operands[OP_MAX_OPERANDS] = {
        [LINEAR_FWD_X] = b->gpu[0].data, [LINEAR_FWD_W] = b->gpu[1].data, [LINEAR_FWD_Y] = b->gpu[2].data};
    for (int i = 0; i < GPU_TURNS && rc == STATUS_OK; i++) {
        rc = device_mark(b->stream, GPU_BEGIN);
        if (rc == STATUS_OK) rc = device_launch(b->stream, kernel, operands, NULL, workspace.data);
        if (rc == STATUS_OK) rc = gpu_take_time(b->stream, &best);
    }
    if (best > 0) *tflops = op_cost_of(&op).flops / (double)best * 1e-3;
    device_free(b->device, &workspace);
    device_release(&kernel);
    return rc;
}

/* Measures on a separate device, because the precision is chosen when a device is opened. Leaves
 * tf32_tflops at 0 if the GPU has no TF32. */
static status measure_tf32(gpu_calibration *c)
{
    bench b;
    status rc = open_bench(&b, c, DEVICE_PRECISION_TF32);
    bool none = rc == STATUS_CONFIG;
    if (none) error_clear();
    if (rc == STATUS_OK) rc = measure_product(&b, sizes_of(c)->product, &c->tf32_tflops);
    close_bench(&b);
    return none ? STATUS_OK : rc;
}

/* ---- launches --------------------------------------------------------------------------------- */

typedef struct tiny {
    device_kernel *kernel;
    void *operands[OP_MAX_OPERANDS];
} tiny;

static status launch_many(device_stream *s, const tiny *t)
{
    for (int i = 0; i < LAUNCHES; i++)
        TRY(device_launch(s, t->kernel, (void *const *)t->operands, NULL, NULL));
    return STATUS_OK;
}

/* Measures the host's and the GPU's time per launch. For the GPU's time the stream waits for a fence until
 * all launches are queued; the launches are fewer than a stream can hold. The kernel is loaded before,
 * because loading waits for all streams. A stream of the emulator runs each operation at once, so it must not
 * wait. */
static status time_launches(device_stream *s, device_fence *fence, const tiny *t, gpu_calibration *c)
{
    int64_t host = 0, gpu = 0, wait = 0;
    TRY(launch_many(s, t));
    TRY(device_mark(s, GPU_BEGIN));
    TRY(device_mark(s, GPU_END));
    TRY(device_stream_synchronize(s));
    for (int i = 1; i <= GPU_TURNS; i++) {
        if (!c->emulated) TRY(device_stream_wait(s, fence, (uint64_t)i));
        TRY(device_mark(s, GPU_BEGIN));
        int64_t begin = clock_now_ns();
        TRY(launch_many(s, t));
        keep_least(&host, clock_now_ns() - begin);
        TRY(device_mark(s, GPU_END));
        device_fence_reach(fence, (uint64_t)i);
        TRY(device_stream_synchronize(s));
        keep_least(&gpu, device_mark_ns(s, GPU_END) - device_mark_ns(s, GPU_BEGIN));
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

static status measure_launches(bench *b, gpu_calibration *c)
{
    op_desc op = {.kind = OP_add, .type = DTYPE_F32, .u.elementwise = {.count = SMALL}};
    void *memory = b->gpu[0].data;
    tiny t = {.operands = {[ADD_A] = memory, [ADD_B] = memory, [ADD_Y] = memory}};
    device_fence *fence = NULL;
    TRY(device_prepare(b->device, &op, NULL, &t.kernel));
    status rc = device_fence_open(b->device, &fence);
    if (rc == STATUS_OK) rc = launch_many(b->stream, &t);
    if (rc == STATUS_OK) rc = device_stream_synchronize(b->stream);
    if (rc == STATUS_OK) rc = time_launches(b->stream, fence, &t, c);
    device_fence_close(&fence);
    device_release(&t.kernel);
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

static status measure(bench *b, gpu_calibration *c)
{
    TRY(measure_product(b, sizes_of(c)->product, &c->peak_tflops));
    TRY(measure_tf32(c));
    TRY(measure_memory(b, c));
    TRY(measure_bus(b, c));
    TRY(calibration_copy_gbs((size_t)sizes_of(c)->bus_bytes, &c->host_gbs));
    TRY(measure_launches(b, c));
    return calibrate_gpu_operations(b->device, b->stream, c);
}

status calibrate_gpu(gpu_calibration *c)
{
    bench b;
    *c = (gpu_calibration){0};
    TRY(describe(c));
    status rc = open_bench(&b, c, DEVICE_PRECISION_F32);
    if (rc == STATUS_OK) rc = measure(&b, c);
    close_bench(&b);
    return rc == STATUS_OK ? calibrate_gpu_peers(c) : rc;
}
