/* The hub: rank 0 exchanges tensors with every other rank.
 *
 * An exchange is a list of transfers, each of which is one message to or from a peer. The compute thread
 * lists them and waits until they are done; the agent sends, receives and sums. A message that arrives before
 * its exchange has begun is held until then. An exchange ends when every message has arrived and every frame
 * has left.
 *
 *   rank 0 to rank r   CONTROL          count = samples of r's part, DP_INT_...
 *                      INPUTS           key 0: its inputs; key 1: its targets (loss in the replicas)
 *                      PARAMETERS       key = chunk of the replication
 *                      BUFFERS          all of them
 *                      OUTPUT_GRADIENT  of its part
 *   rank r to rank 0   OUTPUTS          of its part
 *                      ACKNOWLEDGE      after a micro-batch that only accumulates
 *                      PUSH             key = chunk of the reduction
 *   both ways          SUM              key = number within the step: float64 of a layer; their sums
 *                      FAILED           flags = status; frame: the reason
 *
 * header.step is the step, or DP_FLUSH plus the number of the flush. */
#ifndef PS_DP_HUB_H
#define PS_DP_HUB_H

#include "common/sync/agent.h"
#include "common/sync/engine.h"
#include "ps/compute.h"
#include "ps/port.h"

#define DP_FLUSH (INT64_C(1) << 48)
enum { DP_INT_TARGETS, DP_INT_TOTAL, DP_INT_PRESENT };

typedef struct dp_hub dp_hub;

/* Pieces of an arena, in bytes at base + offset * element. */
typedef struct dp_region {
    char *base;
    piece_list pieces;
    int64_t element;
} dp_region;

typedef enum dp_direction {
    DP_SEND,
    DP_RECEIVE,
    DP_REDUCE /* received as RECEIVE, and added to the others of its key */
} dp_direction;

typedef struct dp_transfer {
    dp_direction direction;
    int peer;
    message_header header; /* kind, step, key; further fields as sent or, afterwards, as received */
    dp_region region;      /* count 0: no tensor */
    /* The tensor passes through shared memory: the message is only the notice.
     * `remote` is the region's base in the peer's memory. SEND: copied there first, or NULL: the peer copies
     * it. RECEIVE: copied from there, or NULL: the peer has put it in place, or the compute thread copies it
     * after the exchange. */
    bool shared;
    char *remote;
    bool copied, done;
    ps_message message; /* REDUCE */
} dp_transfer;

/* How REDUCE transfers of one key are summed: this rank's gradient + transfers in rank order, in place of the
 * former. */
typedef struct dp_sum {
    dtype type;
    char *grads;          /* arena of this rank's gradients */
    int keys, present;    /* transfers are listed key by key, `present` - 1 to a key */
    double before, after; /* gradients are divided by `before`, the sum by `after` */
} dp_sum;

typedef struct dp_hub_config {
    const sync_context *context;
    int transfers;     /* of the largest exchange */
    int keys;          /* of the largest sum */
    int threads;       /* that sum */
    void *landing;     /* where a GPU sums: its memory for one key that has arrived */
    bool only_control; /* tensors of devices go elsewhere: an exchange waits for nothing that they compute */
} dp_hub_config;

status dp_hub_open(const dp_hub_config *config, dp_hub **out);
status dp_hub_open_port(dp_hub *hub, const transport_options *options);
/* Ranks other than 0: connects to rank 0 at `url`. */
status dp_hub_connect(dp_hub *hub, const char *url);
status dp_hub_start(dp_hub *hub);
void dp_hub_close(dp_hub **hub);

ps_port *dp_hub_port(dp_hub *hub);

/* The compute thread: adds a transfer to the list of an exchange (valid until the next one is added after the
 * exchange), and runs the exchange. */
dp_transfer *dp_hub_add(dp_hub *hub, dp_direction direction, int peer, message_kind kind, int64_t step,
                        int64_t key);
status dp_hub_run(dp_hub *hub, const dp_sum *sum);

/* Times since the last call, and what has passed the port; adds to *out. */
void dp_hub_collect(dp_hub *hub, sync_counters *out);

#endif
