/* The transport over libzmq: opens, closes, waits, and sends without copying or allocating. */
#include "common/net/transport_zmq_impl.h"

#include "common/net/key.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static bool has_free_slot(const zmq_link *l)
{
    return !atomic_load_explicit(&l->slots[l->next_slot].busy, memory_order_seq_cst);
}

static status room_zmq(transport *t, int link)
{
    zmq_transport *z = (zmq_transport *)t;
    const zmq_link *l = &z->links[link];
    if (!l->up || l->lost) return STATUS_AGAIN; /* zmq_receive() reports a lost link. */
    if (has_free_slot(l)) return STATUS_OK;
    atomic_store_explicit(&z->waits_for_room, true, memory_order_seq_cst);
    return has_free_slot(l) ? STATUS_OK : STATUS_AGAIN;
}

static void wake_zmq(transport *t)
{
    /* The only possible error is a full counter, which also wakes the reader. */
    eventfd_write(((zmq_transport *)t)->wake_fd, 1);
}

/* header_released() and frame_released() run on libzmq's I/O thread, or on the receiver's thread over
 * inproc://. */
static void header_released(void *data, void *hint)
{
    (void)data;
    header_slot *slot = hint;
    /* Makes the sender's writes to the slot visible to this thread. */
    atomic_load_explicit(&slot->busy, memory_order_acquire);
    zmq_transport *z = slot->owner;
    atomic_store_explicit(&slot->busy, false, memory_order_seq_cst);
    if (atomic_exchange_explicit(&z->waits_for_room, false, memory_order_seq_cst)) wake_zmq(&z->base);
    atomic_fetch_sub_explicit(&z->headers_in_use, 1, memory_order_release);
}

static void frame_released(void *data, void *hint)
{
    (void)data;
    transport_frame_released(hint);
}

static status open_part(zmq_msg_t *part, void *data, size_t bytes, zmq_free_fn *released, void *hint)
{
    if (zmq_msg_init_data(part, data, bytes, released, hint) == 0) return STATUS_OK;
    released(data, hint);
    return fail(STATUS_SYSTEM, "transport: no memory for a message");
}

