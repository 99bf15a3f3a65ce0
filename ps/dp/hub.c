/* The agent of the hub, and the compute thread's side of it. */
#include "ps/dp/hub_impl.h"

#include "common/base/clock.h"
#include "common/base/text.h"
#include "common/net/key.h"
#include "common/net/status_table.h"
#include "common/trace/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- peers that this rank waits for ---------------------------------------------------------------- */

static const dp_transfer *first_open(const hub *h)
{
    for (int i = 0; i < h->listed; i++)
        if (!h->shared->transfers[i].done) return &h->shared->transfers[i];
    return NULL;
}

static status check_departures(hub *h)
{
    for (int i = 0; i < h->listed; i++) {
        const dp_transfer *transfer = &h->shared->transfers[i];
        if (ps_port_has_left(h->port, transfer->peer) && !transfer->done)
            return fail(STATUS_PEER, "rank %d has left while rank %d waits for %s of step %" PRId64,
                        transfer->peer, h->c->context->rank, message_kind_name(transfer->header.kind),
                        transfer->header.step);
    }
    return STATUS_OK;
}

/* Rank 0 has the shorter patience: it knows which rank is late. */
static status check_stall(hub *h, int64_t now_ns, int64_t *deadline_ns)
{
    const sync_context *c = h->c->context;
    int64_t patience = c->stall_timeout_ns + (c->rank == 0 ? 0 : c->stall_timeout_ns / 4);
    if (!ps_is_late(h->last_message_ns, patience, now_ns, deadline_ns)) return STATUS_OK;
    char name[192], waited[32];
    text_format_duration(waited, sizeof waited, (double)patience);
    const dp_transfer *transfer = first_open(h);
    if (!transfer)
        return fail(STATUS_PEER, "messages of rank %d were not received within %s", c->rank, waited);
    snprintf(name, sizeof name, "rank %d%s%s", transfer->peer, h->url ? " at " : "", h->url ? h->url : "");
    if (!h->port->was_connected[transfer->peer])
        return fail(STATUS_PEER, "%s was not reached within %s", name, waited);
    return fail(STATUS_PEER, "%s has not %s %s of step %" PRId64 " within the stall limit of %s", name,
                transfer->direction == DP_SEND ? "received" : "sent",
                message_kind_name(transfer->header.kind), transfer->header.step, waited);
}

/* ---- the agent -------------------------------------------------------------------------------- */

static status begin_exchange(hub *h, int64_t now_ns, bool *worked)
{
    const hub_shared *s = h->shared;
    if (h->running || atomic_load_explicit(&s->posted, memory_order_acquire) == h->finished) return STATUS_OK;
    h->running = *worked = true;
    h->open_transfers = h->listed = s->count;
    h->begun_ns = h->last_message_ns = now_ns;
    for (int k = 0; s->sums && k < s->sum.keys; k++) h->arrived[k] = 0;
    return hub_receive_held(h, now_ns);
}

static void end_exchange(hub *h, int64_t now_ns, bool *worked)
{
    if (!h->running || h->open_transfers > 0 || !transport_sent(&h->ticket)) return;
    h->running = false;
    h->listed = 0;
    *worked = true;
    h->finished++;
    trace_slice(h->c->context->trace, TRACE_COMMUNICATION, "exchange", TRACE_NO_INDEX, h->begun_ns, now_ns);
    atomic_fetch_add_explicit(&h->shared->total_ns, now_ns - h->begun_ns, memory_order_relaxed);
    rank_slot_agent(h->c->context->slot, RANK_START, RANK_NO_BUCKET, now_ns);
    device_fence_reach(h->shared->done, (uint64_t)h->finished);
}

static status progress(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    hub *h = context;
    TRY(begin_exchange(h, now_ns, worked));
    if (h->running) TRY(hub_send_transfers(h, now_ns, worked));
    TRY(ps_port_receive(h->port, now_ns, worked));
    end_exchange(h, now_ns, worked);
    if (*worked || !h->running) return STATUS_OK;
    TRY(check_departures(h));
    return check_stall(h, now_ns, deadline_ns);
}

static void failed(void *context, const error_record *error)
{
    device_fence_fail(((hub *)context)->shared->done, error);
}

status dp_hub_start(dp_hub *p)
{
    static const ps_port_ops ops = {progress, hub_handle, failed};
    const sync_context *c = p->config.context;
    return ps_port_start(&p->shared.port, &ops, &p->agent, c->device, "ps-hub",
                         c->inline_progress && !p->compute.staging.separate);
}

/* ---- the compute thread ------------------------------------------------------------------------ */

void dp_hub_begin(dp_hub *p)
{
    p->shared.count = 0;
}

dp_transfer *dp_hub_add(dp_hub *p, dp_direction direction, int peer, message_kind kind, int64_t step,
                        int64_t key)
{
    dp_transfer *transfer = &p->shared.transfers[p->shared.count++];
    *transfer = (dp_transfer){
        .direction = direction, .peer = peer, .header = {.kind = kind, .step = step, .key = key}};
    return transfer;
}

