#include "common/net/zmq_socket.h"

#include "common/base/clock.h"
#include "common/net/key.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

enum {
    HANDSHAKE_MS = 5000, /* a connection that has not finished its handshake by then is dropped */
    RECONNECT_MS = 50,   /* first pause between attempts, doubled up to ... */
    RECONNECT_MAX_MS = 1000,
    BACKLOG = 1024,
    ALIGNMENT = 8,
    KEEPALIVE_PROBES = 3,
    CURVE_BYTES = 33, /* command name, nonce, authenticator and flags of an encrypted frame (RFC 26) */
};

typedef struct int_option {
    int name, value;
} int_option;

static status set_options(void *socket, const int_option *options, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (zmq_setsockopt(socket, options[i].name, &options[i].value, sizeof(int)) != 0)
            return fail(STATUS_INTERNAL, "ZeroMQ: option %d = %d: %s", options[i].name, options[i].value,
                        zmq_strerror(errno));
    return STATUS_OK;
}

static status set_text(void *socket, int option, const char *text)
{
    if (zmq_setsockopt(socket, option, text, strlen(text)) == 0) return STATUS_OK;
    return fail(STATUS_INTERNAL, "ZeroMQ: option %d: %s", option, zmq_strerror(errno));
}

/* CurveZMQ (RFC 26). All processes of a job have the same pair of keys, each proves to the other that it
 * does. */
static status set_key(zsocket_context *context, void *socket, const zsocket_options *o)
{
    char secret[NET_CURVE_TEXT], public[NET_CURVE_TEXT];
    if (!o->key) return STATUS_OK;
    if (!zmq_has("curve")) return fail(STATUS_UNAVAILABLE, "ZeroMQ: this libzmq is built without CURVE");
    net_key_pair(o->key, secret, public);
    TRY(set_text(socket, ZMQ_CURVE_SECRETKEY, secret));
    if (o->type == ZMQ_ROUTER) {
        const int_option server = {ZMQ_CURVE_SERVER, 1};
        TRY(set_options(socket, &server, 1));
        TRY(set_text(socket, ZMQ_ZAP_DOMAIN, public)); /* what zmq_admission.c compares a client's key with */
        return zsocket_admission_start(context);
    }
    TRY(set_text(socket, ZMQ_CURVE_PUBLICKEY, public));
    return set_text(socket, ZMQ_CURVE_SERVERKEY, public);
}

static status set_role(void *socket, const zsocket_options *o)
{
    if (o->type == ZMQ_ROUTER) {
        const int_option router[] = {
            {ZMQ_ROUTER_MANDATORY, 1},            /* a message to nobody is an error, not silence */
            {ZMQ_ROUTER_HANDOVER, 1},             /* a peer that comes back takes over its identity */
            {ZMQ_IPC_FILTER_UID, (int)geteuid()}, /* the kernel says who connects (SO_PEERCRED) */
        };
        return set_options(socket, router, sizeof router / sizeof router[0]);
    }
    const int_option dealer[] = {
        /* With 1 a disconnection throws away what was received and not yet read: the callers themselves
         * see to it that nothing is sent to a peer who is not there. */
        {ZMQ_IMMEDIATE, 0},
        {ZMQ_PROBE_ROUTER, 1}, /* the server knows of us before we say anything */
        /* Without a key only the server checks its peer, and listens before its address is known: a quick second try
         * could only reach another user who took the name of a server that has died. */
        {ZMQ_RECONNECT_IVL, o->key ? RECONNECT_MS : RECONNECT_MAX_MS},
        {ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS},
    };
    TRY(set_options(socket, dealer, sizeof dealer / sizeof dealer[0]));
    unsigned char identity[ZSOCKET_IDENTITY_BYTES];
    zsocket_identity(o->token, o->rank, identity);
    if (zmq_setsockopt(socket, ZMQ_ROUTING_ID, identity, sizeof identity) != 0)
        return fail(STATUS_INTERNAL, "ZeroMQ: routing id: %s", zmq_strerror(errno));
    return STATUS_OK;
}

/* For tcp://, where a peer may vanish without a word. ZeroMQ's own heartbeats wait in line behind a large
 * message, so a slow link would look dead; the kernel's do not. They count in whole seconds. */
static status set_timeouts(void *socket, int64_t peer_timeout_ns)
{
    if (peer_timeout_ns <= 0) return STATUS_OK;
    int milliseconds = (int)(peer_timeout_ns / NS_PER_MS);
    int probe_s = milliseconds / 1000 / (KEEPALIVE_PROBES + 1);
    if (probe_s < 1) probe_s = 1;
    const int_option timeouts[] = {
        {ZMQ_HEARTBEAT_IVL, 0},
        {ZMQ_TCP_KEEPALIVE, 1},
        {ZMQ_TCP_KEEPALIVE_IDLE, probe_s},
        {ZMQ_TCP_KEEPALIVE_INTVL, probe_s},
        {ZMQ_TCP_KEEPALIVE_CNT, KEEPALIVE_PROBES},
        {ZMQ_TCP_MAXRT, milliseconds}, /* for what was sent and is not acknowledged */
        {ZMQ_CONNECT_TIMEOUT, milliseconds},
    };
    return set_options(socket, timeouts, sizeof timeouts / sizeof timeouts[0]);
}

