/* The interface that a transport implements. Users of a transport include transport.h instead.
 *
 * An implementation is one const struct whose function pointers are all set. The struct for an open transport
 * has a `struct transport` as its first field. The checked functions in transport.c number messages, compute
 * checksums and delay messages for an emulated link. An implementation only moves headers and frames in
 * order. */
#ifndef COMMON_NET_TRANSPORT_IMPL_H
#define COMMON_NET_TRANSPORT_IMPL_H

#include "common/base/clock.h"
#include "common/net/transport.h"

struct transport_type {
    bool bytes_do_not_exist; /* true if frames have no memory, so that there are no checksums */

    void (*hub_close)(transport_hub *hub);

    /* Allocates a zeroed `*out` and sets the fields that the implementation needs. transport_open() fills in
     * the other fields of `struct transport`. */
    status (*open)(const transport_options *options, transport **out);
    /* Flushes queued messages for at most flush_ns, then stops using frames and tickets of the callers. Calls
     * transport_free(t) as soon as no peer in the hub uses frames of `t`. */
    void (*close)(transport *t, int64_t flush_ns);

    status (*listen)(transport *t, const char *url, char *bound, size_t size);
    status (*connect)(transport *t, int link, const char *url);

    bool (*up)(const transport *t, int link);
    /* Returns STATUS_OK if send() would succeed now, else STATUS_AGAIN. After room() has returned
     * STATUS_AGAIN, wait() must return as soon as send() would succeed. */
    status (*room)(transport *t, int link);
    /* Sends a message. `ticket` already counts the `count` frames. The implementation must call
     * transport_frame_released() once per frame. */
    status (*send)(transport *t, int link, const message_header *header, const message_frame *frames,
                   int count, transport_ticket *ticket);
    /* Receives a message. header.sender is not yet verified. If a link is lost before the peer has said
     * goodbye, receive() first returns all messages of the link. Then it sets `broken` of the link and fails
     * once with STATUS_PEER. */
    status (*receive)(transport *t, transport_message *out);
    void (*release)(transport *t, transport_message *message);
    status (*reserve)(transport *t, int messages);
    status (*wait)(transport *t, int64_t deadline_ns);
    void (*wake)(transport *t);
};

/* A message that is delayed before it is sent. */
typedef struct transport_deferred {
    int64_t release_ns;
    message_header header;
    int count;
    transport_ticket *ticket;
    message_frame *frames; /* [options.frames] */
} transport_deferred;

/* A received message that is delayed. */
typedef struct transport_held {
    int64_t deliver_ns;
    transport_message message;
} transport_held;

/* A connection to a peer, in both directions. Links 0 to peers - 1 connect this transport with its clients.
 * Links peers to 2 peers - 1 connect it with its servers. */
typedef struct transport_link {
    bool open;
    bool ended;                   /* true if the peer has said goodbye */
    status broken;                /* STATUS_OK, or the error that made the link unusable */
    uint64_t sent, received;      /* sequence numbers of the next messages */
    transport_deferred *deferred; /* circular queue of options.window entries, only with an adapter */
    int deferred_first, deferred_count;
    bool blocked; /* true if the next delayed message is due, but the implementation has no room for it */
} transport_link;

struct transport_hub {
    const transport_type *type;
};

struct transport {
    const transport_type *type;
    transport_options options;
    transport_link *links; /* [2 * peers] */
    transport_counters counters;
    /* The function `send` of the transport's type. Tests replace this pointer to drop, duplicate or damage
     * messages. */
    status (*send)(transport *t, int link, const message_header *header, const message_frame *frames,
                   int count, transport_ticket *ticket);
    int deferred;         /* number of delayed messages on all links */
    transport_held *held; /* circular queue of held_size received messages, only with an adapter */
    int held_size, held_first, held_count;
    atomic_int in_use; /* number of frames that have not been released */
};

void transport_free(transport *t);

/* Reports that the memory of a frame is no longer needed. May be called from any thread. The caller must not
 * access the transport afterwards, because it may have been closed. */
void transport_frame_released(transport_ticket *ticket);

/* Counts a rejected message, which is malformed or comes from a process outside of the job. Logs the 1st,
 * 2nd, 4th, 8th rejected message, and so on. */
void transport_reject(transport *t, const char *who, const char *why);

/* transport_receive_now() receives the next message of any link (transport.c). It does not wait until the
 * emulated link would have delivered the message. */
status transport_receive_now(transport *t, transport_message *out);
/* transport_pace.c: delays messages and sends them when they are due. */
status transport_room(transport *t, int link);
status transport_defer(transport *t, int link, const message_header *header, const message_frame *frames,
                       int count, transport_ticket *ticket, int64_t bytes);
status transport_forward_due(transport *t);
int64_t transport_next_due(const transport *t); /* returns CLOCK_NEVER if no message is delayed */
void transport_drop_deferred(transport *t, transport_link *l);
/* Returns the first delayed message if it is due. */
status transport_receive_due(transport *t, transport_message *out);
void transport_drop_held(transport *t);
int64_t transport_total_bytes(const message_frame *frames, int count);

#endif
