/* Opens and closes a worker: memory, fences, connections. */
#include "ps/worker/worker_impl.h"

#include "common/base/clock.h"
#include "common/net/key.h"

#include <stdlib.h>
#include <string.h>

static status no_memory(void)
{
    return fail(STATUS_SYSTEM, "no memory for a parameter server's worker");
}

static status open_fences(ps_worker *p)
{
    device *d = p->config.context->device;
    worker_shared *s = &p->shared;
    int params = p->config.plan->param_count;
    s->arrived = calloc((size_t)params + 1, sizeof *s->arrived);
    if (!s->arrived) return no_memory();
    for (int i = 0; i < params; i++) TRY(device_fence_open(d, &s->arrived[i]));
    TRY(device_fence_open(d, &s->packed));
    TRY(device_fence_open(d, &s->buffers_arrived));
    return device_fence_open(d, &s->summed);
}

static status open_keys(ps_worker *p)
{
    const ps_plan *plan = p->config.plan;
    worker *w = &p->agent;
    size_t keys = (size_t)plan->key_count + 1, params = (size_t)plan->param_count + 1;
    w->keys = calloc(keys, sizeof *w->keys);
    w->missing_keys = calloc(params, sizeof *w->missing_keys);
    p->shared.params_last = calloc(params, sizeof *p->shared.params_last);
    p->compute.pushed = calloc(params, sizeof *p->compute.pushed);
    if (!w->keys || !w->missing_keys || !p->shared.params_last || !p->compute.pushed) return no_memory();
    for (int k = 0; k < plan->key_count; k++) {
        w->keys[k].missing = plan->keys[k].param_count;
        w->keys[k].ticket.wake = true;
    }
    for (int i = 0; i < plan->param_count; i++) w->missing_keys[i] = plan->keys_of[i];
    /* The pushes of an iteration, and the few other events of a step. */
    return sync_queue_init(&p->shared.events, (uint32_t)(2 * plan->param_count + 16), sizeof(sync_event));
}

static status open_servers(ps_worker *p)
{
    const ps_plan *plan = p->config.plan;
    worker *w = &p->agent;
    w->servers = calloc((size_t)plan->server_count, sizeof *w->servers);
    if (!w->servers) return no_memory();
    for (int j = 0; j < plan->server_count; j++) {
        worker_server *s = &w->servers[j];
        s->norm_share = -1;
        s->on_the_way = calloc((size_t)plan->key_count + 1, sizeof *s->on_the_way);
        if (!s->on_the_way) return no_memory();
        TRY(ps_key_queue_init(&s->queue, plan->key_count, p->config.policy->priority));
    }
    return STATUS_OK;
}

static status open_buffers(ps_worker *p)
{
    const sync_context *c = p->config.context;
    int64_t bytes = c->params->buffer_bytes;
    p->shared.gives_buffers = bytes > 0 && c->rank == 0;
    p->shared.takes_buffers = bytes > 0 && c->rank != 0;
    if (bytes == 0) return STATUS_OK;
    p->agent.packed_ticket.wake = true;
    p->shared.packed_buffers = malloc((size_t)bytes);
    if (!p->shared.packed_buffers) return no_memory();
    ledger_acquire(c->ledger, LEDGER_BUCKETS, bytes, bytes);
    return STATUS_OK;
}

/* Opens the staging layer. Stages launch work and return, and items are pushed or packed when the compute
 * stream has reached them. */
static status open_staging(ps_worker *p)
{
    const sync_context *c = p->config.context;
    const ps_plan *plan = p->config.plan;
    p->compute.sums = calloc((size_t)plan->largest_sum + 1, sizeof *p->compute.sums);
    if (!p->compute.sums) return no_memory();
    TRY(device_stream_open(c->device, DEVICE_STREAM_COMMUNICATION, &p->agent.stream));
    p->compute.staging = sync_staging_on(c->device, c->compute);
    p->agent.staging = sync_staging_on(c->device, p->agent.stream);
    return sync_handover_open(&p->compute.staging, plan->param_count + 2, ps_worker_post_item, p,
                              &p->compute.launched);
}

status ps_worker_open(const ps_worker_config *config, ps_worker **out)
{
    *out = NULL;
    ps_worker *p = calloc(1, sizeof *p);
    if (!p) return no_memory();
    p->config = *config;
    p->agent.c = &p->config;
    p->agent.shared = &p->shared;
    p->agent.port = &p->shared.port;
    p->agent.squares.fd = -1;
    device *d = config->context->device;
    p->shared.element = (size_t)dtype_size(config->context->params->type);
    status rc;
    TRY_GOTO(rc, open_fences(p), failed);
    TRY_GOTO(rc, open_keys(p), failed);
    TRY_GOTO(rc, open_servers(p), failed);
    TRY_GOTO(rc, open_buffers(p), failed);
    TRY_GOTO(rc, open_staging(p), failed);
    TRY_GOTO(rc, device_allocate(d, DEVICE_MEMORY_PRIVATE, sizeof(double), &p->agent.squares), failed);
    *out = p;
    return STATUS_OK;
failed:
    ps_worker_close(&p);
    return rc;
}

status ps_worker_open_port(ps_worker *p, const transport_options *options)
{
    const ps_plan *plan = p->config.plan;
    int partner = p->config.colocated ? p->config.context->rank : PS_NO_PEER;
    p->shared.lends_frames = options->hub != NULL;
    return ps_port_open(&p->shared.port, options, plan->server_count, 1, partner,
                        (uint32_t)(2 * plan->key_count + 64));
}

status ps_worker_connect(ps_worker *p, int server, const char *url)
{
    p->agent.servers[server].url = net_address_without_key(url);
    if (!p->agent.servers[server].url) return no_memory();
    return transport_connect(p->shared.port.transport, server, url, &p->shared.port.links[server]);
}

void ps_worker_map_server(ps_worker *p, int server, const void *params, bool maps_us)
{
    p->agent.servers[server].params = params;
    p->agent.servers[server].maps_us = maps_us;
}

void ps_worker_leave(ps_worker *p)
{
    ps_port_disconnect(&p->shared.port);
}

static void close_agent(ps_worker *p)
{
    worker *w = &p->agent;
    for (int j = 0; w->servers && j < p->config.plan->server_count; j++) {
        free(w->servers[j].url);
        free(w->servers[j].on_the_way);
        ps_key_queue_deinit(&w->servers[j].queue);
    }
    device_stream_close(&w->stream);
    device_free(p->config.context->device, &w->squares);
    free(w->servers);
    free(w->keys);
    free(w->missing_keys);
}

void ps_worker_close(ps_worker **pointer)
{
    ps_worker *p = *pointer;
    if (!p) return;
    worker_shared *s = &p->shared;
    ps_worker_leave(p);
    ps_port_close(&s->port);
    for (int i = 0; s->arrived && i < p->config.plan->param_count; i++) device_fence_close(&s->arrived[i]);
    sync_handover_close(&p->compute.launched);
    device_fence_close(&s->packed);
    device_fence_close(&s->buffers_arrived);
    device_fence_close(&s->summed);
    close_agent(p);
    sync_queue_deinit(&s->events);
    free(s->arrived);
    free(s->params_last);
    free(s->packed_buffers);
    free(p->compute.pushed);
    free(p->compute.sums);
    free(p);
    *pointer = NULL;
}

ps_port *ps_worker_port(ps_worker *p)
{
    return &p->shared.port;
}
