/* Functions with which the members of a job find each other. The members of a job are numbered. The first
 * members are the ranks, and the others are the servers that have separate processes. Members exchange
 * handshakes before the first step, choose addresses and transport options, and map shared arenas.
 *
 * A handshake consists of lines of text. The first lines describe the sender. All other lines must be equal
 * on all members. An error quotes the first line that differs. */
#ifndef PS_HANDSHAKE_H
#define PS_HANDSHAKE_H

#include "common/collectives/nccl/collective_nccl.h"
#include "common/net/link.h"
#include "common/net/shm.h"
#include "common/nn/params.h"
#include "common/sync/engine.h"
#include "ps/policy.h"
#include "ps/port.h"

enum { PS_URL_MAX = 192 }; /* Largest length of an address, including the key of a tcp address. */
/* Memory that a member exports. Under `dp` there are five segments, of which the last three are used only on
 * rank 0. Other policies export only the parameters and the gradients. */
enum {
    PS_SEGMENT_PARAMS,
    PS_SEGMENT_GRADS,
    PS_SEGMENT_INPUT,
    PS_SEGMENT_TARGET,
    PS_SEGMENT_OUTPUTS,
    PS_SEGMENTS
};

typedef struct ps_handshake_own {
    uint64_t host;        /* Result of shm_host_id(). */
    bool shared;          /* True if the arenas can be mapped. */
    char url[PS_URL_MAX]; /* Address of the member's server, or "" if the member has no server. */
    bool has_nccl;        /* True with --payload nccl. Rank 0 then creates the id in `nccl`. */
    char nccl[COLLECTIVE_BOOTSTRAP_BYTES];
} ps_handshake_own;

/* Reads the sender's lines. Fails with STATUS_PROTOCOL if `handshake` is malformed or has another version.
 * `who` names the sender in messages, for example "rank 3". */
status ps_handshake_read(const sync_blob *handshake, const char *who, ps_handshake_own *own);

/* Compares the lines that must be equal. If a line differs, fails with STATUS_PROTOCOL and quotes the
 * first line that differs. */
status ps_handshake_compare(const sync_blob *mine, const char *me, const sync_blob *other, const char *who);

/* A member of a job. Pointers that the owner sets are borrowed. */
typedef struct ps_member {
    const sync_context *context; /* context->rank is the member's number. */
    const ps_options *options;
    const ps_policy *policy;
    int servers;
    int frames;          /* Largest number of frames in a message. */
    int64_t frame_bytes; /* Bytes of the largest frame. */
    /* Memory that other members may map. For a NULL entry, the parameters are exported instead. */
    const device_memory *exported[PS_SEGMENTS];
    int export_count; /* Number of exported segments, the same for every member. */
    bool nccl;        /* True if ranks call NCCL. */
    /* Set by the functions below. */
    char nccl_id[COLLECTIVE_BOOTSTRAP_BYTES]; /* The id made by rank 0, after ps_join(). */
    net_adapter adapter;  /* Adapter that all transports of the member share if a link is emulated. */
    char url[PS_URL_MAX]; /* Address of the member's server. */
    sync_blob handshake;
    char (*urls)[PS_URL_MAX]; /* [servers] Addresses of the servers, after ps_join(). */
    /* [members][export_count] Memory of the other members, or NULL if tensors do not go through shared
     * memory. */
    shm_segment *segments;
} ps_member;

/* Writes the handshake of a member. The caller frees out->data. */
status ps_handshake_make(const ps_member *m, const ps_handshake_own *own, sync_blob *out);

int ps_member_count(const ps_policy *policy, int world);

/* Returns the transport options of a port. `number` is the number of the server or rank that owns the port.
 * Fails with STATUS_CONFIG if the transport is inproc but members are in different processes. */
status ps_transport_options(ps_member *m, int number, transport_options *out);

status ps_listen(ps_member *m, int server, ps_port *port);
/* Connects a port to a server of another process. Sets *url to the address of the server, for error messages.
 * *url is borrowed. */
status ps_connect_port(ps_member *m, ps_port *port, int server, const char **url);

/* Sets *out to the handshake that the member sends. The data are borrowed. */
status ps_make_handshake(ps_member *m, sync_blob *out);

/* Compares all handshakes with the handshake of this member, and exchanges arenas if tensors go through
 * shared memory. Members may start in any order. Returns when all members have joined, or fails at the stall
 * limit. Fails with STATUS_PROTOCOL if handshakes differ, and with STATUS_CONFIG if an option cannot work
 * between these members. The error message names the difference or the option. */
status ps_join(ps_member *m, const sync_blob *handshakes);
void ps_leave(ps_member *m);

/* Pins or unpins the mapped segments `first`, `first` + `stride`, and so on, below `end`, for device `d`. */
status ps_pin_segments(const ps_member *m, device *d, int first, int end, int stride, bool pin);

/* Returns memory that another member exports, or NULL if tensors are sent in frames. */
static inline void *ps_segment(const ps_member *m, int member, int segment)
{
    return m->segments ? m->segments[member * m->export_count + segment].data : NULL;
}

#endif
