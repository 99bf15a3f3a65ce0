/* The transport over libzmq: receives messages and detects connections and losses. */
#include "common/net/transport_zmq_impl.h"

#include "common/base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { MONITORS_EVERY = 64 }; /* number of receives that find no message, after which the monitors are read */

/* Allocates a slot together with its parts and frames. */
static receive_slot *make_slot(const zmq_transport *z)
{
    size_t frames = (size_t)z->base.options.frames;
    receive_slot *slot = calloc(1, sizeof *slot + frames * (sizeof *slot->parts + sizeof *slot->frames));
    if (!slot) return NULL;
    slot->parts = (zmq_msg_t *)(slot + 1);
    slot->frames = (message_frame *)(slot->parts + frames);
    return slot;
}

static receive_slot *take_slot(zmq_transport *z)
{
    receive_slot *slot = z->free_slots;
    if (!slot) return make_slot(z);
    z->free_slots = slot->next;
    return slot;
}

static void give_slot(zmq_transport *z, receive_slot *slot)
{
    for (int i = 0; i < slot->used; i++) zmq_msg_close(&slot->parts[i]);
    slot->used = 0;
    slot->next = z->free_slots;
    z->free_slots = slot;
}

status zmq_reserve(transport *t, int messages)
{
    zmq_transport *z = (zmq_transport *)t;
    for (int i = 0; i < messages; i++) {
        receive_slot *slot = make_slot(z);
        if (!slot) return fail(STATUS_SYSTEM, "transport: no memory to receive %d messages", messages);
        give_slot(z, slot);
    }
    return STATUS_OK;
}

void zmq_release(transport *t, transport_message *message)
{
    give_slot((zmq_transport *)t, message->slot);
    message->slot = NULL;
    message->frames = NULL;
}

static void skip_rest(void *socket, bool more)
{
    while (more) {
        zmq_msg_t part;
        zmq_msg_init(&part);
        more = zmq_msg_recv(&part, socket, ZMQ_DONTWAIT) >= 0 && zmq_msg_more(&part);
        zmq_msg_close(&part);
    }
}

/* Reads the tensor frames. Sets `*why` if the number of frames differs from the number in the header. */
static status read_frames(zmq_transport *z, void *socket, bool more, receive_slot *slot, int expected,
                          const char **why)
{
    status result = STATUS_OK;
    while (more && result == STATUS_OK && slot->used < expected && slot->used < z->base.options.frames) {
        zmq_msg_t *part = &slot->parts[slot->used];
        zmq_msg_init(part);
        slot->used++;
        if (zmq_msg_recv(part, socket, ZMQ_DONTWAIT) < 0) break;
        more = zmq_msg_more(part);
        result = zsocket_align(part);
        slot->frames[slot->used - 1] = (message_frame){zmq_msg_data(part), zmq_msg_size(part)};
    }
    if (more || slot->used != expected) *why = "the number of frames differs from the number in the header";
    skip_rest(socket, more);
    return result;
}

/* Reads a header. If the frame is not a header, returns the reason, else NULL. Leaves the error record
 * unchanged. */
static const char *read_header(zmq_msg_t *part, message_header *out)
{
    bool clean = error_code() == STATUS_OK;
    if (message_unpack(zmq_msg_data(part), zmq_msg_size(part), out) == STATUS_OK) return NULL;
    if (clean) {
        log_debug("%s", error_message());
        error_clear();
    }
    return "the message does not begin with a header";
}

/* Reads the first part of a message from the ROUTER, which identifies the peer. Returns the link of the peer,
 * or -1 if the message must be skipped. *more is true if further parts follow. */
static int read_identity(zmq_transport *z, zmq_msg_t *part, bool *more)
{
    int rank = zsocket_rank_of(zmq_msg_data(part), zmq_msg_size(part), z->base.options.token);
    *more = zmq_msg_more(part);
    if (rank < 0 || rank >= z->base.options.peers || !*more) return -1;
    if (zmq_msg_recv(part, z->router.zmq, ZMQ_DONTWAIT) < 0) return -1;
    *more = zmq_msg_more(part);
    return rank;
}

/* Reads one message from `socket`. `link` is -1 for the ROUTER. Sets *got to false if the message is a probe
 * or is refused. Returns STATUS_AGAIN if there is no message. */
