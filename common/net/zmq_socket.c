#include "common/net/zmq_socket.h"

#include "common/base/clock.h"
#include "common/net/key.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

enum {
    HANDSHAKE_MS = 5000,
    /* first pause between two attempts to connect; the pause doubles after each attempt, up to
     * RECONNECT_MAX_MS */
    RECONNECT_MS = 50,
    RECONNECT_MAX_MS = 1000,
    BACKLOG = 1024,
    ALIGNMENT = 8,
    KEEPALIVE_PROBES = 3,
    CURVE_BYTES = 33, /* command name, nonce, authenticator and flags of an encrypted frame (RFC 26) */
    /* Number of rounds of probes after a disconnection. One round is not enough, because the monitor reports
     * a disconnection a little earlier than the ROUTER notices it. */
    PROBE_ROUNDS = 4,
    /* pause before the first round; each later pause is five times as long as the previous one */
    FIRST_PROBE_NS = 10000000,
    EVENTS = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
             ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH,
};

static status set_option(void *socket, int option, const void *value, size_t bytes)
{
    if (zmq_setsockopt(socket, option, value, bytes) == 0) return STATUS_OK;
    return fail(STATUS_INTERNAL, "ZeroMQ: option %d: %s", option, zmq_strerror(errno));
}

/* Sets the key for CurveZMQ (RFC 26). All processes of a job have the same pair of keys. The two ends of a
 * connection prove to each other that they have this pair. */
static status set_key(zsocket_context *context, void *socket, const zsocket_options *o)
{
    char secret[NET_CURVE_TEXT], public[NET_CURVE_TEXT];
    if (!zmq_has("curve")) return fail(STATUS_UNAVAILABLE, "ZeroMQ: this libzmq is built without CURVE");
    net_key_pair(o->key, secret, public);
    TRY(set_option(socket, ZMQ_CURVE_SECRETKEY, secret, strlen(secret)));
    if (o->type == ZMQ_ROUTER) {
        TRY(set_option(socket, ZMQ_CURVE_SERVER, &(int){1}, sizeof(int)));
        /* zmq_admission.c compares a client's key with this domain. */
        TRY(set_option(socket, ZMQ_ZAP_DOMAIN, public, strlen(public)));
        return zsocket_admission_start(context);
    }
    TRY(set_option(socket, ZMQ_CURVE_PUBLICKEY, public, strlen(public)));
    return set_option(socket, ZMQ_CURVE_SERVERKEY, public, strlen(public));
}

/* Sets the options whose values are numbers. Over tcp:// a peer may vanish without a message, which the
 * kernel's keep-alives detect. The options of the keep-alives are in seconds. ZeroMQ's heartbeats are off: a
 * heartbeat waits in the queue behind a large message, so a slow link would look dead. */
