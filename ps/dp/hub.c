/* The agent of the hub, and the compute thread's side of it. */
#include "ps/dp/hub_impl.h"

#include "common/base/clock.h"
#include "common/base/text.h"
#include "common/net/status_table.h"
#include "common/net/key.h"
#include "common/trace/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- peers that this rank waits for ---------------------------------------------------------------- */

static const dp_transfer *first_open(const dp_hub *hub)
{
    for (int i = 0; i < hub->listed; i++)
        if (!hub->transfers[i].done) return &hub->transfers[i];
    return NULL;
}

/* "rank 0 at ipc://@...". */
static const char *name_peer(const dp_hub *hub, int peer, char *text, size_t size)
{
    snprintf(text, size, "rank %d%s%s", peer, hub->url ? " at " : "", hub->url ? hub->url : "");
    return text;
}

static status check_departures(dp_hub *hub)
{
    for (int i = 0; i < hub->listed; i++) {
        const dp_transfer *transfer = &hub->transfers[i];
        bool connected = ps_port_is_connected(&hub->port, transfer->peer);
        hub->was_connected[transfer->peer] = hub->was_connected[transfer->peer] || connected;
        if (!transfer->done && !connected && hub->was_connected[transfer->peer])
            return fail(STATUS_PEER, "rank %d has left while rank %d waits for %s of step %" PRId64,
                        transfer->peer, hub->c.context->rank, message_kind_name(transfer->header.kind),
                        transfer->header.step);
    }
    return STATUS_OK;
}

/* Rank 0 has the shorter patience: it knows which rank is late. */
static status check_stall(dp_hub *hub, int64_t now_ns, int64_t *deadline_ns)
{
    const sync_context *c = hub->c.context;
    int64_t patience = c->stall_timeout_ns + (c->rank == 0 ? 0 : c->stall_timeout_ns / 4);
    if (now_ns < hub->last_message_ns + patience) {
        if (hub->last_message_ns + patience < *deadline_ns) *deadline_ns = hub->last_message_ns + patience;
        return STATUS_OK;
    }
    char name[192], waited[32];
    text_format_duration(waited, sizeof waited, (double)patience);
    const dp_transfer *transfer = first_open(hub);
    if (!transfer) return fail(STATUS_PEER, "messages of rank %d were not received within %s", c->rank, waited);
    name_peer(hub, transfer->peer, name, sizeof name);
    if (!hub->was_connected[transfer->peer]) return fail(STATUS_PEER, "%s was not reached within %s", name, waited);
    return fail(STATUS_PEER, "%s has not %s %s of step %" PRId64 " within the stall limit of %s", name,
                transfer->direction == DP_SEND ? "received" : "sent", message_kind_name(transfer->header.kind),
                transfer->header.step, waited);
}

/* ---- the agent -------------------------------------------------------------------------------- */

static status begin_exchange(dp_hub *hub, int64_t now_ns, bool *worked)
{
    if (hub->running || atomic_load_explicit(&hub->posted, memory_order_acquire) == hub->finished) return STATUS_OK;
    hub->running = *worked = true;
    hub->open_transfers = hub->listed = hub->count;
    hub->begun_ns = hub->last_message_ns = now_ns;
    for (int k = 0; hub->sums && k < hub->sum.keys; k++) hub->arrived[k] = 0;
    return hub_receive_held(hub, now_ns);
}

static void end_exchange(dp_hub *hub, int64_t now_ns, bool *worked)
{
    if (!hub->running || hub->open_transfers > 0 || !transport_sent(&hub->ticket)) return;
    hub->running = false;
    hub->listed = 0;
    *worked = true;
    hub->finished++;
    trace_slice(hub->c.context->trace, TRACE_COMMUNICATION, "exchange", TRACE_NO_INDEX, hub->begun_ns, now_ns);
    atomic_fetch_add_explicit(&hub->total_ns, now_ns - hub->begun_ns, memory_order_relaxed);
    rank_slot_agent(hub->c.context->slot, RANK_START, RANK_NO_BUCKET, now_ns);
    device_fence_reach(hub->done, (uint64_t)hub->finished);
}

static status advance(dp_hub *hub, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    TRY(begin_exchange(hub, now_ns, worked));
    if (hub->running) TRY(hub_send_transfers(hub, now_ns, worked));
    TRY(hub_receive(hub, now_ns, worked));
    end_exchange(hub, now_ns, worked);
    if (*worked || !hub->running) return STATUS_OK;
    TRY(check_departures(hub));
    return check_stall(hub, now_ns, deadline_ns);
}

/* The other ranks receive the reason why this one ends. */
static void report_failure(dp_hub *hub)
{
    error_copy(&hub->failure);
    message_header h = {.kind = MESSAGE_FAILED, .flags = (uint32_t)hub->failure.code};
    message_frame text = {hub->failure.message, strlen(hub->failure.message)};
    error_clear();
    for (int p = 0; p < hub->c.context->world; p++)
        ps_port_send(&hub->port, p, &h, &text, 1, &hub->failure_ticket, 0);
    error_clear();
    error_adopt(&hub->failure);
}

static status progress(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    dp_hub *hub = context;
    status rc = advance(hub, now_ns, deadline_ns, worked);
    if (rc != STATUS_OK) report_failure(hub);
    return rc;
}

static void wait_for_more(void *context, int64_t deadline_ns)
{
    ps_port_wait(&((dp_hub *)context)->port, deadline_ns);
}

static void wake(void *context)
{
    ps_port_wake(&((dp_hub *)context)->port);
}

static void failed(void *context, const error_record *error)
{
    dp_hub *hub = context;
    atomic_store_explicit(&hub->ended, true, memory_order_release);
    device_fence_fail(hub->done, error);
}

