/* What arrives: its sender, its number, its checksum; and what is let go of. */
#include "common/net/transport_impl.h"

#include "common/base/log.h"
#include "common/net/message_wire.h"

#include <inttypes.h>

int transport_link_peer(const transport *t, int link)
{
    return link < t->options.peers ? link : link - t->options.peers;
}

void transport_frame_released(transport_ticket *ticket)
{
    /* Orders what the sender wrote before what is read here, whatever thread this is. */
    atomic_load_explicit(&ticket->pending, memory_order_acquire);
    transport *t = ticket->owner;
    bool wake = ticket->wake;
    if (atomic_fetch_sub_explicit(&ticket->pending, 1, memory_order_acq_rel) == 1 && wake) t->type->wake(t);
    atomic_fetch_sub_explicit(&t->in_use, 1, memory_order_release);
}

int64_t transport_total_bytes(const message_frame *frames, int count)
{
    int64_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += (int64_t)frames[i].bytes;
    return bytes;
}

void transport_reject(transport *t, const char *who, const char *why)
{
    int64_t count = ++t->counters.rejected;
    if ((count & (count - 1)) == 0)
        log_warn("dropped a message from %s: %s (%" PRId64 " so far)", who, why, count);
}

typedef enum verdict { ACCEPT, DROP_SILENTLY, BROKEN } verdict;

static verdict examine(transport *t, const transport_message *m, transport_link *l, status *error)
{
    const message_header *h = &m->header;
    int peer = transport_link_peer(t, m->link);
    if (h->token != t->options.token || h->sender != peer) {
        transport_reject(t, "a peer", h->sender != peer ? "its sender is another rank" : "of another job");
        return DROP_SILENTLY;
    }
    uint64_t digest = t->options.checksum ? message_digest(h, m->frames, h->frames) : 0;
    if (digest != h->checksum) {
        *error = fail(STATUS_IO,
                      "message %" PRIu64 " from rank %d (%s, step %" PRId64 "): checksum %016" PRIx64
                      " found, %016" PRIx64 " sent: damaged on the way",
                      h->sequence, peer, message_kind_name(h->kind), h->step, digest, h->checksum);
        return BROKEN;
    }
    if (h->sequence < l->received) {
        t->counters.duplicates++;
        log_warn("dropped a duplicate of message %" PRIu64 " from rank %d (%s)", h->sequence, peer,
                 message_kind_name(h->kind));
        return DROP_SILENTLY;
    }
    if (h->sequence > l->received) {
        *error = fail(STATUS_PEER, "message %" PRIu64 " from rank %d is missing: found %" PRIu64 " (%s) next",
                      l->received, peer, h->sequence, message_kind_name(h->kind));
        return BROKEN;
    }
    return ACCEPT;
}

static status count_received(transport *t, const transport_message *m)
{
    t->counters.messages_received++;
    t->counters.bytes_received += transport_total_bytes(m->frames, m->header.frames);
    return STATUS_OK;
}

status transport_take(transport *t, transport_message *out)
{
    for (;;) {
        status result = t->type->receive(t, out);
        if (result != STATUS_OK) return result;
        transport_link *l = &t->links[out->link];
        status error = STATUS_OK;
        verdict v = l->broken == STATUS_OK ? examine(t, out, l, &error) : DROP_SILENTLY;
        if (v == ACCEPT) {
            l->received++;
            l->ended = out->header.kind == MESSAGE_BYE;
            if (l->ended) log_debug("rank %d has ended its connection", transport_link_peer(t, out->link));
            if (!l->ended) return count_received(t, out);
        }
        t->type->release(t, out);
        if (v == BROKEN) return l->broken = error;
    }
}

void transport_release(transport *t, transport_message *message)
{
    t->type->release(t, message);
}