static status set_numbers(void *socket, const zsocket_options *o, const char *url)
{
    bool router = o->type == ZMQ_ROUTER, dealer = !router;
    bool tcp = strncmp(url, "tcp:", 4) == 0 && o->peer_timeout_ns > 0;
    int timeout_ms = (int)(o->peer_timeout_ns / NS_PER_MS),
        probe_s = timeout_ms / 1000 / (KEEPALIVE_PROBES + 1);
    if (probe_s < 1) probe_s = 1;
    const struct {
        bool applies;
        int name, value;
    } options[] = {
        {true, ZMQ_LINGER, 0},
        {true, ZMQ_SNDHWM, 0}, /* no limit, because the caller limits the number of messages in flight */
        {true, ZMQ_RCVHWM, o->queue},
        {true, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS},
        {true, ZMQ_BACKLOG, BACKLOG},
        {strchr(url, '[') != NULL, ZMQ_IPV6, 1},      /* a URL such as "tcp://[::1]:1234" */
        {router, ZMQ_ROUTER_MANDATORY, 1},            /* a message to an unknown peer is an error */
        {router, ZMQ_ROUTER_HANDOVER, 1},             /* a peer that reconnects takes over its identity */
        {router, ZMQ_IPC_FILTER_UID, (int)geteuid()}, /* checked by the kernel (SO_PEERCRED) */
        /* If the value were 1, a disconnection would discard messages that have been received but not read.
         * The value 0 is safe, because the callers send nothing to a peer that is not connected. */
        {dealer, ZMQ_IMMEDIATE, 0},
        {dealer, ZMQ_PROBE_ROUTER, 1}, /* the server learns of this client before the first message */
        /* Without a key, a client cannot check the identity of the server, so it reconnects slowly. A live
         * server listens before its address is published, so the first attempt reaches it. A quick second
         * attempt could only reach a process of another user that has taken the address of a dead server. */
        {dealer, ZMQ_RECONNECT_IVL, o->key ? RECONNECT_MS : RECONNECT_MAX_MS},
        {dealer, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS},
        {tcp, ZMQ_HEARTBEAT_IVL, 0},
        {tcp, ZMQ_TCP_KEEPALIVE, 1},
        {tcp, ZMQ_TCP_KEEPALIVE_IDLE, probe_s},
        {tcp, ZMQ_TCP_KEEPALIVE_INTVL, probe_s},
        {tcp, ZMQ_TCP_KEEPALIVE_CNT, KEEPALIVE_PROBES},
        /* time after which a connection fails if sent data have not been acknowledged */
        {tcp, ZMQ_TCP_MAXRT, timeout_ms},
        {tcp, ZMQ_CONNECT_TIMEOUT, timeout_ms},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (options[i].applies) TRY(set_option(socket, options[i].name, &options[i].value, sizeof(int)));
    return STATUS_OK;
}

static status configure(zsocket_context *context, void *socket, const zsocket_options *o, const char *url)
{
    int64_t largest = o->frame_bytes + (o->key ? CURVE_BYTES : 0);
    zsocket_identity identity = zsocket_identity_of(o->token, o->rank);
    TRY(set_numbers(socket, o, url));
    TRY(set_option(socket, ZMQ_MAXMSGSIZE, &largest, sizeof largest));
    if (o->key && !zsocket_is_inproc(url)) TRY(set_key(context, socket, o));
    if (o->type == ZMQ_ROUTER) return STATUS_OK;
    return set_option(socket, ZMQ_ROUTING_ID, identity.bytes, sizeof identity.bytes);
}

static status open_monitor(zsocket_context *context, zsocket *s)
{
    char url[64];
    snprintf(url, sizeof url, "inproc://monitor-%p", s->zmq);
    if (zmq_socket_monitor(s->zmq, url, EVENTS) == 0 &&
        (s->monitor = zmq_socket(context->zmq, ZMQ_PAIR)) != NULL && zmq_connect(s->monitor, url) == 0)
        return STATUS_OK;
    return fail(STATUS_SYSTEM, "ZeroMQ: no monitor: %s", zmq_strerror(errno));
}

void zsocket_close(zsocket *s, int flush_ms)
{
    if (!s->zmq) return;
    zmq_socket_monitor(s->zmq, NULL, 0);
    if (s->monitor) {
        zmq_setsockopt(s->monitor, ZMQ_LINGER, &(int){0}, sizeof(int));
        zmq_close(s->monitor);
    }
    zmq_setsockopt(s->zmq, ZMQ_LINGER, &flush_ms, sizeof flush_ms);
    zmq_close(s->zmq);
    *s = (zsocket){0};
}

static status address_failure(const char *verb, const char *url)
{
    int reason = errno;
    status code = STATUS_SYSTEM;
    if (reason == EADDRINUSE || reason == EADDRNOTAVAIL || reason == ENODEV)
        code = STATUS_UNAVAILABLE;
    else if (reason == EACCES)
        code = STATUS_PERMISSION;
    else if (reason == EINVAL || reason == EPROTONOSUPPORT || reason == ENAMETOOLONG)
        code = STATUS_USAGE;
    return fail(code, "cannot %s %s: %s", verb, url, zmq_strerror(reason));
}

status zsocket_bind(zsocket *s, const char *url, char *bound, size_t size)
{
    if (zmq_bind(s->zmq, url) != 0) return address_failure("listen at", url);
    if (bound && zmq_getsockopt(s->zmq, ZMQ_LAST_ENDPOINT, bound, &size) != 0)
        return fail(STATUS_INTERNAL, "%s: its endpoint cannot be read: %s", url, zmq_strerror(errno));
    return STATUS_OK;
}

static status open_at(zsocket_context *context, const zsocket_options *o, const char *url, char *bound,
                      size_t size, zsocket *s)
{
    TRY(configure(context, s->zmq, o, url));
    TRY(open_monitor(context, s));
    /* The descriptor of the monitor becomes readable only after a first call, although there is no event
     * yet. */
    zsocket_next_event(s);
    if (o->type == ZMQ_ROUTER) return zsocket_bind(s, url, bound, size);
    return zmq_connect(s->zmq, url) == 0 ? STATUS_OK : address_failure("connect to", url);
}

status zsocket_open(zsocket_context *context, const zsocket_options *options, const char *url, char *bound,
                    size_t size, zsocket *out)
{
    *out = (zsocket){.zmq = zmq_socket(context->zmq, options->type)};
    if (!out->zmq) return fail(STATUS_SYSTEM, "ZeroMQ: no socket: %s", zmq_strerror(errno));
    status result = open_at(context, options, url, bound, size, out);
    if (result != STATUS_OK) zsocket_close(out, 0);
    return result;
}

bool zsocket_is_inproc(const char *url)
{
    return strncmp(url, "inproc:", 7) == 0;
}

status zsocket_align(zmq_msg_t *part)
{
    size_t bytes = zmq_msg_size(part);
    if ((uintptr_t)zmq_msg_data(part) % ALIGNMENT == 0) return STATUS_OK;
    zmq_msg_t aligned;
    if (zmq_msg_init_size(&aligned, bytes) != 0)
        return fail(STATUS_SYSTEM, "ZeroMQ: no memory for a frame of %zu bytes", bytes);
    memcpy(zmq_msg_data(&aligned), zmq_msg_data(part), bytes);
    zmq_msg_move(part, &aligned);
    zmq_msg_close(&aligned);
    return STATUS_OK;
}

static const char identity_mark[4] = {'P', 'S', 'R', '1'};

zsocket_identity zsocket_identity_of(uint64_t token, int rank)
{
    zsocket_identity out;
    memcpy(out.bytes, identity_mark, 4);
    memcpy(out.bytes + 4, &rank, 4);
    memcpy(out.bytes + 8, &token, 8);
    return out;
}

int zsocket_rank_of(const void *identity, size_t bytes, uint64_t token)
{
    int rank;
    if (bytes != sizeof(zsocket_identity)) return -1;
    memcpy(&rank, (const char *)identity + 4, sizeof rank);
    zsocket_identity expected = zsocket_identity_of(token, rank);
    return rank >= 0 && memcmp(identity, expected.bytes, bytes) == 0 ? rank : -1;
}

static zsocket_event failed_handshake(uint16_t kind, uint32_t detail)
{
    if (kind == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) return ZSOCKET_DENIED;
    if (kind == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL)
        return detail == EPIPE ? ZSOCKET_HUNG_UP : ZSOCKET_REFUSED;
    bool key = detail == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC ||
               detail == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH;
    return key ? ZSOCKET_DENIED : ZSOCKET_REFUSED;
}

zsocket_event zsocket_next_event(zsocket *s)
{
    unsigned char event[6];
    if (zmq_recv(s->monitor, event, sizeof event, ZMQ_DONTWAIT) < 0) return ZSOCKET_NO_EVENT;
    zmq_recv(s->monitor, NULL, 0, ZMQ_DONTWAIT); /* The second part is the address, which is not needed. */
    uint16_t kind;
    uint32_t detail;
    memcpy(&kind, event, sizeof kind);
    memcpy(&detail, event + 2, sizeof detail);
    if (kind == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) return ZSOCKET_UP;
    return kind == ZMQ_EVENT_DISCONNECTED ? ZSOCKET_DOWN : failed_handshake(kind, detail);
}

const char *zsocket_next_refusal(zsocket *router)
{
    for (zsocket_event event; (event = zsocket_next_event(router)) != ZSOCKET_NO_EVENT;) {
        if (event == ZSOCKET_REFUSED || event == ZSOCKET_HUNG_UP) return "it does not speak ZMTP";
        if (event == ZSOCKET_DENIED) return "it does not have the key of this job";
        if (event != ZSOCKET_DOWN || router->probe_rounds == PROBE_ROUNDS) continue;
        router->probe_rounds = PROBE_ROUNDS;
        router->probe_ns = clock_now_ns() + FIRST_PROBE_NS;
    }
    return NULL;
}

bool zsocket_begin_probes(zsocket *router)
{
    if (router->probe_rounds == 0 || clock_now_ns() < router->probe_ns) return false;
    int64_t pause = FIRST_PROBE_NS;
    for (int round = router->probe_rounds--; round <= PROBE_ROUNDS; round++) pause *= 5;
    router->probe_ns = clock_now_ns() + pause;
    return true;
}

bool zsocket_probe(zsocket *router, const zsocket_identity *client)
{
    if (zmq_send(router->zmq, client->bytes, sizeof client->bytes, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0)
        return errno != EHOSTUNREACH;
    zmq_send(router->zmq, "", 0, ZMQ_DONTWAIT);
    return true;
}
