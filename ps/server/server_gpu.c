/* The reduction of a server whose rank computes on a GPU: pushed gradients are copied to device memory, added there in
 * rank order, and applied by the device's optimizer. With a staged copy on the host (common/sync/staged.h) the new
 * parameters are then copied down, since replies leave from there; among GPUs that copy from each other everything
 * stays in device memory. In virtual time a reduction is only charged. */
#include "ps/server/server_impl.h"

#include "common/base/clock.h"

#include <stdlib.h>

static int64_t largest_piece(const server *s)
{
    int64_t largest = 0;
    for (int key = 0; key < s->count; key++) {
        piece_list pieces = server_pieces(s, key);
        for (int i = 0; i < pieces.count; i++)
            if (pieces.pieces[i].count > largest) largest = pieces.pieces[i].count;
    }
    return largest;
}

/* Under sync the device's own parameters, as on a host: a key's pushes are there when nobody reads it any more. */
static status open_params(server *s, size_t extent)
{
    server_gpu *g = s->gpu;
    if (s->c->peers) {
        g->params = s->params;
        return STATUS_OK;
    }
    if (s->c->policy->consistency == PS_SYNC) {
        g->params = s->c->front->params->params.data;
        g->own_grads = s->c->front->params->grads.data;
        return STATUS_OK;
    }
    TRY(ledger_blame(LEDGER_PARAMETERS, device_allocate(g->device, DEVICE_MEMORY_PRIVATE, extent, &g->params_memory)));
    g->params = server_as_arena(g->params_memory.data, s->shard->begin, s->element);
    return STATUS_OK;
}

status server_gpu_open(server *s)
{
    size_t extent = (size_t)server_bytes(s, s->shard->end - s->shard->begin);
    server_gpu *g = calloc(1, sizeof *g);
    if (!g) return fail(STATUS_SYSTEM, "no memory for parameter server %d", s->c->index);
    s->gpu = g;
    g->device = s->c->front->device;
    g->params_memory.fd = g->landing.fd = -1;
    TRY(open_params(s, extent));
    size_t landing = (size_t)server_bytes(s, largest_piece(s));
    TRY(ledger_blame(LEDGER_BUCKETS, device_allocate(g->device, DEVICE_MEMORY_PRIVATE, landing, &g->landing)));
    TRY(device_stream_open(g->device, DEVICE_STREAM_COMMUNICATION, &g->stream));
    if (s->c->policy->consistency == PS_ASYNC) return STATUS_OK;
    TRY(ledger_blame(LEDGER_BUCKETS, device_allocate(g->device, DEVICE_MEMORY_PRIVATE, extent, &s->averages_memory)));
    s->averages = server_as_arena(s->averages_memory.data, s->shard->begin, s->element);
    return STATUS_OK;
}

void server_gpu_close(server *s)
{
    server_gpu *g = s->gpu;
    if (!g) return;
    device_stream_close(&g->stream);
    device_free(g->device, &g->params_memory);
    device_free(g->device, &s->averages_memory);
    device_free(g->device, &g->landing);
    free(g);
    s->gpu = NULL;
}

/* ---- copies ----------------------------------------------------------------------------------- */

/* What `worker` has pushed for a piece, divided by `divisor`, to device memory. */
static status land(server *s, int key, int worker, int index, void *to, double divisor)
{
    server_gpu *g = s->gpu;
    dtype type = s->c->params->type;
    piece p = server_pieces(s, key).pieces[index];
    if (g->own_grads && worker == s->c->index)
        return device_convert(g->stream, to, type, g->own_grads + server_bytes(s, p.offset), type, p.count, divisor);
    const char *pushed = server_gradient(s, key, worker, index);
    TRY(s->c->peers ? device_convert(g->stream, to, type, pushed, type, p.count, 1)
                   : device_upload(g->stream, to, pushed, type, type, p.count));
    return divisor == 1 ? STATUS_OK : device_convert(g->stream, to, type, to, type, p.count, divisor);
}

static status copy_down(server *s, piece_list pieces)
{
    dtype type = s->c->params->type;
    for (int i = 0; !s->c->peers && i < pieces.count; i++) {
        int64_t at = server_bytes(s, pieces.pieces[i].offset);
        TRY(device_download(s->gpu->stream, s->params + at, s->gpu->params + at, type, type, pieces.pieces[i].count));
    }
    return STATUS_OK;
}

status server_gpu_start(server *s, int key)
{
    piece_list pieces = server_pieces(s, key);
    dtype type = s->c->params->type;
    if (s->c->peers || s->c->policy->consistency == PS_SYNC) return STATUS_OK; /* they are there */
    for (int i = 0; i < pieces.count; i++) {
        int64_t at = server_bytes(s, pieces.pieces[i].offset);
        TRY(device_upload(s->gpu->stream, s->gpu->params + at, s->params + at, type, type, pieces.pieces[i].count));
    }
    return device_stream_synchronize(s->gpu->stream);
}

