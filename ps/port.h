/* One agent and its end of the messages: the transport that it owns, and a queue from its partner where the
 * two are a worker and the server in its process. Counts what passes over links; the queue is none.
 *
 * Workers are numbered by rank, servers from 0. A worker's port is linked only to servers, a server's only to
 * workers. One agent uses a port; any thread may wake it and read its counters. */
#ifndef PS_PORT_H
#define PS_PORT_H

#include "common/net/transport.h"
#include "common/sync/agent.h"
#include "common/sync/engine.h"
#include "common/sync/queue.h"
#include "common/sync/staging.h"

#include <stdatomic.h>

enum { PS_NO_PEER = -1 };

/* A received message. It may be copied; one of the copies is released. */
typedef struct ps_message {
    message_header header;
    int peer;
    int64_t arrived_ns;
    bool remote;
    transport_message message; /* remote */
    message_frame frame;       /* of the partner */
} ps_message;

/* The state machine that the agent drives. */
typedef struct ps_port_ops {
    /* As sync_agent_ops.progress. When it fails, all peers receive the reason. */
    status (*progress)(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked);
    /* For ps_port_receive(); takes over the message. */
    status (*handle)(void *context, ps_message *m, int64_t now_ns);
    /* Ends what others wait for. */
    void (*failed)(void *context, const error_record *error);
} ps_port_ops;

typedef struct ps_port {
    transport *transport;
    int *links;          /* [peers] */
    bool *was_connected; /* [peers] */
    int peers;
    int partner;           /* the peer in this process, or PS_NO_PEER */
    sync_queue in;         /* from the partner */
    struct ps_port *other; /* the partner's port */
    bool in_events;        /* in virtual time agents do not sleep: a wake is an event */
    atomic_int attention;  /* port_attention: whether the agent sleeps, or must check again before it does */
    _Atomic int64_t bytes_sent, bytes_received, messages_sent, messages_received;

    const ps_port_ops *ops;
    void *context;    /* of ops */
    int64_t ahead_ns; /* this clock less rank 0's, on which times travel; set before the agent starts */
    device *device;   /* whose clock the agent uses; NULL: the host's */
    sync_agent *agent;
    atomic_bool ended; /* the agent has failed */
    error_record failure;
    transport_ticket failure_ticket;
} ps_port;

/* Opens the transport, ready to hold `held` messages that were received. `partner` is PS_NO_PEER where there
 * is none; from one at most `capacity` messages wait. */
status ps_port_open(ps_port *p, const transport_options *options, int peers, int held, int partner,
                    uint32_t capacity);
/* Starts the agent, `name` is that of its thread. `inline_for`: the rank whose compute thread is the agent
 * while it waits; NULL: the agent has a thread; */
status ps_port_start(ps_port *p, const ps_port_ops *ops, void *context, device *d, const char *name,
                     const sync_context *inline_for);
/* or the caller's thread is the agent, while `*until` is below `count`. */
status ps_port_serve(ps_port *p, const ps_port_ops *ops, void *context, const atomic_int *until, int count);
/* The agent has failed. */
bool ps_port_has_failed(const ps_port *p);
/* Ends the agent, then the connections after messages have had time to leave. The partner may still push
 * messages. */
void ps_port_disconnect(ps_port *p);
void ps_port_close(ps_port *p);

/* The time on the agent's clock. */
int64_t ps_port_now(const ps_port *p);

/* Sends a message that represents `payload` bytes, in its frames or in shared memory. STATUS_AGAIN:
 * no room, or the peer is not connected yet. To a partner at most one frame goes, which is the sender's
 * memory until the protocol says otherwise; `ticket` is for others. */
status ps_port_send(ps_port *p, int peer, const message_header *header, const message_frame *frames,
                    int count, transport_ticket *ticket, int64_t payload);

/* Hands messages that have arrived to ps_port_ops.handle. */
status ps_port_receive(ps_port *p, int64_t now_ns, bool *worked);
void ps_port_release(ps_port *p, ps_message *m);

static inline message_frame ps_message_frame(const ps_message *m, int index)
{
    return m->remote ? m->message.frames[index] : m->frame;
}

/* Tensors: pieces of an arena of elements of `size` bytes, in frames or in memory that both sides see. */
int ps_frames_of(message_frame *frames, const void *arena, piece_list pieces, int64_t size);
/* The message has the frames of these pieces. */
bool ps_has_frames_of(const ps_message *m, piece_list pieces, int64_t size);
/* Copies what is in the message's frames to an arena of the host. */
void ps_take_frames(device *d, const ps_message *m, void *arena, piece_list pieces, int64_t size);
/* Copies between arenas; has ended when it returns. */
status ps_copy_pieces(const sync_staging *s, void *to, const void *from, piece_list pieces, int64_t size);

/* Makes the reason in a FAILED message this thread's failure. */
status ps_message_failure(const ps_message *m);

/* `payload` bytes came with a message from `peer`. */
void ps_port_count_received(ps_port *p, int peer, int64_t payload);

/* Adds what has passed so far, and the processor time of the agent. */
void ps_port_collect(const ps_port *p, sync_counters *out);

/* The agent has something to do: after whatever was posted. */
void ps_port_wake(ps_port *p);

bool ps_port_is_connected(const ps_port *p, int peer);
/* The peer was connected and is no more. Connections that are made are noticed here, and when a message
 * arrives. */
bool ps_port_has_left(ps_port *p, int peer);

/* Whether nothing has happened for `patience_ns` since *since_ns, which becomes the time of another rank's
 * last progress if that is later; else it is to be checked again by *deadline_ns. */
bool ps_is_late(const sync_context *c, int64_t *since_ns, int64_t patience_ns, int64_t now_ns,
                int64_t *deadline_ns);

#endif