static status configure(zsocket_context *context, void *socket, const zsocket_options *o)
{
    const int_option common[] = {
        {ZMQ_LINGER, 0},
        {ZMQ_SNDHWM, 0}, /* the caller counts what is under way, and is told when there is room */
        {ZMQ_RCVHWM, o->queue},
        {ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS},
        {ZMQ_BACKLOG, BACKLOG},
    };
    TRY(set_options(socket, common, sizeof common / sizeof common[0]));
    int64_t largest = o->frame_bytes + (o->key ? CURVE_BYTES : 0);
    if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &largest, sizeof largest) != 0)
        return fail(STATUS_INTERNAL, "ZeroMQ: largest frame %" PRId64 ": %s", largest, zmq_strerror(errno));
    TRY(set_timeouts(socket, o->peer_timeout_ns));
    TRY(set_key(context, socket, o));
    return set_role(socket, o);
}

status zsocket_open(zsocket_context *context, const zsocket_options *options, void **out)
{
    void *socket = zmq_socket(zsocket_context_zmq(context), options->type);
    if (!socket) return fail(STATUS_SYSTEM, "ZeroMQ: no socket: %s", zmq_strerror(errno));
    status result = configure(context, socket, options);
    if (result == STATUS_OK)
        *out = socket;
    else
        zmq_close(socket);
    return result;
}

/* What errno says about an address. */
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

/* "[::1]" */
static void allow_ipv6(void *socket, const char *url)
{
    int yes = 1;
    if (strchr(url, '[')) zmq_setsockopt(socket, ZMQ_IPV6, &yes, sizeof yes);
}

status zsocket_bind(void *socket, const char *url, char *bound, size_t size)
{
    allow_ipv6(socket, url);
    if (zmq_bind(socket, url) != 0) return address_failure("listen at", url);
    if (bound && zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &size) != 0)
        return fail(STATUS_INTERNAL, "%s: its endpoint cannot be read: %s", url, zmq_strerror(errno));
    return STATUS_OK;
}

status zsocket_connect(void *socket, const char *url)
{
    allow_ipv6(socket, url);
    return zmq_connect(socket, url) == 0 ? STATUS_OK : address_failure("connect to", url);
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

void zsocket_close(void *socket, int flush_ms)
{
    if (!socket) return;
    zmq_setsockopt(socket, ZMQ_LINGER, &flush_ms, sizeof flush_ms);
    zmq_close(socket);
}

static const char identity_mark[4] = {'P', 'S', 'R', '1'};

void zsocket_identity(uint64_t token, int rank, unsigned char out[ZSOCKET_IDENTITY_BYTES])
{
    uint32_t id = (uint32_t)rank;
    memcpy(out, identity_mark, 4);
    memcpy(out + 4, &id, 4);
    memcpy(out + 8, &token, 8);
}

int zsocket_rank_of(const void *identity, size_t bytes, uint64_t token)
{
    const unsigned char *at = identity;
    uint32_t rank;
    uint64_t found;
    if (bytes != ZSOCKET_IDENTITY_BYTES || memcmp(at, identity_mark, 4) != 0) return -1;
    memcpy(&rank, at + 4, 4);
    memcpy(&found, at + 8, 8);
    return found == token && rank <= INT32_MAX ? (int)rank : -1;
}

enum {
    WATCHED = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
              ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH,
};

status zsocket_monitor_open(zsocket_context *context, void *socket, void **out)
{
    char url[64];
    snprintf(url, sizeof url, "inproc://monitor-%p", socket);
    if (zmq_socket_monitor(socket, url, WATCHED) != 0)
        return fail(STATUS_SYSTEM, "ZeroMQ: no monitor: %s", zmq_strerror(errno));
    void *monitor = zmq_socket(zsocket_context_zmq(context), ZMQ_PAIR);
    if (!monitor || zmq_connect(monitor, url) != 0) {
        if (monitor) zmq_close(monitor);
        zmq_socket_monitor(socket, NULL, 0);
        return fail(STATUS_SYSTEM, "ZeroMQ: no monitor: %s", zmq_strerror(errno));
    }
    *out = monitor;
    return STATUS_OK;
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

zsocket_event zsocket_monitor_next(void *monitor)
{
    unsigned char event[6];
    if (zmq_recv(monitor, event, sizeof event, ZMQ_DONTWAIT) < 0) return ZSOCKET_NO_EVENT;
    char address[8];
    zmq_recv(monitor, address, sizeof address, ZMQ_DONTWAIT);
    uint16_t kind;
    uint32_t detail;
    memcpy(&kind, event, sizeof kind);
    memcpy(&detail, event + 2, sizeof detail);
    switch (kind) {
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        return ZSOCKET_UP;
    case ZMQ_EVENT_DISCONNECTED:
        return ZSOCKET_DOWN;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        return failed_handshake(kind, detail);
    default:
        return ZSOCKET_OTHER;
    }
}

void zsocket_monitor_close(void *socket, void *monitor)
{
    if (!monitor) return;
    zmq_socket_monitor(socket, NULL, 0);
    int none = 0;
    zmq_setsockopt(monitor, ZMQ_LINGER, &none, sizeof none);
    zmq_close(monitor);
}
