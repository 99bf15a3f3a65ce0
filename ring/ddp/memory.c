/* Allocates the memory of buckets, and places gradients in buckets. */
#include "common/device/sim/device_sim.h"
#include "common/memory/plan.h"
#include "ring/engine_impl.h"

#include <stdlib.h>

/* ---- allocation ------------------------------------------------------------------------------- */

static int64_t factor_count(const ring_engine *e)
{
    const nn_model *m = e->base.context.params->model;
    int64_t count = 0;
    for (int i = 0; e->settings.options.hook == RING_HOOK_POWERSGD && i < m->param_count; i++) {
        int64_t rows = m->params[i].shape.dims[0], cols = m->params[i].elements / rows;
        int rank = (int)e->settings.options.powersgd_rank;
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
    m->bucket_bytes =
        e->settings.options.bucket_view ? 0 : wire_bytes + (int64_t)params * RING_BUCKET_ALIGNMENT;
    m->factor_count = factor_count(e);
    m->group_capacity = nn_program_largest_sum(c->program);
    /* The norm of the gradients is summed over the ranks as one value. */
    if (e->settings.policy.sharding && m->group_capacity == 0) m->group_capacity = 1;
    int64_t factors = plan_align(m->bucket_bytes);
    int64_t group = factors + plan_align(m->factor_count * (int64_t)sizeof(float));
    int64_t order = group + plan_align(m->group_capacity * (int64_t)sizeof(double));
    int64_t activity = order + plan_align(params * (int64_t)sizeof(int32_t));
    int64_t total = activity + plan_align(c->world * (int64_t)sizeof(int32_t));
    TRY(device_allocate(c->device, DEVICE_MEMORY_SHARED, (size_t)total, &m->shared));
    m->reaches_gradients = c->params->grads.fd >= 0 || sim_device_is_host(c->device);
    m->buckets = m->shared.data;
    m->factors = (float *)(m->buckets + factors);
    m->control = calloc(1, (size_t)(total - group));
    if (!m->control) return fail(STATUS_SYSTEM, "no memory for the ring engine");
    /* In virtual time there is no device memory, so collectives move values between the host memories of the
     * ranks. */
    char *values = device_get_info(c->device)->real ? m->buckets + group : m->control;
    char *host = e->stream ? m->control : values; /* The host cannot access the memory of a GPU. */
    m->group = (double *)values;
    m->norm = (double *)host;
    m->sent_order = (int32_t *)(values + (order - group));
    m->order = (int32_t *)(host + (order - group));
    m->activity = (int32_t *)((char *)m->control + (activity - group));
    return STATUS_OK;
}

status ring_send_values(ring_engine *e, void *to, const void *values, dtype type, int64_t count)
{
    return to == values ? STATUS_OK : device_upload(e->base.context.compute, to, values, type, type, count);
}

status ring_receive_values(ring_engine *e, void *values, const void *from, dtype type, int64_t count)
{
    if (values == from) return STATUS_OK;
    TRY(device_download(e->base.context.compute, values, from, type, type, count));
    return device_stream_synchronize(e->base.context.compute);
}

void ring_memory_close(ring_engine *e)
{
    device_free(e->base.context.device, &e->memory.shared);
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
            e->params[param].offset = offset;
            offset += e->tensors[param].elements;
        }
        int64_t reserved =
            (offset * size + RING_BUCKET_ALIGNMENT - 1) / RING_BUCKET_ALIGNMENT * RING_BUCKET_ALIGNMENT;
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

/* Lists the pieces of the arena that hold the gradients of each bucket, and merges adjacent pieces. If
 * gradients are reduced in the arena, pieces are in the order of the arena, else in the order in which
 * gradients are packed. */
static void list_pieces(ring_engine *e)
{
    const param_set *set = e->base.context.params;
    int params = set->model->param_count;
    for (int k = 0; k < e->schedule.count; k++)
        e->buckets[k].gradients = (piece_list){e->pieces + e->schedule.buckets[k].first, 0};
    for (int i = 0; i < params; i++) {
        int param = e->settings.options.bucket_view ? i : e->schedule.tensors[i];
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
    return e->settings.options.hook == RING_HOOK_POWERSGD ? ring_powersgd_use_buckets(e) : STATUS_OK;
}
