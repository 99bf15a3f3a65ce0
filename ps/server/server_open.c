/* Opens and closes a server: memory, port, agent. */
#include "ps/server/server_impl.h"

#include "common/base/clock.h"

#include <stdlib.h>

static status no_memory(const server *s)
{
    return fail(STATUS_SYSTEM, "no memory for parameter server %d", s->c->index);
}

static status open_keys(server *s)
{
    size_t count = (size_t)s->count, world = (size_t)s->c->world, window = (size_t)s->window;
    s->keys = calloc(count + 1, sizeof *s->keys);
    s->slots = calloc(count * world + 1, sizeof *s->slots);
    s->arrived = calloc(count * window + 1, sizeof *s->arrived);
    s->steps = calloc(window, sizeof *s->steps);
    s->apply.list = calloc(count * world + 1, sizeof *s->apply.list);
    s->workers = calloc(world, sizeof *s->workers);
    if (!s->keys || !s->slots || !s->arrived || !s->steps || !s->apply.list || !s->workers)
        return no_memory(s);
    for (size_t i = 0; i < count; i++) s->keys[i].ticket.wake = true;
    for (size_t i = 0; i < count * world; i++) s->slots[i].staleness = -1;
    for (int w = 0; w < s->c->world; w++)
        TRY(ps_key_queue_init(&s->workers[w].outbox, s->count, s->c->policy->priority));
    return ps_key_queue_init(&s->complete, s->count, s->c->policy->priority);
}

/* Chooses the memory for the server's parameters. Under sync a server next to a rank works in the rank's
 * parameters, because no rank reads a key that all ranks have pushed. Under ssp and async the server has a
 * copy. A server in a separate process works in the parameters of its process. */
static status open_params(server *s)
{
    const param_set *set = s->c->params;
    s->params = set->params.data;
    if (s->c->policy->consistency == PS_SYNC || !s->c->colocated) return STATUS_OK;
    size_t bytes = (size_t)server_bytes(s, set->arena_elements);
    TRY(device_allocate(s->c->device, DEVICE_MEMORY_PRIVATE, bytes, &s->params_memory));
    s->params = s->params_memory.data;
    ledger_acquire(s->c->ledger, LEDGER_PARAMETERS, server_bytes(s, s->shard->elements),
                   server_bytes(s, s->shard->end - s->shard->begin));
    return STATUS_OK;
}

/* Allocates the averages, except under async, and under ssp the copies of pushed gradients. */
static status open_arenas(server *s)
{
    int64_t extent = server_bytes(s, s->shard->end - s->shard->begin), arenas = 0;
    TRY(device_allocate(s->c->device, DEVICE_MEMORY_PRIVATE, sizeof(double), &s->squares_memory));
    if (s->c->policy->consistency != PS_ASYNC) {
        if (!s->c->front)
            TRY(device_allocate(s->c->device, DEVICE_MEMORY_PRIVATE, (size_t)extent, &s->averages_memory));
        s->averages = server_as_arena(s->averages_memory.data, s->shard->begin, s->element);
        arenas++;
    }
    if (s->c->policy->consistency == PS_SSP) {
        int64_t copies = s->window * s->c->world;
        TRY(device_allocate(s->c->device, DEVICE_MEMORY_PRIVATE, (size_t)(extent * copies),
                            &s->copies_memory));
        arenas += copies;
    }
    ledger_acquire(s->c->ledger, LEDGER_BUCKETS, arenas * server_bytes(s, s->shard->elements),
                   arenas * extent);
    return STATUS_OK;
}

static status open_reduction(server *s)
{
    s->gradients = calloc((size_t)s->c->threads * (size_t)s->c->world, sizeof *s->gradients);
    if (!s->gradients) return no_memory(s);
    TRY(open_arenas(s));
    if (s->c->front) TRY(server_gpu_open(s));
    TRY(device_stream_open(s->c->device, DEVICE_STREAM_COMMUNICATION, &s->stream));
    return ps_thread_pool_open(s->c->threads, &s->pool);
}

