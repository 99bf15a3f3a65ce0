/* The memory of buckets, and how gradients are packed and unpacked. */
#include "common/device/sim/device_sim.h"
#include "common/memory/plan.h"
#include "common/reduce/reduce.h"
#include "ring/engine/engine_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- allocation ------------------------------------------------------------------------------- */

static int group_capacity(const nn_program *p)
{
    int most = 0;
    for (int i = 0; i < p->op_count; i++)
        if (p->ops[i].group_reduce > most) most = p->ops[i].group_reduce;
    return most;
}

static int64_t factor_count(const ring_engine *e)
{
    const nn_model *m = e->base.context.params->model;
    int64_t count = 0;
    for (int i = 0; e->settings.hook == RING_HOOK_POWERSGD && i < m->param_count; i++) {
        int64_t rows = m->params[i].shape.dims[0], cols = m->params[i].elements / rows;
        int rank = e->settings.powersgd_rank;
        count += powersgd_pays(rows, cols, rank) ? (rows + cols) * rank : m->params[i].elements;
    }
    return count;
}

status ring_memory_open(ring_engine *e)
{
    const sync_context *c = &e->base.context;
    const param_set *set = c->params;
    ring_memory *m = &e->memory;
    int params = set->model->param_count;
    int64_t wire_bytes = set->logical_bytes / dtype_size(set->type) * dtype_size(e->wire);
    m->bucket_bytes = e->settings.bucket_view ? 0 : wire_bytes + (int64_t)params * RING_BUCKET_ALIGNMENT;
    m->factor_count = factor_count(e);
    m->group_capacity = group_capacity(c->program);
    int64_t factors = plan_align(m->bucket_bytes);
    int64_t group = factors + plan_align(m->factor_count * (int64_t)sizeof(float));
    int64_t order = group + plan_align(m->group_capacity * (int64_t)sizeof(double));
    int64_t activity = order + plan_align(params * (int64_t)sizeof(int32_t));
    int64_t total = activity + plan_align(c->world * (int64_t)sizeof(int32_t));
    TRY(device_allocate(c->device, DEVICE_MEMORY_SHARED, (size_t)total, &m->shared));
    m->buckets = m->shared.data;
    m->factors = (float *)(m->buckets + factors);
    char *control = m->buckets + group;
    if (e->stream) {
        TRY(device_allocate(c->device, DEVICE_MEMORY_STAGING, (size_t)(total - group), &m->pinned));
        control = m->pinned.data;
    } else if (!device_get_info(c->device)->real) {
        m->control = control = calloc(1, (size_t)(total - group));
        if (!control) return fail(STATUS_SYSTEM, "no memory for the ring engine");
    }
    m->group = (double *)control;
    m->order = (int32_t *)(control + (order - group));
    m->activity = (int32_t *)(control + (activity - group));
    return STATUS_OK;
}

void ring_memory_close(ring_engine *e)
{
    device_free(e->base.context.device, &e->memory.shared);
    device_free(e->base.context.device, &e->memory.pinned);
    free(e->memory.control);
}

/* ---- the bucket table ------------------------------------------------------------------------- */

static void place_tensors(ring_engine *e)
{
    int64_t at = 0;
    int size = dtype_size(e->wire);
    for (int k = 0; k < e->schedule.count; k++) {
        const bucket *b = &e->schedule.buckets[k];
        int64_t offset = 0;
        for (int i = b->first; i < b->first + b->count; i++) {
            int param = e->schedule.tensors[i];
            e->offsets[param] = offset;
            offset += e->tensors[param].elements;
        }
        int64_t reserved = (offset * size + RING_BUCKET_ALIGNMENT - 1) / RING_BUCKET_ALIGNMENT * RING_BUCKET_ALIGNMENT;
        e->buckets[k] = (ring_bucket){.offset = at, .reserved = reserved};
        at += reserved;
    }
}

static void append_piece(piece_list *list, piece *pieces, piece p)
{
    if (list->count > 0 && pieces[list->count - 1].offset + pieces[list->count - 1].count == p.offset)
        pieces[list->count - 1].count += p.count;
    else
        pieces[list->count++] = p;
}

/* Where a bucket's gradients are in their arena, neighbors merged: in the order of the arena if they are reduced there,
 * else in the order in which they are packed. */
static void list_pieces(ring_engine *e)
{
    const param_set *set = e->base.context.params;
    int params = set->model->param_count;
    for (int k = 0; k < e->schedule.count; k++)
        e->buckets[k].gradients = (piece_list){e->pieces + e->schedule.buckets[k].first, 0};
    for (int i = 0; i < params; i++) {
        int param = e->settings.bucket_view ? i : e->schedule.tensors[i];
        int k = e->schedule.bucket_of[param];
        append_piece(&e->buckets[k].gradients, e->pieces + e->schedule.buckets[k].first, set->pieces[param]);
    }
}

status ring_use_plan(ring_engine *e, const ring_step_plan *plan)
{
    e->plan = plan;
    bucket_assign(&plan->buckets, e->tensors, ring_params(e), e->compute.order, &e->schedule);
    place_tensors(e);
    list_pieces(e);
    return e->settings.hook == RING_HOOK_POWERSGD ? ring_powersgd_use_buckets(e) : STATUS_OK;
}

/* ---- gradients -------------------------------------------------------------------------------- */

char *ring_bucket_data(const ring_engine *e, int k)
{
    return e->memory.buckets + e->buckets[k].offset;
}

