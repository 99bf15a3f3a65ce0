#include "common/device/cpu/cpu.h"

#include "common/device/cpu/bf16.h"
#include "common/device/cpu/kernel.h"
#include "common/device/cpu/layout_choice.h"
#include "common/device/cpu/onednn.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

/* One entry for every operation, defined beside its kernels: a missing one is a link error. */
#define DECLARE_ENTRY(name, class) extern const host_kernel_entry cpu_##name;
OP_LIST(DECLARE_ENTRY)
#undef DECLARE_ENTRY

#define TABLE_ENTRY(name, class) [OP_##name] = &cpu_##name,
static const host_kernel_entry *const entries[OP_COUNT] = {OP_LIST(TABLE_ENTRY)};
#undef TABLE_ENTRY

/* oneDNN's kernels run with as many threads as OpenMP's setting of the calling thread says, and must run
 * with as many as they were created for. */
static void use_threads(const device *d)
{
    if (omp_get_max_threads() != d->config.threads) omp_set_num_threads(d->config.threads);
}

/* The best instruction set that both the machine and oneDNN's setting (ONEDNN_MAX_CPU_ISA) allow. */
static const cpu_isa *choose_isa(void)
{
    static const unsigned needed[CPU_ISA_COUNT] = {0, dnnl_cpu_isa_avx2, dnnl_cpu_isa_avx512_core};
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
    free(d);
}

static void describe(cpu_device *d)
{
    const dnnl_version_t *v = dnnl_version();
    int threads = d->base.config.threads;
    d->base.info = (device_info){
        .name = device_cpu.name, .compute_type = DTYPE_F32, .host_addressable = true, .real = true};
    snprintf(d->base.info.description, sizeof d->base.info.description, "%d thread%s, %s%s, oneDNN %d.%d.%d",
             threads, threads == 1 ? "" : "s", d->isa->name, d->bf16 ? ", products in bfloat16" : "", v->major, v->minor,
             v->patch);
}

static status check_precision(const device_config *config)
{
    if (config->precision == DEVICE_PRECISION_TF32)
        return fail(STATUS_CONFIG, "device cpu: found precision tf32, allowed is float32 or bfloat16");
    if (config->precision == DEVICE_PRECISION_BF16 && !cpu_has_bf16())
        return fail(STATUS_CONFIG, "device cpu: found precision bfloat16, allowed is float32: this processor does not "
                                   "multiply bfloat16 (AVX512_BF16), or ONEDNN_MAX_CPU_ISA forbids it");
    return STATUS_OK;
}

static status cpu_open(const device_config *config, device **out)
{
    TRY(check_precision(config));
    if (config->threads < 1)
        return fail(STATUS_USAGE, "threads of the cpu device: found %d, allowed is 1 or more",
                    config->threads);
    cpu_device *d = calloc(1, sizeof *d);
    if (!d) return fail(STATUS_SYSTEM, "no memory for the cpu device");
    d->base.backend = &device_cpu;
    d->base.config = *config;
    d->isa = choose_isa();
    d->bf16 = config->precision == DEVICE_PRECISION_BF16;
    describe(d);
    for (int i = 0; i < OP_COUNT; i++) d->table[i] = *entries[i];
    use_threads(&d->base);
    status rc;
    TRY_GOTO(rc, onednn_check(dnnl_engine_create(&d->engine, dnnl_cpu, 0), "engine"), failed);
    TRY_GOTO(rc, onednn_check(dnnl_stream_create(&d->stream, d->engine, dnnl_stream_in_order), "stream"),
             failed);
    *out = &d->base;
    return STATUS_OK;
failed:
    cpu_close(&d->base);
    return rc;
}

static status cpu_prepare(device *d, const op_desc *op, const device_layout *layout, device_kernel **out)
{
    if (op->type != DTYPE_F32)
        return fail(STATUS_INTERNAL, "%s on the cpu device: found %s, allowed is %s", op_name(op->kind),
                    dtype_name(op->type), dtype_name(DTYPE_F32));
    use_threads(d);
    return host_prepare(d, op, layout, ((cpu_device *)d)->table, out);
}

static status cpu_launch(device_stream *s, device_kernel *kernel, void *const *operands,
                         const op_scalars *scalars, void *workspace)
{
    use_threads(kernel->device);
    return host_launch(s, kernel, operands, scalars, workspace);
}

const device_backend device_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .allocate = host_allocate,
    .free = host_free,
    .upload = host_upload,
    .download = host_download,
    .pin = host_pin,
    .unpin = host_unpin,
    .convert = host_convert,
    .add = host_add,
    .clear = host_clear,
    .usage = host_usage,
    .share = host_share,
    .peer_open = host_peer_open,
    .peer_close = host_peer_close,
    .choose_layout = cpu_choose_layout,
    .layout_pack = cpu_layout_pack,
    .layout_unpack = cpu_layout_unpack,
    .prepare = cpu_prepare,
    .release = host_release,
    .launch = cpu_launch,
    .stream_open = host_stream_open,
    .stream_close = host_stream_close,
    .stream_signal = host_stream_signal,
    .stream_wait = host_stream_wait,
    .stream_synchronize = host_stream_synchronize,
    .fence_open = host_fence_open,
    .fence_close = host_fence_close,
    .fence_reach = host_fence_reach,
    .fence_reached = host_fence_reached,
    .fence_fail = host_fence_fail,
    .mark = host_mark,
    .mark_ns = host_mark_ns,
    .now_ns = host_now_ns,
};
