#include "common/base/clock.h"
#include "common/base/text.h"
#include "common/device/cuda/module/cublaslt.h"
#include "common/device/cuda/module/cuda_impl.h"
#include "common/device/cuda/module/cudnn_cuda.h"
#include "common/device/cuda/module/libraries.h"
#include "common/device/cuda/module/trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const precision_names[] = {"float32", "tf32", "bf16"};

/* ---- errors ----------------------------------------------------------------------------------- */

status cuda_check(const cuda_device *d, cudaError_t code, const char *what)
{
    char host[64] = "?";
    if (code == cudaSuccess) return STATUS_OK;
    gethostname(host, sizeof host - 1);
    cudaGetLastError();
    return fail(STATUS_SYSTEM, "rank %d on %s, GPU %d: %s: %s (%s)", d->base.config.rank, host, d->gpu, what,
                cudaGetErrorString(code), cudaGetErrorName(code));
}

status cuda_use(const cuda_device *d)
{
    return cuda_check(d, cudaSetDevice(d->gpu), "cudaSetDevice");
}

void cuda_fall_back(cuda_device *d, op_kind kind, const char *shape, const char *reason, const char *instead)
{
    device_fallback *f = d->fallbacks, *end = f + d->base.info.fallback_count;
    while (f < end && !(f->kind == kind && strcmp(f->reason, reason) == 0)) f++;
    log_debug("%s %s: %s; %s", op_name(kind), shape, reason, instead);
    if (f == end) {
        if (end == d->fallbacks + CUDA_FALLBACKS) return;
        *f = (device_fallback){.kind = kind};
        snprintf(f->shape, sizeof f->shape, "%s", shape);
        snprintf(f->reason, sizeof f->reason, "%s", reason);
        snprintf(f->instead, sizeof f->instead, "%s", instead);
        d->base.info.fallback_count++;
        if (d->base.config.rank == 0)
            log_warn("%s %s: %s; %s, which is slower", op_name(kind), shape, reason, instead);
    }
    f->count++;
}

/* ---- probing ---------------------------------------------------------------------------------- */

static int count_gpus(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError();
    return 0;
}

static void probe_gpus(cuda_probe *out)
{
    int count = 0, version = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    cudaDriverGetVersion(&version);
    if (version)
        snprintf(out->driver.version, sizeof out->driver.version, "for CUDA %d.%d", version / 1000,
                 version % 1000 / 10);
    if (code != cudaSuccess) {
        snprintf(out->driver.why, sizeof out->driver.why, "%s", cudaGetErrorString(code));
        cudaGetLastError();
        return;
    }
    out->gpu_count = count;
    for (int i = 0; i < count && i < CUDA_MOST_GPUS; i++) {
        struct cudaDeviceProp p;
        if (cudaGetDeviceProperties(&p, i) != cudaSuccess) continue;
        cuda_gpu *g = &out->gpus[i];
        snprintf(g->name, sizeof g->name, "%s", p.name);
        g->major = p.major;
        g->minor = p.minor;
        g->memory_bytes = (int64_t)p.totalGlobalMem;
        g->runs = p.major * 10 + p.minor >= PSRING_LEAST_ARCHITECTURE;
    }
}

