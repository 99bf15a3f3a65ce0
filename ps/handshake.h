/* How the members of a job find each other: what they send each other before the first step, addresses, the transports'
 * options, shared arenas. Members are the ranks, 0 .. world - 1, then servers that have processes of their own.
 *
 * A handshake is lines of text. The first ones are the sender's own; the others must be equal everywhere, so that a
 * difference can be named. */
#ifndef PS_HANDSHAKE_H
#define PS_HANDSHAKE_H

#include "common/net/link.h"
#include "common/net/shm.h"
#include "common/nn/params.h"
#include "common/sync/engine.h"
#include "ps/policy.h"
#include "ps/port.h"

enum { PS_URL_MAX = 192 }; /* with the key of a tcp address */
/* Memory that a member exports. Every member exports the first two; under `dp` rank 0 exports the others, too. */
enum { PS_SEGMENT_PARAMS, PS_SEGMENT_GRADS, PS_SEGMENT_INPUT, PS_SEGMENT_TARGET, PS_SEGMENT_OUTPUTS, PS_SEGMENTS };

enum { PS_HANDSHAKE_SHARES = 5 };
typedef struct ps_handshake_own {
    uint64_t host;   /* shm_host_id() */
    bool shared;     /* its arenas can be mapped */
    const char *url; /* of its server; "" where it has none */
    int share_count; /* p2p: memory of its GPU that the others open */
    device_share shares[PS_HANDSHAKE_SHARES];
} ps_handshake_own;

/* The caller frees out->data. */
status ps_handshake_make(const ps_handshake_own *own, int world, const char *policy_name, const ps_policy *policy,
                     const ps_options *options, const param_set *params, const optimizer *optimizer, sync_blob *out);

/* Reads the sender's own lines; `url` points into the blob's copy url[size]. STATUS_PROTOCOL where it is no
 * handshake of this version. `who` is for messages: "rank 3". */
status ps_handshake_read(const sync_blob *handshake, const char *who, ps_handshake_own *own, char *url, size_t size);

/* STATUS_PROTOCOL names the first line in which the two differ. */
status ps_handshake_compare(const sync_blob *mine, const char *me, const sync_blob *other, const char *who);

/* A member's configuration. Everything is borrowed. */
typedef struct ps_member {
    int member, world;
    uint64_t token;     /* of the job */
    transport_hub *hub; /* NULL: every member has a process */
    const ps_options *options;
    const ps_policy *policy;
    int servers;
    int frames;          /* of a message, at most */
    int64_t frame_bytes; /* of a frame, at most */
    const device_memory *exported[PS_SEGMENTS]; /* that others may map; NULL: none, the parameters instead */
    int export_count;     /* the same for every member */
    device *device;      /* of the exported memory; it opens the others' (p2p) */
    int64_t stall_timeout_ns;
    net_adapter *adapter; /* that its transports share; NULL: nothing is emulated */
} ps_member;

/* The sender's own lines. STATUS_CONFIG where p2p is requested and the memory cannot be exported for it. */
status ps_describe_member(const ps_member *m, bool shared, const char *url, ps_handshake_own *out);

int ps_member_count(const ps_policy *policy, int world);

/* For a port; `number` is the server's or the rank's. STATUS_CONFIG for inproc among
 * processes. */
status ps_transport_options(const ps_member *m, int number, transport_options *out);

/* Listens as server `server`; url[PS_URL_MAX] becomes its address. */
status ps_listen(const ps_member *m, int server, ps_port *port, char *url);

/* The result of all members' handshakes. */
typedef struct ps_group {
    char (*urls)[PS_URL_MAX]; /* [servers] */
    shm_segment *segments;    /* [members][export_count] of the others; NULL: not through shared memory */
    device_share *shares;     /* [members][export_count] p2p, else NULL */
    device_peer *peers;       /* [members][export_count] the same, opened */
} ps_group;

/* Compares all handshakes with `mine`, and exchanges arenas where tensors go through shared memory. Members may start in
 * any order: returns when all have joined, or fails at the stall limit. STATUS_PROTOCOL names what differs,
 * STATUS_CONFIG what cannot be reached. */
status ps_join(const ps_member *m, const sync_blob *mine, const sync_blob *handshakes, ps_group *out);
void ps_leave(const ps_member *m, ps_group *group);

/* p2p: ends the use of the others' memory, and begins it again; both may be called at any time. A member frees its
 * exported memory when all others have closed it. */
void ps_peers_close(const ps_member *m, ps_group *group);
status ps_peers_open(const ps_member *m, ps_group *group);

/* Pins for `d`, or unpins, mapped segments first + index, first + stride + index, ... below `end`. */
status ps_pin_segments(const ps_group *group, device *d, int first, int end, int stride, int index, bool pin);

/* Memory that another member exports, shared or of its GPU; NULL where tensors travel in frames. */
void *ps_group_segment(const ps_member *m, const ps_group *group, int member, int segment);

#endif
