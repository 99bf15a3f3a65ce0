/* The work of server 0 in addition to its shard: it keeps rank 0's buffers and sums values for layers. */
#include "ps/server/server.h"

#include <inttypes.h>
#include <string.h>

/* Releases the message, and returns an error. */
static status unexpected(ps_server *s, ps_message *m, const char *expected)
{
    ps_port_release(&s->port, m);
    return fail(
        STATUS_PROTOCOL, "parameter server %d: rank %d sent %s of step %" PRId64 " in %d frames, expected %s",
        s->index, m->peer, message_kind_name(m->header.kind), m->header.step, m->header.frames, expected);
}

/* Sends a message if there is room. Sets *sent to whether the message was sent. */
static status try_send(ps_server *s, int worker, const message_header *h, const message_frame *frame,
                       transport_ticket *ticket, bool *sent, bool *worked)
{
    status rc = server_forgive_left(
        ps_port_send(&s->port, worker, h, frame, frame ? 1 : 0, ticket, frame ? (int64_t)frame->bytes : 0));
    *sent = rc == STATUS_OK;
    *worked = *worked || *sent;
    return rc == STATUS_AGAIN ? STATUS_OK : rc;
}

/* ---- buffers ---------------------------------------------------------------------------------- */

status server_receive_buffers(ps_server *s, ps_message *m)
{
    bool fits = m->peer == 0 && s->buffers.bytes > 0 && m->header.frames == 1 &&
                (int64_t)ps_message_frame(m, 0).bytes == s->buffers.bytes &&
                s->buffers.next.header.kind == MESSAGE_NONE;
    if (!fits) return unexpected(s, m, "the buffers of rank 0, once a step");
    ps_port_count_received(&s->port, m->peer, s->buffers.bytes);
    s->buffers.received = m->header.step;
    s->buffers.next = *m;
    return STATUS_OK;
}

static bool buffers_due(const ps_server *s, int worker)
{
    const server_worker *w = &s->workers[worker];
    return w->buffers_pull > 0 && s->buffers.iteration >= 0 && s->buffers.iteration >= w->buffers_iteration;
}

/* Returns true if a rank still needs the current buffers, because the rank has pulled them or has never
 * received buffers. The second condition matters only in the first iteration. Later, rank 0 sends new buffers
 * only after all ranks have received the buffers of the previous iteration. */
static bool buffers_needed(const ps_server *s)
{
    bool by_iterations = s->policy->consistency != PS_ASYNC && s->buffers.iteration >= 0;
    for (int w = 1; w < s->world; w++)
        if (buffers_due(s, w) || (by_iterations && !s->workers[w].had_buffers)) return true;
    return false;
}

static void accept_buffers(ps_server *s, bool *worked)
{
    ps_message *m = &s->buffers.next;
    if (m->header.kind == MESSAGE_NONE || !transport_sent(&s->buffers.ticket) || buffers_needed(s)) return;
    memcpy(s->buffers.data, ps_message_frame(m, 0).data, (size_t)s->buffers.bytes);
    s->buffers.iteration = m->header.step;
    s->buffers.last = server_sent(&m->header, 0);
    ps_port_release(&s->port, m);
    m->header.kind = MESSAGE_NONE;
    s->buffers.acknowledge = true;
    *worked = true;
}

static status acknowledge_buffers(ps_server *s, bool *worked)
{
    bool sent;
    message_header taken = {.kind = MESSAGE_ACKNOWLEDGE, .step = s->buffers.iteration};
    if (!s->buffers.acknowledge) return STATUS_OK;
    TRY(try_send(s, 0, &taken, NULL, NULL, &sent, worked));
    s->buffers.acknowledge = !sent;
    return STATUS_OK;
}

