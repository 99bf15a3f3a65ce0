#include "ps/port.h"

#include <stdlib.h>
#include <string.h>

/* A header and at most one frame, which is the partner's memory. */
typedef struct from_partner {
    message_header header;
    message_frame frame; /* data NULL: none */
} from_partner;

status ps_port_open(ps_port *p, const transport_options *options, int peers, int held, int partner, uint32_t capacity)
{
    p->peers = peers;
    p->partner = partner;
    p->links = malloc((size_t)peers * sizeof *p->links);
    if (!p->links) return fail(STATUS_SYSTEM, "no memory for the links of %d peers", peers);
    for (int i = 0; i < peers; i++) p->links[i] = PS_NO_PEER;
    if (partner != PS_NO_PEER) TRY(sync_queue_init(&p->in, capacity, sizeof(from_partner)));
    const transport_type *type = transport_hub_type(options->hub);
    p->in_events = type != &transport_zmq;
    TRY(transport_open(type, options, &p->transport));
    return transport_reserve(p->transport, held);
}

void ps_port_disconnect(ps_port *p, int64_t flush_ns)
{
    transport_close(&p->transport, flush_ns);
}

void ps_port_close(ps_port *p)
{
    transport_close(&p->transport, 0);
    sync_queue_deinit(&p->in);
    free(p->links);
    p->links = NULL;
}

static status send_to_partner(ps_port *p, const message_header *header, const message_frame *frames, int count)
{
    from_partner entry = {*header, count > 0 ? frames[0] : (message_frame){0}};
    entry.header.frames = count;
    if (!sync_queue_push(&p->other->in, &entry)) return STATUS_AGAIN;
    ps_port_wake(p->other);
    return STATUS_OK;
}

static void count_sent(ps_port *p, int64_t messages, int64_t payload)
{
    atomic_fetch_add_explicit(&p->messages_sent, messages, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->bytes_sent, payload, memory_order_relaxed);
}

status ps_port_send(ps_port *p, int peer, const message_header *header, const message_frame *frames, int count,
                    transport_ticket *ticket, int64_t payload)
{
    if (peer == p->partner) return send_to_partner(p, header, frames, count);
    if (p->links[peer] == PS_NO_PEER) return STATUS_AGAIN;
    /* Counted before it leaves: its receiver may have ended the step before this thread continues. */
    count_sent(p, 1, payload);
    status rc = transport_send(p->transport, p->links[peer], header, frames, count, ticket);
    if (rc != STATUS_OK) count_sent(p, -1, -payload);
    return rc;
}

status ps_port_receive(ps_port *p, ps_message *out)
{
    from_partner entry;
    if (p->partner != PS_NO_PEER && sync_queue_pop(&p->in, &entry)) {
        *out = (ps_message){.header = entry.header, .peer = p->partner, .frame = entry.frame};
        return STATUS_OK;
    }
    TRY(transport_receive(p->transport, &out->message));
    out->header = out->message.header;
    out->peer = transport_link_peer(p->transport, out->message.link);
    out->remote = true;
    atomic_fetch_add_explicit(&p->messages_received, 1, memory_order_relaxed);
    return STATUS_OK;
}

void ps_port_release(ps_port *p, ps_message *m)
{
    if (m->remote) transport_release(p->transport, &m->message);
    m->remote = false;
}

status ps_message_failure(const ps_message *m)
{
    error_record record = {.code = (status)m->header.flags};
    message_frame text = m->header.frames > 0 ? ps_message_frame(m, 0) : (message_frame){0};
    size_t length = text.bytes < sizeof record.message ? text.bytes : sizeof record.message - 1;
    if (length > 0) memcpy(record.message, text.data, length);
    if (record.code <= STATUS_AGAIN || record.code >= STATUS_COUNT) record.code = STATUS_PEER;
    return error_adopt(&record);
}

void ps_port_count_received(ps_port *p, int peer, int64_t payload)
{
    if (peer != p->partner) atomic_fetch_add_explicit(&p->bytes_received, payload, memory_order_relaxed);
}

typedef enum port_attention { PORT_AWAKE, PORT_ASLEEP, PORT_WOKEN } port_attention;

void ps_port_wait(ps_port *p, int64_t deadline_ns)
{
    int before = atomic_exchange_explicit(&p->attention, PORT_ASLEEP, memory_order_acq_rel);
    if (before != PORT_WOKEN) transport_wait(p->transport, deadline_ns);
    atomic_exchange_explicit(&p->attention, PORT_AWAKE, memory_order_acq_rel);
}

void ps_port_wake(ps_port *p)
{
    int before = atomic_exchange_explicit(&p->attention, PORT_WOKEN, memory_order_acq_rel);
    if (before == PORT_ASLEEP || p->in_events) transport_wake(p->transport);
}

bool ps_port_is_connected(const ps_port *p, int peer)
{
    if (peer == p->partner) return true;
    return p->links[peer] != PS_NO_PEER && transport_link_up(p->transport, p->links[peer]);
}