static status read_message(zmq_transport *z, void *socket, int link, transport_message *out, bool *got)
{
    zmq_msg_t part;
    zmq_msg_init(&part);
    *got = false;
    if (zmq_msg_recv(&part, socket, ZMQ_DONTWAIT) < 0) {
        int reason = errno;
        zmq_msg_close(&part);
        if (reason == EAGAIN || reason == EINTR) return STATUS_AGAIN;
        return fail(STATUS_SYSTEM, "transport: receiving failed: %s", zmq_strerror(reason));
    }
    if (z->hub) atomic_load_explicit(&z->hub->sends, memory_order_acquire);
    bool more = zmq_msg_more(&part);
    if (link < 0) link = read_identity(z, &part, &more);
    const char *why = link < 0 ? "not a rank of this job" : NULL;
    status result = STATUS_OK;
    if (!why && !z->links[link].up) result = zmq_link_prepare(z, &z->links[link]);
    if (!why && zmq_msg_size(&part) == 0 && !more) { /* a probe */
        zmq_msg_close(&part);
        return result;
    }
    if (!why) why = read_header(&part, &out->header);
    zmq_msg_close(&part);
    receive_slot *slot = why || result != STATUS_OK ? NULL : take_slot(z);
    if (!slot)
        skip_rest(socket, more);
    else
        result = read_frames(z, socket, more, slot, out->header.frames, &why);
    if (!why && !slot && result == STATUS_OK) result = fail(STATUS_SYSTEM, "transport: no memory to receive");
    if (why || result != STATUS_OK) {
        if (slot) give_slot(z, slot);
        char who[32] = "a stranger";
        if (link >= 0) snprintf(who, sizeof who, "rank %d", transport_link_peer(&z->base, link));
        if (why) transport_reject(&z->base, who, why);
        return result;
    }
    out->link = link;
    out->frames = slot->frames;
    out->slot = slot;
    *got = true;
    return STATUS_OK;
}

/* Reads from every socket once, beginning with the socket after the one that had the last message. Socket 0
 * is the ROUTER, and socket 1 + p is the DEALER to peer p. */
static status read_any(zmq_transport *z, transport_message *out)
{
    int peers = z->base.options.peers;
    for (int i = 0, s = z->next_socket; i <= peers; i++, s = s == peers ? 0 : s + 1) {
        void *socket = s == 0 ? z->router.zmq : z->links[peers + s - 1].dealer.zmq;
        bool got = false;
        status rc = socket ? STATUS_OK : STATUS_AGAIN;
        while (rc == STATUS_OK && !got) rc = read_message(z, socket, s == 0 ? -1 : peers + s - 1, out, &got);
        if (rc == STATUS_AGAIN) continue;
        z->next_socket = s == peers ? 0 : s + 1;
        z->drained = false;
        return rc;
    }
    z->drained = true;
    return STATUS_AGAIN;
}

static status report_loss(zmq_transport *z)
{
    for (int i = 0; i < 2 * z->base.options.peers; i++) {
        transport_link *link = &z->base.links[i];
        if (!z->links[i].lost || link->ended || link->broken != STATUS_OK) continue;
        const char *url = z->links[i].url;
        link->broken = STATUS_PEER;
        return fail(STATUS_PEER, "rank %d is lost: its connection%s%s has ended",
                    transport_link_peer(&z->base, i), url ? " at " : "", url ? url : "");
    }
    z->loss_pending = false;
    return STATUS_AGAIN;
}

status zmq_receive(transport *t, transport_message *out)
{
    zmq_transport *z = (zmq_transport *)t;
    status rc = read_any(z, out);
    if (rc != STATUS_AGAIN || (!z->loss_pending && ++z->idle_receives % MONITORS_EVERY != 0)) return rc;
    TRY(zmq_read_monitors(z));
    zmq_probe_clients(z);
    if (!z->loss_pending) return STATUS_AGAIN;
    rc = read_any(z, out); /* Messages that arrived before a connection was lost are read first. */
    return rc == STATUS_AGAIN ? report_loss(z) : rc;
}

status zmq_read_monitors(zmq_transport *z)
{
    const char *why;
    while (z->router.zmq && (why = zsocket_next_refusal(&z->router)) != NULL)
        transport_reject(&z->base, "a stranger", why);
    for (int i = z->base.options.peers; i < 2 * z->base.options.peers; i++) {
        zmq_link *l = &z->links[i];
        if (!l->dealer.zmq) continue;
        for (zsocket_event event; (event = zsocket_next_event(&l->dealer)) != ZSOCKET_NO_EVENT;) {
            if (event == ZSOCKET_UP && !l->up) TRY(zmq_link_prepare(z, l));
            if (event == ZSOCKET_DOWN) zmq_link_lost(z, l);
        }
    }
    return STATUS_OK;
}

void zmq_probe_clients(zmq_transport *z)
{
    if (!zsocket_begin_probes(&z->router)) return;
    z->drained = false;
    for (int i = 0; i < z->base.options.peers; i++) {
        zmq_link *l = &z->links[i];
        bool there = l->up && !l->lost && !z->base.links[i].ended;
        if (there && !zsocket_probe(&z->router, &l->identity)) zmq_link_lost(z, l);
    }
}
