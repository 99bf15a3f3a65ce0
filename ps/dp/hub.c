/* The hub. The compute thread lists transfers and waits for them. The agent sends, receives and sums. */
#include "ps/dp/hub.h"

#include "common/base/clock.h"
#include "common/base/text.h"
#include "common/net/key.h"
#include "common/net/status_table.h"
#include "common/reduce/reduce.h"
#include "common/sync/anatomy.h"
#include "common/trace/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Used by the compute thread. */
typedef struct hub_compute {
    sync_staging staging; /* On the compute stream. */
} hub_compute;

/* Used by both threads. The fields before `posted` belong to the compute thread until it posts an exchange,
 * then to the agent until `done` is reached. */
typedef struct hub_shared {
    dp_transfer *transfers; /* [config.transfers] */
    int count;
    dp_sum sum;
    bool sums;
    _Atomic int64_t posted; /* Number of exchanges that have been posted. */
    device_fence *done;     /* Number of exchanges that have ended. */
    anatomy_sent last;      /* The latest-sent message that the exchange has received. */
    ps_port port;
} hub_shared;

typedef struct hub_agent {
    const dp_hub_config *c;
    hub_shared *shared;
    ps_port *port;
    char *url; /* Rank 0's URL for error messages. NULL on rank 0. */

    int64_t finished; /* Number of exchanges that have ended. */
    bool running;
    int listed; /* Number of transfers of the running exchange, else 0. */
    int open_transfers;
    int *arrived;     /* [c->keys] Number of transfers of a key that have arrived. */
    ps_message *held; /* [held_capacity] Messages that arrived before their exchange. */
    int held_count, held_capacity;
    transport_ticket ticket;
    int64_t begun_ns, last_message_ns;
    int64_t leaving_ns; /* Time at which the exchange sent its first message, or 0. */

    ps_thread_pool *pool;
    const void **sources;             /* [threads][world] Contributions to a sum on the host. */
    sync_contribution *contributions; /* [world] Contributions to a sum on a GPU. */
    device_stream *stream;
    sync_staging staging; /* On `stream`. */
} hub_agent;

struct dp_hub {
    dp_hub_config config; /* Never changes. */
    hub_compute compute;
    hub_shared shared;
    hub_agent agent;
};

static int64_t region_bytes(const dp_region *r)
{
    return piece_list_elements(r->pieces) * r->element;
}

/* ---- sums of gradients ------------------------------------------------------------------------- */

typedef struct sum_job {
    hub_agent *hub;
    dp_transfer *transfers; /* [present - 1] Transfers of the key. */
} sum_job;

/* Returns the address of element `at` of piece `index` in a tensor that a transfer has received. */
static const char *brought(const dp_transfer *transfer, int index, int64_t at)
{
    const dp_region *r = &transfer->region;
    if (!transfer->shared)
        return (const char *)ps_message_frame(&transfer->message, index).data + at * r->element;
    return transfer->remote + (r->pieces.pieces[index].offset + at) * r->element;
}

static status sum_range(void *context, int thread, int index, int64_t at, int64_t count)
{
    const sum_job *j = context;
    hub_agent *h = j->hub;
    const dp_sum *sum = &h->shared->sum;
    const dp_region *r = &j->transfers[0].region;
    int64_t offset = (r->pieces.pieces[index].offset + at) * r->element;
    const void **sources = h->sources + (int64_t)thread * h->c->context->world;
    void *out = sum->grads + offset;
    sources[0] = out;
    for (int i = 1; i < sum->present; i++) sources[i] = brought(&j->transfers[i - 1], index, at);
    reduce_average(sum->type, out, sources, sum->present, count, sum->before, sum->after);
    return STATUS_OK;
}

