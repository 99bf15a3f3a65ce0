/* The hub. The compute thread lists transfers and waits for them. The agent sends, receives and sums. */
#include "ps/dataparallel/exchange.h"

#include "common/base/text.h"
#include "common/net/status_table.h"
#include "common/sync/anatomy.h"
#include "common/sync/average.h"
#include "common/trace/trace.h"

#include <inttypes.h>
#include <stdio.h>

static int64_t region_bytes(const dp_region *r)
{
    return piece_list_elements(r->pieces) * r->element;
}

/* ---- sums of gradients ------------------------------------------------------------------------- */

/* Returns the address of an element in the gradient of rank `rank`. `element` is the index of the element in
 * the arena. `context` points to the transfers of the key, which begin with the transfer of rank 1. The sum
 * will replace the gradient of rank 0. */
static const char *contribution(const void *context, int rank, int index, int64_t element)
{
    const dp_transfer *transfer = (const dp_transfer *)context + (rank > 0 ? rank - 1 : 0);
    const dp_region *r = &transfer->region;
    if (rank == 0) return r->base + element * r->element;
    if (transfer->shared) return transfer->remote + element * r->element;
    return (const char *)ps_message_frame(&transfer->message, index).data +
           (element - r->pieces.pieces[index].offset) * r->element;
}

static status sum_key(dp_hub *h, int key)
{
    int others = h->sum.present - 1;
    dp_transfer *transfers = &h->transfers[key * others];
    const dp_region *r = &transfers[0].region;
    sync_average sum = {.on = &h->staging,
                        .type = h->context->params->type,
                        .threads = h->threads,
                        .count = h->sum.present,
                        .before = h->sum.before,
                        .after = h->sum.after,
                        .out = r->base,
                        .source = contribution,
                        .context = transfers,
                        .sources = h->sources,
                        .landing = h->landing};
    TRY(sync_run_ranges(&h->staging, h->threads, r->pieces, sync_average_ranges, &sum));
    TRY(sync_staging_end(&h->staging));
    for (int i = 0; i < others; i++) ps_port_release(&h->port, &transfers[i].message);
    return STATUS_OK;
}

/* ---- sending ---------------------------------------------------------------------------------- */

static void transfer_done(dp_hub *h, dp_transfer *transfer, int64_t now_ns)
{
    transfer->done = true;
    h->open_transfers--;
    h->last_message_ns = now_ns;
}

static status send_transfer(dp_hub *h, dp_transfer *transfer, int64_t now_ns)
{
    const dp_region *r = &transfer->region;
    message_frame frames[MESSAGE_FRAMES_MAX];
    int count = transfer->shared ? 0 : ps_frames_of(frames, r->base, r->pieces, r->element);
    if (transfer->shared && transfer->remote && !transfer->copied)
        ps_copy_pieces(h->context->device, transfer->remote, r->base, r->pieces, r->element);
    transfer->copied = true;
    transfer->header.ready_ns = h->begun_ns;
    TRY(ps_port_send(&h->port, transfer->peer, &transfer->header, frames, count, &h->ticket,
                     region_bytes(r)));
    if (h->leaving_ns == 0) h->leaving_ns = now_ns;
    rank_slot_agent(h->context->slot, RANK_PUSH, (int)transfer->header.key, now_ns);
    transfer_done(h, transfer, now_ns);
    return STATUS_OK;
}

/* Sends all transfers that can be sent now. If there is no room for a message to a peer, transfers to this
 * peer are left for the next call. */
static status send_transfers(dp_hub *h, int64_t now_ns, bool *worked)
{
    int blocked = -1;
    for (int i = 0; i < h->listed && h->open_transfers > 0; i++) {
        dp_transfer *transfer = &h->transfers[i];
        if (transfer->done || transfer->direction != DP_SEND || transfer->peer == blocked) continue;
        status rc = send_transfer(h, transfer, now_ns);
        if (rc == STATUS_AGAIN)
            blocked = transfer->peer;
        else if (rc != STATUS_OK)
            return rc;
        else
            *worked = true;
    }
    return STATUS_OK;
}

/* ---- receiving -------------------------------------------------------------------------------- */

/* Releases the message, and returns an error. */
static status malformed(dp_hub *h, ps_message *m)
{
    const message_header *got = &m->header;
    ps_port_release(&h->port, m);
    return fail(STATUS_PROTOCOL,
                "rank %d: rank %d sent %s of step %" PRId64 ", key %" PRId64
                ", in %d frames: not of this exchange",
                h->context->rank, m->peer, message_kind_name(got->kind), got->step, got->key, got->frames);
}

