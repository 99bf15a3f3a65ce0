/* Messages between agents. A transport belongs to one agent. Only the thread of this agent may call functions
 * of the transport, except for transport_wake(). A transport can listen and can connect to servers. Each
 * connection, to a client or to a server, is a link. Only transport_wait() and the bounded flush of
 * transport_close() block.
 *
 * Tensor frames are sent without a copy, so the memory of a frame must not change until the ticket is
 * released. Messages of a link arrive in order or not at all. The messages of each direction are numbered,
 * and a checksum covers every header and frame unless checksums are off. A duplicate is dropped and counted.
 * A missing message or a flipped bit is an error that names the peer and the number of the message. A message
 * from a process outside of the job is dropped and logged.
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
 * transports. Received frames of inproc:// point to the sender's memory. */
status transport_hub_open(transport_hub **out);
void transport_hub_close(transport_hub **hub);

/* Returns the type of a hub's transports, or libzmq's if `hub` is NULL. */
const transport_type *transport_hub_type(const transport_hub *hub);

/* Counts the frames whose memory is still in use. The owner initializes the ticket with zeros. Until
 * transport_sent() returns true, the ticket must stay valid and the frames must not change. Afterwards both
 * may be reused. If `wake` is true, the release of the last frame ends a transport_wait(). */
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
    int peers; /* number of agents, which have the numbers 0 to peers - 1 */
    uint64_t token;
    int64_t frame_bytes; /* size of the largest frame; equal on all agents */
    /* largest number of frames per message, 1 to MESSAGE_FRAMES_MAX; equal on all agents */
    int frames;
    int window;    /* maximum number of messages in flight to one peer */
    bool checksum; /* whether messages have checksums; equal on all agents */
    /* simulation only: true if frames are in the memory of the rank's GPU, false if they are in host
     * memory */
    bool device_memory;
    bool in_sight; /* simulation only: true if ranks compute on the processor of one machine and read
                    * each other's frames */
    /* over tcp, time after which a host that sends nothing counts as lost, or 0 for the limits of the
     * kernel */
    int64_t peer_timeout_ns;
    transport_hub *hub; /* hub for inproc://, or NULL */
    /* Adapter of the rank on an emulated link (link.h), or NULL. The transport holds each message until the
     * adapter has sent or received it. The adapter must outlive the transport. */
    struct net_adapter *adapter;
} transport_options;

/* Returns options with 16 frames, window 32, checksums, a peer timeout of 10 s, no hub and no adapter. */
transport_options transport_defaults(int rank, int peers, uint64_t token, int64_t frame_bytes);

/* Opens a transport. Copies the options. Fails with STATUS_SYSTEM if memory, descriptors or threads run
 * out. */
status transport_open(const transport_type *type, const transport_options *options, transport **out);

/* Allocates room for `messages` received messages that have not been released. If there are more, receiving a
 * message allocates memory. */
status transport_reserve(transport *t, int messages);

/* Sends a goodbye to every peer, waits up to `flush_ns` until sent messages have left, and closes the
 * transport. If `flush_ns` is 0, closes the transport at once without a goodbye. The peers then treat this
 * rank as lost. All received messages must have been released. */
void transport_close(transport **t, int64_t flush_ns);

/* Accepts clients at `url`. May be called once per transport. The link to the client with number r is link r,
 * where r is from 0 to peers - 1. If `bound` is not NULL, writes the full address to bound[size]. For
 * tcp://HOST:*, the address contains the chosen port. Over tcp, the address also contains the key that
 * clients need, tcp://HOST:PORT/KEY. The key is a secret of the job. Fails with STATUS_UNAVAILABLE if the
 * address is taken. */
status transport_listen(transport *t, const char *url, char *bound, size_t size);

/* Begins to connect to the server `peer`. Sets *link to the number of the link. The server may be started
 * after this call. */
status transport_connect(transport *t, int peer, const char *url, int *link);

/* Returns true if the peer is connected, so a message need not wait for the connection. */
bool transport_link_up(const transport *t, int link);
/* Returns true if the peer has said goodbye. A goodbye is an orderly end. It is an error only if another
 * message was expected. */
bool transport_link_ended(const transport *t, int link);
int transport_link_peer(const transport *t, int link);

/* Sends a message. Fills in the header fields that the transport owns. `ticket` may be NULL if there are no
 * frames. The array `frames` may be reused after the call, but not the memory of the frames. Fails with
 * STATUS_AGAIN if the window is full or the peer is not connected. The caller then calls transport_wait() and
 * tries again. Fails with STATUS_PEER if the link has ended or is lost. */
status transport_send(transport *t, int link, const message_header *header, const message_frame *frames,
                      int count, transport_ticket *ticket);

/* A received message. The memory of `frames` is valid until transport_release(). */
typedef struct transport_message {
    message_header header;
    int link;
    const message_frame *frames; /* [header.frames] */
    void *slot;                  /* private to the transport */
} transport_message;

/* Receives the next message of any link. Fails with STATUS_AGAIN if no message has arrived, with STATUS_PEER
 * if a peer is lost or a message is missing, and with STATUS_IO if a message is damaged. The errors
 * STATUS_PEER and STATUS_IO name the peer and the message, and the link is then unusable. */
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
    int64_t duplicates;                 /* number of duplicates, which have been dropped */
    /* number of messages that were malformed, or came from processes outside of the job */
    int64_t rejected;
} transport_counters;
void transport_read_counters(const transport *t, transport_counters *out);

#endif
