/* The reduction of a server whose rank computes on a GPU. Pushed gradients are copied to device memory, added
 * there in rank order, and applied by the device's optimizer. If the rank has a staged copy on the host
 * (common/sync/staged.h), the new parameters are then copied down, because replies are sent from the host. */
#include "ps/server/server.h"

/* Chooses the memory for the parameters that the GPU updates. Under sync these are the rank's parameters on
 * the GPU, because no rank reads a key that all ranks have pushed. Under ssp and async the server has a copy
 * of the shard. */
status server_gpu_open(ps_server *s, const sync_context *front)
{
    size_t extent = (size_t)server_bytes(s, s->shard->end - s->shard->begin);
    int64_t largest = 0;
    if (s->policy->consistency == PS_SYNC) {
        s->updated = front->params->params.data;
        s->own_grads = front->params->grads.data;
    } else {
        TRY(ledger_blame(LEDGER_PARAMETERS,
                         device_allocate(front->device, DEVICE_MEMORY_PRIVATE, extent, &s->updated_memory)));
        s->updated = server_as_arena(s->updated_memory.data, s->shard->begin, s->element);
    }
    for (int i = 0; i < s->shard->pieces.count; i++)
        if (s->shard->pieces.pieces[i].count > largest) largest = s->shard->pieces.pieces[i].count;
    return ledger_blame(LEDGER_BUCKETS, device_allocate(front->device, DEVICE_MEMORY_PRIVATE,
                                                        (size_t)server_bytes(s, largest), &s->landing));
}

/* Returns the address of a piece that `worker` has pushed, and whether it is in device memory. */
static sync_contribution contribution(const ps_server *s, int key, int worker, int piece)
{
    if (s->own_grads && worker == s->index)
        return (sync_contribution){s->own_grads + server_bytes(s, server_pieces(s, key).pieces[piece].offset),
                                   true};
    return (sync_contribution){server_gradient(s, key, worker, piece), false};
}

status server_land(ps_server *s, int key, int worker, int piece)
{
    return sync_staging_bring(&s->staging, s->set->type, s->landing.data, contribution(s, key, worker, piece),
                              server_pieces(s, key).pieces[piece].count, 1);
}

static status sum_piece(ps_server *s, int key, int index)
{
    piece p = server_pieces(s, key).pieces[index];
    for (int w = 0; w < s->world; w++) s->contributions[w] = contribution(s, key, w, index);
    return sync_staging_sum(&s->staging, s->set->type, s->averages + server_bytes(s, p.offset),
                            s->contributions, s->world, p.count, s->before, s->after, s->landing.data);
}

status server_reduce_on_gpu(const server_work *work)
{
    ps_server *s = work->server;
    piece_list pieces = server_pieces(s, work->key);
    int64_t begin_ns = ps_port_now(&s->port);
    const char *grads;
    for (int i = 0; work->sums && i < pieces.count; i++) TRY(sum_piece(s, work->key, i));
    if (work->updates && work->worker < 0) TRY(server_update_pieces(work, s->averages, pieces));
    for (int i = 0; work->worker >= 0 && i < pieces.count; i++) {
        TRY(server_pushed(s, work->key, work->worker, i, &grads));
        TRY(server_update_pieces(work, grads, (piece_list){&pieces.pieces[i], 1}));
    }
    for (int i = 0; work->updates && i < pieces.count; i++) {
        int64_t at = server_bytes(s, pieces.pieces[i].offset);
        TRY(sync_copy_down(&s->staging, s->params + at, s->updated + at,
                           server_bytes(s, pieces.pieces[i].count)));
    }
    TRY(sync_staging_end(&s->staging));
    if (work->updates) s->update_ns += ps_port_now(&s->port) - begin_ns;
    return STATUS_OK;
}
