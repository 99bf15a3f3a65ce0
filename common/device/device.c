#include "common/device/device.h"

#include "common/base/clock.h"
#include "common/base/text.h"
#include "common/device/record.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE_ENTRY(name, option) &device_##name,
static const device_backend *const backends[] = {DEVICE_LIST(DEVICE_ENTRY) & device_plan};
#undef DEVICE_ENTRY
enum { BACKEND_COUNT = sizeof backends / sizeof backends[0] };

/* Finds a back end by name. Ignores the part of "sim:PROFILE" from the colon on. */
static status find_backend(const char *name, const device_backend **out)
{
    size_t length = strcspn(name, ":");
    const char *names[BACKEND_COUNT];
    for (int i = 0; i < BACKEND_COUNT; i++) {
        names[i] = backends[i]->name;
        if (strlen(names[i]) != length || memcmp(name, names[i], length) != 0) continue;
        *out = backends[i];
        return STATUS_OK;
    }
    int none;
    return text_parse_choice("device", name, names, sizeof *names, BACKEND_COUNT, &none);
}

status device_open(const device_config *config, device **out)
{
    const device_backend *backend = NULL;
    *out = NULL;
    TRY(find_backend(config->name, &backend));
    return device_open_backend(backend, config, out);
}

status device_open_backend(const device_backend *b, const device_config *config, device **out)
{
    *out = NULL;
    if (b->load) TRY(b->load(&b));
    device *d = *out = calloc(1, b->device_bytes);
    if (!d) return fail(STATUS_SYSTEM, "no memory for the device %s", b->name);
    d->backend = b;
    d->config = *config;
    status rc = b->open(d);
    if (rc != STATUS_OK) device_close(out);
    return rc;
}

void device_close(device **d)
{
    if (*d && (*d)->backend->close) (*d)->backend->close(*d);
    free(*d);
    *d = NULL;
}

const device_info *device_get_info(const device *d)
{
    return &d->info;
}

status device_allocate(device *d, device_memory_kind kind, size_t bytes, device_memory *out)
{
    *out = (device_memory){.fd = -1, .kind = kind};
    status rc = d->backend->allocate(d, kind, bytes, out);
    d->refused = d->refused || rc != STATUS_OK;
    return rc;
}

bool device_has_refused(const device *d)
{
    return d->refused;
}

void device_free(device *d, device_memory *memory)
{
    if (memory->data) d->backend->free(d, memory);
    *memory = (device_memory){.fd = -1};
}

status device_pin(device *d, void *data, size_t bytes)
{
    return d->backend->pin ? d->backend->pin(d, data, bytes) : STATUS_OK;
}

void device_unpin(device *d, void *data)
{
    if (d->backend->unpin) d->backend->unpin(d, data);
}

status device_upload(device_stream *s, void *to, const void *host, dtype host_type, dtype type, int64_t count)
{
    TRY(device_end_graph());
    return s->device->backend->upload(s, to, host, host_type, type, count);
}

status device_download(device_stream *s, void *host, const void *from, dtype type, dtype host_type,
                       int64_t count)
{
    TRY(device_end_graph());
    return s->device->backend->download(s, host, from, type, host_type, count);
}

status device_convert(device_stream *s, void *to, dtype to_type, const void *from, dtype from_type,
                      int64_t count, double divisor)
{
    status rc;
    if (device_is_replayed(s, &rc)) return rc;
    return s->device->backend->convert(s, to, to_type, from, from_type, count, divisor);
}

status device_pack(device_stream *s, const device_range *ranges, int count, dtype to_type, dtype from_type,
                   double divisor)
{
    status rc;
    if (device_is_replayed(s, &rc)) return rc;
    return s->device->backend->pack(s, ranges, count, to_type, from_type, divisor);
}

status device_flatten(device_stream *s, dtype type, int64_t count)
{
    device_range whole = {.count = count};
    return s->device->info.simulated ? device_pack(s, &whole, 1, type, type, 1) : STATUS_OK;
}

