/* Types that the files transport_zmq*.c share. A transport has one ROUTER socket for all clients, and one
 * DEALER socket per server. */
#ifndef COMMON_NET_TRANSPORT_ZMQ_IMPL_H
#define COMMON_NET_TRANSPORT_ZMQ_IMPL_H

#include "common/net/message_wire.h"
#include "common/net/transport_impl.h"
#include "common/net/zmq_socket.h"

#include <poll.h>
#include <zmq.h>

typedef struct zmq_transport zmq_transport;
typedef struct zmq_hub zmq_hub;

/* A packed header that libzmq sends in place. */
typedef struct header_slot {
    zmq_transport *owner;
    atomic_bool busy;
    uint8_t bytes[MESSAGE_HEADER_BYTES];
} header_slot;

typedef struct zmq_link {
    zsocket dealer; /* not open if the peer is a client, because all clients use the ROUTER */
    char *url;
    zsocket_identity identity;
    bool up;
    bool lost;          /* true if the connection has ended; earlier messages may still be readable */
    header_slot *slots; /* [window], allocated when the link is opened or the first message arrives */
    int next_slot;
} zmq_link;

/* Storage of a received message. */
typedef struct receive_slot {
    struct receive_slot *next;
    int used;              /* number of parts in use */
    zmq_msg_t *parts;      /* [options.frames] */
    message_frame *frames; /* [options.frames] */
} receive_slot;

struct zmq_transport {
    transport base;
    zsocket_context *context;
    zmq_hub *hub; /* hub that owns the context, or NULL if the transport owns the context */
    zsocket router;
    zmq_link *links; /* [2 * peers] */
    int wake_fd;
    atomic_bool waits_for_room;
    atomic_int headers_in_use;
    receive_slot *free_slots;
    /* socket from which the next receive reads first; it changes so that no socket starves; 0 is the
     * ROUTER */
    int next_socket;
    unsigned idle_receives;
    bool loss_pending; /* true if a link is lost and the loss has not been reported */
    /* true if a link has come up since the last wait, so that a send that returned AGAIN may succeed now */
    bool came_up;
    struct pollfd *polled; /* [1 + 2 * (1 + peers)]: wake_fd, then each socket and its monitor */
    void **sockets;        /* [1 + peers], in the same order */
    int socket_count;
    /* True if every socket was found empty and has not been used since then. Only in this state does a
     * socket's descriptor become readable when a message arrives (zmq_getsockopt(3), ZMQ_FD). */
    bool drained;
    struct zmq_transport *next_closed;
};

struct zmq_hub {
    transport_hub base;
    zsocket_context *context;
    _Atomic(zmq_transport *) closed; /* list of closed transports whose frames are still in use */
    /* Number of sent messages. Messages over inproc:// point to the sender's memory. The sender increments
     * `sends` after it has written that memory, and the receiver loads `sends` before it reads the memory.
     * Therefore the receiver sees all writes. */
    atomic_ullong sends;
};

/* Marks the link as up. Allocates its header slots. */
status zmq_link_prepare(zmq_transport *z, zmq_link *l);
void zmq_link_lost(zmq_transport *z, zmq_link *l);

/* transport_zmq_receive.c */
status zmq_receive(transport *t, transport_message *out);
void zmq_release(transport *t, transport_message *message);
status zmq_reserve(transport *t, int messages);
status zmq_read_monitors(zmq_transport *z);
void zmq_probe_clients(zmq_transport *z);

#endif
