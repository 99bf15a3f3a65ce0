/* ZeroMQ sockets for the transport and the rendezvous, with their options, identities and monitors.
 * docs/transport.md explains each option. Only files of this folder include this header. */
#ifndef COMMON_NET_ZMQ_SOCKET_H
#define COMMON_NET_ZMQ_SOCKET_H

#include "common/base/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

/* A ZeroMQ context, with the thread that checks the keys of new connections (zmq_admission.c). */
typedef struct zsocket_context {
    void *zmq;
    pthread_mutex_t lock; /* guards the fields below; threads that share a hub open sockets at the same
                           * time */
    bool admits;
    pthread_t admission;
} zsocket_context;
status zsocket_context_open(zsocket_context **out);
void zsocket_context_close(zsocket_context **context); /* all sockets must be closed before this call */
/* Makes the context check keys from now on. If a socket has a key, a client of the socket must have the
 * public key that is the socket's ZAP domain. May be called several times. Only zmq_socket.c calls this
 * function. */
status zsocket_admission_start(zsocket_context *context);

/* Returns the context of a hub. All ranks that are threads of the process share this context. */
struct transport_hub;
zsocket_context *transport_hub_context(struct transport_hub *hub);

typedef struct zsocket_options {
    int type;            /* ZMQ_ROUTER or ZMQ_DEALER */
    int64_t frame_bytes; /* largest frame that a peer may send */
    /* largest number of messages per peer that are queued until they are received; a full queue blocks the
     * sender */
    int queue;
    /* Time after which a host that sends nothing counts as lost. Used only over tcp://. If it is 0, the
     * kernel's limits apply. */
    int64_t peer_timeout_ns;
    uint64_t token; /* token of the job; becomes a part of a DEALER's identity */
    int rank;
    const char *key; /* Key of the job (key.h), or NULL. If there is a key, both sides prove that they have
                        the key, and all bytes are encrypted. Not used over inproc://. */
} zsocket_options;

typedef struct zsocket {
    void *zmq, *monitor;
    int probe_rounds; /* number of rounds of probes that a ROUTER must still send */
    int64_t probe_ns; /* time of the next round */
} zsocket;

/* Opens a socket. A ROUTER is bound to `url`, and a DEALER is connected to `url`. If a ROUTER is bound and
 * `bound` is not NULL, writes the endpoint with the chosen port to bound[size]. Over ipc:// a ROUTER accepts
 * only processes of the same user, even if there is no key. Fails with STATUS_UNAVAILABLE if the address is
 * taken or does not belong to this host, and with STATUS_USAGE if the address is malformed. */
status zsocket_open(zsocket_context *context, const zsocket_options *options, const char *url, char *bound,
                    size_t size, zsocket *out);

/* Binds a ROUTER to an additional address, in the same way as zsocket_open() binds the first one. */
status zsocket_bind(zsocket *s, const char *url, char *bound, size_t size);

/* Returns true for inproc://. Sockets of inproc:// are connected at once, and report no events. */
bool zsocket_is_inproc(const char *url);

/* Waits at most `flush_ms` for queued messages to leave, then closes the socket. Does nothing if the socket
 * is closed. */
void zsocket_close(zsocket *s, int flush_ms);

/* Moves a frame to aligned memory if it is not aligned. libzmq may return small or decrypted frames at any
 * address. */
status zsocket_align(zmq_msg_t *part);

/* The routing id of a DEALER. The id holds the job token and the rank, so a ROUTER can identify the sender
 * before it reads the message. */
typedef struct zsocket_identity {
    unsigned char bytes[16];
} zsocket_identity;
zsocket_identity zsocket_identity_of(uint64_t token, int rank);
/* Returns the rank, or -1 if the bytes do not identify a rank of this job. */
int zsocket_rank_of(const void *identity, size_t bytes, uint64_t token);

typedef enum zsocket_event {
    ZSOCKET_NO_EVENT,
    ZSOCKET_UP,      /* a peer has completed the handshake */
    ZSOCKET_DOWN,    /* a connection has ended */
    ZSOCKET_REFUSED, /* a connection that does not speak the protocol has been dropped */
    ZSOCKET_DENIED,  /* a connection without the right key has been dropped */
    /* the peer has closed a connection during the handshake, usually because it has another key */
    ZSOCKET_HUNG_UP,
} zsocket_event;
zsocket_event zsocket_next_event(zsocket *s); /* does not block */

/* Reads the events of a ROUTER and schedules probes. Returns the reason why a connection was refused, or NULL
 * after the last event. A ROUTER does not report which client has disconnected, so all clients are probed a
 * few times. */
const char *zsocket_next_refusal(zsocket *router);
/* Returns true if a round of probes is due, and schedules the next round. */
bool zsocket_begin_probes(zsocket *router);
/* Sends an empty message to a client. Returns false if the ROUTER cannot reach the client any more. */
bool zsocket_probe(zsocket *router, const zsocket_identity *client);

#endif
