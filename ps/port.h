/* One agent's end of the messages: the transport that it owns, and a queue from its partner where the two are a worker
 * and the server in its process. Counts what passes over links; the queue is none.
 *
 * Workers are numbered by rank, servers from 0. A worker's port is linked only to servers, a server's only to workers.
 * One agent uses a port; any thread may wake it and read its counters. */
#ifndef PS_PORT_H
#define PS_PORT_H

#include "common/net/transport.h"
#include "common/sync/queue.h"

#include <stdatomic.h>

enum { PS_NO_PEER = -1 };

typedef struct ps_port {
    transport *transport;
    int *links;    /* [peers] */
    int peers;
    int partner;   /* the peer in this process, or PS_NO_PEER */
    sync_queue in; /* from the partner */
    struct ps_port *other; /* the partner's port */
    bool in_events;       /* in virtual time agents do not sleep: a wake is an event */
    atomic_int attention; /* port_attention: whether the agent sleeps, or must check again before it does */
    _Atomic int64_t bytes_sent, bytes_received, messages_sent, messages_received;
} ps_port;

/* Opens the transport, ready to hold `held` messages that were received. `partner` is PS_NO_PEER where there is
 * none; from one at most `capacity` messages wait. */
status ps_port_open(ps_port *p, const transport_options *options, int peers, int held, int partner, uint32_t capacity);
/* Ends the connections after messages have had `flush_ns` to leave. The partner may still push messages. */
void ps_port_disconnect(ps_port *p, int64_t flush_ns);
void ps_port_close(ps_port *p);

/* Sends a message that represents `payload` bytes, in its frames or in shared memory. STATUS_AGAIN:
 * no room, or the peer is not connected yet. To a partner at most one frame goes, which is the sender's
 * memory until the protocol says otherwise; `ticket` is for others. */
status ps_port_send(ps_port *p, int peer, const message_header *header, const message_frame *frames, int count,
                    transport_ticket *ticket, int64_t payload);

/* A received message. It may be copied; one of the copies is released. */
typedef struct ps_message {
    message_header header;
    int peer;
    bool remote;
    transport_message message; /* remote */
    message_frame frame;       /* of the partner */
} ps_message;

status ps_port_receive(ps_port *p, ps_message *out);
void ps_port_release(ps_port *p, ps_message *m);

static inline message_frame ps_message_frame(const ps_message *m, int index)
{
    return m->remote ? m->message.frames[index] : m->frame;
}

/* Makes the reason in a FAILED message this thread's failure. */
status ps_message_failure(const ps_message *m);

/* `payload` bytes came with a message from `peer`. */
void ps_port_count_received(ps_port *p, int peer, int64_t payload);

/* Sleeps until there may be something to do; returns at once if the port was woken since the last wait. */
void ps_port_wait(ps_port *p, int64_t deadline_ns);
/* After whatever was posted. */
void ps_port_wake(ps_port *p);

/* The peer is connected. */
bool ps_port_is_connected(const ps_port *p, int peer);

#endif
