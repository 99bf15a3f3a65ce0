/* What a transport provides. For implementers only: everyone else includes transport.h.
 *
 * A transport is one const struct, every slot set; `struct transport` is embedded first in its own. The
 * checked functions around it (transport.c) number, sum and pace messages, so an implementation
 * only moves headers and frames in order. */
#ifndef COMMON_NET_TRANSPORT_IMPL_H
#define COMMON_NET_TRANSPORT_IMPL_H

#include "common/base/clock.h"
#include "common/net/transport.h"

struct transport_type {
    const char *name;
    bool bytes_do_not_exist; /* frames must not be read: no checksums */

    void (*hub_close)(transport_hub *hub);

    /* Allocates `*out`, zeroed but for the implementation's own part; transport_open fills in the rest. */
    status (*open)(const transport_options *options, transport **out);
    /* Gives queued messages up to flush_ns, then ends every use of frames and tickets and calls
     * transport_free(t): at once or, where a peer in the hub still uses frames, when it no longer does. */
    void (*close)(transport *t, int64_t flush_ns);

    status (*listen)(transport *t, const char *url, char *bound, size_t size);
    status (*connect)(transport *t, int link, const char *url);

    bool (*up)(const transport *t, int link);
    /* STATUS_OK where a send() now would succeed. Else STATUS_AGAIN, and wait() ends when it would. */
    status (*room)(transport *t, int link);
    /* `ticket` has been counted up by `count`; each frame's end calls transport_frame_released(). */
    status (*send)(transport *t, int link, const message_header *header, const message_frame *frames,
                   int count, transport_ticket *ticket);
    /* Fills in all of `out`; header.sender is what the peer claims. STATUS_PEER, once, for a link
     * that is lost and has not `ended`, after the last of its messages; marks it `broken`. */
    status (*receive)(transport *t, transport_message *out);
    void (*release)(transport *t, transport_message *message);
    status (*reserve)(transport *t, int messages);
    status (*wait)(transport *t, int64_t deadline_ns);
    void (*wake)(transport *t);
};

/* A message that a pacer keeps back. */
typedef struct transport_deferred {
    int64_t release_ns;
    message_header header;
    int count;
    transport_ticket *ticket;
    message_frame *frames; /* [options.frames] */
} transport_deferred;

/* A message that has come and that a pacer keeps back. */
typedef struct transport_held {
    int64_t deliver_ns;
    transport_message message;
} transport_held;

/* Both directions of a connection. Links 0 .. peers - 1 are clients of this transport, peers .. 2 peers - 1
 * the servers it connects to. */
typedef struct transport_link {
    bool open;
    bool ended;                   /* the peer has said goodbye */
    status broken;                /* other than STATUS_OK: of no more use */
    uint64_t sent, received;      /* next sequence numbers */
    transport_deferred *deferred; /* ring of options.window, only with a pacer */
    message_frame *frames;        /* of all entries of the ring */
    int deferred_first, deferred_count;
    bool blocked; /* what is due found no room */
} transport_link;

struct transport_hub {
    const transport_type *type;
};

struct transport {
    const transport_type *type;
    transport_options options;
    transport_link *links; /* [2 * peers] */
    transport_counters counters;
    bool listening;
    /* The type's; tests put one in its place that drops, doubles or damages a message. */
    status (*send)(transport *t, int link, const message_header *header, const message_frame *frames,
                   int count, transport_ticket *ticket);
    int deferred;         /* messages kept back on all links */
    transport_held *held; /* ring of held_size messages that have come, only with a pacer */
    int held_size, held_first, held_count;
    atomic_int in_use; /* frames whose release is outstanding */
};

void transport_free(transport *t);

/* The frame's memory is no longer needed. From any thread; the last thing done with the transport. */
void transport_frame_released(transport_ticket *ticket);

/* Drops a message that is none: counts it and logs the 1st, 2nd, 4th, 8th .... */
void transport_reject(transport *t, const char *who, const char *why);

/* transport.c: the next message of any link, due or not. */
status transport_receive_now(transport *t, transport_message *out);
/* transport_pace.c: delays messages and sends them when they are due. */
status transport_room(transport *t, int link);
status transport_defer(transport *t, int link, const message_header *header, const message_frame *frames,
                       int count, transport_ticket *ticket, int64_t bytes);
status transport_forward_due(transport *t);
int64_t transport_next_due(const transport *t); /* CLOCK_NEVER: nothing is kept back */
void transport_drop_deferred(transport *t, transport_link *l);
/* The first of the messages that are kept back, once it is due. */
status transport_receive_due(transport *t, transport_message *out);
status transport_open_delayed(transport *t);
void transport_drop_held(transport *t);
int64_t transport_total_bytes(const message_frame *frames, int count);

#endif
