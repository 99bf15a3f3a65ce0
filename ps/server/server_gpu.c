/* A server's arithmetic where the rank beside it computes on a GPU: what ranks push is copied to device memory, added up
 * there in the order of the ranks and applied by the device's own optimizer. Behind a mirror the new parameters come
 * down to it, from where they are handed out; among GPUs that copy from each other everything stays in their memory. */
#include "ps/server/server_impl.h"

#include "common/base/clock.h"
#include "common/trace/trace.h"

#include <stdlib.h>

static int64_t bytes_at(const ps_server *s, int64_t element)
{
    return element * (int64_t)s->element;
}

static int64_t largest_piece(const ps_server *s)
{
    int64_t largest = 0;
    for (int local = 0; local < s->count; local++) {
        piece_list pieces = ps_key_pieces(s->c.plan, s->first + local);
        for (int i = 0; i < pieces.count; i++)
            if (pieces.pieces[i].count > largest) largest = pieces.pieces[i].count;
    }
    return largest;
}

/* Under sync the device's own parameters, as on a host: a key's pushes are there when nobody reads it any more. */
static status open_params(ps_server *s, size_t extent)
{
    server_gpu *g = s->gpu;
    if (s->c.peers) {
        g->params = s->params;
        return STATUS_OK;
    }
    if (s->c.policy->consistency == PS_SYNC) {
        g->params = s->c.front->params->params.data;
        g->own_grads = s->c.front->params->grads.data;
        return STATUS_OK;
    }
    TRY(ledger_blame(LEDGER_PARAMETERS, device_allocate(g->device, DEVICE_MEMORY_PRIVATE, extent, &g->params_memory)));
    g->params = server_as_arena(g->params_memory.data, s->shard->begin, s->element);
    return STATUS_OK;
}

status server_gpu_open(ps_server *s)
{
    size_t extent = (size_t)bytes_at(s, s->shard->end - s->shard->begin);
    server_gpu *g = calloc(1, sizeof *g);
    if (!g) return fail(STATUS_SYSTEM, "no memory for parameter server %d", s->c.index);
    s->gpu = g;
    g->device = s->c.front->device;
    g->params_memory.fd = g->sums_memory.fd = g->landing.fd = -1;
    TRY(open_params(s, extent));
    size_t landing = (size_t)bytes_at(s, largest_piece(s));
    TRY(ledger_blame(LEDGER_BUCKETS, device_allocate(g->device, DEVICE_MEMORY_PRIVATE, landing, &g->landing)));
    TRY(device_stream_open(g->device, DEVICE_STREAM_COMMUNICATION, &g->stream));
    if (s->c.policy->consistency == PS_ASYNC) return STATUS_OK;
    TRY(ledger_blame(LEDGER_BUCKETS, device_allocate(g->device, DEVICE_MEMORY_PRIVATE, extent, &g->sums_memory)));
    g->sums = server_as_arena(g->sums_memory.data, s->shard->begin, s->element);
    return STATUS_OK;
}

void server_gpu_close(ps_server *s)
{
    server_gpu *g = s->gpu;
    if (!g) return;
    device_stream_close(&g->stream);
    device_free(g->device, &g->params_memory);
    device_free(g->device, &g->sums_memory);
    device_free(g->device, &g->landing);
    free(g);
    s->gpu = NULL;
}

/* ---- copies ----------------------------------------------------------------------------------- */

/* What `worker` has pushed for a piece, divided by `divisor`, to device memory. */
static status bring(ps_server *s, int local, int worker, int index, void *to, double divisor)
{
    server_gpu *g = s->gpu;
    dtype type = s->c.params->type;
    piece p = ps_key_pieces(s->c.plan, s->first + local).pieces[index];
    if (g->own_grads && worker == s->c.index)
        return device_convert(g->stream, to, type, g->own_grads + bytes_at(s, p.offset), type, p.count, divisor);
    const char *pushed = server_pushed_piece(s, local, worker, index);
    TRY(s->c.peers ? device_convert(g->stream, to, type, pushed, type, p.count, 1)
                   : device_upload(g->stream, to, pushed, type, type, p.count));
    return divisor == 1 ? STATUS_OK : device_convert(g->stream, to, type, to, type, p.count, divisor);
}

static status bring_down(ps_server *s, piece_list pieces)
{
    dtype type = s->c.params->type;
    for (int i = 0; !s->c.peers && i < pieces.count; i++) {
        int64_t at = bytes_at(s, pieces.pieces[i].offset);
        TRY(device_download(s->gpu->stream, s->params + at, s->gpu->params + at, type, type, pieces.pieces[i].count));
    }
    return STATUS_OK;
}