status ps_server_open(const ps_server_config *config, ps_server **out)
{
    *out = NULL;
    ps_server *p = calloc(1, sizeof *p);
    if (!p) return fail(STATUS_SYSTEM, "no memory for parameter server %d", config->index);
    server *s = &p->agent;
    p->config = *config;
    s->c = &p->config;
    s->shared = &p->shared;
    s->port = &p->shared.port;
    s->shard = &config->plan->shards[config->index];
    s->first = s->shard->first_key;
    s->count = s->shard->key_count;
    s->window = config->policy->staleness + 1;
    s->element = (size_t)dtype_size(config->params->type);
    s->before = config->policy->divide_before ? config->world : 1;
    s->after = config->policy->divide_before ? 1 : config->world;
    s->writes = config->policy->consistency != PS_SYNC || !config->policy->server_optimizer;
    const optimizer_options *o = optimizer_get_options(config->optimizer);
    bool skips = o->on_nonfinite == NONFINITE_SKIP && ps_has_bytes(config->device);
    s->needs_norm = config->policy->server_optimizer && (o->clip_norm > 0 || skips);
    s->buffers.ticket.wake = s->layer.ticket.wake = true;
    s->params_memory.fd = s->averages_memory.fd = s->copies_memory.fd = s->squares_memory.fd = -1;
    status rc;
    TRY_GOTO(rc, open_keys(s), failed);
    TRY_GOTO(rc, open_params(s), failed);
    TRY_GOTO(rc, open_reduction(s), failed);
    TRY_GOTO(rc, server_shared_open(s), failed);
    *out = p;
    return STATUS_OK;
failed:
    ps_server_close(&p);
    return rc;
}

status ps_server_open_port(ps_server *p, const transport_options *options)
{
    const ps_server_config *c = &p->config;
    int partner = c->colocated ? c->index : PS_NO_PEER, keys = p->agent.count;
    /* Every worker's push of every key and share of a sum, the buffers, and the current message. */
    int held = (keys + 1) * c->world + 2;
    return ps_port_open(&p->shared.port, options, c->world, held, partner, (uint32_t)(2 * keys + 64));
}

static void release_messages(server *s)
{
    for (int64_t i = 0; s->slots && i < (int64_t)s->count * s->c->world; i++)
        ps_port_release(s->port, &s->slots[i].push);
    for (int w = 0; s->workers && w < s->c->world; w++) ps_port_release(s->port, &s->workers[w].layer_share);
    ps_port_release(s->port, &s->buffers.next);
}

static void close_reduction(server *s)
{
    device *d = s->c->device;
    server_gpu_close(s);
    ps_thread_pool_close(&s->pool);
    device_stream_close(&s->stream);
    device_free(d, &s->params_memory);
    device_free(d, &s->averages_memory);
    device_free(d, &s->copies_memory);
    device_free(d, &s->squares_memory);
    free(s->gradients);
}

void ps_server_close(ps_server **pointer)
{
    ps_server *p = *pointer;
    if (!p) return;
    server *s = &p->agent;
    sync_agent_close(&s->port->agent); /* The agent must end before release_messages(). */
    release_messages(s);
    ps_port_disconnect(s->port);
    ps_port_close(s->port);
    server_shared_close(s);
    close_reduction(s);
    for (int w = 0; s->workers && w < s->c->world; w++) ps_key_queue_deinit(&s->workers[w].outbox);
    ps_key_queue_deinit(&s->complete);
    free(s->keys);
    free(s->slots);
    free(s->arrived);
    free(s->steps);
    free(s->apply.list);
    free(s->workers);
    free(p);
    *pointer = NULL;
}

ps_port *ps_server_port(ps_server *p)
{
    return &p->shared.port;
}

void ps_server_map_worker(ps_server *p, int worker, void *params, void *grads)
{
    p->agent.workers[worker].params = params;
    p->agent.workers[worker].grads = grads;
}

void ps_server_linger(ps_server *p, int64_t limit_ns)
{
    int others = p->config.world - (p->config.colocated ? 1 : 0);
    if (!ps_has_bytes(p->config.device)) return; /* virtual ranks end together */
    for (int64_t until = clock_now_ns() + limit_ns; clock_now_ns() < until;) {
        if (atomic_load_explicit(&p->shared.gone, memory_order_acquire) == others) return;
        if (ps_port_has_failed(&p->shared.port)) return;
        sync_agent_wake(p->shared.port.agent);
        clock_sleep_ns(NS_PER_MS);
    }
}

const void *ps_server_averages(const ps_server *p)
{
    return p->agent.averages;
}

int64_t ps_server_update_ns(const ps_server *p)
{
    return atomic_load_explicit(&p->shared.update_ns, memory_order_relaxed);
}
