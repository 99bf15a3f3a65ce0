/* The hub: rank 0 exchanges tensors with every other rank.
 *
 * An exchange is a list of transfers. Each transfer is one message to or from a peer. The compute thread
 * lists the transfers and waits until they are done. The agent sends, receives and sums. A message that
 * arrives before its exchange has begun is held until then. An exchange ends when every message has arrived
 * and every frame has left.
 *
 *   rank 0 to rank r   CONTROL          count = number of samples of rank r's part, DP_INT_...
 *                      INPUTS           key = 0 for inputs, 1 for targets (--dp-loss replica)
 *                      PARAMETERS       key = chunk of the replication
 *                      BUFFERS          all buffers
 *                      OUTPUT_GRADIENT  gradient of the outputs of rank r
 *   rank r to rank 0   OUTPUTS          outputs of rank r
 *                      ACKNOWLEDGE      end of a micro-batch that only accumulates
 *                      PUSH             key = chunk of the reduction
 *   both ways          SUM              key = number within the step; frame: float64 values, or their sums
 *                      FAILED           flags = status; frame: the reason
 *
 * header.step is the step, or DP_FLUSH plus the number of the flush. */
#ifndef PS_DATAPARALLEL_EXCHANGE_H
#define PS_DATAPARALLEL_EXCHANGE_H

#include "common/sync/agent.h"
#include "common/sync/engine.h"
#include "ps/memory.h"
#include "ps/port.h"

#define DP_FLUSH (INT64_C(1) << 48)
enum { DP_INT_TARGETS, DP_INT_TOTAL, DP_INT_PRESENT };

/* A list of pieces of the arena at `base`. An element has `element` bytes. */
typedef struct dp_region {
    char *base;
    piece_list pieces;
    int64_t element;
} dp_region;

typedef enum dp_direction {
    DP_SEND,
    DP_RECEIVE,
    DP_REDUCE /* Receive. When all transfers of a key have arrived, add their tensors. */
} dp_direction;

typedef struct dp_transfer {
    dp_direction direction;
    int peer;
    /* Header to send or to expect, set by the caller. A receive replaces the expected header by the
     * received header. */
    message_header header;
    dp_region region; /* Memory of the tensor. The region has no pieces if the message has no tensor. */
    piece whole;      /* Storage for the piece of `region` if there is only one. */
    /* `shared` is true if the tensor passes through shared memory, and the message is only a notice. `remote`
     * is the base of the region in the peer's memory. A send copies the tensor to `remote`, and a receive
     * copies the tensor from `remote`. If `remote` is NULL, the agent copies nothing: the peer copies the
     * tensor, or the compute thread copies the tensor after the exchange. */
    bool shared;
    char *remote;
    bool copied, done;
    ps_message message; /* Message of a DP_REDUCE transfer, kept until the sum has been computed. */
} dp_transfer;

/* Describes the sums of DP_REDUCE transfers. For each key, this rank's gradient and the gradients of the
 * transfers are added in rank order, and the sum replaces this rank's gradient. */
typedef struct dp_sum {
    int present;          /* Number of ranks in the sum. Each key has `present` - 1 consecutive transfers. */
    double before, after; /* Gradients are divided by `before`, the sum is divided by `after`. */
} dp_sum;

typedef struct dp_hub {
    /* Set by the owner of the hub. Everything is borrowed and outlives the hub. */
    const sync_context *context;
    int most_transfers; /* Largest number of transfers in an exchange. */
    int keys;           /* Largest number of keys in an exchange with a sum. */
    int threads;        /* Number of host threads that sum, or 0 if the GPU sums. */
    void *landing;      /* GPU memory for a gradient that has arrived, or NULL if the host sums. */
    /* True with --payload nccl. On GPUs NCCL then moves the tensors of the device, so an exchange need not
     * wait until these tensors have been computed. */
    bool only_control;
    const char *url; /* Rank 0's URL for error messages. NULL on rank 0. */

    sync_staging compute; /* Copies on the compute stream. Used by the compute thread. */
    ps_memory memory;
    ps_port port;

    /* The compute thread uses the fields before `posted` until it posts an exchange. Then the agent uses
     * these fields until the fence `done` is reached. */
    dp_transfer *transfers; /* [most_transfers] */
    int count;
    dp_sum sum;             /* `present` is 0 if the exchange has no sum. */
    _Atomic int64_t posted; /* Number of exchanges that have been posted. */
    device_fence *done;     /* Fence whose value is the number of exchanges that have ended. */
    anatomy_sent last;      /* The received message that was sent last. */

    /* Used by the agent. */
    int64_t finished; /* Number of exchanges that have ended. */
    bool running;
    int listed; /* Number of transfers of the running exchange, or 0 if no exchange is running. */
    int open_transfers;
    int *arrived;     /* [keys] Number of transfers of a key that have arrived. */
    ps_message *held; /* [held_capacity] Messages that arrived before the exchange to which they belong. */
    int held_count, held_capacity;
    transport_ticket ticket;
    int64_t begun_ns, last_message_ns;
    int64_t leaving_ns;   /* Time at which the exchange sent its first message, or 0. */
    const void **sources; /* [threads][world] Addresses of the gradients that a thread of the host adds. */
    sync_staging staging; /* Copies and sums on a stream of the agent. */
} dp_hub;

/* exchange_open.c: opens a hub with the owner's fields of `setup`. The caller then opens the port. */
status dp_hub_open(const dp_hub *setup, dp_hub **out);
void dp_hub_close(dp_hub **hub);

/* exchange.c */
status dp_hub_start(dp_hub *hub);

/* Called by the compute thread. dp_hub_add() adds a transfer to the next exchange. The transfer is valid
 * until the first dp_hub_add() after the exchange. dp_hub_run() runs the exchange. `sum` is NULL if no
 * transfer is a DP_REDUCE. */
dp_transfer *dp_hub_add(dp_hub *hub, dp_direction direction, int peer, message_kind kind, int64_t step,
                        int64_t key);
status dp_hub_run(dp_hub *hub, const dp_sum *sum);
/* Sets the transfer's tensor to `bytes` bytes at base + offset. */
static inline void dp_hub_set_tensor(dp_transfer *transfer, void *base, int64_t offset, int64_t bytes)
{
    transfer->whole = (piece){offset, bytes};
    transfer->region = (dp_region){base, {&transfer->whole, 1}, 1};
}

#endif
