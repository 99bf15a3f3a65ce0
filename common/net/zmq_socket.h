/* ZeroMQ sockets as the transport and the rendezvous use them: one set of options, chosen on purpose
 * (docs/transport.md says why each), identities, and monitors. Only for the files of this folder. */
#ifndef COMMON_NET_ZMQ_SOCKET_H
#define COMMON_NET_ZMQ_SOCKET_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

/* A ZeroMQ context, and the thread that answers for it who may connect with which key (zmq_admission.c). */
typedef struct zsocket_context zsocket_context;
status zsocket_context_open(zsocket_context **out);
void zsocket_context_close(zsocket_context **context); /* after all its sockets */
void *zsocket_context_zmq(zsocket_context *context);
/* From now on a client of a socket with a key must have the one that the socket's ZAP domain names. For
 * zmq_socket.c; may be called again. */
status zsocket_admission_start(zsocket_context *context);

/* What ranks that are threads of one process share. */
struct transport_hub;
zsocket_context *transport_hub_context(struct transport_hub *hub);

typedef struct zsocket_options {
    int type;                /* ZMQ_ROUTER or ZMQ_DEALER */
    int64_t frame_bytes;     /* largest frame that a peer may send */
    int queue;               /* messages held for the receiver, per peer; then the sender is held up */
    int64_t peer_timeout_ns; /* of tcp://: a silent host is lost; 0: after the kernel's own limits */
    uint64_t token;          /* of the job: goes into a DEALER's identity */
    int rank;
    const char *key; /* net_key: both sides prove that they have it, all bytes are encrypted; NULL: none */
} zsocket_options;

/* A socket and the monitor of its connections. */
typedef struct zsocket {
    void *zmq, *monitor;
    int probe_rounds; /* of a ROUTER: still to be done */
    int64_t probe_ns; /* when the next is due */
} zsocket;

/* A ROUTER admits over ipc:// processes of the same user only, with and without a key. */
status zsocket_open(zsocket_context *context, const zsocket_options *options, zsocket *out);

/* Binds and writes the endpoint, with the port chosen, to `bound`. STATUS_UNAVAILABLE where the address is
 * taken or not of this host, STATUS_USAGE where it is none. */
status zsocket_bind(zsocket *s, const char *url, char *bound, size_t size);
status zsocket_connect(zsocket *s, const char *url);

/* Closes, giving what is queued `flush_ms` to leave. A closed socket is ignored. */
void zsocket_close(zsocket *s, int flush_ms);

/* libzmq returns small or decrypted frames at any address; the elements in them need an aligned one. */
status zsocket_align(zmq_msg_t *part);

/* A DEALER's routing id holds its job token and rank, so that a ROUTER knows whom it talks to before it
 * looks into anything. */
typedef struct zsocket_identity {
    unsigned char bytes[16];
} zsocket_identity;
zsocket_identity zsocket_identity_of(uint64_t token, int rank);
/* The rank, or -1 where the bytes are not of a rank of this job. */
int zsocket_rank_of(const void *identity, size_t bytes, uint64_t token);

/* Connection events of a socket. */
typedef enum zsocket_event {
    ZSOCKET_NO_EVENT,
    ZSOCKET_UP,      /* a peer has completed the handshake */
    ZSOCKET_DOWN,    /* a connection has ended */
    ZSOCKET_REFUSED, /* a connection that does not speak the protocol has been dropped */
    ZSOCKET_DENIED,  /* one without a key, or with another one, has been dropped */
    ZSOCKET_HUNG_UP, /* the peer has ended a connection during the handshake: as a rule it has another key */
} zsocket_event;
zsocket_event zsocket_next_event(zsocket *s); /* does not block */

/* After a disconnection a ROUTER does not report who has left: all its clients are probed a few times. This
 * reads the events of a ROUTER and schedules the probes. Returns why a stranger was turned away, or NULL
 * after the last event. */
const char *zsocket_next_refusal(zsocket *router);
/* Whether a round of probes is due, which thereby begins; the next one is scheduled. */
bool zsocket_begin_probes(zsocket *router);
/* Sends an empty message to a client; false if the ROUTER cannot reach it any more. */
bool zsocket_probe(zsocket *router, const zsocket_identity *client);

#endif
