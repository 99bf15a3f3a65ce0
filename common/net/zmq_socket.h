/* ZeroMQ sockets as the transport and the rendezvous use them: one set of options, chosen on purpose
 * (docs/transport.md says why each), identities, and monitors. For the files of this folder alone. */
#ifndef COMMON_NET_ZMQ_SOCKET_H
#define COMMON_NET_ZMQ_SOCKET_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* What ranks that are threads of one process share: a ZeroMQ context. */
struct transport_hub;
void *transport_hub_context(struct transport_hub *hub);

status zsocket_context_open(void **out);

typedef struct zsocket_options {
    int type;                /* ZMQ_ROUTER or ZMQ_DEALER */
    int64_t frame_bytes;     /* largest frame that a peer may send */
    int queue;               /* messages held for the receiver, a peer; then the sender is held up */
    int64_t peer_timeout_ns; /* of tcp://: a silent host is lost; 0: after the kernel's own limits */
    uint64_t token;          /* of the job: goes into a DEALER's identity */
    int rank;
} zsocket_options;

status zsocket_open(void *context, const zsocket_options *options, void **out);

/* Binds and writes the endpoint, with the port chosen, to `bound`. STATUS_UNAVAILABLE where the address is
 * taken or not of this host, STATUS_USAGE where it is none. */
status zsocket_bind(void *socket, const char *url, char *bound, size_t size);
status zsocket_connect(void *socket, const char *url);

/* Closes, giving what is queued `flush_ms` to leave. NULL is ignored. */
void zsocket_close(void *socket, int flush_ms);

enum { ZSOCKET_IDENTITY_BYTES = 16 };
/* A DEALER's routing id holds its job token and rank, so that a ROUTER knows whom it talks to before it
 * looks into anything. Returns the rank, or -1 where the bytes are not of a rank of this job. */
int zsocket_rank_of(const void *identity, size_t bytes, uint64_t token);
void zsocket_identity(uint64_t token, int rank, unsigned char out[ZSOCKET_IDENTITY_BYTES]);

/* Connection events of a socket. */
typedef enum zsocket_event {
    ZSOCKET_NO_EVENT,
    ZSOCKET_UP,      /* a peer has completed the handshake */
    ZSOCKET_DOWN,    /* a connection has ended */
    ZSOCKET_REFUSED, /* a connection that does not speak the protocol has been dropped */
    ZSOCKET_OTHER,
} zsocket_event;

status zsocket_monitor_open(void *context, void *socket, void **out);
zsocket_event zsocket_monitor_next(void *monitor); /* does not block */
/* Before the socket itself is closed. */
void zsocket_monitor_close(void *socket, void *monitor);

#endif
