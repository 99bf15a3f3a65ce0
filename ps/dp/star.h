/* The star: rank 0 and every other rank exchange tensors in rounds.
 *
 * A round is a list of items, each one message to or from a peer, that the compute thread fills in and then
 * waits for; the agent behind it sends, receives and sums. What arrives before its round has begun is kept
 * until then. A round has ended when everything was received and what was sent is no longer needed.
 *
 *   rank 0 to rank r   CONTROL          count = samples of r's part, DP_INT_...; offset = of the outputs'
 *                                       gradients in the memory of the outputs, in bytes
 *                      INPUTS           key 0: its inputs; key 1: its targets (loss in the replicas)
 *                      PARAMETERS       key = chunk of the replication
 *                      BUFFERS          all of them
 *                      OUTPUT_GRADIENT  of its part
 *   rank r to rank 0   OUTPUTS          of its part
 *                      ACKNOWLEDGE      behind a micro-batch that only accumulates
 *                      PUSH             key = chunk of the reduction
 *   both ways          SUM              key = number within the step: float64 of a layer; their sums
 *                      FAILED           flags = status; frame: the reason
 *
 * header.step is the step, or for what settles DP_FLUSH plus a number of its own. */
#ifndef PS_DP_STAR_H
#define PS_DP_STAR_H

#include "common/sync/agent.h"
#include "common/sync/engine.h"
#include "ps/compute.h"
#include "ps/port.h"

#define DP_FLUSH (INT64_C(1) << 48)
enum { DP_INT_TARGETS, DP_INT_TOTAL, DP_INT_PRESENT };

typedef struct dp_star dp_star;

/* Pieces of an arena, in bytes at base + offset * element. */
typedef struct dp_region {
    char *base;
    const piece *pieces;
    int count;
    int64_t element;
} dp_region;

typedef enum dp_direction {
    DP_SEND,
    DP_RECEIVE,
    DP_REDUCE /* received in place of the sender's or in frames, and added up with the others of its key */
} dp_direction;

typedef struct dp_item {
    dp_direction direction;
    int peer;
    message_header header; /* kind, step, key; further fields as sent or, afterwards, as received */
    dp_region region;      /* count 0: no tensor */
    /* The tensor passes through shared memory, or from device to device: the message is the notice alone. `remote`
     * is the region's base in the peer's memory. SEND: copied there first, or NULL: the peer takes it. RECEIVE:
     * taken from there, or NULL: the peer has put it in place, or whoever has posted the round copies. */
    bool shared;
    char *remote;
    bool copied, done;
    ps_message message; /* REDUCE */
} dp_item;

/* How REDUCE items of one key are added up: own + items in the order of their peers. */
typedef struct dp_sum {
    dtype type;
    const char *own;   /* arena of this rank's gradients */
    char *out;         /* arena; may be `own` */
    int keys, present; /* items stand key by key, `present` - 1 to a key */
    bool divides, divide_before; /* by `present` */
    int first_item;
} dp_sum;

typedef struct dp_star_config {
    const sync_context *context;
    int items;   /* of the largest round */
    int keys;    /* of the largest sum */
    int threads; /* that sum */
    void *landing; /* where sums are made by a device that the host cannot reach: its memory for one key */
    bool peers;    /* `remote` is memory of the peer's GPU, and regions of shared items are this one's */
} dp_star_config;

status dp_star_open(const dp_star_config *config, dp_star **out);
status dp_star_open_port(dp_star *s, const transport_options *options);
/* Ranks other than 0: connects to rank 0 at `url`. */
status dp_star_connect(dp_star *s, const char *url);
status dp_star_start(dp_star *s);
/* Ends the agent and says goodbye. */
void dp_star_leave(dp_star *s);
void dp_star_close(dp_star **s);

ps_port *dp_star_port(dp_star *s);
bool dp_star_has_failed(const dp_star *s);

/* The compute thread: begins to list a round, adds an item (valid until the next begin), and runs it. */
void dp_star_begin(dp_star *s);
dp_item *dp_star_add(dp_star *s, dp_direction direction, int peer, message_kind kind, int64_t step, int64_t key);
status dp_star_run(dp_star *s, const dp_sum *sum);

int64_t dp_region_bytes(const dp_region *r);

/* Time waited and time in flight since the last call; adds to *out. */
void dp_star_collect_times(dp_star *s, sync_counters *out);

#endif
