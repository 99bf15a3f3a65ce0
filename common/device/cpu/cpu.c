/* The CPU back end computes in float32. It uses oneDNN's convolutions and matrix multiplications, and kernels
 * of this project. These kernels are compiled for the instruction sets of processor.h, and the device uses
 * the best set that the machine has. The environment variable ONEDNN_MAX_CPU_ISA limits the instruction sets
 * of oneDNN and of these kernels.
 *
 * The same command with the same number of threads gives bit-identical results. Operations that do not sum
 * across rows (activations, pooling, embeddings, optimizers, division) give bit-identical results for any
 * number of threads.
 *
 * A rank computes with OpenMP's threads. A waiting thread of GNU OpenMP spins for about 15 ms, unless the
 * environment sets GOMP_SPINCOUNT=1000 or OMP_WAIT_POLICY=passive before the program starts. If there are
 * more threads than cores, the user should set one of these variables. docs/kernels-cpu.md explains which
 * kernel is used when. */
#include "common/device/cpu/conv2d.h"
#include "common/device/cpu/gemm.h"
#include "common/device/cpu/onednn.h"

#include <omp.h>
#include <stdio.h>

#define DECLARE_ISA(name) extern const cpu_isa cpu_isa_##name;
PROCESSOR_ISA_LIST(DECLARE_ISA)
#undef DECLARE_ISA

#define ISA(name) &cpu_isa_##name,
const cpu_isa *const cpu_isas[CPU_ISA_COUNT] = {PROCESSOR_ISA_LIST(ISA)};
#undef ISA

bool cpu_isa_supported(const cpu_isa *isa)
{
#define CHECK_ISA(name)                                                                                      \
    if (isa == &cpu_isa_##name) return processor_has_##name();
    PROCESSOR_ISA_LIST(CHECK_ISA)
#undef CHECK_ISA
    return false;
}

#define DECLARE_ENTRY(name, class) extern const host_kernel_entry cpu_##name;
OP_LIST(DECLARE_ENTRY)
#undef DECLARE_ENTRY

#define TABLE_ENTRY(name, class) [OP_##name] = &cpu_##name,
static const host_kernel_entry *const entries[OP_COUNT] = {OP_LIST(TABLE_ENTRY)};
#undef TABLE_ENTRY

/* Sets the number of OpenMP's threads. oneDNN's kernels must run with the number of threads with which they
 * were created. */
static void use_threads(const device *d)
{
    if (omp_get_dynamic()) omp_set_dynamic(0);
    if (omp_get_max_threads() != d->config.threads) omp_set_num_threads(d->config.threads);
}

static const cpu_isa *choose_isa(void)
{
    enum { NEEDED_baseline = 0, NEEDED_avx2 = dnnl_cpu_isa_avx2, NEEDED_avx512 = dnnl_cpu_isa_avx512_core };
#define NEEDED(name) NEEDED_##name,
    static const unsigned needed[CPU_ISA_COUNT] = {PROCESSOR_ISA_LIST(NEEDED)};
#undef NEEDED
    unsigned allowed = dnnl_get_effective_cpu_isa();
    int best = CPU_ISA_COUNT - 1;
    while (!cpu_isa_supported(cpu_isas[best]) || (allowed & needed[best]) != needed[best]) best--;
    return cpu_isas[best];
}

static void cpu_close(device *base)
{
    cpu_device *d = (cpu_device *)base;
    dnnl_stream_destroy(d->stream);
    dnnl_engine_destroy(d->engine);
}

static void describe(cpu_device *d)
{
    const dnnl_version_t *v = dnnl_version();
    int threads = d->base.config.threads;
    d->base.info = (device_info){
        .name = device_cpu.name, .compute_type = DTYPE_F32, .host_addressable = true, .real = true};
    snprintf(d->base.info.description, sizeof d->base.info.description, "%d thread%s, %s%s, oneDNN %d.%d.%d",
             threads, threads == 1 ? "" : "s", d->isa->name, d->bf16 ? ", matrix products in bfloat16" : "",
             v->major, v->minor, v->patch);
}

static status check_precision(const device_config *config)
{
    if (config->precision == DEVICE_PRECISION_TF32)
        return fail(STATUS_CONFIG, "device cpu: --tf32 needs a GPU; expected float32 or --bf16");
    if (config->precision == DEVICE_PRECISION_BF16 && !cpu_has_bf16())
        return fail(STATUS_CONFIG,
                    "device cpu: --bf16: this processor does not multiply bfloat16 (AVX512_BF16), or "
                    "ONEDNN_MAX_CPU_ISA forbids it");
    return STATUS_OK;
}

/* A kernel of oneDNN would wait forever for a thread that OpenMP does not start. */
static status check_threads(int threads)
{
    if (threads < 1)
        return fail(STATUS_USAGE, "device cpu: threads: expected an integer of 1 or more, got %d", threads);
    if (omp_get_thread_limit() < threads)
        return fail(STATUS_CONFIG,
                    "OMP_THREAD_LIMIT: expected at least %d, the --threads of this rank, got %d", threads,
                    omp_get_thread_limit());
    if (threads > 1 && omp_get_max_active_levels() < 1)
        return fail(STATUS_CONFIG, "OMP_MAX_ACTIVE_LEVELS: expected at least 1 with %d threads, got 0",
                    threads);
    return STATUS_OK;
}

static status cpu_open(device *base)
{
    cpu_device *d = (cpu_device *)base;
    const device_config *config = &base->config;
    TRY(check_precision(config));
    TRY(check_threads(config->threads));
    d->isa = choose_isa();
    d->bf16 = config->precision == DEVICE_PRECISION_BF16;
    describe(d);
    use_threads(base);
    TRY(onednn_check(dnnl_engine_create(&d->engine, dnnl_cpu, 0), "engine"));
    return onednn_check(dnnl_stream_create(&d->stream, d->engine, dnnl_stream_in_order), "stream");
}

static status cpu_prepare(device *d, const op_desc *op, const device_layout *layout, device_kernel **out)
{
    use_threads(d);
    return host_prepare(d, op, layout, entries[op->kind], out);
}

static status cpu_launch(device_stream *s, device_kernel *kernel, void *const *operands,
                         const op_scalars *scalars, void *workspace)
{
    use_threads(kernel->device);
    return host_launch(s, kernel, operands, scalars, workspace);
}

const device_backend device_cpu = {
    .name = "cpu",
    HOST_BACKEND_SLOTS,
    .device_bytes = sizeof(cpu_device),
    .open = cpu_open,
    .close = cpu_close,
    .choose_layout = conv2d_choose_layout,
    .prepare = cpu_prepare,
    .launch = cpu_launch,
};
