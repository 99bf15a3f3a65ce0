/* How the agents of a job find each other: addresses, the transports' options, shared arenas. Members are
 * the ranks, 0 .. world - 1, and behind them servers that have processes of their own. */
#ifndef PS_CONNECT_H
#define PS_CONNECT_H

#include "common/net/link.h"
#include "common/net/shm.h"
#include "common/nn/params.h"
#include "ps/offer.h"
#include "ps/port.h"

enum { PS_URL_MAX = 192 }; /* with the key of a tcp address */
/* What a member shows the others. The first two are everybody's; the others are of rank 0 under `dp`. */
enum { PS_SEGMENT_PARAMS, PS_SEGMENT_GRADS, PS_SEGMENT_INPUT, PS_SEGMENT_TARGET, PS_SEGMENT_OUTPUTS, PS_SEGMENTS };

/* What a member knows of itself. Everything is borrowed. */
typedef struct ps_member {
    int member, world;
    uint64_t token;     /* of the job */
    transport_hub *hub; /* NULL: every member has a process */
    const ps_options *options;
    const ps_policy *policy;
    int servers;
    int frames;          /* that a message has at most */
    int64_t frame_bytes; /* that a frame has at most */
    const device_memory *shown[PS_SEGMENTS]; /* what others may map; NULL: nothing there, the parameters instead */
    int shown_count;     /* the same for every member */
    device *device;      /* that the shown memory is of; it opens the others' (p2p) */
    int64_t stall_timeout_ns;
    net_adapter *adapter; /* that its transports share; NULL: nothing is emulated */
} ps_member;

/* What a member says of itself in its offer. STATUS_CONFIG where p2p is asked for and its memory cannot be shown so. */
status ps_describe(const ps_member *m, bool shared, const char *url, ps_offer_own *out);

int ps_member_count(const ps_policy *policy, int world);

/* For a port; `number` is the server's or the rank's. STATUS_CONFIG where inproc is asked for among
 * processes. */
status ps_transport_options(const ps_member *m, int number, transport_options *out);

/* Listens as server `server`; url[PS_URL_MAX] becomes its address. */
status ps_listen(const ps_member *m, int server, ps_port *port, char *url);

/* What came of all members' offers. */
typedef struct ps_meeting {
    char (*urls)[PS_URL_MAX]; /* [servers] */
    shm_segment *segments;    /* [members][shown_count] of the others; NULL: not through shared memory */
    device_share *shares;     /* [members][shown_count] p2p, else NULL */
    device_peer *peers;       /* [members][shown_count] what was opened of them */
} ps_meeting;

/* Compares all offers with `mine`, and exchanges arenas where tensors go through shared memory. Takes no
 * order of start: returns when all members have come, or fails at the stall limit. STATUS_PROTOCOL names
 * what differs, STATUS_CONFIG what cannot be reached. */
status ps_meet(const ps_member *m, const sync_blob *mine, const sync_blob *offers, ps_meeting *out);
void ps_part(const ps_member *m, ps_meeting *meeting);

/* p2p: ends the use of the others' memory, and begins it again; both may be called at any time. A member frees
 * what it shows when all others have closed. */
void ps_peers_close(const ps_member *m, ps_meeting *meeting);
status ps_peers_open(const ps_member *m, ps_meeting *meeting);

/* Pins for `d`, or unpins, segments first + index, first + stride + index, ... below `end` that are in sight. */
status ps_pin_segments(const ps_meeting *meeting, device *d, int first, int end, int stride, int index, bool pin);

/* What another member shows, in shared memory or in its GPU's; NULL where tensors travel in frames. */
void *ps_meeting_segment(const ps_member *m, const ps_meeting *meeting, int member, int segment);

#endif