status server_gpu_start(ps_server *s, int local)
{
    piece_list pieces = ps_key_pieces(s->c.plan, s->first + local);
    dtype type = s->c.params->type;
    if (s->c.peers || s->c.policy->consistency == PS_SYNC) return STATUS_OK; /* they are there */
    for (int i = 0; i < pieces.count; i++) {
        int64_t at = bytes_at(s, pieces.pieces[i].offset);
        TRY(device_upload(s->gpu->stream, s->gpu->params + at, s->params + at, type, type, pieces.pieces[i].count));
    }
    return device_stream_synchronize(s->gpu->stream);
}

status server_gpu_copy(ps_server *s, int local, char *to, const char *from)
{
    piece_list pieces = ps_key_pieces(s->c.plan, s->first + local);
    dtype type = s->c.params->type;
    for (int i = 0; i < pieces.count; i++) {
        int64_t at = bytes_at(s, pieces.pieces[i].offset);
        TRY(device_convert(s->gpu->stream, to + at, type, from + at, type, pieces.pieces[i].count, 1));
    }
    return device_stream_synchronize(s->gpu->stream);
}

/* ---- one key ---------------------------------------------------------------------------------- */

static status sum_piece(ps_server *s, int local, int index)
{
    server_gpu *g = s->gpu;
    dtype type = s->c.params->type;
    piece p = ps_key_pieces(s->c.plan, s->first + local).pieces[index];
    char *out = g->sums + bytes_at(s, p.offset);
    double before = s->c.policy->divide_before ? s->c.world : 1, after = s->c.policy->divide_before ? 1 : s->c.world;
    TRY(bring(s, local, 0, index, out, before));
    for (int w = 1; w < s->c.world; w++) {
        TRY(bring(s, local, w, index, g->landing.data, before));
        TRY(device_add(g->stream, out, out, g->landing.data, type, p.count));
    }
    return after == 1 ? STATUS_OK : device_convert(g->stream, out, type, out, type, p.count, after);
}

static status update(ps_server *s, const server_work *work, const char *grads, piece_list pieces)
{
    return optimizer_update(s->c.optimizer, s->gpu->stream, s->gpu->params, grads, pieces, work->info.optimizer_step,
                            work->info.rate, work->scale);
}

/* With what one rank has pushed, piece by piece, as it lands. */
static status update_from(ps_server *s, const server_work *work, piece_list pieces)
{
    for (int i = 0; i < pieces.count; i++) {
        TRY(bring(s, work->local, work->worker, i, s->gpu->landing.data, 1));
        const char *grads = server_as_arena(s->gpu->landing.data, pieces.pieces[i].offset, s->element);
        TRY(update(s, work, grads, (piece_list){&pieces.pieces[i], 1}));
    }
    return STATUS_OK;
}

status server_gpu_do(ps_server *s, const server_work *work)
{
    piece_list pieces = ps_key_pieces(s->c.plan, s->first + work->local);
    int64_t begin = clock_now_ns();
    for (int i = 0; work->sums && i < pieces.count; i++) TRY(sum_piece(s, work->local, i));
    if (work->updates) {
        if (work->worker >= 0) TRY(update_from(s, work, pieces));
        else TRY(update(s, work, s->gpu->sums, pieces));
        TRY(bring_down(s, pieces));
    }
    TRY(device_stream_synchronize(s->gpu->stream));
    int64_t end = clock_now_ns();
    trace_slice(s->c.trace, TRACE_OPTIMIZER, work->updates ? "update of key" : "average of key", s->first + work->local,
                begin, end);
    if (work->updates) atomic_fetch_add_explicit(&s->update_ns, end - begin, memory_order_relaxed);
    return STATUS_OK;
}

status server_gpu_squares(ps_server *s, int worker, double *out)
{
    *out = 0;
    if (worker < 0) return optimizer_sum_squares(s->c.optimizer, s->gpu->stream, s->gpu->sums, s->shard->pieces, out);
    for (int local = 0; local < s->count; local++) {
        piece_list pieces = ps_key_pieces(s->c.plan, s->first + local);
        for (int i = 0; i < pieces.count; i++) {
            TRY(bring(s, local, worker, i, s->gpu->landing.data, 1));
            const char *grads = server_as_arena(s->gpu->landing.data, pieces.pieces[i].offset, s->element);
            TRY(optimizer_sum_squares(s->c.optimizer, s->gpu->stream, grads, (piece_list){&pieces.pieces[i], 1}, out));
        }
    }
    return STATUS_OK;
}