status device_add(device_stream *s, void *to, const void *a, const void *b, dtype type, int64_t count)
{
    status rc;
    if (device_is_replayed(s, &rc)) return rc;
    return s->device->backend->add(s, to, a, b, type, count);
}

status device_copy_from(device_stream *s, void *to, const device *owner, const void *from, dtype type,
                        int64_t count)
{
    const device_backend *b = s->device->backend;
    return b->copy_from ? b->copy_from(s, owner, type, count)
                        : device_convert(s, to, type, from, type, count, 1);
}

status device_clear(device_stream *s, void *data, size_t bytes)
{
    status rc;
    if (device_is_replayed(s, &rc)) return rc;
    return s->device->backend->clear(s, data, bytes);
}

status device_usage(device *d, int64_t *used_bytes, int64_t *total_bytes)
{
    *used_bytes = *total_bytes = -1;
    return d->backend->usage ? d->backend->usage(d, used_bytes, total_bytes) : STATUS_OK;
}

status device_enable_peer(device *d, const device *owner)
{
    return d->backend->enable_peer ? d->backend->enable_peer(d, owner) : STATUS_OK;
}

status device_prepare(device *d, const op_desc *op, const device_layout *layout, device_kernel **out)
{
    *out = NULL;
    if (op->type != d->info.compute_type)
        return fail(STATUS_INTERNAL, "device %s: %s: expected %s, got %s", d->info.name, op_name(op->kind),
                    dtype_name(d->info.compute_type), dtype_name(op->type));
    status rc = d->backend->prepare(d, op, layout, out);
    if (rc == STATUS_OK) return STATUS_OK;
    error_context("%s", op_name(op->kind));
    device_release(out);
    return rc;
}

void device_release(device_kernel **kernel)
{
    if (*kernel) (*kernel)->device->backend->release(*kernel);
    *kernel = NULL;
}

size_t device_kernel_workspace(const device_kernel *kernel)
{
    return kernel->workspace;
}

/* ---- slow streams ----------------------------------------------------------------------------- */

/* Shortest sleep. A shorter sleep would take about twice the requested time. */
enum { SHORTEST_SLEEP_NS = 200000 };

void device_stream_slow_down(device_stream *s, double factor)
{
    const device *d = s->device;
    if (d->backend->stream_slow_down)
        d->backend->stream_slow_down(s, factor);
    else if (!d->info.plans)
        s->stretch = factor - 1;
}

/* Measure a launch on a slow stream, and do nothing on other streams. begin_launch() reads the time; on a
 * GPU, begin_launch() first waits for earlier work, so that the measured time covers only this launch.
 * end_launch() sleeps for the additional time. */
static status begin_launch(device_stream *s, int64_t *begun_ns)
{
    *begun_ns = 0;
    if (s->stretch <= 0) return STATUS_OK;
    if (!s->device->info.host_addressable) TRY(device_stream_synchronize(s));
    *begun_ns = clock_now_ns();
    return STATUS_OK;
}

static status end_launch(device_stream *s, int64_t begun_ns)
{
    if (!begun_ns) return STATUS_OK;
    if (!s->device->info.host_addressable) TRY(device_stream_synchronize(s));
    int64_t now_ns = clock_now_ns();
    s->debt_ns += (int64_t)((double)(now_ns - begun_ns) * s->stretch);
    if (s->debt_ns < SHORTEST_SLEEP_NS) return STATUS_OK;
    clock_sleep_ns(s->debt_ns);
    s->debt_ns -= clock_now_ns() - now_ns;
    return STATUS_OK;
}

status device_launch(device_stream *s, device_kernel *kernel, void *const *operands,
                     const op_scalars *scalars, void *workspace)
{
    int64_t begun_ns = 0;
    status rc;
    if (device_is_replayed(s, &rc)) return rc;
    if (!s->record) TRY(begin_launch(s, &begun_ns)); /* device_launch_graph() measures recorded launches */
    TRY(s->device->backend->launch(s, kernel, operands, scalars, workspace));
    return end_launch(s, begun_ns);
}

