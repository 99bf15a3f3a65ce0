/* A port sends and receives the messages of one agent. It owns a transport. A worker and a server in the same
 * process are partners: messages between them pass through queues in memory. Only messages over links are
 * counted.
 *
 * Workers are numbered by rank, servers from 0. A worker's port has links only to servers, a server's port
 * only to workers. Only one agent uses a port, but any thread may wake the agent and read the counters. */
#ifndef PS_PORT_H
#define PS_PORT_H

#include "common/net/transport.h"
#include "common/sync/agent.h"
#include "common/sync/engine.h"
#include "common/sync/queue.h"
#include "common/sync/staging.h"
#include "ps/memory.h"

#include <stdatomic.h>

enum { PS_NO_PEER = -1 };

/* Returns false for a virtual device and a device that only plans memory, whose tensors have no bytes. */
static inline bool ps_has_bytes(const device *d)
{
    return device_get_info(d)->real;
}

/* A received message. A message may be copied, but only one of the copies may be released. */
typedef struct ps_message {
    message_header header;
    int peer;
    int64_t arrived_ns;
    bool remote;
    transport_message message; /* Set if `remote`. */
    message_frame frame;       /* Set if the partner sent the message. */
} ps_message;

typedef struct ps_port_ops {
    /* Does the work of sync_agent_ops.progress. If progress() fails, all peers receive the reason. */
    status (*progress)(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked);
    /* Handles a message that ps_port_receive() has received, and takes it over. */
    status (*handle)(void *context, ps_message *m, int64_t now_ns);
    /* Ends the waits of other threads. */
    void (*failed)(void *context, const error_record *error);
} ps_port_ops;

typedef struct ps_port {
    ps_memory memory;
    transport *transport;
    int *links;          /* [peers] */
    bool *was_connected; /* [peers] */
    int peers;
    int partner; /* The peer in this process, or PS_NO_PEER. */
    sync_queue in;
    struct ps_port *other; /* Port of the partner. */
    bool in_events;        /* True in virtual time, in which agents do not sleep, and a wake is an event. */
    atomic_int attention;  /* A port_attention (port.c): the agent is awake, asleep, or was woken. */
    _Atomic int64_t bytes_sent, bytes_received, messages_sent, messages_received;

    const ps_port_ops *ops;
    void *context;
    /* The agent's clock minus rank 0's clock. Times in messages are times of rank 0's clock. Set before the
     * agent starts. */
    int64_t ahead_ns;
    device *device; /* Device whose clock the agent uses, or NULL for the host's clock. */
    sync_agent *agent;
    atomic_bool ended;
    error_record failure;
    transport_ticket failure_ticket;
} ps_port;

/* Opens the transport, with room for `held` received messages. `partner` may be PS_NO_PEER. At most
 * `capacity` messages of a partner wait in the queue. */
status ps_port_open(ps_port *p, const transport_options *options, int peers, int held, int partner,
                    uint32_t capacity);
/* Starts the agent in a thread named `name`. If `inline_for` is not NULL, there is no thread: the compute
 * thread of that rank runs the agent while it waits. */
status ps_port_start(ps_port *p, const ps_port_ops *ops, void *context, device *d, const char *name,
                     const sync_context *inline_for);
/* Runs the agent in the calling thread while `*until` is below `count`. */
status ps_port_serve(ps_port *p, const ps_port_ops *ops, void *context, const atomic_int *until, int count);
bool ps_port_has_failed(const ps_port *p);
/* Ends the agent, gives messages time to leave, and ends the connections. The partner may still push
 * messages until ps_port_close(). */
void ps_port_disconnect(ps_port *p);
void ps_port_close(ps_port *p);

/* Returns the time on the agent's clock. */
int64_t ps_port_now(const ps_port *p);

/* Sends a message that represents `payload` bytes, in its frames or in shared memory. Returns STATUS_AGAIN if
 * there is no room, or if the peer is not connected yet. The frames must not change until transport_sent()
 * returns true for `ticket`.
 *
 * A message to the partner has at most one frame and ignores `ticket`. The partner reads the frame in the
 * sender's memory, so this memory must not change before the partner has replied or acknowledged the
 * message. */
status ps_port_send(ps_port *p, int peer, const message_header *header, const message_frame *frames,
                    int count, transport_ticket *ticket, int64_t payload);

/* Passes messages that have arrived to ps_port_ops.handle. */
status ps_port_receive(ps_port *p, int64_t now_ns, bool *worked);
void ps_port_release(ps_port *p, ps_message *m);

static inline message_frame ps_message_frame(const ps_message *m, int index)
{
    return m->remote ? m->message.frames[index] : m->frame;
}

/* Fills `frames` with pieces of an arena, and returns their number. Elements have `size` bytes. */
int ps_frames_of(message_frame *frames, const void *arena, piece_list pieces, int64_t size);
/* Returns true if the message's frames have the sizes of `pieces`. */
bool ps_has_frames_of(const ps_message *m, piece_list pieces, int64_t size);
/* Copies the message's frames to an arena in host memory. */
void ps_take_frames(device *d, const ps_message *m, void *arena, piece_list pieces, int64_t size);
/* Copies pieces between arenas in host memory. */
void ps_copy_pieces(device *d, void *to, const void *from, piece_list pieces, int64_t size);

/* Makes the reason in a FAILED message the error of this thread, and returns its code. */
status ps_message_failure(const ps_message *m);

/* Counts `payload` bytes that came with a message from `peer`. */
void ps_port_count_received(ps_port *p, int peer, int64_t payload);

/* Adds the traffic so far, and the processor time of the agent. */
void ps_port_collect(const ps_port *p, sync_counters *out);

/* Wakes the agent after something was posted to it. */
void ps_port_wake(ps_port *p);

bool ps_port_is_connected(const ps_port *p, int peer);
/* Returns true if the peer was connected and has disconnected. A connection is noticed only by this function
 * and when a message arrives. */
bool ps_port_has_left(ps_port *p, int peer);

/* Returns true if nothing has happened for `patience_ns` since *since_ns. If another rank has made progress
 * after *since_ns, that time replaces *since_ns. If the result is false, *deadline_ns becomes at most the
 * time of the next check. */
bool ps_is_late(const sync_context *c, int64_t *since_ns, int64_t patience_ns, int64_t now_ns,
                int64_t *deadline_ns);

#endif