static status copy_on_gpu(server *s, piece_list pieces, char *to, const char *from)
{
    for (int i = 0; i < pieces.count; i++) {
        int64_t at = server_bytes(s, pieces.pieces[i].offset);
        dtype type = s->c->params->type;
        TRY(device_convert(s->gpu->stream, to + at, type, from + at, type, pieces.pieces[i].count, 1));
    }
    return device_stream_synchronize(s->gpu->stream);
}

status server_copy_pieces(server *s, int key, char *to, const char *from)
{
    piece_list pieces = server_pieces(s, key);
    if (to == from) return STATUS_OK;
    if (s->c->peers) return copy_on_gpu(s, pieces, to, from);
    for (int i = 0; i < pieces.count; i++) {
        int64_t at = server_bytes(s, pieces.pieces[i].offset);
        ps_copy(s->c->device, to + at, from + at, (size_t)server_bytes(s, pieces.pieces[i].count));
    }
    return STATUS_OK;
}

/* ---- one key ---------------------------------------------------------------------------------- */

static status sum_piece(server *s, int key, int index)
{
    server_gpu *g = s->gpu;
    dtype type = s->c->params->type;
    piece p = server_pieces(s, key).pieces[index];
    char *out = s->averages + server_bytes(s, p.offset);
    double before = s->c->policy->divide_before ? s->c->world : 1, after = s->c->policy->divide_before ? 1 : s->c->world;
    TRY(land(s, key, 0, index, out, before));
    for (int w = 1; w < s->c->world; w++) {
        TRY(land(s, key, w, index, g->landing.data, before));
        TRY(device_add(g->stream, out, out, g->landing.data, type, p.count));
    }
    return after == 1 ? STATUS_OK : device_convert(g->stream, out, type, out, type, p.count, after);
}

static status update(const server_work *work, const char *grads, piece_list pieces)
{
    server *s = work->server;
    return optimizer_update(s->c->optimizer, s->gpu->stream, s->gpu->params, grads, pieces, work->step.optimizer_step,
                            work->step.rate, work->scale);
}

/* With what one rank has pushed, piece by piece, as it lands. */
static status update_from(const server_work *work, piece_list pieces)
{
    server *s = work->server;
    for (int i = 0; i < pieces.count; i++) {
        TRY(land(s, work->key, work->worker, i, s->gpu->landing.data, 1));
        const char *grads = server_as_arena(s->gpu->landing.data, pieces.pieces[i].offset, s->element);
        TRY(update(work, grads, (piece_list){&pieces.pieces[i], 1}));
    }
    return STATUS_OK;
}

static status reduce_on_gpu(const server_work *work)
{
    server *s = work->server;
    piece_list pieces = server_pieces(s, work->key);
    int64_t begin = clock_now_ns();
    for (int i = 0; work->sums && i < pieces.count; i++) TRY(sum_piece(s, work->key, i));
    if (work->updates) {
        if (work->worker >= 0) TRY(update_from(work, pieces));
        else TRY(update(work, s->averages, pieces));
        TRY(copy_down(s, pieces));
    }
    TRY(device_stream_synchronize(s->gpu->stream));
    if (work->updates)
        atomic_fetch_add_explicit(&s->shared->update_ns, clock_now_ns() - begin, memory_order_relaxed);
    return STATUS_OK;
}

/* In virtual time: the sum reads every push and writes one; an update reads and writes parameters and state. */
static void charge(const server_work *work)
{
    server *s = work->server;
    double bytes = (double)server_key_bytes(s, work->key);
    int states = optimizer_state_count(optimizer_get_options(s->c->optimizer));
    if (work->sums) ps_charge_pass(s->c->device, bytes * (s->c->world + 1), s->c->threads);
    int64_t summed = device_now_ns(s->c->device);
    if (work->updates) ps_charge_pass(s->c->device, bytes * (3 + 2 * states), s->c->threads);
    atomic_fetch_add_explicit(&s->shared->update_ns, device_now_ns(s->c->device) - summed, memory_order_relaxed);
}

bool server_reduces_elsewhere(const server *s)
{
    return s->gpu || !ps_has_bytes(s->c->device);
}

status server_reduce_elsewhere(server_work *work)
{
    if (work->server->gpu) return reduce_on_gpu(work);
    charge(work);
    return STATUS_OK;
}

status server_gpu_squares(server *s, int worker, double *out)
{
    *out = 0;
    if (worker < 0) return optimizer_sum_squares(s->c->optimizer, s->gpu->stream, s->averages, s->shard->pieces, out);
    for (int key = 0; key < s->count; key++) {
        piece_list pieces = server_pieces(s, key);
        for (int i = 0; i < pieces.count; i++) {
            TRY(land(s, key, worker, i, s->gpu->landing.data, 1));
            const char *grads = server_as_arena(s->gpu->landing.data, pieces.pieces[i].offset, s->element);
            TRY(optimizer_sum_squares(s->c->optimizer, s->gpu->stream, grads, (piece_list){&pieces.pieces[i], 1}, out));
        }
    }
    return STATUS_OK;
}