static const sync_agent_ops agent_ops = {progress, wait_for_more, wake, failed};

status dp_hub_start(dp_hub *hub)
{
    const sync_context *c = hub->c.context;
    sync_agent_config config = {.ops = &agent_ops,
                                .context = hub,
                                .device = c->device,
                                .name = "ps-hub",
                                .inline_progress = c->inline_progress && !hub->staging.separate};
    return sync_agent_open(&config, &hub->agent);
}

bool dp_hub_has_failed(const dp_hub *hub)
{
    return atomic_load_explicit(&hub->ended, memory_order_acquire);
}

/* ---- the compute thread ------------------------------------------------------------------------ */

void dp_hub_begin(dp_hub *hub)
{
    hub->count = 0;
}

dp_transfer *dp_hub_add(dp_hub *hub, dp_direction direction, int peer, message_kind kind, int64_t step,
                     int64_t key)
{
    dp_transfer *transfer = &hub->transfers[hub->count++];
    *transfer =
        (dp_transfer){.direction = direction, .peer = peer, .header = {.kind = kind, .step = step, .key = key}};
    return transfer;
}

/* What the status table shows meanwhile: the rank waits for messages to arrive, or to leave. */
static rank_operation operation_of(const dp_hub *hub)
{
    for (int i = 0; i < hub->count; i++)
        if (hub->transfers[i].direction != DP_SEND) return RANK_PULL;
    return RANK_PUSH;
}

status dp_hub_run(dp_hub *hub, const dp_sum *sum)
{
    const sync_context *c = hub->c.context;
    if (hub->count == 0 || device_get_info(c->device)->plans) return STATUS_OK;
    rank_operation before = (rank_operation)atomic_load_explicit(&c->slot->operation, memory_order_relaxed);
    rank_operation during = operation_of(hub);
    TRY(sync_staging_end(&hub->compute)); /* tensors to be sent are complete */
    hub->sums = sum != NULL;
    if (sum) hub->sum = *sum;
    int64_t exchange = atomic_fetch_add_explicit(&hub->posted, 1, memory_order_release) + 1;
    sync_agent_wake(hub->agent);
    int64_t begin = device_now_ns(c->device);
    rank_slot_enter(c->slot, during, begin);
    status rc = sync_staging_wait(&hub->compute, hub->done, (uint64_t)exchange);
    int64_t end = device_now_ns(c->device);
    trace_slice(c->trace, TRACE_COMPUTE, "wait", TRACE_NO_INDEX, begin, end);
    hub->exposed_ns += end - begin;
    if (rc == STATUS_OK) rank_slot_enter(c->slot, before, end);
    return rc;
}

void dp_hub_collect_times(dp_hub *hub, sync_counters *out)
{
    out->exposed_ns += hub->exposed_ns;
    hub->exposed_ns = 0;
    out->total_ns += atomic_exchange_explicit(&hub->total_ns, 0, memory_order_relaxed);
}

/* ---- open and close ------------------------------------------------------------------------------------- */

status dp_hub_open(const dp_hub_config *config, dp_hub **out)
{
    *out = NULL;
    dp_hub *hub = calloc(1, sizeof *hub);
    if (!hub) return fail(STATUS_SYSTEM, "no memory for the exchanges of a rank");
    hub->c = *config;
    hub->ticket.wake = true;
    /* Of the present exchange, and of the next one. */
    hub->held_capacity = 2 * config->transfers + config->context->world;
    hub->transfers = calloc((size_t)config->transfers + 1, sizeof *hub->transfers);
    hub->held = calloc((size_t)hub->held_capacity, sizeof *hub->held);
    hub->was_connected = calloc((size_t)config->context->world, sizeof *hub->was_connected);
    status rc = STATUS_OK;
    if (!hub->transfers || !hub->held || !hub->was_connected) rc = fail(STATUS_SYSTEM, "no memory for the exchanges of a rank");
    if (rc == STATUS_OK) rc = hub_sum_open(hub);
    if (rc == STATUS_OK) rc = device_fence_open(config->context->device, &hub->done);
    if (rc != STATUS_OK) dp_hub_close(&hub);
    *out = hub;
    return rc;
}

status dp_hub_open_port(dp_hub *hub, const transport_options *options)
{
    return ps_port_open(&hub->port, options, hub->c.context->world, hub->held_capacity + hub->c.transfers, PS_NO_PEER, 0);
}

status dp_hub_connect(dp_hub *hub, const char *url)
{
    hub->url = net_address_without_key(url);
    if (!hub->url) return fail(STATUS_SYSTEM, "no memory for an address");
    return transport_connect(hub->port.transport, 0, url, &hub->port.links[0]);
}

/* Messages must have been released before the transport ends. */
static void release_messages(dp_hub *hub)
{
    for (int i = 0; i < hub->held_count; i++) ps_port_release(&hub->port, &hub->held[i]);
    for (int i = 0; i < hub->count; i++) ps_port_release(&hub->port, &hub->transfers[i].message);
    hub->held_count = hub->count = 0;
}

void dp_hub_leave(dp_hub *hub)
{
    sync_agent_close(&hub->agent);
    if (!hub->port.transport) return;
    release_messages(hub);
    ps_port_disconnect(&hub->port, NS_PER_S);
}

void dp_hub_close(dp_hub **pointer)
{
    dp_hub *hub = *pointer;
    if (!hub) return;
    dp_hub_leave(hub);
    ps_port_close(&hub->port);
    device_fence_close(&hub->done);
    hub_sum_close(hub);
    free(hub->transfers);
    free(hub->held);
    free(hub->was_connected);
    free(hub->url);
    free(hub);
    *pointer = NULL;
}

ps_port *dp_hub_port(dp_hub *hub)
{
    return &hub->port;
}