#if PSRING_HAVE_CUBLASLT || PSRING_HAVE_CUDNN
static void set_version(cuda_found *library, size_t v)
{
    snprintf(library->version, sizeof library->version, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
}
#endif

static void probe(cuda_probe *out)
{
    cuda_libraries libraries;
    *out = (cuda_probe){0};
    snprintf(out->toolkit, sizeof out->toolkit, "%d.%d", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    snprintf(out->architectures, sizeof out->architectures, "%s", PSRING_ARCHITECTURES);
    out->emulated = PSRING_CUDA_EMULATED;
    probe_gpus(out);
    cuda_libraries_open(&libraries);
    out->cudnn = libraries.cudnn_found;
    out->cublaslt = libraries.cublaslt_found;
#if PSRING_HAVE_CUDNN
    if (!out->cudnn.why[0]) set_version(&out->cudnn, libraries.cudnn.version());
#endif
#if PSRING_HAVE_CUBLASLT
    if (!out->cublaslt.why[0]) set_version(&out->cublaslt, libraries.cublaslt.version());
#endif
}

/* ---- open ------------------------------------------------------------------------------------- */

static status choose_gpu(const device_config *config, int *out)
{
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess || count == 0) {
        cudaGetLastError();
        return fail(STATUS_UNAVAILABLE, "device cuda: no GPU can be used: %s; use --device cpu",
                    code == cudaSuccess ? "none was found" : cudaGetErrorString(code));
    }
    if (config->local_rank >= count && !config->share_gpu)
        return fail(
            STATUS_CONFIG,
            "device cuda: found %d GPU%s, expected one per rank, local rank %d too; use --gpus %d, or let "
            "ranks share a GPU with --share-gpu",
            count, count == 1 ? "" : "s", config->local_rank, count);
    *out = config->local_rank % count;
    return STATUS_OK;
}

static void describe(cuda_device *d, const struct cudaDeviceProp *p)
{
    d->base.info = (device_info){.name = "cuda",
                                 .compute_type = DTYPE_F32,
                                 .bf16 = d->base.config.precision == DEVICE_PRECISION_BF16,
                                 .copy_engine = true,
                                 .real = true,
                                 .fallbacks = d->fallbacks};
    snprintf(d->base.info.description, sizeof d->base.info.description, "GPU %d, %.60s, %s%s%s%s%s", d->gpu,
             p->name, precision_names[d->base.config.precision], d->cudnn ? ", cuDNN" : "",
             d->cublaslt ? ", cuBLASLt" : "",
             d->base.config.benchmark && (d->cudnn || d->cublaslt) ? ", benchmarked" : "",
             PSRING_CUDA_EMULATED ? ", EMULATED on the host" : "");
}

static status check_gpu(const cuda_device *d, const struct cudaDeviceProp *p)
{
    int architecture = p->major * 10 + p->minor;
    if (architecture < PSRING_LEAST_ARCHITECTURE)
        return fail(STATUS_UNAVAILABLE,
                    "device cuda: GPU %d (%s): expected compute capability %d.%d or later, got %d.%d "
                    "(built with CUDA %d.%d for %s); build with %s-DPSRING_CUDA_ARCHITECTURES=%d",
                    d->gpu, p->name, PSRING_LEAST_ARCHITECTURE / 10, PSRING_LEAST_ARCHITECTURE % 10, p->major,
                    p->minor, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, PSRING_ARCHITECTURES,
                    architecture < 75 ? "CUDA 12 and " : "", architecture);
    if (d->base.config.precision != DEVICE_PRECISION_F32 && p->major < 8)
        return fail(STATUS_CONFIG, "device cuda: --%s: expected compute capability 8.0 or later, got %d.%d",
                    precision_names[d->base.config.precision], p->major, p->minor);
    return STATUS_OK;
}

static void cuda_close(device *base)
{
    cuda_device *d = (cuda_device *)base;
    if (d->libraries) cudaSetDevice(d->gpu);
    cuda_forget(d);
    cudnn_close(d);
    cublaslt_close(d);
    cuda_staging_close(d);
    if (d->counters) cudaFree(d->counters);
    if (d->anchor_stream) cudaStreamDestroy(d->anchor_stream);
    free(d->libraries);
}

static status cuda_open(device *base)
{
    cuda_device *d = (cuda_device *)base;
    struct cudaDeviceProp properties;
    TRY(choose_gpu(&base->config, &d->gpu));
    TRY(cuda_check(d, cudaGetDeviceProperties(&properties, d->gpu), "cudaGetDeviceProperties"));
    TRY(check_gpu(d, &properties));
    TRY(cuda_use(d));
    d->libraries = calloc(1, sizeof *d->libraries);
    if (!d->libraries) return fail(STATUS_SYSTEM, "no memory for the cuda device");
    cuda_libraries_open(d->libraries);
    if (d->libraries->driver_found.why[0])
        return fail(STATUS_UNAVAILABLE, "device cuda: the driver cannot be used: %s",
                    d->libraries->driver_found.why);
    TRY(cublaslt_open(d));
    TRY(cudnn_open(d));
    TRY(cuda_staging_open(d));
    TRY(cuda_check(d, cudaStreamCreateWithFlags(&d->anchor_stream, cudaStreamNonBlocking),
                   "cudaStreamCreate"));
    TRY(cuda_check(d, cudaMalloc((void **)&d->counters, CUDA_COUNTERS * sizeof *d->counters), "cudaMalloc"));
    TRY(cuda_zero(d, d->counters, CUDA_COUNTERS * sizeof *d->counters));
    describe(d, &properties);
    return STATUS_OK;
}

static void choose_layout(device *d, const conv2d_attributes *a, device_layout *out)
{
    *out = (device_layout){out->elements, a->k, a->c, a->r, a->s, 1, DEVICE_ORDER_KRSC, false};
}

#define SLOT(name) .name = cuda_##name,
static const device_backend cuda_backend = {.name = "cuda",
                                            .open = cuda_open,
                                            .close = cuda_close,
                                            .add = cuda_add_ranges,
                                            .device_bytes = sizeof(cuda_device),
                                            .stream_bytes = sizeof(cuda_stream),
                                            .fence_bytes = sizeof(cuda_fence),
                                            .choose_layout = choose_layout,
                                            CUDA_FUNCTIONS(SLOT)};

/* ---- the module ------------------------------------------------------------------------------- */

/* Requests as many queues as CUDA supports, before the first call of CUDA. Streams that share one of the
 * GPU's queues wait for each other, which could deadlock if several ranks of one process use one GPU. */
__attribute__((constructor)) static void request_queues(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

extern const cuda_module psring_cuda_module;
const cuda_module psring_cuda_module = {.version = CUDA_MODULE_VERSION,
                                        .layout = CUDA_MODULE_LAYOUT,
                                        .count_gpus = count_gpus,
                                        .probe = probe,
                                        .backend = &cuda_backend};
