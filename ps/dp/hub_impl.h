/* The inside of the hub, for hub*.c. */
#ifndef PS_DP_HUB_IMPL_H
#define PS_DP_HUB_IMPL_H

#include "ps/dp/hub.h"

/* Of the compute thread, which lists transfers and waits for them. */
typedef struct hub_compute {
    sync_staging staging; /* on the compute stream */
    int64_t exposed_ns;
} hub_compute;

/* Of both threads. What precedes `posted` is the compute thread's until it posts the exchange, then the
 * agent's until `done` is reached. */
typedef struct hub_shared {
    dp_transfer *transfers; /* [config.transfers] */
    int count;
    dp_sum sum;
    bool sums;
    _Atomic int64_t posted; /* exchanges */
    device_fence *done;     /* exchanges */
    _Atomic int64_t total_ns;
    ps_port port;
} hub_shared;

/* Of the agent. */
typedef struct hub {
    const dp_hub_config *c;
    hub_shared *shared;
    ps_port *port;
    char *url; /* of rank 0, for messages; NULL there */

    int64_t finished; /* exchanges */
    bool running;
    int listed;         /* transfers of the exchange that runs; 0: none does */
    int open_transfers; /* not done yet */
    int *arrived;       /* [c->keys] transfers of a sum that have arrived */
    ps_message *held;   /* [held_capacity] that arrived before their exchange */
    int held_count, held_capacity;
    transport_ticket ticket;
    int64_t begun_ns, last_message_ns;

    ps_thread_pool *pool;
    const void **sources;             /* [threads][world] */
    sync_contribution *contributions; /* [world] the same on a GPU */
    device_stream *stream;            /* of sums and copies */
    sync_staging staging;             /* on it */
} hub;

struct dp_hub {
    dp_hub_config config; /* never changes */
    hub_compute compute;
    hub_shared shared;
    hub agent;
};

/* hub_transfers.c: send and receive what is possible now. */
status hub_send_transfers(hub *h, int64_t now_ns, bool *worked);
/* For ps_port_ops. */
status hub_handle(void *context, ps_message *m, int64_t now_ns);
/* An exchange begins: handles the messages that have arrived for it already. */
status hub_receive_held(hub *h, int64_t now_ns);
status hub_sum_open(hub *h);
void hub_sum_close(hub *h);
/* Sums key `key`, of which all transfers have arrived, and releases their messages. */
status hub_sum(hub *h, int key);

#endif
