/* Opens and closes a server with its memory and its agent. */
#include "ps/server/server.h"

#include <stdlib.h>

/* Allocates the state for keys, workers, buffers, and sums of layers. */
static status open_state(ps_server *s)
{
    int64_t count = s->count, slots = count * s->world;
    ps_memory *m = &s->memory;
    s->keys = ps_allocate(m, count, sizeof *s->keys);
    s->slots = ps_allocate(m, slots, sizeof *s->slots);
    s->arrived = ps_allocate(m, count * s->window, sizeof *s->arrived);
    s->steps = ps_allocate(m, s->window, sizeof *s->steps);
    s->apply.list = ps_allocate(m, slots, sizeof *s->apply.list);
    s->workers = ps_allocate(m, s->world, sizeof *s->workers);
    ps_key_queue_init(&s->complete, s->count, s->policy->priority, m);
    if (s->index == 0) {
        s->buffers.bytes = s->set->buffer_bytes;
        s->buffers.data = ps_allocate(m, s->buffers.bytes, 1);
        s->layer.sums = ps_allocate(m, s->plan->largest_sum, sizeof *s->layer.sums);
        ledger_acquire(s->context->ledger, LEDGER_BUCKETS, s->buffers.bytes, s->buffers.bytes);
    }
    TRY(ps_memory_check(m, "a parameter server"));
    for (int w = 0; w < s->world; w++)
        ps_key_queue_init(&s->workers[w].outbox, s->count, s->policy->priority, m);
    for (int64_t i = 0; i < count; i++) s->keys[i].ticket.wake = true;
    for (int64_t i = 0; i < slots; i++) s->slots[i].staleness = -1;
    return ps_memory_check(m, "a parameter server");
}

/* Chooses the memory for the server's parameters. Under sync, a server in the process of a rank updates the
 * rank's parameters in place. This is safe because a rank that has pushed a key does not read the key again
 * before the update. Under ssp and async the server has a copy. A server in a separate process updates the
 * parameters of that process. */
static status open_params(ps_server *s)
{
    const param_set *set = s->set;
    s->params = s->updated = set->params.data;
    if (s->policy->consistency == PS_SYNC || !s->colocated) return STATUS_OK;
    size_t bytes = (size_t)server_bytes(s, set->arena_elements);
    TRY(device_allocate(s->device, DEVICE_MEMORY_PRIVATE, bytes, &s->params_memory));
    s->params = s->updated = s->params_memory.data;
    ledger_acquire(s->context->ledger, LEDGER_PARAMETERS, server_bytes(s, s->shard->elements),
                   server_bytes(s, s->shard->end - s->shard->begin));
    return STATUS_OK;
}

/* Chooses the memory for the parameters that the GPU updates. Under sync, the GPU updates the rank's
 * parameters in place, as open_params() explains. Under ssp and async the server has a copy of the shard on
 * the GPU. */
static status open_on_gpu(ps_server *s, const sync_context *gpu)
{
    size_t extent = (size_t)server_bytes(s, s->shard->end - s->shard->begin);
    int64_t largest = 0;
    if (s->policy->consistency == PS_SYNC) {
        s->updated = gpu->params->params.data;
        s->own_grads = gpu->params->grads.data;
    } else {
        TRY(ledger_blame(LEDGER_PARAMETERS,
                         device_allocate(gpu->device, DEVICE_MEMORY_PRIVATE, extent, &s->updated_memory)));
        s->updated = server_as_arena(s->updated_memory.data, s->shard->begin, s->element);
    }
    for (int i = 0; i < s->shard->pieces.count; i++)
        if (s->shard->pieces.pieces[i].count > largest) largest = s->shard->pieces.pieces[i].count;
    return ledger_blame(LEDGER_BUCKETS, device_allocate(gpu->device, DEVICE_MEMORY_PRIVATE,
                                                        (size_t)server_bytes(s, largest), &s->landing));
}

/* Allocates the memory for averages, except under async. Under ssp, also allocates the memory for copies of
 * pushed gradients. */
