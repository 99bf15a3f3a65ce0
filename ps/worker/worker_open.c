/* The life of a worker: memory, fences, connections, end. */
#include "ps/worker/worker_impl.h"

#include "common/net/key.h"
#include "common/base/clock.h"

#include <stdlib.h>
#include <string.h>

static status no_memory(void)
{
    return fail(STATUS_SYSTEM, "no memory for a parameter server's worker");
}

static status open_fences(ps_worker *w)
{
    device *d = worker_context(w)->device;
    w->arrived = calloc((size_t)w->c.plan->param_count + 1, sizeof *w->arrived);
    if (!w->arrived) return no_memory();
    for (int i = 0; i < w->c.plan->param_count; i++) TRY(device_fence_open(d, &w->arrived[i]));
    TRY(device_fence_open(d, &w->packed));
    TRY(device_fence_open(d, &w->buffers));
    return device_fence_open(d, &w->summed);
}

static status open_keys(ps_worker *w)
{
    const ps_plan *plan = w->c.plan;
    size_t keys = (size_t)plan->key_count + 1, params = (size_t)plan->param_count + 1;
    w->missing = calloc(keys, sizeof *w->missing);
    w->tickets = calloc(keys, sizeof *w->tickets);
    w->round_of = calloc(keys, sizeof *w->round_of);
    w->ready_ns = calloc(keys, sizeof *w->ready_ns);
    w->left_ns = calloc(keys, sizeof *w->left_ns);
    w->asked = calloc(keys, sizeof *w->asked);
    w->got = calloc(keys, sizeof *w->got);
    w->seen = calloc(keys, sizeof *w->seen);
    w->missing_keys = calloc(params, sizeof *w->missing_keys);
    w->pushed = calloc(params, sizeof *w->pushed);
    if (!w->missing || !w->tickets || !w->round_of || !w->ready_ns || !w->left_ns || !w->asked || !w->got || !w->seen || !w->missing_keys || !w->pushed)
        return no_memory();
    for (int k = 0; k < plan->key_count; k++) {
        w->missing[k] = plan->keys[k].param_count;
        w->tickets[k].wake = true;
    }
    for (int p = 0; p < plan->param_count; p++) w->missing_keys[p] = plan->keys_of[p];
    /* A round's pushes, and the few other events of a step. */
    return event_queue_init(&w->events, (uint32_t)(2 * plan->param_count + 16));
}

static status open_servers(ps_worker *w)
{
    const ps_plan *plan = w->c.plan;
    w->servers = calloc((size_t)plan->server_count, sizeof *w->servers);
    if (!w->servers) return no_memory();
    for (int j = 0; j < plan->server_count; j++) {
        worker_server *s = &w->servers[j];
        s->norm_share = -1;
        s->on_the_way = calloc((size_t)plan->key_count + 1, sizeof *s->on_the_way);
        if (!s->on_the_way) return no_memory();
        TRY(ps_key_queue_init(&s->queue, plan->key_count, w->c.policy->priority));
    }
    return STATUS_OK;
}

static status open_buffers(ps_worker *w)
{
    const sync_context *c = worker_context(w);
    int64_t bytes = c->params->buffer_bytes;
    w->gives_buffers = bytes > 0 && c->rank == 0;
    w->takes_buffers = bytes > 0 && c->rank != 0;
    if (bytes == 0) return STATUS_OK;
    w->staging_ticket.wake = true;
    w->staging = malloc((size_t)bytes);
    if (!w->staging) return no_memory();
    ledger_acquire(c->ledger, LEDGER_BUCKETS, bytes, bytes);
    return STATUS_OK;
}

status ps_worker_open(const ps_worker_config *config, ps_worker **out)
{
    *out = NULL;
    ps_worker *w = calloc(1, sizeof *w);
    if (!w) return no_memory();
    w->c = *config;
    w->element = (size_t)dtype_size(worker_context(w)->params->type);
    w->squares.fd = -1;
    device *d = worker_context(w)->device;
    status rc;
    TRY_GOTO(rc, open_fences(w), failed);
    TRY_GOTO(rc, open_keys(w), failed);
    TRY_GOTO(rc, open_servers(w), failed);
    TRY_GOTO(rc, open_buffers(w), failed);
    if (w->c.peers) TRY_GOTO(rc, worker_gpu_open(w), failed);
    TRY_GOTO(rc, device_stream_open(d, DEVICE_STREAM_COMMUNICATION, &w->stream), failed);
    TRY_GOTO(rc, device_allocate(d, DEVICE_MEMORY_PRIVATE, sizeof(double), &w->squares), failed);
    *out = w;
    return STATUS_OK;
failed:
    ps_worker_close(&w);
    return rc;
}

status ps_worker_open_port(ps_worker *w, const transport_options *options)
{
    int partner = w->c.colocated ? worker_context(w)->rank : PS_NO_PEER;
    w->lends = options->hub != NULL;
    return ps_port_open(&w->port, options, w->c.plan->server_count, 1, partner, (uint32_t)(2 * w->c.plan->key_count + 64));
}

status ps_worker_connect(ps_worker *w, int server, const char *url)
{
    w->servers[server].url = net_address_without_key(url);
    if (!w->servers[server].url) return no_memory();
    return transport_connect(w->port.transport, server, url, &w->port.links[server]);
}

void ps_worker_map_server(ps_worker *w, int server, const void *params, bool sees_us)
{
    w->servers[server].params = params;
    w->servers[server].sees_us = sees_us;
}

void ps_worker_leave(ps_worker *w)
{
    sync_agent_close(&w->agent);
    ps_port_hang_up(&w->port, NS_PER_S);
}

static void close_server(worker_server *s)
{
    free(s->url);
    free(s->on_the_way);
    ps_key_queue_deinit(&s->queue);
}

void ps_worker_close(ps_worker **pointer)
{
    ps_worker *w = *pointer;
    if (!w) return;
    ps_worker_leave(w);
    ps_port_close(&w->port);
    for (int i = 0; w->arrived && i < w->c.plan->param_count; i++) device_fence_close(&w->arrived[i]);
    worker_gpu_close(w);
    device_fence_close(&w->packed);
    device_fence_close(&w->buffers);
    device_fence_close(&w->summed);
    for (int j = 0; w->servers && j < w->c.plan->server_count; j++) close_server(&w->servers[j]);
    device_stream_close(&w->stream);
    device_free(worker_context(w)->device, &w->squares);
    event_queue_deinit(&w->events);
    free(w->servers);
    free(w->arrived);
    free(w->missing);
    free(w->tickets);
    free(w->round_of);
    free(w->ready_ns);
    free(w->left_ns);
    free(w->asked);
    free(w->got);
    free(w->seen);
    free(w->missing_keys);
    free(w->pushed);
    free(w->staging);
    free(w);
    *pointer = NULL;
}

ps_port *ps_worker_port(ps_worker *w)
{
    return &w->port;
}