static status sum_piece_on_gpu(const sum_job *j, int index)
{
    hub_agent *h = j->hub;
    const dp_sum *sum = &h->shared->sum;
    const dp_region *r = &j->transfers[0].region;
    char *own = sum->grads + r->pieces.pieces[index].offset * r->element;
    h->contributions[0] = (sync_contribution){own, true};
    for (int i = 1; i < sum->present; i++) {
        h->contributions[i] = (sync_contribution){brought(&j->transfers[i - 1], index, 0), false};
    }
    return sync_staging_sum(&h->staging, sum->type, own, h->contributions, sum->present,
                            r->pieces.pieces[index].count, sum->before, sum->after, h->c->landing);
}

static status sum_on_gpu(const sum_job *j)
{
    for (int i = 0; i < j->transfers[0].region.pieces.count; i++) TRY(sum_piece_on_gpu(j, i));
    return sync_staging_end(&j->hub->staging);
}

static status sum_key(hub_agent *h, int key)
{
    sum_job j = {h, &h->shared->transfers[key * (h->shared->sum.present - 1)]};
    device *d = h->c->context->device;
    if (h->staging.separate)
        TRY(sum_on_gpu(&j));
    else if (ps_has_bytes(d))
        TRY(ps_thread_pool_run(h->pool, j.transfers[0].region.pieces, sum_range, &j));
    else
        ps_charge_pass(d, (double)(region_bytes(&j.transfers[0].region) * (h->shared->sum.present + 1)),
                       ps_sums_on_host(d) ? h->c->threads : 0);
    for (int i = 0; i < h->shared->sum.present - 1; i++) ps_port_release(h->port, &j.transfers[i].message);
    return STATUS_OK;
}

/* ---- sending ---------------------------------------------------------------------------------- */

static void transfer_done(hub_agent *h, dp_transfer *transfer, int64_t now_ns)
{
    transfer->done = true;
    h->open_transfers--;
    h->last_message_ns = now_ns;
}

static status send_transfer(hub_agent *h, dp_transfer *transfer, int64_t now_ns)
{
    const dp_region *r = &transfer->region;
    message_frame frames[MESSAGE_FRAMES_MAX];
    int count = transfer->shared ? 0 : ps_frames_of(frames, r->base, r->pieces, r->element);
    if (transfer->shared && transfer->remote && !transfer->copied)
        TRY(ps_copy_pieces(&h->staging, transfer->remote, r->base, r->pieces, r->element));
    transfer->copied = true;
    transfer->header.ready_ns = h->begun_ns;
    TRY(ps_port_send(h->port, transfer->peer, &transfer->header, frames, count, &h->ticket, region_bytes(r)));
    if (h->leaving_ns == 0) h->leaving_ns = now_ns;
    rank_slot_agent(h->c->context->slot, RANK_PUSH, (int)transfer->header.key, now_ns);
    transfer_done(h, transfer, now_ns);
    return STATUS_OK;
}