static status open_arenas(ps_server *s)
{
    int64_t extent = server_bytes(s, s->shard->end - s->shard->begin), arenas = 0;
    if (s->policy->consistency != PS_ASYNC) {
        TRY(ledger_blame(LEDGER_BUCKETS, device_allocate(s->staging.device, DEVICE_MEMORY_PRIVATE,
                                                         (size_t)extent, &s->averages_memory)));
        s->averages = server_as_arena(s->averages_memory.data, s->shard->begin, s->element);
        arenas++;
    }
    if (s->policy->consistency == PS_SSP) {
        int64_t copies = s->window * s->world;
        TRY(device_allocate(s->device, DEVICE_MEMORY_PRIVATE, (size_t)(extent * copies), &s->copies_memory));
        arenas += copies;
    }
    ledger_acquire(s->context->ledger, LEDGER_BUCKETS, arenas * server_bytes(s, s->shard->elements),
                   arenas * extent);
    return STATUS_OK;
}

static status open_parts(ps_server *s)
{
    const sync_context *gpu = s->policy->server_optimizer ? s->context->gpu : NULL;
    device *d = gpu ? gpu->device : s->device;
    s->staging = sync_staging_on(d, NULL);
    TRY(open_state(s));
    TRY(open_params(s));
    if (gpu) TRY(open_on_gpu(s, gpu));
    TRY(device_stream_open(d, DEVICE_STREAM_COMMUNICATION, &s->staging.stream));
    TRY(open_arenas(s));
    bool before = s->policy->divide_before;
    s->average = (sync_average){
        .on = &s->staging,
        .type = s->set->type,
        .threads = s->threads,
        .count = s->world,
        .before = before ? s->world : 1,
        .after = before ? 1 : s->world,
        .out = s->averages,
        .source = server_contribution,
        .sources = ps_allocate(&s->memory, (int64_t)s->threads * s->world, sizeof *s->average.sources),
        .local = s->own_grads ? s->index : -1,
        .landing = s->landing.data};
    return ps_memory_check(&s->memory, "a parameter server");
}

status ps_server_open(const ps_server *setup, ps_server **out)
{
    const sync_context *c = setup->context;
    ps_server *s = *out = calloc(1, sizeof *s);
    if (!s) return fail(STATUS_SYSTEM, "no memory for a parameter server");
    *s = *setup;
    s->device = c->device;
    s->set = c->params;
    s->optimizer = c->optimizer;
    s->world = c->world;
    s->shard = &s->plan->shards[s->index];
    s->first = s->shard->first_key;
    s->count = s->shard->key_count;
    s->window = s->policy->staleness + 1;
    s->element = dtype_size(s->set->type);
    s->writes = s->policy->consistency != PS_SYNC || !s->policy->server_optimizer;
    s->needs_norm = s->policy->server_optimizer && sync_update_needs_norm(c);
    s->buffers.iteration = -1;
    s->buffers.ticket.wake = s->layer.ticket.wake = true;
    status rc = open_parts(s);
    if (rc != STATUS_OK) ps_server_close(out);
    return rc;
}

static void release_messages(ps_server *s)
{
    for (int64_t i = 0; s->slots && i < (int64_t)s->count * s->world; i++)
        ps_port_release(&s->port, &s->slots[i].push);
    for (int w = 0; s->workers && w < s->world; w++) ps_port_release(&s->port, &s->workers[w].layer_share);
    ps_port_release(&s->port, &s->buffers.next);
}

void ps_server_close(ps_server **pointer)
{
    ps_server *s = *pointer;
    if (!s) return;
    sync_agent_close(&s->port.agent); /* The agent must end before release_messages(). */
    release_messages(s);
    ps_port_close(&s->port);
    device_stream_close(&s->staging.stream);
    device_free(s->staging.device, &s->landing);
    device_free(s->staging.device, &s->updated_memory);
    device_free(s->staging.device, &s->averages_memory);
    device_free(s->device, &s->params_memory);
    device_free(s->device, &s->copies_memory);
    ps_memory_free(&s->memory);
    free(s);
    *pointer = NULL;
}