/* What the status table shows meanwhile: the rank waits for messages to arrive, or to leave. */
static rank_operation operation_of(const hub_shared *s)
{
    for (int i = 0; i < s->count; i++)
        if (s->transfers[i].direction != DP_SEND) return RANK_PULL;
    return RANK_PUSH;
}

status dp_hub_run(dp_hub *p, const dp_sum *sum)
{
    const sync_context *c = p->config.context;
    hub_shared *s = &p->shared;
    if (s->count == 0 || device_get_info(c->device)->plans) return STATUS_OK;
    rank_operation before = (rank_operation)atomic_load_explicit(&c->slot->operation, memory_order_relaxed);
    rank_operation during = operation_of(s);
    TRY(sync_staging_end(&p->compute.staging)); /* tensors to be sent are complete */
    s->sums = sum != NULL;
    if (sum) s->sum = *sum;
    int64_t exchange = atomic_fetch_add_explicit(&s->posted, 1, memory_order_release) + 1;
    sync_agent_wake(s->port.agent);
    int64_t begin = device_now_ns(c->device);
    rank_slot_enter(c->slot, during, begin);
    status rc = sync_staging_wait(&p->compute.staging, s->done, (uint64_t)exchange);
    int64_t end = device_now_ns(c->device);
    trace_slice(c->trace, TRACE_COMPUTE, "wait", TRACE_NO_INDEX, begin, end);
    p->compute.exposed_ns += end - begin;
    if (rc == STATUS_OK) rank_slot_enter(c->slot, before, end);
    return rc;
}

void dp_hub_collect(dp_hub *p, sync_counters *out)
{
    out->exposed_ns += p->compute.exposed_ns;
    p->compute.exposed_ns = 0;
    out->total_ns += atomic_exchange_explicit(&p->shared.total_ns, 0, memory_order_relaxed);
    ps_port_collect(&p->shared.port, out);
}

/* ---- open and close -------------------------------------------------------------------------------------
 */

static status no_memory(void)
{
    return fail(STATUS_SYSTEM, "no memory for the exchanges of a rank");
}

static status open_agent(hub *h)
{
    const dp_hub_config *c = h->c;
    size_t threads = (size_t)c->threads, world = (size_t)c->context->world;
    h->ticket.wake = true;
    /* Of the present exchange, and of the next one. */
    h->held_capacity = 2 * c->transfers + c->context->world;
    h->held = calloc((size_t)h->held_capacity, sizeof *h->held);
    h->arrived = calloc((size_t)c->keys + 1, sizeof *h->arrived);
    h->sources = calloc(threads * world, sizeof *h->sources);
    h->contributions = calloc(world, sizeof *h->contributions);
    if (!h->held || !h->arrived || !h->sources || !h->contributions) return no_memory();
    TRY(device_stream_open(c->context->device, DEVICE_STREAM_COMMUNICATION, &h->stream));
    h->staging = sync_staging_on(c->context->device, h->stream);
    return ps_thread_pool_open(c->threads, &h->pool);
}

status dp_hub_open(const dp_hub_config *config, dp_hub **out)
{
    *out = NULL;
    dp_hub *p = calloc(1, sizeof *p);
    if (!p) return no_memory();
    const sync_context *c = config->context;
    p->config = *config;
    p->compute.staging = sync_staging_on(c->device, c->compute);
    p->agent.c = &p->config;
    p->agent.shared = &p->shared;
    p->agent.port = &p->shared.port;
    p->shared.transfers = calloc((size_t)config->transfers + 1, sizeof *p->shared.transfers);
    status rc = p->shared.transfers ? open_agent(&p->agent) : no_memory();
    if (rc == STATUS_OK) rc = device_fence_open(c->device, &p->shared.done);
    if (rc != STATUS_OK) dp_hub_close(&p);
    *out = p;
    return rc;
}

status dp_hub_open_port(dp_hub *p, const transport_options *options)
{
    return ps_port_open(&p->shared.port, options, p->config.context->world,
                        p->agent.held_capacity + p->config.transfers, PS_NO_PEER, 0);
}

status dp_hub_connect(dp_hub *p, const char *url)
{
    p->agent.url = net_address_without_key(url);
    if (!p->agent.url) return no_memory();
    return transport_connect(p->shared.port.transport, 0, url, &p->shared.port.links[0]);
}

void dp_hub_close(dp_hub **pointer)
{
    dp_hub *p = *pointer;
    if (!p) return;
    hub_shared *s = &p->shared;
    hub *h = &p->agent;
    sync_agent_close(&s->port.agent);
    /* Messages must be released before the transport ends. */
    for (int i = 0; i < h->held_count; i++) ps_port_release(&s->port, &h->held[i]);
    for (int i = 0; i < s->count; i++) ps_port_release(&s->port, &s->transfers[i].message);
    ps_port_disconnect(&s->port);
    ps_port_close(&s->port);
    device_fence_close(&s->done);
    ps_thread_pool_close(&h->pool);
    device_stream_close(&h->stream);
    free(s->transfers);
    free(h->held);
    free(h->arrived);
    free(h->sources);
    free(h->contributions);
    free(h->url);
    free(p);
    *pointer = NULL;
}

ps_port *dp_hub_port(dp_hub *p)
{
    return &p->shared.port;
}
