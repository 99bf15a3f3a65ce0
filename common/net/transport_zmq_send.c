/* The transport over libzmq: sending, without copying and without allocating. */
#include "common/net/transport_zmq_impl.h"

#include <errno.h>

static bool has_free_slot(const zmq_link *l)
{
    return !atomic_load_explicit(&l->slots[l->next_slot].busy, memory_order_seq_cst);
}

status zmq_room(transport *t, int link)
{
    zmq_transport *z = (zmq_transport *)t;
    const zmq_link *l = &z->links[link];
    if (!l->up || l->lost) return STATUS_AGAIN; /* receive() reports the loss */
    if (has_free_slot(l)) return STATUS_OK;
    atomic_store_explicit(&z->waits_for_room, true, memory_order_seq_cst);
    return has_free_slot(l) ? STATUS_OK : STATUS_AGAIN;
}

/* Both run on libzmq's I/O thread, or on the receiver's over inproc://. */
static void header_released(void *data, void *hint)
{
    (void)data;
    header_slot *slot = hint;
    atomic_load_explicit(&slot->busy, memory_order_acquire); /* orders the sender's writes before this */
    zmq_transport *z = slot->owner;
    atomic_store_explicit(&slot->busy, false, memory_order_seq_cst);
    if (atomic_exchange_explicit(&z->waits_for_room, false, memory_order_seq_cst)) zmq_wake(&z->base);
    atomic_fetch_sub_explicit(&z->headers_in_use, 1, memory_order_release);
}

static void frame_released(void *data, void *hint)
{
    (void)data;
    transport_frame_released(hint);
}

static status send_part(void *socket, void *data, size_t bytes, zmq_free_fn *released, void *hint, bool more)
{
    zmq_msg_t part;
    if (zmq_msg_init_data(&part, data, bytes, released, hint) != 0) {
        released(data, hint);
        return fail(STATUS_SYSTEM, "transport: no memory for a message");
    }
    if (zmq_msg_send(&part, socket, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0) return STATUS_OK;
    int reason = errno;
    zmq_msg_close(&part); /* calls released() */
    return reason == EAGAIN
               ? STATUS_AGAIN
               : fail(STATUS_PEER, "transport: a message cannot be sent: %s", zmq_strerror(reason));
}

/* Names the client to the ROUTER. */
static status send_identity(zmq_transport *z, zmq_link *l)
{
    if (zmq_send(z->router, l->identity, sizeof l->identity, ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0)
        return STATUS_OK;
    if (errno == EAGAIN) return STATUS_AGAIN;
    zmq_link_lost(z, l);
    return STATUS_AGAIN;
}

status zmq_send_message(transport *t, int link, const message_header *header, const message_frame *frames,
                        int count, transport_ticket *ticket)
{
    zmq_transport *z = (zmq_transport *)t;
    zmq_link *l = &z->links[link];
    status room = zmq_room(t, link);
    if (room != STATUS_OK) return room;
    header_slot *slot = &l->slots[l->next_slot];
    size_t bytes = message_pack(header, slot->bytes);
    void *socket = l->socket ? l->socket : z->router;
    z->drained = false;
    if (!l->socket) {
        status named = send_identity(z, l);
        if (named != STATUS_OK) return named;
    }
    atomic_store_explicit(&slot->busy, true, memory_order_release);
    if (z->hub) atomic_fetch_add_explicit(&((zmq_hub *)z->hub)->sends, 1, memory_order_release);
    atomic_fetch_add_explicit(&z->headers_in_use, 1, memory_order_relaxed);
    status result = send_part(socket, slot->bytes, bytes, header_released, slot, count > 0);
    if (result != STATUS_OK) return result;
    l->next_slot = (l->next_slot + 1) % t->options.window;
    for (int i = 0; i < count; i++) {
        /* Behind an accepted first part only a broken socket can refuse; the link is then of no use. */
        status rest =
            send_part(socket, (void *)frames[i].data, frames[i].bytes, frame_released, ticket, i + 1 < count);
        if (rest != STATUS_OK && result == STATUS_OK) result = rest;
    }
    if (result != STATUS_OK) zmq_link_lost(z, l);
    return STATUS_OK;
}
