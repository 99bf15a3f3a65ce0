/* Policies of the parameter server. A policy is a row of one table (policies.h), and options can override
 * every field of the row. */
#ifndef PS_POLICY_H
#define PS_POLICY_H

#include "common/base/options.h"
#include "common/sync/engine.h"

#include <stdbool.h>

/* The rule that determines when a server updates a key, and when a worker may continue. */
typedef enum ps_consistency {
    /* A key is updated when all ranks have pushed it. The next forward pass uses the updated parameters. */
    PS_SYNC,
    /* Updates happen as under PS_SYNC, but a rank may be up to `staleness` steps ahead of the last update. */
    PS_SSP,
    PS_ASYNC, /* The server applies every push separately, and no rank waits for another rank. */
    /* There are no keys and no servers. Rank 0 does the work of device 0 in torch.nn.DataParallel
     * (dataparallel/). */
    PS_DATA_PARALLEL
} ps_consistency;

/* The key that is sent first when several keys wait. */
typedef enum ps_priority {
    /* The key that the next forward pass needs first. Keys become ready in the reverse order. */
    PS_PRIORITY_REVERSE,
    PS_PRIORITY_FIFO /* The key that was ready first. */
} ps_priority;

typedef enum ps_placement {
    PS_PLACEMENT_RANK, /* Server j is a thread in the process of rank j. */
    PS_PLACEMENT_OWN   /* Every server has a separate process. */
} ps_placement;

/* The ranks that compute the loss under `dp`. DEVICE0 means that rank 0 computes one loss over all
 * outputs. REPLICA means that every rank computes a loss over the outputs of its part of the batch. */
typedef enum ps_dp_loss { PS_DP_LOSS_DEVICE0, PS_DP_LOSS_REPLICA } ps_dp_loss;

/* How long memory counts in the ledger under `dp`. */
typedef enum ps_dp_lifetimes {
    PS_DP_LIFETIMES_TORCH, /* Memory counts as long as PyTorch would hold it. */
    PS_DP_LIFETIMES_LEAN   /* Memory counts only for as long as this program needs it. */
} ps_dp_lifetimes;

typedef enum ps_payload { PS_PAYLOAD_AUTO, PS_PAYLOAD_SHM, PS_PAYLOAD_ZMQ, PS_PAYLOAD_NCCL } ps_payload;
typedef enum ps_transport {
    PS_TRANSPORT_AUTO,
    PS_TRANSPORT_INPROC,
    PS_TRANSPORT_IPC,
    PS_TRANSPORT_TCP
} ps_transport;

/* A row of the table after the options have been applied. */
typedef struct ps_policy {
    ps_consistency consistency;
    int64_t staleness;       /* Staleness bound of PS_SSP, in steps. */
    int64_t partition_bytes; /* Largest size of a key in bytes. */
    /* A worker sends keys to a server only while fewer bytes than this are in transit to the server. Other
     * keys wait in order of priority. */
    int64_t credit_bytes;
    ps_priority priority;
    int64_t servers;
    ps_placement placement;
    bool server_optimizer; /* If false, servers only sum, and every rank updates parameters. */
    /* If true, each gradient is divided by the number of ranks. If false, the sum is divided. */
    bool divide_before;
    /* Used only by PS_DATA_PARALLEL. */
    int64_t replicate_bytes; /* Size in bytes at which a chunk of parameters is closed. */
    /* Limit in bytes. A chunk of gradients is closed before it would exceed the limit. */
    int64_t reduce_bytes;
    ps_dp_loss loss;
    ps_dp_lifetimes lifetimes;
    bool keep_grads; /* Gradients are kept between steps, as zero_grad() did before torch 2.0. */
} ps_policy;

/* The options of the command line. An option of 0 keeps the value of the policy, as the word "policy" does. A
 * staleness of -1 keeps it, too. */
typedef struct ps_options {
    /* 0 to keep the policy's value, else 1 + the value of the enum. For server_optimizer, 1 is on and 2 is
     * off. */
    int consistency, priority, placement, server_optimizer;
    int64_t staleness, partition_bytes, credit_bytes, servers;
    int64_t server_threads;    /* Number of threads of each server that sum and update. */
    int payload, transport;    /* ps_payload, ps_transport */
    int dp_loss, dp_lifetimes; /* 0 to keep the policy's value, else 1 + the value of the enum. */
    bool keep_grads;
    const char *interface; /* Network interface on which servers listen if the transport is tcp. */
} ps_options;

extern const option_table ps_option_table;

/* The table, as `harness policies` prints it. */
enum {
    PS_POLICY_COUNT = 0
#define POLICY(...) +1
#include "ps/policies.h"
#undef POLICY
};
extern const sync_policy_info ps_policy_infos[PS_POLICY_COUNT];

/* Appends the policy and the options as "key=value" lines. */
void ps_policy_write(const ps_policy *p, const ps_options *options, text_buffer *out);

/* Finds the policy `name` and applies the options. Fails with STATUS_USAGE if the name is unknown, or if an
 * option has no effect with the policy. Fails with STATUS_CONFIG if the policy cannot run with an option. */
status ps_policy_resolve(const char *name, const ps_options *options, int world, ps_policy *out);

#endif