static char *gradient(const ring_engine *e, int param)
{
    const param_set *set = e->base.context.params;
    return (char *)set->grads.data + set->pieces[param].offset * dtype_size(set->type);
}

static char *packed(const ring_engine *e, int param)
{
    return ring_bucket_data(e, e->schedule.bucket_of[param]) + e->offsets[param] * dtype_size(e->wire);
}

bool ring_means_in_flight(const ring_engine *e)
{
    const ring_settings *s = &e->settings;
    return !s->divide_before && s->predivide == 1 && s->join != RING_JOIN_ACTIVE;
}

bool ring_copies_back_in_flight(const ring_engine *e)
{
    const ring_settings *s = &e->settings;
    bool divides_later = !s->divide_before && !ring_means_in_flight(e);
    return !s->bucket_view && s->hook == RING_HOOK_NONE && e->wire == e->base.context.params->type && !divides_later &&
           (e->base.context.params->grads.fd >= 0 || sim_device_is_host(e->base.context.device));
}

static double divisor_before(const ring_engine *e)
{
    if (ring_powersgd_active(e, e->compute.step.index)) return 1; /* the hook computes the mean */
    return e->settings.divide_before ? e->compute.active : e->settings.predivide;
}

static double divisor_after(const ring_engine *e)
{
    if (ring_powersgd_active(e, e->compute.step.index)) /* its mean is over the world */
        return (double)e->compute.active / e->base.context.world;
    if (e->settings.divide_before || ring_means_in_flight(e)) return 1;
    return e->compute.active / e->settings.predivide;
}

/* On the host PowerSGD's matrices have PyTorch's layout, whatever the device's is. */
static bool wants_plain(const ring_engine *e, int param)
{
    const device_info *info = device_get_info(e->base.context.device);
    return e->settings.hook == RING_HOOK_POWERSGD && !e->base.context.params->layouts[param].plain &&
           info->host_addressable && info->real;
}

/* Device's layout and type -> PyTorch's layout -> the type in which gradients are sent. */
static status pack_plain(ring_engine *e, int param, const void *from, void *to, double divisor)
{
    const param_set *set = e->base.context.params;
    void *plain = e->powersgd.scratch;
    TRY(device_layout_unpack(e->base.context.device, &set->layouts[param], from, plain));
    reduce_convert(e->wire, to, set->type, plain, set->pieces[param].count, divisor);
    return STATUS_OK;
}

static status unpack_plain(ring_engine *e, int param, const void *from, void *to, double divisor)
{
    const param_set *set = e->base.context.params;
    void *plain = e->powersgd.scratch;
    reduce_convert(set->type, plain, e->wire, from, set->pieces[param].count, divisor);
    return device_layout_pack(e->base.context.device, &set->layouts[param], plain, to);
}

status ring_pack(ring_engine *e, int param)
{
    const param_set *set = e->base.context.params;
    char *from = gradient(e, param), *to = e->settings.bucket_view ? from : packed(e, param);
    double divisor = divisor_before(e);
    if (e->settings.bucket_view && divisor == 1) return STATUS_OK;
    if (e->stream && sync_replays(&e->base.context)) return STATUS_OK; /* the recorded pass packs */
    if (wants_plain(e, param)) return pack_plain(e, param, from, to, divisor);
    return device_pack(e->base.context.compute, to, e->wire, from, set->type, set->pieces[param].count, divisor);
}

status ring_unpack(ring_engine *e, int k)
{
    const param_set *set = e->base.context.params;
    const bucket *b = &e->schedule.buckets[k];
    double divisor = divisor_after(e);
    if (ring_copies_back_in_flight(e) || (e->settings.bucket_view && divisor == 1)) return STATUS_OK;
    for (int i = b->first; i < b->first + b->count; i++) {
        int param = e->schedule.tensors[i];
        char *to = gradient(e, param), *from = e->settings.bucket_view ? to : packed(e, param);
        TRY(wants_plain(e, param) ? unpack_plain(e, param, from, to, divisor)
                                  : device_pack(e->base.context.compute, to, set->type, from, e->wire,
                                                set->pieces[param].count, divisor));
    }
    return STATUS_OK;
}

/* Virtual devices flatten all buffers into one for a broadcast; real ones broadcast a list of pieces. */
static status pack_buffers(ring_engine *e, const piece *pieces, int count)
{
    const param_set *set = e->base.context.params;
    int64_t elements = piece_list_elements((piece_list){pieces, count});
    return device_pack(e->base.context.compute, set->buffers.data, set->type, set->buffers.data, set->type, elements, 1);
}

status ring_flatten_buffers(ring_engine *e)
{
    const param_set *set = e->base.context.params;
    if (!device_get_info(e->base.context.device)->simulated) return STATUS_OK;
    return pack_buffers(e, set->buffer_pieces, set->model->buffer_count);
}

status ring_unflatten_buffers(ring_engine *e)
{
    const param_set *set = e->base.context.params;
    if (!device_get_info(e->base.context.device)->simulated) return STATUS_OK;
    for (int i = 0; i < set->model->buffer_count; i++) TRY(pack_buffers(e, &set->buffer_pieces[i], 1));
    return STATUS_OK;
}

status ring_zero_gradient(ring_engine *e, int param)
{
    const param_set *set = e->base.context.params;
    return device_clear(e->base.context.compute, gradient(e, param),
                        (size_t)(set->pieces[param].count * dtype_size(set->type)));
}