static status send_buffers(ps_server *s, bool *worked)
{
    bool sent;
    for (int i = 0; i < s->world; i++) {
        server_worker *w = &s->workers[i];
        if (!buffers_due(s, i)) continue;
        message_header h = {.kind = MESSAGE_BUFFERS,
                            .step = w->buffers_pull,
                            .integers = {0, s->buffers.iteration},
                            .arrived_ns = w->buffers_arrived_ns};
        server_put_last(&h, s->buffers.last);
        message_frame frame = {s->buffers.data, (size_t)s->buffers.bytes};
        TRY(try_send(s, i, &h, &frame, &s->buffers.ticket, &sent, worked));
        if (!sent) continue;
        w->buffers_pull = 0;
        w->had_buffers = true;
    }
    return STATUS_OK;
}

/* ---- layers' sums ----------------------------------------------------------------------------- */

status server_receive_layer_share(ps_server *s, ps_message *m)
{
    server_worker *w = &s->workers[m->peer];
    const message_header *h = &m->header;
    bool fits = s->index == 0 && h->frames == 1 && h->count > 0 && h->count <= s->plan->largest_sum &&
                ps_message_frame(m, 0).bytes == (size_t)h->count * sizeof(double) &&
                w->layer_share.header.kind == MESSAGE_NONE;
    if (fits && s->layer.shares > 0)
        fits = h->count == s->layer.header.count && h->step == s->layer.header.step;
    if (!fits) return unexpected(s, m, "one share of the same layer's sum from every rank");
    ps_port_count_received(&s->port, m->peer, h->count * (int64_t)sizeof(double));
    s->layer.header = *h;
    s->layer.last = server_later(s->layer.last, server_sent(h, m->peer));
    w->layer_share = *m;
    s->layer.shares++;
    return STATUS_OK;
}

static void add_layer_shares(ps_server *s)
{
    for (int64_t i = 0; i < s->layer.header.count; i++) s->layer.sums[i] = 0;
    for (int w = 0; w < s->world; w++) {
        ps_message *m = &s->workers[w].layer_share;
        sync_add_values(s->device, s->layer.sums, ps_message_frame(m, 0).data, s->layer.header.count);
        ps_port_release(&s->port, m);
        m->header.kind = MESSAGE_NONE;
    }
    s->layer.reply =
        (message_header){.kind = MESSAGE_SUM, .step = s->layer.header.step, .count = s->layer.header.count};
    server_put_last(&s->layer.reply, s->layer.last);
    s->layer.last = (anatomy_sent){0};
    s->layer.shares = 0;
    s->layer.replies = s->world;
}

static status send_layer_sums(ps_server *s, bool *worked)
{
    message_frame frame = {s->layer.sums, (size_t)s->layer.reply.count * sizeof(double)};
    for (bool sent = true; s->layer.replies > 0 && sent; s->layer.replies -= sent) {
        int worker = s->world - s->layer.replies;
        s->layer.reply.arrived_ns = s->workers[worker].layer_share.arrived_ns;
        TRY(try_send(s, worker, &s->layer.reply, &frame, &s->layer.ticket, &sent, worked));
    }
    return STATUS_OK;
}

/* ---- squared norms ---------------------------------------------------------------------------- */

static status send_norms(ps_server *s, bool *worked)
{
    for (int i = 0; s->needs_norm && i < s->world; i++) {
        bool sent;
        message_header h = {.kind = MESSAGE_CONTROL, .doubles = {s->workers[i].norm}};
        if (!s->workers[i].norm_due) continue;
        TRY(try_send(s, i, &h, NULL, NULL, &sent, worked));
        s->workers[i].norm_due = !sent;
    }
    return STATUS_OK;
}

status server_send_shared(ps_server *s, bool *worked)
{
    TRY(send_norms(s, worked));
    if (s->index != 0) return STATUS_OK;
    accept_buffers(s, worked);
    TRY(acknowledge_buffers(s, worked));
    TRY(send_buffers(s, worked));
    if (s->layer.shares == s->world && s->layer.replies == 0 && transport_sent(&s->layer.ticket))
        add_layer_shares(s);
    return send_layer_sums(s, worked);
}
