/* A transport carries messages between agents, and belongs to one agent. Only the thread of this agent may
 * call functions of the transport, except transport_wake(), which any thread may call. A transport can listen
 * and can connect to servers. Each connection, to a client or to a server, is a link. Only transport_wait()
 * and the bounded flush of transport_close() block.
 *
 * Tensor frames are sent without a copy, so the memory of a frame must not change until the ticket is
 * released. The messages of a link arrive in order, or are lost. The messages of each direction are numbered.
 * If checksums are on, a checksum covers the header and all frames of a message. A duplicate is dropped and
 * counted. A missing message or a flipped bit is an error that names the peer and the number of the message.
 * A message from a process outside of the job is dropped and logged.
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

/* The transport over libzmq. It supports inproc://NAME (within a hub), ipc://@NAME (an abstract unix socket)
 * and tcp://HOST:PORT. */
extern const transport_type transport_zmq;

/* A hub connects agents that are threads of one process, over inproc://. Close the hub after all its
 * transports. Received frames of inproc:// point to the sender's memory. */
status transport_hub_open(transport_hub **out);
void transport_hub_close(transport_hub **hub);

/* Returns the type of a hub's transports, or &transport_zmq if `hub` is NULL. */
const transport_type *transport_hub_type(const transport_hub *hub);

/* A ticket counts the frames whose memory is still in use. The owner initializes the ticket with zeros. Until
 * transport_sent() returns true, the ticket must stay valid and the frames must not change. Afterwards the
 * ticket and the frames may be reused. If `wake` is true, the release of the last frame ends a
 * transport_wait(). */
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
    int peers; /* number of agents; agents are numbered from 0 to peers - 1 */
    uint64_t token;
    int64_t frame_bytes; /* size of the largest frame; equal on all agents */
    /* largest number of frames per message, 1 to MESSAGE_FRAMES_MAX; equal on all agents */
    int frames;
    int window;    /* maximum number of messages in flight to one peer */
    bool checksum; /* true if messages have checksums; equal on all agents */
    /* Used only in simulations. True if frames are in the memory of the rank's GPU, false if they are in host
     * memory. */
    bool device_memory;
    /* Used only in simulations. True if ranks that compute on the CPU of the same machine read each other's
     * frames without a copy. */
    bool in_sight;
    /* Over tcp, time after which a host that sends nothing counts as lost. If it is 0, the kernel's limits
     * apply. */
    int64_t peer_timeout_ns;
    transport_hub *hub; /* hub for inproc://, or NULL */
    /* Emulated network adapter of the rank (link.h), or NULL. The transport delays each message until the
     * adapter has sent or received the message. The adapter must outlive the transport. */
    struct net_adapter *adapter;
} transport_options;

/* Returns options with 16 frames per message, a window of 32 messages, checksums, a peer timeout of 10 s, no
 * hub and no adapter. */
transport_options transport_defaults(int rank, int peers, uint64_t token, int64_t frame_bytes);

/* Opens a transport. Copies the options. Fails with STATUS_SYSTEM if memory, descriptors or threads run
 * out. */
status transport_open(const transport_type *type, const transport_options *options, transport **out);

/* Allocates memory for `messages` received messages that have not been released. If more messages are
 * unreleased, transport_receive() allocates memory. */
status transport_reserve(transport *t, int messages);

/* Sends a goodbye to every peer, waits up to `flush_ns` until all sent messages have left, and closes the
 * transport. If `flush_ns` is 0, closes the transport at once without a goodbye. The peers then treat this
 * rank as lost. All received messages must have been released. */
void transport_close(transport **t, int64_t flush_ns);

/* Accepts clients at `url`. May be called once per transport. The link to the client with number r, 0 to
 * peers - 1, has the number r. If `bound` is not NULL, writes the full address to bound[size]. For
 * tcp://HOST:*, the address contains the chosen port. Over tcp, the address has the form tcp://HOST:PORT/KEY,
 * where KEY is the key that clients need. The key is a secret of the job. Fails with STATUS_UNAVAILABLE if
 * the address is taken. */
status transport_listen(transport *t, const char *url, char *bound, size_t size);

/* Begins to connect to the server `peer`. Sets *link to the number of the link. The server may be started
 * after this call. */
status transport_connect(transport *t, int peer, const char *url, int *link);

/* Returns true if the peer is connected, so that transport_send() does not fail because of a missing
 * connection. */
bool transport_link_up(const transport *t, int link);
/* Returns true if the peer has said goodbye. A goodbye is not an error unless the caller expects another
 * message from the peer. */
bool transport_link_ended(const transport *t, int link);
int transport_link_peer(const transport *t, int link);

/* Sends a message. Fills in the header fields that the transport owns. `ticket` may be NULL if there are no
 * frames. After the call, the caller may reuse the array `frames`, but not the memory to which the frames
 * point. Fails with STATUS_AGAIN if the window is full or the peer is not connected. The caller then calls
 * transport_wait() and tries again. Fails with STATUS_PEER if the link has ended or is lost. */
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

/* Sleeps until a message arrives, transport_wake() is called, a full window has room again, all frames of a
 * ticket with `wake` are released, or the deadline passes. May return early. */
status transport_wait(transport *t, int64_t deadline_ns);

/* Ends the current transport_wait() of the agent, or the next one. May be called from any thread. */
void transport_wake(transport *t);

typedef struct transport_counters {
    int64_t messages_sent, messages_received;
    int64_t bytes_sent, bytes_received; /* bytes of tensor frames */
    int64_t duplicates;                 /* number of duplicate messages that have been dropped */
    /* number of messages that were malformed, or came from processes outside of the job */
    int64_t rejected;
} transport_counters;
void transport_read_counters(const transport *t, transport_counters *out);

#endif
