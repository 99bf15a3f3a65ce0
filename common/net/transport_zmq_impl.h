/* Shared by transport_zmq*.c: one ROUTER for the clients, one DEALER for each server. */
#ifndef COMMON_NET_TRANSPORT_ZMQ_IMPL_H
#define COMMON_NET_TRANSPORT_ZMQ_IMPL_H

#include "common/net/message_wire.h"
#include "common/net/transport_impl.h"
#include "common/net/zmq_socket.h"

#include <poll.h>
#include <string.h>
#include <zmq.h>

typedef struct zmq_transport zmq_transport;
typedef struct zmq_hub zmq_hub;

/* A packed header on its way: libzmq sends it in place. */
typedef struct header_slot {
    zmq_transport *owner;
    atomic_bool busy;
    uint8_t bytes[MESSAGE_HEADER_BYTES];
} header_slot;

typedef struct zmq_link {
    zsocket dealer; /* closed for a client's link, which goes through the ROUTER */
    char *url;
    zsocket_identity identity; /* of the client */
    bool up;
    bool lost;          /* its connection is gone; what it sent before may still be readable */
    header_slot *slots; /* [window], made when the link is opened or first heard of */
    int next_slot;
} zmq_link;

/* Storage of a received message. */
typedef struct receive_slot {
    struct receive_slot *next; /* in the list of free ones */
    int used;                  /* parts that hold something */
    zmq_msg_t *parts;          /* [options.frames] */
    message_frame *frames;     /* [options.frames] */
} receive_slot;

struct zmq_transport {
    transport base;
    zsocket_context *context;
    zmq_hub *hub; /* NULL: the context is our own */
    zsocket router;
    zmq_link *links; /* [2 * peers] */
    int wake_fd;
    atomic_bool waits_for_room;
    atomic_int headers_in_use;
    receive_slot *free_slots;
    int next_socket; /* fairness: whom to ask first, 0: the ROUTER */
    unsigned idle_receives;
    bool loss_pending;     /* a link is lost and not yet reported */
    bool came_up;          /* a link did since the last wait: whoever got AGAIN may try again */
    struct pollfd *polled; /* [1 + 2 * (1 + peers)]: wake_fd, then of each socket itself and its monitor */
    void **sockets;        /* [1 + peers], in that order */
    int socket_count;
    /* Every socket was found empty and has not been used since: then, and only then, do their
     * descriptors become readable when there is something (zmq_getsockopt(3), ZMQ_FD). */
    bool drained;
    struct zmq_transport *next_closed; /* in the hub's list */
};

struct zmq_hub {
    transport_hub base;
    zsocket_context *context;
    _Atomic(zmq_transport *) closed; /* whose frames were still in use */
    /* Messages over inproc:// are the sender's memory: the sender counts up after its last write, the
     * receiver loads the count before its first read. */
    atomic_ullong sends;
};

/* The link's peer is there. */
status zmq_link_prepare(zmq_transport *z, zmq_link *l);
void zmq_link_lost(zmq_transport *z, zmq_link *l);

/* transport_zmq_receive.c */
status zmq_receive(transport *t, transport_message *out);
void zmq_release(transport *t, transport_message *message);
status zmq_reserve(transport *t, int messages);
status zmq_read_monitors(zmq_transport *z);
void zmq_probe_clients(zmq_transport *z);

#endif