/* Sends all transfers that can be sent now. A peer that has no room is skipped until the next call. */
static status send_transfers(hub_agent *h, int64_t now_ns, bool *worked)
{
    int blocked = -1;
    for (int i = 0; i < h->listed && h->open_transfers > 0; i++) {
        dp_transfer *transfer = &h->shared->transfers[i];
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

static status malformed(const hub_agent *h, const ps_message *m)
{
    const message_header *got = &m->header;
    return fail(STATUS_PROTOCOL,
                "rank %d: rank %d sent %s of step %" PRId64 ", key %" PRId64
                ", in %d frames: not of this exchange",
                h->c->context->rank, m->peer, message_kind_name(got->kind), got->step, got->key, got->frames);
}

static dp_transfer *find_transfer(hub_agent *h, const ps_message *m)
{
    for (int i = 0; i < h->listed; i++) {
        dp_transfer *transfer = &h->shared->transfers[i];
        if (transfer->done || transfer->direction == DP_SEND || transfer->peer != m->peer) continue;
        const message_header *a = &transfer->header, *b = &m->header;
        if (a->kind == b->kind && a->step == b->step && a->key == b->key) return transfer;
    }
    return NULL;
}

/* Records the times at which communication was in progress: from the send to the arrival, and from begin_ns
 * until now. */
static void record_message(hub_agent *h, const ps_message *m, int64_t begin_ns)
{
    anatomy *a = h->c->context->anatomy;
    anatomy_add_span(a, m->header.sent_ns, m->arrived_ns);
    anatomy_add_span(a, begin_ns, ps_port_now(h->port));
    if (m->header.sent_ns > h->shared->last.ns)
        h->shared->last =
            (anatomy_sent){.ns = m->header.sent_ns, .ready_ns = m->header.ready_ns, .rank = m->peer};
}

/* Copies the tensor of a message, or sums when the last tensor of its key has arrived. Takes over the
 * message. */
static status receive_transfer(hub_agent *h, dp_transfer *transfer, ps_message *m, int64_t now_ns)
{
    const dp_region *r = &transfer->region;
    if (transfer->shared ? m->header.frames > 0 : !ps_has_frames_of(m, r->pieces, r->element)) {
        status rc = malformed(h, m);
        ps_port_release(h->port, m);
        return rc;
    }
    ps_message received = *m;
    ps_port_count_received(h->port, m->peer, region_bytes(r));
    transfer->header = m->header;
    if (transfer->direction == DP_REDUCE) {
        int key = (int)m->header.key;
        transfer->message = *m;
        if (++h->arrived[key] == h->shared->sum.present - 1) TRY(sum_key(h, key));
    } else {
        status rc = STATUS_OK;
        if (!transfer->shared)
            ps_take_frames(h->c->context->device, m, r->base, r->pieces, r->element);
        else if (transfer->remote)
            rc = ps_copy_pieces(&h->staging, r->base, transfer->remote, r->pieces, r->element);
        ps_port_release(h->port, m);
        TRY(rc);
    }
    record_message(h, &received, now_ns > received.arrived_ns ? now_ns : received.arrived_ns);
    transfer_done(h, transfer, now_ns);
    return STATUS_OK;
}

/* Handles a message of the running exchange, and holds other messages for a later exchange. Between exchanges
 * the compute thread lists transfers, so the agent must not read them. A peer is at most one exchange ahead,
 * so a message that exceeds `held_capacity` is an error of the peer. */
static status handle(void *context, ps_message *m, int64_t now_ns)
{
    hub_agent *h = context;
    status rc;
    dp_transfer *transfer = h->running ? find_transfer(h, m) : NULL;
    if (transfer) return receive_transfer(h, transfer, m, now_ns);
    if (m->header.kind != MESSAGE_FAILED && h->held_count < h->held_capacity) {
        h->held[h->held_count++] = *m;
        return STATUS_OK;
    }
    rc = m->header.kind == MESSAGE_FAILED ? ps_message_failure(m) : malformed(h, m);
    ps_port_release(h->port, m);
    return rc;
}

static status receive_held(hub_agent *h, int64_t now_ns)
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

static const dp_transfer *first_open(const hub_agent *h)
{
    for (int i = 0; i < h->listed; i++)
        if (!h->shared->transfers[i].done) return &h->shared->transfers[i];
    return NULL;
}

static status check_departures(hub_agent *h)
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

/* Fails if the exchange has made no progress for the stall limit. Other ranks wait longer than rank 0, which
 * knows the late rank and reports it. */
static status check_stall(hub_agent *h, int64_t now_ns, int64_t *deadline_ns)
{
    const sync_context *c = h->c->context;
    int64_t patience = c->stall_timeout_ns + (c->rank == 0 ? 0 : c->stall_timeout_ns / 4);
    if (!ps_is_late(c, &h->last_message_ns, patience, now_ns, deadline_ns)) return STATUS_OK;
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

static status begin_exchange(hub_agent *h, int64_t now_ns, bool *worked)
{
    const hub_shared *s = h->shared;
    if (h->running || atomic_load_explicit(&s->posted, memory_order_acquire) == h->finished) return STATUS_OK;
    h->running = *worked = true;
    h->open_transfers = h->listed = s->count;
    h->begun_ns = h->last_message_ns = now_ns;
    h->leaving_ns = 0;
    h->shared->last = (anatomy_sent){.rank = ANATOMY_NOBODY};
    for (int k = 0; s->sums && k < s->sum.keys; k++) h->arrived[k] = 0;
    return receive_held(h, now_ns);
}

static void end_exchange(hub_agent *h, int64_t now_ns, bool *worked)
{
    if (!h->running || h->open_transfers > 0 || !transport_sent(&h->ticket)) return;
    h->running = false;
    h->listed = 0;
    *worked = true;
    h->finished++;
    trace_slice(h->c->context->trace, TRACE_COMMUNICATION, "exchange", TRACE_NO_INDEX, h->begun_ns, now_ns);
    if (h->leaving_ns) anatomy_add_span(h->c->context->anatomy, h->leaving_ns, ps_port_now(h->port));
    rank_slot_agent(h->c->context->slot, RANK_START, RANK_NO_BUCKET, now_ns);
    device_fence_reach(h->shared->done, (uint64_t)h->finished);
}

static status progress(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    hub_agent *h = context;
    TRY(begin_exchange(h, now_ns, worked));
    if (h->running) TRY(send_transfers(h, now_ns, worked));
    TRY(ps_port_receive(h->port, now_ns, worked));
    end_exchange(h, now_ns, worked);
    if (*worked || !h->running) return STATUS_OK;
    TRY(check_departures(h));
    return check_stall(h, now_ns, deadline_ns);
}

static void failed(void *context, const error_record *error)
{
    device_fence_fail(((hub_agent *)context)->shared->done, error);
}

status dp_hub_start(dp_hub *p)
{
    static const ps_port_ops ops = {progress, handle, failed};
    const sync_context *c = p->config.context;
    return ps_port_start(&p->shared.port, &ops, &p->agent, c->device, "ps-hub",
                         c->inline_progress && !p->compute.staging.separate ? c : NULL);
}

/* ---- the compute thread ------------------------------------------------------------------------ */

dp_transfer *dp_hub_add(dp_hub *p, dp_direction direction, int peer, message_kind kind, int64_t step,
                        int64_t key)
{
    dp_transfer *transfer = &p->shared.transfers[p->shared.count++];
    *transfer = (dp_transfer){
        .direction = direction, .peer = peer, .header = {.kind = kind, .step = step, .key = key}};
    return transfer;
}

/* Returns the operation that the status table shows during the exchange: a pull if any message must arrive,
 * else a push. */
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
    if (device_get_info(c->device)->plans) s->count = 0;
    if (s->count == 0) return STATUS_OK;
    rank_operation before = rank_slot_operation(c->slot);
    rank_operation during = operation_of(s);
    if (!p->config.only_control)
        TRY(sync_staging_end(&p->compute.staging)); /* Wait until the tensors to send are complete. */
    s->sums = sum != NULL;
    if (sum) s->sum = *sum;
    int64_t exchange = atomic_fetch_add_explicit(&s->posted, 1, memory_order_release) + 1;
    sync_agent_wake(s->port.agent);
    rank_slot_enter(c->slot, during, device_now_ns(c->device));
    int number;
    TRY(anatomy_begin_wait(c->anatomy));
    TRY(sync_staging_wait(&p->compute.staging, s->done, (uint64_t)exchange));
    TRY(anatomy_end_wait(c->anatomy, &number));
    anatomy_name_wait(c->anatomy, number, s->last);
    rank_slot_enter(c->slot, before, device_now_ns(c->device));
    s->count = 0;
    return STATUS_OK;
}

void dp_hub_collect(dp_hub *p, sync_counters *out)
{
    ps_port_collect(&p->shared.port, out);
}

/* ---- open and close ------------------------------------------------------------------------------ */

static status no_memory(void)
{
    return fail(STATUS_SYSTEM, "no memory for the exchanges of a rank");
}

static status open_agent(hub_agent *h)
{
    const dp_hub_config *c = h->c;
    size_t threads = (size_t)c->threads, world = (size_t)c->context->world;
    h->ticket.wake = true;
    /* Messages of the current exchange and of the next one. */
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
    hub_agent *h = &p->agent;
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
