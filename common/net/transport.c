/* The part of a transport that all implementations share: sequence numbers and checksums. */
#include "common/net/transport_impl.h"

#include "common/base/log.h"
#include "common/net/link.h"
#include "common/net/message_wire.h"

#include <inttypes.h>
#include <stdlib.h>

int transport_link_peer(const transport *t, int link)
{
    return link < t->options.peers ? link : link - t->options.peers;
}

void transport_frame_released(transport_ticket *ticket)
{
    /* This load makes the sender's writes visible to this thread before this thread reads other fields of the
     * ticket. */
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

/* Checks a received message. Returns STATUS_OK to accept the message, STATUS_AGAIN to drop the message, or
 * another status if the link is unusable. */
static status examine(transport *t, const transport_message *m, const transport_link *l)
{
    const message_header *h = &m->header;
    int peer = transport_link_peer(t, m->link);
    if (l->broken != STATUS_OK) return STATUS_AGAIN;
    if (h->token != t->options.token || h->sender != peer) {
        transport_reject(t, "a peer",
                         h->sender != peer ? "the header names another rank as sender"
                                           : "the message belongs to another job");
        return STATUS_AGAIN;
    }
    uint64_t digest = t->options.checksum ? message_digest(h, m->frames, h->frames) : 0;
    if (digest != h->checksum)
        return fail(STATUS_IO,
                    "message %" PRIu64 " from rank %d (%s, step %" PRId64 "): checksum %016" PRIx64
                    " found, %016" PRIx64 " sent: damaged on the way",
                    h->sequence, peer, message_kind_name(h->kind), h->step, digest, h->checksum);
    if (h->sequence < l->received) {
        t->counters.duplicates++;
        log_warn("dropped a duplicate of message %" PRIu64 " from rank %d (%s)", h->sequence, peer,
                 message_kind_name(h->kind));
        return STATUS_AGAIN;
    }
    if (h->sequence > l->received)
        return fail(STATUS_PEER, "message %" PRIu64 " from rank %d is missing: got %" PRIu64 " (%s) next",
                    l->received, peer, h->sequence, message_kind_name(h->kind));
    return STATUS_OK;
}

status transport_receive_now(transport *t, transport_message *out)
{
    for (;;) {
        TRY(t->type->receive(t, out));
        transport_link *l = &t->links[out->link];
        status verdict = examine(t, out, l);
        if (verdict == STATUS_OK) {
            l->received++;
            l->ended = out->header.kind == MESSAGE_BYE;
            if (l->ended) log_debug("rank %d has ended its connection", transport_link_peer(t, out->link));
        }
        if (verdict == STATUS_OK && !l->ended) {
            t->counters.messages_received++;
            t->counters.bytes_received += transport_total_bytes(out->frames, out->header.frames);
            return STATUS_OK;
        }
        t->type->release(t, out);
        if (verdict != STATUS_OK && verdict != STATUS_AGAIN) return l->broken = verdict;
    }
}

void transport_release(transport *t, transport_message *message)
{
    t->type->release(t, message);
}

enum { DEFAULT_FRAMES = 16, DEFAULT_WINDOW = 32 };
#define DEFAULT_PEER_TIMEOUT_NS INT64_C(10000000000)

void transport_hub_close(transport_hub **hub)
{
    if (!*hub) return;
    (*hub)->type->hub_close(*hub);
    *hub = NULL;
}

const transport_type *transport_hub_type(const transport_hub *hub)
{
    return hub ? hub->type : &transport_zmq;
}

transport_options transport_defaults(int rank, int peers, uint64_t token, int64_t frame_bytes)
{
    return (transport_options){
        .rank = rank,
        .peers = peers,
        .token = token,
        .frame_bytes = frame_bytes,
        .frames = DEFAULT_FRAMES,
        .window = DEFAULT_WINDOW,
        .checksum = true,
        .peer_timeout_ns = DEFAULT_PEER_TIMEOUT_NS,
    };
}

status transport_open(const transport_type *type, const transport_options *options, transport **out)
{
    if (options->frames < 1 || options->frames > MESSAGE_FRAMES_MAX || options->window < 1 ||
        options->peers < 1 || options->rank < 0 || options->rank >= options->peers)
        return fail(STATUS_INTERNAL, "transport: got %d frames, window %d, rank %d of %d", options->frames,
                    options->window, options->rank, options->peers);
    transport *t;
    TRY(type->open(options, &t));
    t->type = type;
    t->send = type->send;
    t->options = *options;
    t->options.checksum = options->checksum && !type->bytes_do_not_exist;
    if (options->adapter && !net_link_is_emulated(&options->adapter->link)) t->options.adapter = NULL;
    t->links = calloc(2 * (size_t)options->peers, sizeof *t->links);
    if (t->links) {
        *out = t;
        return STATUS_OK;
    }
    type->close(t, 0);
    return fail(STATUS_SYSTEM, "transport: no memory for the links of %d peers", options->peers);
}

void transport_free(transport *t)
{
    free(t->links);
    free(t->held);
    free(t);
}

status transport_reserve(transport *t, int messages)
{
    return t->type->reserve(t, messages);
}

/* Sends one goodbye on each link. If the window of a link is full, first waits until there is room. */
static void say_goodbye(transport *t, int64_t until_ns)
{
    const message_header bye = {.kind = MESSAGE_BYE};
    for (int i = 0; i < 2 * t->options.peers; i++)
        while (transport_link_up(t, i) && transport_send(t, i, &bye, NULL, 0, NULL) == STATUS_AGAIN)
            if (clock_now_ns() >= until_ns || transport_wait(t, until_ns) != STATUS_OK) return;
}

void transport_close(transport **t, int64_t flush_ns)
{
    if (!*t) return;
    int64_t until = clock_now_ns() + flush_ns;
    bool clean = error_code() == STATUS_OK;
    if (flush_ns > 0) {
        say_goodbye(*t, until);
        while ((*t)->deferred > 0 && clock_now_ns() < until)
            if (transport_wait(*t, until) != STATUS_OK) break;
    }
    if (clean) error_clear(); /* Errors about lost peers no longer matter. */
    for (int i = 0; i < 2 * (*t)->options.peers; i++) transport_drop_deferred(*t, &(*t)->links[i]);
    transport_drop_held(*t);
    int64_t left = until - clock_now_ns();
    (*t)->type->close(*t, flush_ns > 0 && left > NS_PER_MS ? left : flush_ns > 0 ? NS_PER_MS : 0);
    *t = NULL;
}

status transport_listen(transport *t, const char *url, char *bound, size_t size)
{
    if (t->links[0].open)
        return fail(STATUS_INTERNAL, "transport: already listens, cannot listen at %s", url);
    TRY(t->type->listen(t, url, bound, size));
    for (int i = 0; i < t->options.peers; i++) t->links[i].open = true;
    return STATUS_OK;
}

status transport_connect(transport *t, int peer, const char *url, int *link)
{
    if (peer < 0 || peer >= t->options.peers || t->links[t->options.peers + peer].open)
        return fail(STATUS_INTERNAL, "transport: peer %d is out of range or connected already", peer);
    *link = t->options.peers + peer;
    TRY(t->type->connect(t, *link, url));
    t->links[*link].open = true;
    return STATUS_OK;
}

bool transport_link_up(const transport *t, int link)
{
    const transport_link *l = &t->links[link];
    return l->open && !l->ended && l->broken == STATUS_OK && t->type->up(t, link);
}

bool transport_link_ended(const transport *t, int link)
{
    return t->links[link].ended;
}

static status check_send(transport *t, int link, const message_frame *frames, int count,
                         const transport_ticket *ticket)
{
    const transport_link *l = &t->links[link];
    if (!l->open) return fail(STATUS_INTERNAL, "transport: link %d is not open", link);
    int peer = transport_link_peer(t, link);
    if (l->ended) return fail(STATUS_PEER, "rank %d has ended its connection", peer);
    if (l->broken != STATUS_OK)
        return fail(l->broken, "the connection to rank %d can no longer be used", peer);
    if (count > t->options.frames || (count > 0 && !ticket))
        return fail(STATUS_INTERNAL, "transport: expected at most %d frames and a ticket, got %d",
                    t->options.frames, count);
    for (int i = 0; i < count; i++)
        if ((int64_t)frames[i].bytes > t->options.frame_bytes)
            return fail(STATUS_INTERNAL, "transport: expected a frame of at most %" PRId64 " bytes, got %zu",
                        t->options.frame_bytes, frames[i].bytes);
    return STATUS_OK;
}

/* Adds the number of frames to the ticket and sends the message. Subtracts the number again if the message
 * was not sent. */
static status send_counted(transport *t, int link, const message_header *header, const message_frame *frames,
                           int count, transport_ticket *ticket, int64_t bytes)
{
    if (count > 0) {
        /* A ticket with frames in flight already has this owner. */
        if (ticket->owner != t) ticket->owner = t;
        atomic_fetch_add_explicit(&ticket->pending, count, memory_order_release);
        atomic_fetch_add_explicit(&t->in_use, count, memory_order_relaxed);
    }
    status result = t->options.adapter ? transport_defer(t, link, header, frames, count, ticket, bytes)
                                       : t->send(t, link, header, frames, count, ticket);
    if (result != STATUS_OK && count > 0) {
        atomic_fetch_sub_explicit(&t->in_use, count, memory_order_relaxed);
        bool last = atomic_fetch_sub_explicit(&ticket->pending, count, memory_order_acq_rel) == count;
        /* The earlier frames of the ticket may have been released meanwhile, so this call must wake the
         * agent. */
        if (last && ticket->wake) t->type->wake(t);
    }
    return result;
}

status transport_send(transport *t, int link, const message_header *header, const message_frame *frames,
                      int count, transport_ticket *ticket)
{
    TRY(check_send(t, link, frames, count, ticket));
    TRY(transport_forward_due(t));
    TRY(transport_room(t, link));
    transport_link *l = &t->links[link];
    message_header h = *header;
    h.sender = t->options.rank;
    h.sequence = l->sent;
    h.token = t->options.token;
    h.frames = count;
    h.checksum = t->options.checksum ? message_digest(&h, frames, count) : 0;
    int64_t bytes = transport_total_bytes(frames, count);
    TRY(send_counted(t, link, &h, frames, count, ticket, bytes));
    l->sent++;
    t->counters.messages_sent++;
    t->counters.bytes_sent += bytes;
    return transport_forward_due(t);
}

status transport_receive(transport *t, transport_message *out)
{
    TRY(transport_forward_due(t));
    return t->options.adapter ? transport_receive_due(t, out) : transport_receive_now(t, out);
}

status transport_wait(transport *t, int64_t deadline_ns)
{
    TRY(transport_forward_due(t));
    int64_t due = transport_next_due(t);
    TRY(t->type->wait(t, due < deadline_ns ? due : deadline_ns));
    return transport_forward_due(t);
}

void transport_wake(transport *t)
{
    t->type->wake(t);
}

void transport_read_counters(const transport *t, transport_counters *out)
{
    *out = t->counters;
}
