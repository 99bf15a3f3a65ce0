/* The reduction of a server whose rank computes on a GPU. Pushed gradients are copied to device memory, added
 * there in rank order, and applied by the device's optimizer. If the rank has a staged copy on the host
 * (common/sync/staged.h), the new parameters are then copied down, because replies are sent from the host. In
 * virtual time a reduction only takes time. */
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

/* Chooses the memory for the server's parameters. Under sync the server works in the rank's parameters on the
 * GPU, because no rank reads a key that all ranks have pushed. Under ssp and async the server has a copy of
 * the shard. */
static status open_params(server *s, size_t extent)
{
    server_gpu *g = s->gpu;
    if (s->c->policy->consistency == PS_SYNC) {
        g->params = s->c->front->params->params.data;
        g->own_grads = s->c->front->params->grads.data;
        return STATUS_OK;
    }
    TRY(ledger_blame(LEDGER_PARAMETERS,
                     device_allocate(g->device, DEVICE_MEMORY_PRIVATE, extent, &g->params_memory)));
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
    TRY(ledger_blame(LEDGER_BUCKETS,
                     device_allocate(g->device, DEVICE_MEMORY_PRIVATE, landing, &g->landing)));
    TRY(device_stream_open(g->device, DEVICE_STREAM_COMMUNICATION, &g->stream));
    g->staging = sync_staging_on(g->device, g->stream);
    g->contributions = calloc((size_t)s->c->world, sizeof *g->contributions);
    if (!g->contributions) return fail(STATUS_SYSTEM, "no memory for parameter server %d", s->c->index);
    if (s->c->policy->consistency == PS_ASYNC) return STATUS_OK;
    TRY(ledger_blame(LEDGER_BUCKETS,
                     device_allocate(g->device, DEVICE_MEMORY_PRIVATE, extent, &s->averages_memory)));
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
    free(g->contributions);
    free(g);
    s->gpu = NULL;
}

/* ---- copies ----------------------------------------------------------------------------------- */

/* Returns the address of a piece that `worker` has pushed, and whether it is in device memory. */
static sync_contribution contribution(const server *s, int key, int worker, int piece_index)
{
    int64_t offset = server_bytes(s, server_pieces(s, key).pieces[piece_index].offset);
    if (s->gpu->own_grads && worker == s->c->index)
        return (sync_contribution){s->gpu->own_grads + offset, true};
    return (sync_contribution){server_gradient(s, key, worker, piece_index), false};
}

status server_land(server *s, int key, int worker, int piece_index)
{
    return sync_staging_bring(&s->gpu->staging, s->c->params->type, s->gpu->landing.data,
                              contribution(s, key, worker, piece_index),
                              server_pieces(s, key).pieces[piece_index].count, 1);
}

static status copy_down(server *s, piece_list pieces)
{
    for (int i = 0; i < pieces.count; i++) {
        int64_t at = server_bytes(s, pieces.pieces[i].offset),
                bytes = server_bytes(s, pieces.pieces[i].count);
        TRY(sync_copy_down(&s->gpu->staging, s->params + at, s->gpu->params + at, bytes));
    }
    return STATUS_OK;
}

status server_gpu_start(server *s, int key)
{
    piece_list pieces = server_pieces(s, key);
    if (s->c->policy->consistency == PS_SYNC) return STATUS_OK; /* the GPU has the parameters */
    for (int i = 0; i < pieces.count; i++) {
        int64_t at = server_bytes(s, pieces.pieces[i].offset),
                bytes = server_bytes(s, pieces.pieces[i].count);
        TRY(sync_copy_up(&s->gpu->staging, s->gpu->params + at, s->params + at, bytes));
    }
    return sync_staging_end(&s->gpu->staging);
}

status server_copy_pieces(server *s, int key, char *to, const char *from)
{
    sync_staging staging = sync_staging_on(s->c->device, s->stream);
    return to == from ? STATUS_OK
                      : ps_copy_pieces(&staging, to, from, server_pieces(s, key), (int64_t)s->element);
}

/* ---- one key ---------------------------------------------------------------------------------- */

static status sum_piece(server *s, int key, int index)
{
    server_gpu *g = s->gpu;
    piece p = server_pieces(s, key).pieces[index];
    for (int w = 0; w < s->c->world; w++) g->contributions[w] = contribution(s, key, w, index);
    return sync_staging_sum(&g->staging, s->c->params->type, s->averages + server_bytes(s, p.offset),
                            g->contributions, s->c->world, p.count, s->before, s->after, g->landing.data);
}

static status update(const server_work *work, const char *grads, piece_list pieces)
{
    server *s = work->server;
    return optimizer_update(s->c->optimizer, s->gpu->stream, s->gpu->params, grads, pieces,
                            work->step.optimizer_step, work->step.rate, work->scale);
}

static status update_from(const server_work *work, piece_list pieces)
{
    const char *grads;
    for (int i = 0; i < pieces.count; i++) {
        TRY(server_pushed(work->server, work->key, work->worker, i, &grads));
        TRY(update(work, grads, (piece_list){&pieces.pieces[i], 1}));
    }
    return STATUS_OK;
}

static status reduce_on_gpu(const server_work *work)
{
    server *s = work->server;
    piece_list pieces = server_pieces(s, work->key);
    int64_t begin = ps_port_now(s->port);
    for (int i = 0; work->sums && i < pieces.count; i++) TRY(sum_piece(s, work->key, i));
    if (work->updates) {
        if (work->worker >= 0)
            TRY(update_from(work, pieces));
        else
            TRY(update(work, s->averages, pieces));
        TRY(copy_down(s, pieces));
    }
    TRY(device_stream_synchronize(s->gpu->stream));
    if (work->updates)
        atomic_fetch_add_explicit(&s->shared->update_ns, ps_port_now(s->port) - begin, memory_order_relaxed);
    return STATUS_OK;
}

/* Spends the time of a reduction in virtual time. The sum reads every push and writes one. An update reads
 * and writes parameters and state. */
static void charge(const server_work *work)
{
    server *s = work->server;
    double bytes = (double)server_key_bytes(s, work->key);
    int states = optimizer_state_count(optimizer_get_options(s->c->optimizer));
    if (work->sums) ps_charge_pass(s->c->device, bytes * (s->c->world + 1), s->c->threads);
    int64_t summed = device_now_ns(s->c->device);
    if (work->updates) ps_charge_pass(s->c->device, bytes * (3 + 2 * states), s->c->threads);
    atomic_fetch_add_explicit(&s->shared->update_ns, device_now_ns(s->c->device) - summed,
                              memory_order_relaxed);
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