static status send_part(void *socket, zmq_msg_t *part, bool more)
{
    if (zmq_msg_send(part, socket, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0) return STATUS_OK;
    int reason = errno;
    zmq_msg_close(part); /* calls header_released() or frame_released() */
    return reason == EAGAIN
               ? STATUS_AGAIN
               : fail(STATUS_PEER, "transport: a message cannot be sent: %s", zmq_strerror(reason));
}

static status send_identity(zmq_transport *z, zmq_link *l)
{
    const zsocket_identity *to = &l->identity;
    if (zmq_send(z->router.zmq, to->bytes, sizeof to->bytes, ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0)
        return STATUS_OK;
    if (errno != EAGAIN) zmq_link_lost(z, l);
    return STATUS_AGAIN;
}

/* Sends the frames after the header. If the message were left incomplete, the parts of the next message would
 * be appended to it. Therefore, if the last frame cannot be sent, two empty parts end the message, and the
 * receiver detects the wrong number of parts. */
static status send_frames(void *socket, const message_frame *frames, int count, transport_ticket *ticket)
{
    status result = STATUS_OK;
    for (int i = 0; i < count; i++) {
        zmq_msg_t part;
        bool more = i + 1 < count;
        status rc = open_part(&part, (void *)frames[i].data, frames[i].bytes, frame_released, ticket);
        if (rc == STATUS_OK) rc = send_part(socket, &part, more);
        if (rc == STATUS_OK) continue;
        result = rc;
        for (int empty = 0; !more && empty < 2; empty++)
            zmq_send(socket, "", 0, ZMQ_DONTWAIT | (empty ? 0 : ZMQ_SNDMORE));
    }
    return result;
}

/* Sends a message. The part for the header is allocated before the identity is sent: if this allocation
 * failed after the identity had been sent, the identity would become a part of the next message. */
static status send_zmq(transport *t, int link, const message_header *header, const message_frame *frames,
                       int count, transport_ticket *ticket)
{
    zmq_transport *z = (zmq_transport *)t;
    zmq_link *l = &z->links[link];
    TRY(room_zmq(t, link));
    header_slot *slot = &l->slots[l->next_slot];
    size_t bytes = message_pack(header, slot->bytes);
    void *socket = l->dealer.zmq ? l->dealer.zmq : z->router.zmq;
    zmq_msg_t first;
    z->drained = false;
    atomic_store_explicit(&slot->busy, true, memory_order_release);
    atomic_fetch_add_explicit(&z->headers_in_use, 1, memory_order_relaxed);
    TRY(open_part(&first, slot->bytes, bytes, header_released, slot));
    status rc = l->dealer.zmq ? STATUS_OK : send_identity(z, l);
    if (rc != STATUS_OK) {
        zmq_msg_close(&first);
        return rc;
    }
    if (z->hub) atomic_fetch_add_explicit(&z->hub->sends, 1, memory_order_release);
    TRY(send_part(socket, &first, count > 0));
    l->next_slot = (l->next_slot + 1) % t->options.window;
    /* After libzmq has accepted the header, it refuses a further part only if the socket is broken. The link
     * is then unusable. */
    if (send_frames(socket, frames, count, ticket) != STATUS_OK) zmq_link_lost(z, l);
    return STATUS_OK;
}

status transport_hub_open(transport_hub **out)
{
    zmq_hub *hub = calloc(1, sizeof *hub);
    if (!hub) return fail(STATUS_SYSTEM, "transport: no memory for a hub");
    hub->base.type = &transport_zmq;
    *out = &hub->base;
    status result = zsocket_context_open(&hub->context);
    if (result != STATUS_OK) transport_hub_close(out);
    return result;
}

static void destroy(zmq_transport *z)
{
    for (int i = 0; z->links && i < 2 * z->base.options.peers; i++) {
        free(z->links[i].slots);
        free(z->links[i].url);
    }
    for (receive_slot *s = z->free_slots, *next; s; s = next) {
        next = s->next;
        free(s);
    }
    if (z->wake_fd >= 0) close(z->wake_fd);
    free(z->links);
    free(z->polled);
    free(z->sockets);
    transport_free(&z->base);
}

static void hub_close(transport_hub *base)
{
    zmq_hub *hub = (zmq_hub *)base;
    zsocket_context_close(&hub->context);
    for (zmq_transport *z = hub->closed, *next; z; z = next) {
        next = z->next_closed;
        destroy(z);
    }
    free(hub);
}

zsocket_context *transport_hub_context(transport_hub *hub)
{
    return ((zmq_hub *)hub)->context;
}

static status allocate(zmq_transport *z, const transport_options *o)
{
    size_t links = 2 * (size_t)o->peers;
    z->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    z->links = calloc(links, sizeof *z->links);
    z->polled = calloc(1 + 2 * (1 + (size_t)o->peers), sizeof *z->polled);
    z->sockets = calloc(1 + (size_t)o->peers, sizeof *z->sockets);
    if (z->wake_fd < 0) return fail_errno(STATUS_SYSTEM, "transport: a descriptor");
    if (!z->links || !z->polled || !z->sockets)
        return fail(STATUS_SYSTEM, "transport: no memory for the links of %d peers", o->peers);
    for (int i = 0; i < o->peers; i++) z->links[i].identity = zsocket_identity_of(o->token, i);
    z->polled[0] = (struct pollfd){.fd = z->wake_fd, .events = POLLIN};
    return STATUS_OK;
}

static status open_zmq(const transport_options *o, transport **out)
{
    zmq_transport *z = calloc(1, sizeof *z);
    if (!z) return fail(STATUS_SYSTEM, "transport: no memory");
    z->base.options = *o;
    z->hub = (zmq_hub *)o->hub;
    *out = &z->base;
    status result = allocate(z, o);
    if (z->hub)
        z->context = z->hub->context;
    else if (result == STATUS_OK)
        result = zsocket_context_open(&z->context);
    if (result != STATUS_OK) destroy(z);
    return result;
}

static void close_zmq(transport *t, int64_t flush_ns)
{
    zmq_transport *z = (zmq_transport *)t;
    int64_t until = clock_now_ns() + flush_ns;
    int flush_ms = (int)((flush_ns + NS_PER_MS - 1) / NS_PER_MS);
    zmq_read_monitors(z);
    zsocket_close(&z->router, flush_ms);
    for (int i = 0; i < 2 * t->options.peers; i++) {
        zmq_link *l = &z->links[i];
        bool gone = l->lost || (t->links && t->links[i].ended);
        zsocket_close(&l->dealer, gone ? 0 : flush_ms);
    }
    if (!z->hub) {
        zsocket_context_close(&z->context);
        destroy(z);
        return;
    }
    /* Waits only for the frames, because the caller owns their memory. The transport owns the memory of the
     * headers. */
    while (atomic_load_explicit(&z->base.in_use, memory_order_acquire) > 0 && clock_now_ns() < until)
        clock_sleep_ns(NS_PER_MS);
    /* Over inproc://, a header is in use until the receiver has read the header, and a frame is in use until
     * the receiver releases the message. */
    if (atomic_load_explicit(&z->base.in_use, memory_order_acquire) == 0 &&
        atomic_load_explicit(&z->headers_in_use, memory_order_acquire) == 0) {
        destroy(z);
        return;
    }
    z->next_closed = atomic_load(&z->hub->closed);
    while (!atomic_compare_exchange_weak(&z->hub->closed, &z->next_closed, z)) {
    }
}

static struct pollfd polled_of(void *socket)
{
    struct pollfd p = {.fd = -1, .events = POLLIN};
    size_t size = sizeof p.fd;
    zmq_getsockopt(socket, ZMQ_FD, &p.fd, &size);
    return p;
}

static status open_socket(zmq_transport *z, int type, const char *url, const char *key, char *bound,
                          size_t size, zsocket *out)
{
    const transport_options *o = &z->base.options;
    const zsocket_options options = {
        .type = type,
        .frame_bytes = o->frame_bytes > MESSAGE_HEADER_CAP ? o->frame_bytes : MESSAGE_HEADER_CAP,
        .queue = o->window,
        .peer_timeout_ns = o->peer_timeout_ns,
        .token = o->token,
        .rank = o->rank,
        .key = key,
    };
    TRY(zsocket_open(z->context, &options, url, bound, size, out));
    z->polled[1 + 2 * z->socket_count] = polled_of(out->zmq);
    z->polled[2 + 2 * z->socket_count] = polled_of(out->monitor);
    z->sockets[z->socket_count++] = out->zmq;
    z->drained = false;
    return STATUS_OK;
}

/* Sets *key to the key that the address contains, or to NULL if it contains none. A tcp address needs a key.
 * If the key is missing, draws a new key into `drawn`, or fails if `drawn` is NULL. */
static status find_key(const char *url, char *drawn, const char **key)
{
    *key = net_address_key(url);
    if (*key || strncmp(url, "tcp:", 4) != 0) return STATUS_OK;
    if (!drawn) return fail(STATUS_PERMISSION, "transport: the address %s comes without its key", url);
    *key = drawn;
    return net_key_draw(drawn);
}

static status listen_zmq(transport *t, const char *url, char *bound, size_t size)
{
    zmq_transport *z = (zmq_transport *)t;
    char drawn[NET_KEY_TEXT];
    const char *key;
    TRY(find_key(url, drawn, &key));
    char *address = net_address_without_key(url);
    if (!address) return fail(STATUS_SYSTEM, "transport: no memory for an address");
    status result = open_socket(z, ZMQ_ROUTER, address, key, bound, size, &z->router);
    if (result == STATUS_OK && key && bound) {
        size_t length = strlen(bound);
        if (length + NET_KEY_TEXT < size)
            snprintf(bound + length, size - length, "/%s", key);
        else
            result = fail(STATUS_INTERNAL, "transport: no room for the address %s", bound);
    }
    free(address);
    return result;
}

static status connect_zmq(transport *t, int link, const char *url)
{
    zmq_transport *z = (zmq_transport *)t;
    zmq_link *l = &z->links[link];
    const char *key;
    TRY(find_key(url, NULL, &key));
    l->url = net_address_without_key(url);
    if (!l->url) return fail(STATUS_SYSTEM, "transport: no memory for an address");
    /* The slots are allocated now, because a later wait could not report that the allocation failed. */
    TRY(zmq_link_prepare(z, l));
    l->up = zsocket_is_inproc(url);
    return open_socket(z, ZMQ_DEALER, l->url, key, NULL, 0, &l->dealer);
}

status zmq_link_prepare(zmq_transport *z, zmq_link *l)
{
    size_t window = (size_t)z->base.options.window;
    if (!l->slots) l->slots = calloc(window, sizeof *l->slots);
    if (!l->slots) return fail(STATUS_SYSTEM, "transport: no memory for %zu headers", window);
    for (size_t i = 0; i < window; i++) l->slots[i].owner = z;
    l->up = z->came_up = true;
    return STATUS_OK;
}

void zmq_link_lost(zmq_transport *z, zmq_link *l)
{
    if (!l->up || l->lost) return;
    l->lost = true;
    z->loss_pending = true;
}

static bool up_zmq(const transport *t, int link)
{
    const zmq_link *l = &((const zmq_transport *)t)->links[link];
    return l->up && !l->lost;
}

/* Returns true if a socket has something to receive, and false if all sockets are drained. */
static bool something_there(zmq_transport *z)
{
    for (int i = 0; i < z->socket_count && !z->drained; i++) {
        int events = 0;
        size_t size = sizeof events;
        if (zmq_getsockopt(z->sockets[i], ZMQ_EVENTS, &events, &size) == 0 && events & ZMQ_POLLIN)
            return true;
    }
    z->drained = true;
    return false;
}

/* Sleeps with ppoll(). zmq_poll() would make several system calls per socket, and its time-out has a
 * resolution of only a millisecond. */
static status sleep_until(zmq_transport *z, int64_t deadline_ns)
{
    int64_t left = deadline_ns == CLOCK_NEVER ? 0 : deadline_ns - clock_now_ns();
    if (left < 0) left = 0;
    const struct timespec time = {left / NS_PER_S, left % NS_PER_S};
    nfds_t count = (nfds_t)(1 + 2 * z->socket_count);
    if (ppoll(z->polled, count, deadline_ns == CLOCK_NEVER ? NULL : &time, NULL) >= 0) return STATUS_OK;
    if (errno != EINTR) return fail_errno(STATUS_SYSTEM, "transport: waiting");
    for (nfds_t i = 0; i < count; i++) z->polled[i].revents = 0;
    return STATUS_OK;
}

static status wait_zmq(transport *t, int64_t deadline_ns)
{
    zmq_transport *z = (zmq_transport *)t;
    bool news = z->loss_pending || z->came_up;
    z->came_up = false;
    zmq_probe_clients(z);
    if (news || something_there(z)) return STATUS_OK;
    bool probe_first = z->router.probe_rounds > 0 && z->router.probe_ns < deadline_ns;
    TRY(sleep_until(z, probe_first ? z->router.probe_ns : deadline_ns));
    if (z->polled[0].revents) eventfd_read(z->wake_fd, &(eventfd_t){0});
    for (int i = 0; i < z->socket_count; i++)
        if (z->polled[2 + 2 * i].revents) return zmq_read_monitors(z);
    return STATUS_OK;
}

const transport_type transport_zmq = {
    .hub_close = hub_close,
    .open = open_zmq,
    .close = close_zmq,
    .listen = listen_zmq,
    .connect = connect_zmq,
    .up = up_zmq,
    .room = room_zmq,
    .send = send_zmq,
    .receive = zmq_receive,
    .release = zmq_release,
    .reserve = zmq_reserve,
    .wait = wait_zmq,
    .wake = wake_zmq,
};
