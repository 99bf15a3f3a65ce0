/* The planning device counts memory without a run.
 *
 * "plan:NAME" uses the layouts and kernels of device NAME, so arenas and workspace have the same sizes as on
 * that device. An allocation reserves addresses but no pages. Operations and copies do nothing, and waits
 * return at once. */
#include "common/device/host/host.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct plan_device {
    device base;
    device *planned;
} plan_device;

static device *planned_by(device *d)
{
    return ((plan_device *)d)->planned;
}

static void plan_close(device *d)
{
    device_close(&((plan_device *)d)->planned);
}

static status plan_open(device *d)
{
    const char *colon = strchr(d->config.name, ':');
    device_config planned = d->config;
    planned.name = colon ? colon + 1 : "cpu";
    planned.rank = 0;
    /* Any world size will do, because only the layouts and kernels of the device are used. */
    planned.world = 1;
    TRY(device_open(&planned, &((plan_device *)d)->planned));
    const device_info *info = &planned_by(d)->info;
    d->info = (device_info){.name = device_plan.name,
                            .compute_type = info->compute_type,
                            .bf16 = info->bf16,
                            .host_addressable = true,
                            .copy_engine = info->copy_engine,
                            .plans = true};
    snprintf(d->info.description, sizeof d->info.description, "plans for %s", info->name);
    return STATUS_OK;
}

/* ---- memory ----------------------------------------------------------------------------------- */

static status plan_allocate(device *d, device_memory_kind kind, size_t bytes, device_memory *out)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t rounded = (bytes + page - 1) / page * page;
    if (rounded == 0) rounded = page;
    void *data =
        mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return fail_errno(STATUS_SYSTEM, "no address space for %zu bytes", bytes);
    out->data = data;
    out->bytes = rounded;
    return STATUS_OK;
}

static status plan_download(device_stream *s, void *host, const void *from, dtype type, dtype host_type,
                            int64_t count)
{
    memset(host, 0, (size_t)(count * dtype_size(host_type)));
    return STATUS_OK;
}

/* ---- layouts and kernels of the planned device ------------------------------------------------ */

static void plan_choose_layout(device *d, const conv2d_attributes *a, device_layout *out)
{
    planned_by(d)->backend->choose_layout(planned_by(d), a, out);
}

/* The kernel belongs to the planned device, which releases it. */
static status plan_prepare(device *d, const op_desc *op, const device_layout *layout, device_kernel **out)
{
    return planned_by(d)->backend->prepare(planned_by(d), op, layout, out);
}

static status plan_launch(device_stream *s, device_kernel *kernel, void *const *operands,
                          const op_scalars *scalars, void *workspace)
{
    return STATUS_OK;
}

/* ---- time: none passes ------------------------------------------------------------------------ */

static status plan_wait(device_stream *s, device_fence *f, uint64_t value)
{
    return STATUS_OK;
}

static bool plan_fence_reached(device_fence *f, uint64_t value)
{
    return true;
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
    HOST_SHARED(HOST_SLOT) HOST_STREAM_SLOTS,
    .device_bytes = sizeof(plan_device),
    .open = plan_open,
    .close = plan_close,
    .allocate = plan_allocate,
    .free = host_free,
    .upload = host_upload,
    .download = plan_download,
    .add = host_add,
    .pack = host_pack,
    .choose_layout = plan_choose_layout,
    .prepare = plan_prepare,
    .release = host_release,
    .launch = plan_launch,
    .stream_wait = plan_wait,
    .fence_reached = plan_fence_reached,
    .mark_ns = plan_mark_ns,
    .now_ns = plan_now_ns,
};
