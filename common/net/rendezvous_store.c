/* The thread of the store. It owns the sockets, detects ranks that arrive or are lost, and sends packets. */
#include "common/net/rendezvous_impl.h"

#include "common/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

char *store_name(const store *s, int rank, char *buffer, size_t size)
{
    const store_member *m = &s->members[rank];
    snprintf(buffer, size, "rank %d (%s, process %" PRIu32 ")", rank, m->host, m->pid);
    return buffer;
}

void store_reject(store *s, const char *what)
{
    int64_t count = ++s->strangers;
    if ((count & (count - 1)) == 0)
        log_warn("rendezvous at %s: ignored a stranger: %s (%" PRId64 " so far)", s->address, what, count);
}

void store_send(store *s, const zsocket_identity *to, const rendezvous_packet *packet, store_member *first,
                int count)
{
    size_t bytes = rendezvous_pack(packet, s->packet, RENDEZVOUS_PACKET_CAP);
    int more = ZMQ_DONTWAIT | ZMQ_SNDMORE;
    /* If the rank is lost and zmq_send() fails, a later probe reports the loss. */
    if (zmq_send(s->router.zmq, to->bytes, sizeof to->bytes, more) < 0) return;
    if (zmq_send(s->router.zmq, s->packet, bytes, count > 0 ? more : ZMQ_DONTWAIT) < 0 && errno == ENOMEM) {
        const rendezvous_packet no = {.kind = RENDEZVOUS_FAILED, .code = STATUS_SYSTEM, .text = "no memory"};
        bytes = rendezvous_pack(&no, s->packet, RENDEZVOUS_PACKET_CAP);
        zmq_send(s->router.zmq, s->packet, bytes, ZMQ_DONTWAIT); /* libzmq does not allocate for 33 bytes */
        return;
    }
    for (int i = 0; i < count; i++) {
        zmq_msg_t copy;
        zmq_msg_init(&copy);
        zmq_msg_copy(&copy, &first[i].blob); /* The copy shares the content of the blob. */
        if (zmq_msg_send(&copy, s->router.zmq, i + 1 < count ? more : ZMQ_DONTWAIT) < 0) zmq_msg_close(&copy);
    }
}

void store_release_blobs(store *s)
{
    for (int r = 0; r < s->world; r++) {
        store_member *m = &s->members[r];
        if (!m->called) continue;
        zmq_msg_close(&m->blob);
        m->called = false;
    }
    s->call.callers = 0;
}

void store_fail(store *s, status code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(s->failure, sizeof s->failure, format, args);
    va_end(args);
    s->failed = code;
    store_release_blobs(s);
    const rendezvous_packet packet = {.kind = RENDEZVOUS_FAILED, .code = code, .text = s->failure};
    for (int r = 0; r < s->world; r++) {
        const store_member *m = &s->members[r];
        if (m->joined && !m->ended && !m->lost) store_send(s, &m->identity, &packet, NULL, 0);
    }
}

static void lost(store *s, int rank)
{
    char name[128];
    store_member *m = &s->members[rank];
    if (m->lost || m->ended) return;
    m->lost = true;
    store_name(s, rank, name, sizeof name);
    if (s->failed != STATUS_OK) return;
    bool calling = s->call.callers > 0;
    store_fail(s, STATUS_PEER, "%s was lost%s%s", name, calling ? " during rendezvous, " : "",
               calling ? s->call.name : "");
}

enum {
    QUEUE = 8,       /* largest number of queued messages per peer */
    FLUSH_MS = 2000, /* longest time for which the store flushes messages before it closes */
};

static int member_of(const store *s, const zsocket_identity *identity)
{
    for (int r = 0; r < s->world; r++)
        if (s->members[r].joined && memcmp(&s->members[r].identity, identity, sizeof *identity) == 0)
            return r;
    return -1;
}

/* Reads the next part into `part`. Returns false at the end of the message. */
static bool next_part(const store *s, zmq_msg_t *part)
{
    return zmq_msg_more(part) && zmq_msg_recv(part, s->router.zmq, ZMQ_DONTWAIT) >= 0;
}

static bool unpack_quietly(store *s, zmq_msg_t *part, rendezvous_packet *out)
{
    if (rendezvous_unpack(zmq_msg_data(part), zmq_msg_size(part), s->arena, out) == STATUS_OK) return true;
    error_clear();
    return false;
}

