/* Messages between agents. A transport belongs to one agent, the only thread that may call it (but for
 * transport_wake). It can listen, then every client that connects is a link; and it can connect to
 * servers, each of which is a link too. Nothing blocks except transport_wait and the bounded flush of
 * transport_close.
 *
 * Tensor frames are sent without a copy: the memory must stay untouched until the ticket says so.
 * Messages of a link arrive in order or not at all: each direction is numbered and, unless switched
 * off, every header and frame is covered by a checksum. A duplicate is dropped and counted; a gap or a
 * flipped bit is an error that names peer and number. What strangers send is dropped with a log line.
 *
 * docs/transport.md: wire format, options of the sockets, failure modes. */
#ifndef COMMON_NET_TRANSPORT_H
#define COMMON_NET_TRANSPORT_H

#include "common/base/status.h"
#include "common/net/message.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct transport transport;
typedef struct transport_type transport_type;
typedef struct transport_hub transport_hub;

/* libzmq: inproc://NAME (within a hub), ipc://@NAME (abstract), tcp://HOST:PORT. */
extern const transport_type transport_zmq;

/* What agents that are threads of one process share, so that inproc:// reaches between them. Closed
 * after all its transports. Frames sent over inproc:// are the sender's memory at the receiver. */
status transport_hub_open(transport_hub **out);
void transport_hub_close(transport_hub **hub);

/* The type of a hub's transports; without one libzmq's. */
const transport_type *transport_hub_type(const transport_hub *hub);

/* Counts the frames that still need their memory. The owner zero-initializes it, sets `wake` where the
 * last release shall end a transport_wait, and may reuse buffers and ticket when transport_sent(). It
 * must live until then. */
typedef struct transport_ticket {
    atomic_int pending;
    bool wake;
    transport *owner; /* set by transport_send */
} transport_ticket;

static inline bool transport_sent(const transport_ticket *ticket)
{
    return atomic_load_explicit(&ticket->pending, memory_order_acquire) == 0;
}

/* An emulated link: when a message of `bytes` to `peer`, handed over at `now_ns`, may leave; and when one
 * from `peer`, come at `now_ns`, may be received. Each called once per message, in order; the transport keeps
 * it back until then. */
typedef struct transport_pacer {
    int64_t (*release_ns)(void *context, int peer, int64_t bytes, int64_t now_ns); /* NULL: none */
    int64_t (*deliver_ns)(void *context, int peer, int64_t bytes, int64_t now_ns); /* NULL: none */
    void *context;
} transport_pacer;

/* The pacer of an adapter (link.h), which must outlive the transport; none where its link is not emulated. */
struct net_adapter;
transport_pacer transport_pacer_of(struct net_adapter *adapter);

typedef struct transport_options {
    int rank;            /* own number among the peers */
    int peers;           /* all agents are numbered 0 .. peers - 1 */
    uint64_t token;      /* of the job */
    int64_t frame_bytes; /* no agent sends a larger frame; the same everywhere */
    int frames;          /* a message has at most so many, 1 .. MESSAGE_FRAMES_MAX; the same everywhere */
    int window;          /* messages on their way to one peer; more are STATUS_AGAIN */
    bool checksum;       /* the same everywhere */
    bool device_memory;  /* virtual: frames lie in the rank's GPU, not in its host's memory */
    bool in_sight;       /* virtual: who computes on the processor of this rank's machine sees the frames */
    int64_t peer_timeout_ns; /* tcp: a host that is silent so long is lost; 0: the kernel's limits */
    transport_hub *hub;      /* NULL: no inproc:// */
    transport_pacer pacer;
} transport_options;

/* 16 frames, window 32, checksums, 10 s; no hub, no pacer. */
transport_options transport_defaults(int rank, int peers, uint64_t token, int64_t frame_bytes);

/* STATUS_SYSTEM where memory, descriptors or threads are short. Options are copied. */
status transport_open(const transport_type *type, const transport_options *options, transport **out);

/* Makes room for so many messages that are received and not released, beyond which receiving allocates. */
status transport_reserve(transport *t, int messages);

/* Says goodbye to every peer, gives what was sent up to `flush_ns` to leave, and closes. With 0 it closes
 * at once, and peers see a lost rank. Messages received must have been released. */
void transport_close(transport **t, int64_t flush_ns);

/* Accepts clients at `url`; once per transport. The address in full goes to bound[size] unless NULL: with a
 * port chosen for tcp://HOST:*, and with the key that clients over tcp need, tcp://HOST:PORT/KEY. It is a
 * secret: only members of the job may see it. The links of clients are their ranks: 0 .. peers - 1.
 * STATUS_UNAVAILABLE where the address is taken. */
status transport_listen(transport *t, const char *url, char *bound, size_t size);

/* Begins to connect to the server `peer`; *link becomes its link. The server may come up later. */
status transport_connect(transport *t, int peer, const char *url, int *link);

/* The peer is there: a message would not wait for it. */
bool transport_link_up(const transport *t, int link);
/* The peer has said goodbye: an orderly end, and no error unless something was still expected of it. */
bool transport_link_ended(const transport *t, int link);
int transport_link_peer(const transport *t, int link);

/* Hands over a message; header fields that the transport owns are ignored. `ticket` may be NULL where
 * there are no frames. The array `frames` is not needed afterwards, what it points to is.
 * STATUS_AGAIN, with nothing taken over, while the window is full or the peer is not there: call
 * transport_wait and try again. STATUS_PEER where the link has ended or is lost. */
status transport_send(transport *t, int link, const message_header *header, const message_frame *frames,
                      int count, transport_ticket *ticket);

/* A received message. `frames` are views, valid until transport_release. */
typedef struct transport_message {
    message_header header;
    int link;
    const message_frame *frames; /* [header.frames] */
    void *slot;                  /* the transport's */
} transport_message;

/* The next message of any link. STATUS_AGAIN: none now. STATUS_PEER: a peer is lost or a message is
 * missing; STATUS_IO: a message is damaged. Both name peer and message; the link is of no more use. */
status transport_receive(transport *t, transport_message *out);
void transport_release(transport *t, transport_message *message);

/* Sleeps until there may be something to receive, a transport_wake, room in a window that was full, a
 * ticket that asks for it, or the deadline. May return early for no reason. */
status transport_wait(transport *t, int64_t deadline_ns);

/* Ends the agent's transport_wait, now or the next one. From any thread. */
void transport_wake(transport *t);

typedef struct transport_counters {
    int64_t messages_sent, messages_received;
    int64_t bytes_sent, bytes_received; /* of tensor frames */
    int64_t duplicates;                 /* dropped */
    int64_t rejected;                   /* from strangers, or malformed */
} transport_counters;
void transport_read_counters(const transport *t, transport_counters *out);

#endif