static dp_transfer *find_transfer(dp_hub *h, const ps_message *m)
{
    for (int i = 0; i < h->listed; i++) {
        dp_transfer *transfer = &h->transfers[i];
        if (transfer->done || transfer->direction == DP_SEND || transfer->peer != m->peer) continue;
        const message_header *a = &transfer->header, *b = &m->header;
        if (a->kind == b->kind && a->step == b->step && a->key == b->key) return transfer;
    }
    return NULL;
}

/* Records two intervals in which communication was in progress: from the send of the message to its
 * arrival, and from begin_ns until now. */
static void record_message(dp_hub *h, const ps_message *m, int64_t begin_ns)
{
    anatomy *a = h->context->anatomy;
    anatomy_add_span(a, m->header.sent_ns, m->arrived_ns);
    anatomy_add_span(a, begin_ns, ps_port_now(&h->port));
    if (m->header.sent_ns > h->last.ns)
        h->last = (anatomy_sent){.ns = m->header.sent_ns, .ready_ns = m->header.ready_ns, .rank = m->peer};
}

/* Copies the tensor of a message. A tensor that is to be summed is not copied. When the tensors of all ranks
 * for the key have arrived, computes the sum. Takes over the message. */
static status receive_transfer(dp_hub *h, dp_transfer *transfer, ps_message *m, int64_t now_ns)
{
    const dp_region *r = &transfer->region;
    if (transfer->shared ? m->header.frames > 0 : !ps_has_frames_of(m, r->pieces, r->element))
        return malformed(h, m);
    ps_message received = *m;
    ps_port_count_received(&h->port, m->peer, region_bytes(r));
    transfer->header = m->header;
    if (transfer->direction == DP_REDUCE) {
        int key = (int)m->header.key;
        transfer->message = *m;
        if (++h->arrived[key] == h->sum.present - 1) TRY(sum_key(h, key));
    } else {
        if (!transfer->shared)
            ps_take_frames(h->context->device, m, r->base, r->pieces, r->element);
        else if (transfer->remote)
            ps_copy_pieces(h->context->device, r->base, transfer->remote, r->pieces, r->element);
        ps_port_release(&h->port, m);
    }
    record_message(h, &received, now_ns > received.arrived_ns ? now_ns : received.arrived_ns);
    transfer_done(h, transfer, now_ns);
    return STATUS_OK;
}

/* Handles a message of the running exchange, and holds other messages for a later exchange. Between exchanges
 * the agent must not read the transfers, because the compute thread is changing the list. A peer is at most
 * one exchange ahead, so more than `held_capacity` messages are a violation of the protocol. */
static status handle(void *context, ps_message *m, int64_t now_ns)
{
    dp_hub *h = context;
    dp_transfer *transfer = h->running ? find_transfer(h, m) : NULL;
    if (transfer) return receive_transfer(h, transfer, m, now_ns);
    if (m->header.kind == MESSAGE_FAILED) return ps_port_done(&h->port, m, ps_message_failure(m));
    if (h->held_count == h->held_capacity) return malformed(h, m);
    h->held[h->held_count++] = *m;
    return STATUS_OK;
}

static status receive_held(dp_hub *h, int64_t now_ns)
{
    int kept = 0;
    for (int i = 0; i < h->held_count; i++) {
        ps_message m = h->held[i];
        h->held[i].remote = false; /* `m` is released instead. */
        dp_transfer *transfer = find_transfer(h, &m);
        if (transfer)
            TRY(receive_transfer(h, transfer, &m, now_ns));
        else
            h->held[kept++] = m;
    }
    h->held_count = kept;
    return STATUS_OK;
}

/* ---- peers that this rank waits for ---------------------------------------------------------------- */

static status check_departures(dp_hub *h)
{
    for (int i = 0; i < h->listed; i++) {
        const dp_transfer *transfer = &h->transfers[i];
        if (ps_port_has_left(&h->port, transfer->peer) && !transfer->done)
            return fail(STATUS_PEER, "rank %d has left while rank %d waits for %s of step %" PRId64,
                        transfer->peer, h->context->rank, message_kind_name(transfer->header.kind),
                        transfer->header.step);
    }
    return STATUS_OK;
}

/* Fails if the exchange has made no progress within the stall limit. Other ranks wait longer than rank 0, so
 * that rank 0, which knows which rank is late, reports that rank first. */