/* Receives the rest of a message. `part` contains the identity of the sender. */
static void receive_message(store *s, zmq_msg_t *part)
{
    zsocket_identity from;
    rendezvous_packet packet;
    bool known_size = zmq_msg_size(part) == sizeof from.bytes;
    if (known_size) memcpy(from.bytes, zmq_msg_data(part), sizeof from.bytes);
    if (!known_size || !next_part(s, part)) {
        store_reject(s, "the sender has no identity of a rank");
    } else if (zmq_msg_size(part) == 0) {
        /* An empty message is a probe, which shows that the connection works. */
    } else if (!unpack_quietly(s, part, &packet)) {
        store_reject(s, "the message is not a rendezvous packet");
    } else if (packet.kind == RENDEZVOUS_HELLO) {
        store_receive_hello(s, &from, &packet);
    } else if (packet.kind == RENDEZVOUS_STATUS) {
        store_receive_status(s, &from, &packet);
    } else {
        int rank = member_of(s, &from);
        if (rank < 0 && packet.kind == RENDEZVOUS_BYE)
            log_debug("a rank that was refused leaves");
        else if (rank < 0)
            store_reject(s, "the sender has not joined");
        else if (packet.kind == RENDEZVOUS_CALL && next_part(s, part))
            store_receive_call(s, rank, &packet, part);
        else if (packet.kind == RENDEZVOUS_FAILED && packet.code != STATUS_OK)
            store_receive_failure(s, rank, &packet);
        else if (packet.kind == RENDEZVOUS_BYE)
            s->members[rank].ended = true;
        else
            store_reject(s, "the message has an unexpected kind");
    }
    while (next_part(s, part)) {
    }
}

static void read_messages(store *s)
{
    zmq_msg_t part;
    zmq_msg_init(&part);
    while (zmq_msg_recv(&part, s->router.zmq, ZMQ_DONTWAIT) >= 0) receive_message(s, &part);
    zmq_msg_close(&part);
}

static void probe_members(store *s)
{
    if (!zsocket_begin_probes(&s->router)) return;
    for (int r = 0; r < s->world; r++) {
        const store_member *m = &s->members[r];
        if (m->joined && !m->ended && !m->lost && !zsocket_probe(&s->router, &m->identity)) lost(s, r);
    }
}

static long sleep_ms(const store *s)
{
    int64_t next = store_next_deadline(s);
    if (s->signal && !s->decided && s->decide_ns < next) next = s->decide_ns;
    if (s->router.probe_rounds > 0 && s->router.probe_ns < next) next = s->router.probe_ns;
    if (next == CLOCK_NEVER) return -1;
    int64_t left = next - clock_now_ns();
    return left > 0 ? (long)((left + NS_PER_MS - 1) / NS_PER_MS) : 0;
}

static void *run(void *argument)
{
    store *s = argument;
    log_set_prefix("rank 0");
    zmq_pollitem_t items[] = {
        {.fd = s->stop_fd, .events = ZMQ_POLLIN},
        {.socket = s->router.zmq, .events = ZMQ_POLLIN},
        {.socket = s->router.monitor, .events = ZMQ_POLLIN},
    };
    while (zmq_poll(items, 3, sleep_ms(s)) >= 0 || errno == EINTR) {
        read_messages(s);
        for (const char *why; (why = zsocket_next_refusal(&s->router)) != NULL;) store_reject(s, why);
        probe_members(s);
        store_check_deadline(s, clock_now_ns());
        store_decide_stop(s, clock_now_ns());
        if (items[0].revents) break;
    }
    const rendezvous_packet bye = {.kind = RENDEZVOUS_BYE};
    for (int r = 0; r < s->world; r++)
        if (s->members[r].joined && !s->members[r].ended)
            store_send(s, &s->members[r].identity, &bye, NULL, 0);
    return NULL;
}

static void destroy(store *s)
{
    zsocket_close(&s->router, FLUSH_MS);
    if (s->members) store_release_blobs(s);
    if (s->stop_fd >= 0) close(s->stop_fd);
    free(s->members);
    free(s);
}

/* Listens, then starts the thread. */
static status start(store *s, const rendezvous *r)
{
    const zsocket_options options = {
        .type = ZMQ_ROUTER,
        .frame_bytes = RENDEZVOUS_BLOB_MAX,
        .queue = QUEUE,
        .peer_timeout_ns = RENDEZVOUS_PEER_TIMEOUT_NS,
        .key = r->key[0] ? r->key : NULL,
    };
    if (s->stop_fd < 0) return fail_errno(STATUS_SYSTEM, "rendezvous: a descriptor");
    if (!s->members) return fail(STATUS_SYSTEM, "rendezvous: no memory for a store of %d ranks", s->world);
    TRY(zsocket_open(r->context, &options, r->endpoints.listen, s->address, sizeof s->address, &s->router));
    snprintf(s->own_url, sizeof s->own_url, "inproc://store-%p", (void *)s);
    TRY(zsocket_bind(&s->router, s->own_url, NULL, 0));
    errno = pthread_create(&s->thread, NULL, run, s);
    return errno ? fail_errno(STATUS_SYSTEM, "rendezvous: a thread") : STATUS_OK;
}

status store_start(const rendezvous *r, store **out)
{
    store *s = calloc(1, sizeof *s);
    if (!s) return fail(STATUS_SYSTEM, "rendezvous: no memory");
    s->options = &r->options;
    s->world = r->options.world;
    s->token = r->token;
    s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->members = calloc((size_t)s->world, sizeof *s->members);
    status result = start(s, r);
    if (result == STATUS_OK)
        *out = s;
    else
        destroy(s);
    return result;
}

void store_stop(store **s)
{
    if (!*s) return;
    eventfd_write((*s)->stop_fd, 1);
    pthread_join((*s)->thread, NULL);
    destroy(*s);
    *s = NULL;
}
