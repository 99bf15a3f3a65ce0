/* A worker whose tensors stay in memory of its GPU (--payload p2p). The stages launch work and return: a gradient is
 * pushed, and rank 0's buffers are packed, when the compute stream has reached them. The host does the waiting
 * (sync_host_wait). */
#include "ps/worker/worker_impl.h"

#include <stdlib.h>

enum { ITEM_BUFFERS = -1 }; /* other items are parameters */

status worker_gpu_open(ps_worker *w)
{
    const sync_context *c = w->config.context;
    worker_gpu *g = calloc(1, sizeof *g);
    if (!g) return fail(STATUS_SYSTEM, "no memory for a parameter server's worker");
    w->shared.gpu = g;
    g->sums = calloc((size_t)w->config.plan->largest_sum + 1, sizeof *g->sums);
    if (!g->sums) return fail(STATUS_SYSTEM, "no memory for a parameter server's worker");
    return sync_handover_open(c->device, w->config.plan->param_count + 2, &g->launched);
}

void worker_gpu_close(ps_worker *w)
{
    if (!w->shared.gpu) return;
    sync_handover_close(&w->shared.gpu->launched);
    free(w->shared.gpu->sums);
    free(w->shared.gpu);
    w->shared.gpu = NULL;
}

/* ---- what the compute stream has reached --------------------------------------------------------- */

static status take_item(ps_worker *w, int item)
{
    return item == ITEM_BUFFERS ? worker_post_buffers(w) : worker_post_gradient(w, item);
}

static status add_item(ps_worker *w, int item)
{
    TRY(sync_handover_add(&w->shared.gpu->launched, w->config.context->compute, item));
    while (sync_handover_take(&w->shared.gpu->launched, &item)) TRY(take_item(w, item));
    return STATUS_OK;
}

status worker_gpu_ready(ps_worker *w, int param)
{
    return add_item(w, param);
}

status worker_gpu_pack(ps_worker *w)
{
    return add_item(w, ITEM_BUFFERS);
}

status worker_gpu_finish(ps_worker *w)
{
    int item;
    bool found;
    TRY(sync_handover_await(&w->shared.gpu->launched, w->config.context->compute, &item, &found));
    while (found) {
        TRY(take_item(w, item));
        TRY(sync_handover_await(&w->shared.gpu->launched, w->config.context->compute, &item, &found));
    }
    return STATUS_OK;
}

/* ---- bytes ------------------------------------------------------------------------------------ */

status worker_gpu_copy(worker *w, piece_list pieces, char *arena, const char *from)
{
    dtype type = w->c->context->params->type;
    for (int i = 0; i < pieces.count; i++) {
        int64_t at = pieces.pieces[i].offset * (int64_t)w->shared->element;
        TRY(device_convert(w->stream, arena + at, type, from + at, type, pieces.pieces[i].count, 1));
    }
    return device_stream_synchronize(w->stream);
}

status worker_gpu_pack_buffers(worker *w)
{
    const param_set *set = w->c->context->params;
    char *to = w->shared->packed_buffers;
    for (int i = 0; i < set->model->buffer_count; i++) {
        const piece *p = &set->buffer_pieces[i];
        const char *from = (const char *)set->buffers.data + p->offset * (int64_t)w->shared->element;
        TRY(device_download(w->stream, to, from, set->type, set->type, p->count));
        to += p->count * (int64_t)w->shared->element;
    }
    return device_stream_synchronize(w->stream);
}

status worker_gpu_unpack_buffers(ps_worker *w)
{
    const sync_context *c = w->config.context;
    const param_set *set = c->params;
    const char *from = w->shared.packed_buffers;
    for (int i = 0; i < set->model->buffer_count; i++) {
        const piece *p = &set->buffer_pieces[i];
        char *to = (char *)set->buffers.data + p->offset * (int64_t)w->shared.element;
        TRY(device_upload(c->compute, to, from, set->type, set->type, p->count));
        from += p->count * (int64_t)w->shared.element;
    }
    return STATUS_OK;
}

status worker_gpu_clear(ps_worker *w)
{
    const sync_context *c = w->config.context;
    TRY(device_clear(c->compute, c->params->grads.data, (size_t)c->params->arena_elements * w->shared.element));
    return device_stream_synchronize(c->compute);
}

status worker_gpu_download_sums(ps_worker *w, const double *values, int count)
{
    const sync_context *c = w->config.context;
    if (count > w->config.plan->largest_sum)
        return fail(STATUS_INTERNAL, "a sum over the ranks of %d values; %d were announced", count, (int)w->config.plan->largest_sum);
    TRY(device_download(c->compute, w->shared.gpu->sums, values, DTYPE_F64, DTYPE_F64, count));
    return device_stream_synchronize(c->compute);
}

status worker_gpu_upload_sums(ps_worker *w, double *values, int count)
{
    return device_upload(w->config.context->compute, values, w->shared.gpu->sums, DTYPE_F64, DTYPE_F64, count);
}
