/* Messages between agents. A transport belongs to one agent. Only the thread of this agent may call functions
 * of the transport, except for transport_wake(). A transport can listen: every client that connects becomes a
 * link. A transport can also connect to servers, each of which becomes a link. Only transport_wait() and the
 * bounded flush of transport_close() block.
 *
 * Tensor frames are sent without a copy, so their memory must stay unchanged until the ticket is released.
 * Messages of a link arrive in order or not at all. The messages of each direction are numbered, and a
 * checksum covers every header and frame unless checksums are off. A duplicate is dropped and counted. A gap
 * or a flipped bit is an error that names peer and number. A message of a stranger is dropped with a log
 * line.
 *
 * docs/transport.md describes the wire format, the options of the sockets, and failure modes. */
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

/* The transport over libzmq: inproc://NAME (within a hub), ipc://@NAME (abstract), tcp://HOST:PORT. */
extern const transport_type transport_zmq;

/* A hub connects agents that are threads of one process, over inproc://. Close the hub after all its
 * transports. Frames received over inproc:// point to the sender's memory. */
status transport_hub_open(transport_hub **out);
void transport_hub_close(transport_hub **hub);

/* Returns the type of a hub's transports, or libzmq's if `hub` is NULL. */
const transport_type *transport_hub_type(const transport_hub *hub);

/* Counts the frames whose memory is still in use. The owner zero-initializes the ticket, and may reuse the
 * buffers and the ticket when transport_sent() returns true. Until transport_sent() returns true, the ticket
 * must stay valid. If `wake` is true, the last release ends a transport_wait(). */
typedef struct transport_ticket {
    atomic_int pending;
    bool wake;
    transport *owner; /* set by transport_send */
} transport_ticket;

static inline bool transport_sent(const transport_ticket *ticket)
{
    return atomic_load_explicit(&ticket->pending, memory_order_acquire) == 0;
}

typedef struct transport_options {
    int rank;  /* number of this agent */
    int peers; /* number of agents, which are numbered 0 .. peers - 1 */
    uint64_t token;
    int64_t frame_bytes; /* largest frame; equal on all agents */
    int frames;          /* frames per message at most, 1 .. MESSAGE_FRAMES_MAX; equal on all agents */
    int window;          /* maximum number of messages in flight to one peer */
    bool checksum;       /* equal on all agents */
    bool device_memory;  /* simulation only: frames are in the memory of the rank's GPU, not of its host */
    bool in_sight;       /* simulation only: true if ranks compute on the processor of one machine and read
                          * each other's frames */
    int64_t peer_timeout_ns; /* over tcp, time after which a silent host is lost, or 0 for the kernel's
                              * limits */
    transport_hub *hub;      /* hub for inproc://, or NULL */
    /* Adapter of the rank on an emulated link (link.h), or NULL. The transport holds each message until the
     * adapter has sent or received it. The adapter must outlive the transport. */
    struct net_adapter *adapter;
} transport_options;

/* Returns options with 16 frames, window 32, checksums, a peer timeout of 10 s, no hub and no adapter. */
transport_options transport_defaults(int rank, int peers, uint64_t token, int64_t frame_bytes);

/* Opens a transport. Copies the options. Fails with STATUS_SYSTEM if memory, descriptors or threads run
 * out. */
status transport_open(const transport_type *type, const transport_options *options, transport **out);

/* Allocates room for `messages` received messages that are not yet released. Receiving further messages
 * allocates. */
status transport_reserve(transport *t, int messages);

/* Sends a goodbye to every peer, waits up to `flush_ns` until sent messages have left, and closes. If
 * `flush_ns` is 0, closes at once, and the peers find that the rank is lost. All received messages must have
 * been released. */
void transport_close(transport **t, int64_t flush_ns);

/* Accepts clients at `url`. May be called once per transport. The link to the client of rank r is link r,
 * with r from 0 to peers - 1. Writes the full address to bound[size] if `bound` is not NULL. The address has
 * the chosen port for tcp://HOST:*, and over tcp the key that clients need, tcp://HOST:PORT/KEY. The key is a
 * secret of the job. Fails with STATUS_UNAVAILABLE if the address is taken. */
status transport_listen(transport *t, const char *url, char *bound, size_t size);

/* Begins to connect to the server `peer`. *link becomes the number of the server's link. The server may start
 * after the call. */
status transport_connect(transport *t, int peer, const char *url, int *link);

/* Returns true if the peer is connected, so a message need not wait for the connection. */
bool transport_link_up(const transport *t, int link);
/* Returns true if the peer has said goodbye. A goodbye is an orderly end, and an error only if another
 * message was expected. */
bool transport_link_ended(const transport *t, int link);
int transport_link_peer(const transport *t, int link);

/* Sends a message. Fills in the header fields that the transport owns. `ticket` may be NULL if there are no
 * frames. The array `frames` may be reused after the call, but not the memory of the frames. Fails with
 * STATUS_AGAIN if the window is full or the peer is not connected: call transport_wait() and try again. Fails
 * with STATUS_PEER if the link has ended or is lost. */
status transport_send(transport *t, int link, const message_header *header, const message_frame *frames,
                      int count, transport_ticket *ticket);

/* A received message. `frames` are views, valid until transport_release. */
typedef struct transport_message {
    message_header header;
    int link;
    const message_frame *frames; /* [header.frames] */
    void *slot;                  /* private to the transport */
} transport_message;

/* Receives the next message of any link. Fails with STATUS_AGAIN if there is none now, with STATUS_PEER if a
 * peer is lost or a message is missing, and with STATUS_IO if a message is damaged. After STATUS_PEER and
 * STATUS_IO, which name peer and message, the link is unusable. */
status transport_receive(transport *t, transport_message *out);
void transport_release(transport *t, transport_message *message);

/* Sleeps until one of these happens: a message arrives, transport_wake() is called, a full window has room, a
 * ticket with `wake` is released, or the deadline passes. May return early. */
status transport_wait(transport *t, int64_t deadline_ns);

/* Ends the current transport_wait() of the agent, or the next one. May be called from any thread. */
void transport_wake(transport *t);

typedef struct transport_counters {
    int64_t messages_sent, messages_received;
    int64_t bytes_sent, bytes_received; /* bytes of tensor frames */
    int64_t duplicates;                 /* duplicates, which are dropped */
    int64_t rejected;                   /* messages that are malformed or from strangers */
} transport_counters;
void transport_read_counters(const transport *t, transport_counters *out);

#endif
