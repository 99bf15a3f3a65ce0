/* A port sends and receives the messages of one agent, and owns a transport. A worker and a server in the
 * same process are partners, and exchange messages through queues in memory. The counters of a port include
 * messages over links of the transport, but not messages between partners.
 *
 * The number of a worker is its rank. Servers are numbered from 0. A worker's port has links only to servers,
 * and a server's port has links only to workers. Only one agent uses a port, but any thread may wake the
 * agent and read the counters. */
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

/* Returns true if tensors of the device have memory. Tensors have no memory on a virtual device, or on a
 * device that only plans memory. */
static inline bool ps_has_bytes(const device *d)
{
    return device_get_info(d)->real;
}

/* A received message. The struct may be copied, but only one of the copies may be released. */
typedef struct ps_message {
    message_header header;
    int peer;
    int64_t arrived_ns;
    bool remote;
    transport_message message; /* Set if `remote` is true. */
    message_frame frame;       /* Set if the partner sent the message. */
} ps_message;

typedef struct ps_port_ops {
    /* Called like sync_agent_ops.progress. If progress() fails, all peers receive the error message. */
    status (*progress)(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked);
    /* Handles a message that ps_port_receive() has received, and takes over the message. */
    status (*handle)(void *context, ps_message *m, int64_t now_ns);
    /* Called when the agent has failed. Ends the waits of other threads with the error. */
    void (*failed)(void *context, const error_record *error);
} ps_port_ops;

typedef struct ps_port {
    ps_memory memory;
    transport *transport;
    int *links;          /* [peers] Link of the transport to each peer, or PS_NO_PEER. */
    bool *was_connected; /* [peers] */
    /* [peers] The peer reads tensors in place, in shared memory or in this process, so they need no frames.
     * Set by the owner. */
    bool *in_place;
    int peers;
    int partner; /* The peer in this process, or PS_NO_PEER. */
    sync_queue in;
    struct ps_port *other; /* Port of the partner. */
    /* True in virtual time. Agents then do not sleep, and waking an agent is an event. */
    bool in_events;
    /* The peers are threads of this process, and keep the frames of a push until all ranks have pushed the
     * key. Frames are then lent, and use no credit, because a server may need other keys before it releases
     * the frames. In virtual time frames are released when their bytes have left. */
    bool lends_frames;
    /* A port_attention (port.c). Says whether the agent is awake, asleep, or has been woken. */
    atomic_int attention;
    _Atomic int64_t bytes_sent, bytes_received, messages_sent, messages_received;

    const ps_port_ops *ops;
    void *context;
    /* Time of the agent's clock minus time of rank 0's clock. Set before the agent starts. Times in messages
     * are times of rank 0's clock. */
    int64_t ahead_ns;
    device *device; /* Device whose clock the agent uses, or NULL for the host's clock. */
    sync_agent *agent;
    atomic_bool ended;
    error_record failure;
    transport_ticket failure_ticket;
} ps_port;

/* Opens the transport, with room for `held` received messages that have not been released. `partner` may be
 * PS_NO_PEER. The queue has room for `capacity` messages of the partner. */
status ps_port_open(ps_port *p, const transport_options *options, int peers, int held, int partner,
                    uint32_t capacity);
/* Starts the agent in a thread named `name`. If `inline_for` is not NULL, there is no agent thread: the
 * compute thread of the rank `inline_for` runs the agent whenever the compute thread waits. */
status ps_port_start(ps_port *p, const ps_port_ops *ops, void *context, device *d, const char *name,
                     const sync_context *inline_for);
/* Runs the agent in the calling thread while `*until` is below `count`. */
status ps_port_serve(ps_port *p, const ps_port_ops *ops, void *context, const atomic_int *until, int count);
bool ps_port_has_failed(const ps_port *p);
/* Ends the agent, waits at most 1 s until all messages have left, and ends the connections. The partner may
 * still add messages to the queue until ps_port_close(). */
void ps_port_disconnect(ps_port *p);
void ps_port_close(ps_port *p);

/* Returns the time on the agent's clock. */
int64_t ps_port_now(const ps_port *p);

/* Sends a message. `payload` is the number of bytes of the tensor that the message carries in frames or
 * announces in shared memory. Returns STATUS_AGAIN if there is no room, or if the peer is not connected yet.
 * The frames must not change until transport_sent() returns true for `ticket`.
 *
 * A message to the partner has at most one frame, and does not use `ticket`. The partner reads the frame in
 * the sender's memory. Therefore this memory must not change before the partner has replied to the message or
 * acknowledged it. */
status ps_port_send(ps_port *p, int peer, const message_header *header, const message_frame *frames,
                    int count, transport_ticket *ticket, int64_t payload);

/* Sends pieces of an arena like ps_port_send(), at most PS_KEY_PIECES. If the peer reads tensors in place,
 * the message has no frames. Elements have `size` bytes. */
status ps_port_send_pieces(ps_port *p, int peer, const message_header *header, const void *arena,
                           piece_list pieces, int64_t size, transport_ticket *ticket, int64_t payload);
/* Returns true if the message carries `pieces`: in frames of their sizes, or in place. */
bool ps_port_carries(const ps_port *p, const ps_message *m, piece_list pieces, int64_t size);

/* Passes messages that have arrived to ps_port_ops.handle. */
status ps_port_receive(ps_port *p, int64_t now_ns, bool *worked);
void ps_port_release(ps_port *p, ps_message *m);
/* Releases the message, and returns `rc`. */
status ps_port_done(ps_port *p, ps_message *m, status rc);

static inline message_frame ps_message_frame(const ps_message *m, int index)
{
    return m->remote ? m->message.frames[index] : m->frame;
}

/* Fills `frames` with pieces of an arena, and returns their number. Elements have `size` bytes. */
int ps_frames_of(message_frame *frames, const void *arena, piece_list pieces, int64_t size);
/* Returns true if the message's frames have the sizes of `pieces`. */
bool ps_has_frames_of(const ps_message *m, piece_list pieces, int64_t size);
/* Copies the frames of a message to pieces of an arena in host memory. */
void ps_take_frames(device *d, const ps_message *m, void *arena, piece_list pieces, int64_t size);
/* Copies pieces between arenas in host memory. */
void ps_copy_pieces(device *d, void *to, const void *from, piece_list pieces, int64_t size);

/* Sets the error of this thread to the error that a FAILED message reports, and returns the error code. */
status ps_message_failure(const ps_message *m);

/* Counts `payload` bytes that came with a message from `peer`. */
void ps_port_count_received(ps_port *p, int peer, int64_t payload);

/* Adds the traffic so far, and the processor time of the agent, to the counters `out`. */
void ps_port_collect(const ps_port *p, sync_counters *out);

bool ps_port_is_connected(const ps_port *p, int peer);
/* Returns true if the peer was connected and has disconnected. The port notices a new connection only when
 * this function is called, or when a message of the peer arrives. */
bool ps_port_has_left(ps_port *p, int peer);

/* Returns true if `patience_ns` have passed since *since_ns, and no other rank has made progress during
 * that time. If another rank has made progress after *since_ns, sets *since_ns to the time of the
 * progress. If the result is false, sets *deadline_ns to the time of the next check, unless *deadline_ns
 * is earlier. */
bool ps_is_late(const sync_context *c, int64_t *since_ns, int64_t patience_ns, int64_t now_ns,
                int64_t *deadline_ns);

#endif
