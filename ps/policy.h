/* Policies of the parameter server: one table of data (policies.h), every field of which an option can
 * override. */
#ifndef PS_POLICY_H
#define PS_POLICY_H

#include "common/base/options.h"
#include "common/sync/engine.h"

#include <stdbool.h>

/* When a server updates a key, and when a worker may go on. */
typedef enum ps_consistency {
    PS_SYNC,  /* updates when the step's pushes of all ranks are there; a forward pass starts from that */
    PS_SSP,   /* updates alike, but a rank may be up to `staleness` steps ahead of the last update */
    PS_ASYNC, /* updates with every push, at once; no rank waits for another */
    PS_DATA_PARALLEL /* no keys and no servers: rank 0 does what torch.nn.DataParallel does on device 0 (dp/)
                      */
} ps_consistency;

/* Which of the keys that wait to be sent goes first. */
typedef enum ps_priority {
    PS_PRIORITY_REVERSE, /* the one that the next forward pass needs first: reverse order of readiness */
    PS_PRIORITY_FIFO     /* the one that was ready first */
} ps_priority;

typedef enum ps_placement {
    PS_PLACEMENT_RANK, /* server j is a thread of rank j's process */
    PS_PLACEMENT_OWN   /* every server has a process of its own */
} ps_placement;

/* Where the loss is computed under `dp`. */
typedef enum ps_dp_loss { PS_DP_LOSS_DEVICE0, PS_DP_LOSS_REPLICA } ps_dp_loss;

/* Lifetimes that the ledger counts under `dp`. */
typedef enum ps_dp_lifetimes {
    PS_DP_LIFETIMES_TORCH, /* as in PyTorch, also where this program needs less */
    PS_DP_LIFETIMES_LEAN   /* what this program needs */
} ps_dp_lifetimes;

typedef enum ps_payload { PS_PAYLOAD_AUTO, PS_PAYLOAD_SHM, PS_PAYLOAD_ZMQ, PS_PAYLOAD_NCCL } ps_payload;
typedef enum ps_transport {
    PS_TRANSPORT_AUTO,
    PS_TRANSPORT_INPROC,
    PS_TRANSPORT_IPC,
    PS_TRANSPORT_TCP
} ps_transport;

/* How an engine behaves: a row of the table, with options applied. */
typedef struct ps_policy {
    ps_consistency consistency;
    int64_t staleness;       /* PS_SSP: steps */
    int64_t partition_bytes; /* a key has at most so many */
    int64_t credit_bytes;    /* handed to the transport and not yet sent: what is beyond waits in order of
                                priority */
    ps_priority priority;
    int64_t servers;
    ps_placement placement;
    bool server_optimizer; /* false: servers only sum, every rank updates */
    bool divide_before;    /* each gradient is divided by the number of ranks, not their sum */
    /* Only of PS_DATA_PARALLEL. */
    int64_t replicate_bytes; /* a chunk of parameters closes when it has so many */
    int64_t reduce_bytes;    /* a chunk of gradients closes before it has more */
    ps_dp_loss loss;
    ps_dp_lifetimes lifetimes;
    bool keep_grads; /* gradients are kept between steps, as zero_grad() left them before torch 2.0 */
} ps_policy;

/* As on the command line; "policy" and 0 (staleness: -1) leave a field as the policy has it. */
typedef struct ps_options {
    int consistency, priority, placement, server_optimizer; /* 0: the policy's, else 1 + the enum; on, off */
    int64_t staleness, partition_bytes, credit_bytes, servers;
    int64_t server_threads;    /* of each server, that sum and update */
    int payload, transport;    /* ps_payload, ps_transport */
    int dp_loss, dp_lifetimes; /* 0: the policy's, else 1 + the enum */
    bool keep_grads;
    const char *interface; /* that tcp servers listen on */
} ps_options;

extern const option_table ps_option_table;

/* The table (ps/policies.h) as `harness policies` prints it. */
enum {
    PS_POLICY_COUNT = 0
#define POLICY(...) +1
#include "ps/policies.h"
#undef POLICY
};
extern const sync_policy_info ps_policy_infos[PS_POLICY_COUNT];

/* "key=value" lines: what runs. */
void ps_policy_write(const ps_policy *p, const ps_options *options, text_buffer *out);

/* STATUS_USAGE for an unknown name, STATUS_CONFIG where policy and options do not fit together. */
status ps_policy_resolve(const char *name, const ps_options *options, int world, ps_policy *out);

#endif
