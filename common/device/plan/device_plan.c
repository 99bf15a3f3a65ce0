/* The planning device, for memory accounting without a run.
 *
 * "plan:NAME" uses the layouts and kernels of device NAME, so that arenas and workspace have the same sizes. Memory is
 * address space without pages, operations and copies do nothing, and waits return at once. */
#include "common/device/host/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct plan_device {
    device base;
    device *planned; /* NAME's device */
} plan_device;

static device *planned_by(device *d)
{
    return ((plan_device *)d)->planned;
}

static void plan_close(device *base)
{
    plan_device *d = (plan_device *)base;
    device_close(&d->planned);
    free(d);
}

static status plan_open(const device_config *config, device **out)
{
    const char *colon = strchr(config->name, ':');
    device_config planned = *config;
    planned.name = colon ? colon + 1 : "cpu";
    planned.rank = 0;
    planned.world = 1; /* only its layouts and kernels are used */
    plan_device *d = calloc(1, sizeof *d);
    if (!d) return fail(STATUS_SYSTEM, "no memory for the planning device");
    d->base.backend = &device_plan;
    d->base.config = *config;
    status rc = device_open(&planned, &d->planned);
    if (rc != STATUS_OK) {
        free(d);
        return rc;
    }
    const device_info *info = device_get_info(d->planned);
    d->base.info =
        (device_info){.name = device_plan.name, .compute_type = info->compute_type, .bf16 = info->bf16,
                      .host_addressable = true, .copy_engine = info->copy_engine, .plans = true};
    snprintf(d->base.info.description, sizeof d->base.info.description, "plans for %s", info->name);
    *out = &d->base;
    return STATUS_OK;
}

/* ---- memory ----------------------------------------------------------------------------------- */

static status plan_allocate(device *d, device_memory_kind kind, size_t bytes, device_memory *out)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t rounded = (bytes + page - 1) / page * page;
    if (rounded == 0) rounded = page;
    void *data = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return fail_errno(STATUS_SYSTEM, "no address space for %zu bytes", bytes);
    out->data = data;
    out->bytes = rounded;
    return STATUS_OK;
}

static void plan_free(device *d, device_memory *memory)
{
    munmap(memory->data, memory->bytes);
}

static status plan_upload(device_stream *s, void *to, const void *host, dtype host_type, dtype type, int64_t count)
{
    return STATUS_OK;
}

static status plan_download(device_stream *s, void *host, const void *from, dtype type, dtype host_type, int64_t count)
{
    memset(host, 0, (size_t)(count * dtype_size(host_type)));
    return STATUS_OK;
}

/* ---- layouts and kernels: those of the other device ------------------------------------------- */

static status plan_choose_layout(device *d, const op_desc *op, int slot, shape parameter, device_layout *out)
{
    return device_choose_layout(planned_by(d), op, slot, parameter, out);
}

static status plan_layout_pack(device *d, const device_layout *layout, const void *plain, void *packed)
{
    return device_layout_pack(planned_by(d), layout, plain, packed);
}

static status plan_layout_unpack(device *d, const device_layout *layout, const void *packed, void *plain)
{
    return device_layout_unpack(planned_by(d), layout, packed, plain);
}

/* The kernel belongs to the planned device, which releases it. */
static status plan_prepare(device *d, const op_desc *op, const device_layout *layout, device_kernel **out)
{
    return device_prepare(planned_by(d), op, layout, out);
}

static void plan_release(device_kernel *kernel)
{
    device_release(&kernel);
}

static status plan_launch(device_stream *s, device_kernel *kernel, void *const *operands, const op_scalars *scalars,
                          void *workspace)
{
    return STATUS_OK;
}

/* ---- streams and fences ----------------------------------------------------------------------- */

static status plan_stream_open(device *d, device_stream_role role, device_stream **out)
{
    device_stream *s = calloc(1, sizeof *s);
    if (!s) return fail(STATUS_SYSTEM, "no memory for a stream");
    *s = (device_stream){d, role};
    *out = s;
    return STATUS_OK;
}

static void plan_stream_close(device_stream *s)
{
    free(s);
}

static status plan_pass(device_stream *s, device_fence *f, uint64_t value)
{
    return STATUS_OK;
}

static status plan_synchronize(device_stream *s)
{
    return STATUS_OK;
}

static status plan_fence_open(device *d, device_fence **out)
{
    device_fence *f = calloc(1, sizeof *f);
    if (!f) return fail(STATUS_SYSTEM, "no memory for a fence");
    f->device = d;
    *out = f;
    return STATUS_OK;
}

static void plan_fence_close(device_fence *f)
{
    free(f);
}

static void plan_fence_reach(device_fence *f, uint64_t value)
{
}

static bool plan_fence_reached(device_fence *f, uint64_t value)
{
    return true;
}

static void plan_fence_fail(device_fence *f, const error_record *error)
{
}

/* ---- time: none passes ------------------------------------------------------------------------ */

static status plan_mark(device_stream *s, int slot)
{
    return STATUS_OK;
}

static int64_t plan_mark_ns(device_stream *s, int slot)
{
    return 0;
}

static int64_t plan_now_ns(device *d)
{
    return 0;
}

const device_backend device_plan = {
    .name = "plan",
    .open = plan_open,
    .close = plan_close,
    .allocate = plan_allocate,
    .free = plan_free,
    .upload = plan_upload,
    .download = plan_download,
    .pin = host_pin,
    .unpin = host_unpin,
    .convert = host_convert,
    .pack = host_convert,
    .add = host_add,
    .clear = host_clear,
    .usage = host_usage,
    .share = host_share,
    .peer_open = host_peer_open,
    .peer_close = host_peer_close,
    .choose_layout = plan_choose_layout,
    .layout_pack = plan_layout_pack,
    .layout_unpack = plan_layout_unpack,
    .prepare = plan_prepare,
    .release = plan_release,
    .launch = plan_launch,
    .stream_open = plan_stream_open,
    .stream_close = plan_stream_close,
    .stream_signal = plan_pass,
    .stream_wait = plan_pass,
    .stream_synchronize = plan_synchronize,
    .fence_open = plan_fence_open,
    .fence_close = plan_fence_close,
    .fence_reach = plan_fence_reach,
    .fence_reached = plan_fence_reached,
    .fence_fail = plan_fence_fail,
    .mark = plan_mark,
    .mark_ns = plan_mark_ns,
    .now_ns = plan_now_ns,
};