status device_launch_graph(device_stream *s, device_graph *graph)
{
    int64_t begun_ns;
    TRY(begin_launch(s, &begun_ns));
    TRY(s->device->backend->graph_launch(s, graph));
    return end_launch(s, begun_ns);
}

status device_stream_open(device *d, device_stream_role role, device_stream **out)
{
    const device_backend *b = d->backend;
    device_stream *s = *out = calloc(1, b->stream_bytes);
    if (!s) return fail(STATUS_SYSTEM, "no memory for a stream");
    *s = (device_stream){.device = d, .role = role};
    status rc = b->stream_open ? b->stream_open(s) : STATUS_OK;
    if (rc != STATUS_OK) device_stream_close(out);
    return rc;
}

void device_stream_close(device_stream **s)
{
    if (*s && (*s)->device->backend->stream_close) (*s)->device->backend->stream_close(*s);
    free(*s);
    *s = NULL;
}

status device_fence_open(device *d, device_fence **out)
{
    const device_backend *b = d->backend;
    device_fence *f = *out = calloc(1, b->fence_bytes);
    if (!f) return fail(STATUS_SYSTEM, "no memory for a fence");
    f->device = d;
    status rc = b->fence_open ? b->fence_open(f) : STATUS_OK;
    if (rc != STATUS_OK) device_fence_close(out);
    return rc;
}

void device_fence_close(device_fence **f)
{
    if (*f && (*f)->device->backend->fence_close) (*f)->device->backend->fence_close(*f);
    free(*f);
    *f = NULL;
}

status device_stream_signal(device_stream *s, device_fence *f, uint64_t value)
{
    TRY(device_end_graph());
    return s->device->backend->stream_signal(s, f, value);
}

status device_stream_wait(device_stream *s, device_fence *f, uint64_t value)
{
    TRY(device_end_graph());
    return s->device->backend->stream_wait(s, f, value);
}

void device_fence_reach(device_fence *f, uint64_t value)
{
    f->device->backend->fence_reach(f, value);
}

bool device_fence_reached(device_fence *f, uint64_t value)
{
    return f->device->backend->fence_reached(f, value);
}

void device_fence_fail(device_fence *f, const error_record *error)
{
    f->device->backend->fence_fail(f, error);
}

void device_fail(device *d, const error_record *error)
{
    if (d->backend->fail) d->backend->fail(d, error);
}

status device_stream_synchronize(device_stream *s)
{
    TRY(device_end_graph());
    return s->device->backend->stream_synchronize(s);
}

void device_set_idle(device *d, device_idle_function idle, void *context)
{
    d->idle = idle;
    d->idle_context = context;
}

status device_mark(device_stream *s, int slot)
{
    assert(slot >= 0 && slot < DEVICE_MARKS);
    TRY(device_end_graph());
    return s->device->backend->mark(s, slot);
}

int64_t device_mark_ns(device_stream *s, int slot)
{
    return s->device->backend->mark_ns(s, slot);
}

int64_t device_mark_slowed_ns(device_stream *s, int slot)
{
    const device_backend *b = s->device->backend;
    return b->mark_slowed_ns ? b->mark_slowed_ns(s, slot) : -1;
}

status device_stream_wait_mark(device_stream *s, device_stream *of, int slot)
{
    const device_backend *b = s->device->backend;
    TRY(device_end_graph());
    return b->stream_wait_mark ? b->stream_wait_mark(s, of, slot) : STATUS_OK;
}

bool device_mark_passed(device_stream *s, int slot)
{
    const device_backend *b = s->device->backend;
    return !b->mark_passed || b->mark_passed(s, slot);
}

status device_mark_wait(device_stream *s, int slot)
{
    const device_backend *b = s->device->backend;
    TRY(device_end_graph());
    return b->mark_wait ? b->mark_wait(s, slot) : STATUS_OK;
}

int64_t device_now_ns(device *d)
{
    return d->backend->now_ns(d);
}