static status check_stall(dp_hub *h, int64_t now_ns, int64_t *deadline_ns)
{
    const sync_context *c = h->context;
    int64_t patience = c->stall_timeout_ns + (c->rank == 0 ? 0 : c->stall_timeout_ns / 4);
    if (!ps_is_late(c, &h->last_message_ns, patience, now_ns, deadline_ns)) return STATUS_OK;
    char name[192], waited[32];
    text_format_duration(waited, sizeof waited, (double)patience);
    int first = 0; /* The first transfer that has not ended. */
    while (first < h->listed && h->transfers[first].done) first++;
    const dp_transfer *transfer = &h->transfers[first];
    if (first == h->listed)
        return fail(STATUS_PEER, "messages of rank %d were not received within %s", c->rank, waited);
    snprintf(name, sizeof name, "rank %d%s%s", transfer->peer, h->url ? " at " : "", h->url ? h->url : "");
    if (!h->port.was_connected[transfer->peer])
        return fail(STATUS_PEER, "%s was not reached within %s", name, waited);
    return fail(STATUS_PEER, "%s has not %s %s of step %" PRId64 " within the stall limit of %s", name,
                transfer->direction == DP_SEND ? "received" : "sent",
                message_kind_name(transfer->header.kind), transfer->header.step, waited);
}

/* ---- the agent -------------------------------------------------------------------------------- */

static status begin_exchange(dp_hub *h, int64_t now_ns, bool *worked)
{
    if (h->running || atomic_load_explicit(&h->posted, memory_order_acquire) == h->finished) return STATUS_OK;
    h->running = *worked = true;
    h->open_transfers = h->listed = h->count;
    h->begun_ns = h->last_message_ns = now_ns;
    h->leaving_ns = 0;
    h->last = (anatomy_sent){.rank = ANATOMY_NOBODY};
    for (int k = 0; k < h->keys; k++) h->arrived[k] = 0;
    return receive_held(h, now_ns);
}

static void end_exchange(dp_hub *h, int64_t now_ns, bool *worked)
{
    if (!h->running || h->open_transfers > 0 || !transport_sent(&h->ticket)) return;
    h->running = false;
    h->listed = 0;
    *worked = true;
    h->finished++;
    trace_slice(h->context->trace, TRACE_COMMUNICATION, "exchange", TRACE_NO_INDEX, h->begun_ns, now_ns);
    if (h->leaving_ns) anatomy_add_span(h->context->anatomy, h->leaving_ns, ps_port_now(&h->port));
    rank_slot_agent(h->context->slot, RANK_START, RANK_NO_BUCKET, now_ns);
    device_fence_reach(h->done, (uint64_t)h->finished);
}

static status progress(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    dp_hub *h = context;
    TRY(begin_exchange(h, now_ns, worked));
    if (h->running) TRY(send_transfers(h, now_ns, worked));
    TRY(ps_port_receive(&h->port, now_ns, worked));
    end_exchange(h, now_ns, worked);
    if (*worked || !h->running) return STATUS_OK;
    TRY(check_departures(h));
    return check_stall(h, now_ns, deadline_ns);
}

static void failed(void *context, const error_record *error)
{
    device_fence_fail(((dp_hub *)context)->done, error);
}

status dp_hub_start(dp_hub *h)
{
    static const ps_port_ops ops = {progress, handle, failed};
    const sync_context *c = h->context;
    return ps_port_start(&h->port, &ops, h, c->device, "ps-hub",
                         c->inline_progress && !h->compute.separate ? c : NULL);
}

/* ---- the compute thread ------------------------------------------------------------------------ */

dp_transfer *dp_hub_add(dp_hub *h, dp_direction direction, int peer, message_kind kind, int64_t step,
                        int64_t key)
{
    dp_transfer *transfer = &h->transfers[h->count++];
    *transfer = (dp_transfer){
        .direction = direction, .peer = peer, .header = {.kind = kind, .step = step, .key = key}};
    return transfer;
}

/* Returns the operation that the status table shows during the exchange: a pull if any message must arrive,
 * else a push. */
static rank_operation operation_of(const dp_hub *h)
{
    for (int i = 0; i < h->count; i++)
        if (h->transfers[i].direction != DP_SEND) return RANK_PULL;
    return RANK_PUSH;
}

status dp_hub_run(dp_hub *h, const dp_sum *sum)
{
    const sync_context *c = h->context;
    if (!h->port.agent) h->count = 0; /* There is no agent if the device only plans memory. */
    if (h->count == 0) return STATUS_OK;
    rank_operation before = rank_slot_operation(c->slot);
    rank_operation during = operation_of(h);
    if (!h->only_control)
        TRY(sync_staging_end(&h->compute)); /* Wait until the tensors that will be sent have been computed. */
    h->sum = sum ? *sum : (dp_sum){0};
    uint64_t exchange = (uint64_t)++h->posted;
    sync_agent_wake(h->port.agent);
    rank_slot_enter(c->slot, during, device_now_ns(c->device));
    int number;
    TRY(anatomy_begin_wait(c->anatomy));
    TRY(sync_staging_wait(&h->compute, h->done, exchange));
    TRY(anatomy_end_wait(c->anatomy, &number));
    anatomy_name_wait(c->anatomy, number, h->last);
    rank_slot_enter(c->slot, before, device_now_ns(c->device));
    h->count = 0;
    return STATUS_OK;
}
