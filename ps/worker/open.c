/* Opens and closes a worker with its memory and its fences. */
#include "ps/worker/worker.h"

#include <stdlib.h>

static status open_arrays(ps_worker *p)
{
    const ps_plan *plan = p->plan;
    worker *w = &p->agent;
    ps_memory *m = &p->memory;
    w->keys = ps_allocate(m, plan->key_count, sizeof *w->keys);
    w->servers = ps_allocate(m, plan->server_count, sizeof *w->servers);
    w->missing_keys = ps_allocate(m, plan->param_count, sizeof *w->missing_keys);
    p->shared.arrived = ps_allocate(m, plan->param_count, sizeof *p->shared.arrived);
    p->shared.params_last = ps_allocate(m, plan->param_count, sizeof *p->shared.params_last);
    p->compute.pushed = ps_allocate(m, plan->param_count, sizeof *p->compute.pushed);
    TRY(ps_memory_check(m, "a parameter server's worker"));
    for (int k = 0; k < plan->key_count; k++) {
        w->keys[k].missing = plan->keys[k].param_count;
        w->keys[k].ticket.wake = true;
    }
    for (int i = 0; i < plan->param_count; i++) w->missing_keys[i] = plan->keys_of[i];
    for (int j = 0; j < plan->server_count; j++) {
        w->servers[j].norm_share = -1;
        int keys = plan->shards[j].key_count;
        w->servers[j].on_the_way = ps_allocate(m, keys, sizeof *w->servers[j].on_the_way);
        ps_key_queue_init(&w->servers[j].queue, keys, p->policy->priority, m);
    }
    /* Room for two iterations of pushes, and for the few other events of a step. */
    return sync_queue_init(&p->shared.events, (uint32_t)(2 * plan->param_count + 16), sizeof(sync_event));
}

static status open_fences(ps_worker *p)
{
    device *d = p->context->device;
    worker_shared *s = &p->shared;
    for (int i = 0; i < p->plan->param_count; i++) TRY(device_fence_open(d, &s->arrived[i]));
    TRY(device_fence_open(d, &s->packed));
    TRY(device_fence_open(d, &s->buffers_arrived));
    return device_fence_open(d, &s->summed);
}

static status open_parts(ps_worker *p)
{
    const sync_context *c = p->context;
    int64_t bytes = c->params->buffer_bytes;
    TRY(open_arrays(p));
    TRY(open_fences(p));
    p->shared.gives_buffers = bytes > 0 && c->rank == 0;
    p->shared.takes_buffers = bytes > 0 && c->rank != 0;
    p->shared.packed_buffers = ps_allocate(&p->memory, bytes, 1);
    p->agent.packed_ticket.wake = true;
    ledger_acquire(c->ledger, LEDGER_BUCKETS, bytes, bytes);
    TRY(ps_memory_check(&p->memory, "a parameter server's worker"));
    return device_stream_open(c->device, DEVICE_STREAM_COMMUNICATION, &p->agent.stream);
}

status ps_worker_open(const ps_worker *setup, ps_worker **out)
{
    ps_worker *p = *out = calloc(1, sizeof *p);
    if (!p) return fail(STATUS_SYSTEM, "no memory for a parameter server's worker");
    *p = *setup;
    p->shared.element = dtype_size(p->context->params->type);
    p->agent.context = p->context;
    p->agent.policy = p->policy;
    p->agent.plan = p->plan;
    p->agent.shared = &p->shared;
    p->agent.port = &p->shared.port;
    status rc = open_parts(p);
    if (rc != STATUS_OK) ps_worker_close(out);
    return rc;
}

void ps_worker_close(ps_worker **pointer)
{
    ps_worker *p = *pointer;
    if (!p) return;
    worker_shared *s = &p->shared;
    ps_port_close(&s->port);
    for (int i = 0; s->arrived && i < p->plan->param_count; i++) device_fence_close(&s->arrived[i]);
    device_fence_close(&s->packed);
    device_fence_close(&s->buffers_arrived);
    device_fence_close(&s->summed);
    device_stream_close(&p->agent.stream);
    sync_queue_deinit(&s->events);
    ps_memory_free(&p->memory);
    free(p);
    *pointer = NULL;
}
