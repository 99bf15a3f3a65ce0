/* How the members of a job find each other: what they send each other before the first step, addresses, the
 * transports' options, shared arenas. Members are the ranks, 0 .. world - 1, then servers that have processes
 * of their own.
 *
 * A handshake is lines of text. The first ones are the sender's own; the others must be equal everywhere, so
 * that a difference can be named. */
#ifndef PS_HANDSHAKE_H
#define PS_HANDSHAKE_H

#include "common/collectives/nccl/collective_nccl.h"
#include "common/net/link.h"
#include "common/net/shm.h"
#include "common/nn/params.h"
#include "common/sync/engine.h"
#include "ps/policy.h"
#include "ps/port.h"

enum { PS_URL_MAX = 192 }; /* with the key of a tcp address */
/* Memory that a member exports. Every member exports the first two; under `dp` rank 0 exports the others,
 * too. */
enum {
    PS_SEGMENT_PARAMS,
    PS_SEGMENT_GRADS,
    PS_SEGMENT_INPUT,
    PS_SEGMENT_TARGET,
    PS_SEGMENT_OUTPUTS,
    PS_SEGMENTS
};

typedef struct ps_handshake_own {
    uint64_t host;   /* shm_host_id() */
    bool shared;     /* its arenas can be mapped */
    const char *url; /* of its server; "" where it has none */
    bool has_nccl;   /* --payload nccl: made by rank 0, zeros of the others */
    char nccl[COLLECTIVE_BOOTSTRAP_BYTES];
} ps_handshake_own;

/* The caller frees out->data. */
status ps_handshake_make(const ps_handshake_own *own, int world, const char *policy_name,
                         const ps_policy *policy, const ps_options *options, const param_set *params,
                         const optimizer *optimizer, sync_blob *out);

/* Reads the sender's own lines; `url` points into the blob's copy url[size]. STATUS_PROTOCOL where it is no
 * handshake of this version. `who` is for messages: "rank 3". */
status ps_handshake_read(const sync_blob *handshake, const char *who, ps_handshake_own *own, char *url,
                         size_t size);

/* STATUS_PROTOCOL names the first line in which the two differ. */
status ps_handshake_compare(const sync_blob *mine, const char *me, const sync_blob *other, const char *who);

/* The result of all members' handshakes. */
typedef struct ps_group {
    char (*urls)[PS_URL_MAX]; /* [servers] */
    shm_segment *segments;    /* [members][export_count] of the others; NULL: not through shared memory */
} ps_group;

/* A member of a job. What the owner sets is borrowed. */
typedef struct ps_member {
    const sync_context *context; /* rank: the member's number; world: the number of ranks */
    const ps_options *options;
    const ps_policy *policy;
    int servers;
    int frames;                                 /* of a message, at most */
    int64_t frame_bytes;                        /* of a frame, at most */
    const device_memory *exported[PS_SEGMENTS]; /* that others may map; NULL: none, the parameters instead */
    int export_count;                           /* the same for every member */
    bool nccl;                                  /* ranks make calls of NCCL */
    /* The member's own. */
    char nccl_id[COLLECTIVE_BOOTSTRAP_BYTES]; /* rank 0's, once joined */
    net_adapter adapter;                      /* that its transports share where a link is emulated */
    char url[PS_URL_MAX];                     /* of its server */
    sync_blob handshake;
    ps_group group;
} ps_member;

int ps_member_count(const ps_policy *policy, int world);

/* For a port; `number` is the server's or the rank's. STATUS_CONFIG for inproc among
 * processes. */
status ps_transport_options(ps_member *m, int number, transport_options *out);

/* Listens as server `server`. */
status ps_listen(ps_member *m, int server, ps_port *port);

/* How it reaches the others, after ps_join(): the transport of the messages ("inproc", "ipc", "tcp"; "sim" in
 * virtual time), and what carries tensors, as --payload names it: "nccl", "shm" (also where a thread reads
 * another's memory) or "zmq", in messages. Both NULL where there are no others. */
void ps_member_ways(const ps_member *m, const char **transport, const char **payload);

/* What the member sends the others; borrowed. Where memory is only planned this and ps_join() do nothing:
 * there are no others. */
status ps_make_handshake(ps_member *m, sync_blob *out);

/* Compares all handshakes with the own one, and exchanges arenas where tensors go through shared memory.
 * Members may start in any order: returns when all have joined, or fails at the stall limit. STATUS_PROTOCOL
 * names what differs, STATUS_CONFIG what cannot be reached. */
status ps_join(ps_member *m, const sync_blob *handshakes);
void ps_leave(ps_member *m);

/* Pins for `d`, or unpins, mapped segments first, first + stride, ... below `end`. */
status ps_pin_segments(const ps_member *m, device *d, int first, int end, int stride, bool pin);

/* Tensors go through shared memory. */
static inline bool ps_shares_memory(const ps_member *m)
{
    return m->group.segments;
}

/* Memory that another member exports; NULL where tensors travel in frames. */
static inline void *ps_segment(const ps_member *m, int member, int segment)
{
    int index = member * m->export_count + segment;
    return m->group.segments ? m->group.segments[index].data : NULL;
}

#endif
