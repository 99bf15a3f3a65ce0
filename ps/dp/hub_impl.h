/* The inside of the hub, for hub*.c. */
#ifndef PS_DP_HUB_IMPL_H
#define PS_DP_HUB_IMPL_H

#include "ps/dp/hub.h"

struct dp_hub {
    dp_hub_config c;
    ps_port port;
    sync_agent *agent;
    ps_thread_pool *pool;
    char *url; /* of rank 0, for messages; NULL there */

    dp_transfer *transfers; /* [c.transfers]: of the compute thread until it posts the exchange, then of the agent */
    int count;  /* of the compute thread */
    dp_sum sum; /* likewise handed over */
    bool sums;
    _Atomic int64_t posted; /* exchanges; written by the compute thread after the transfers */

    /* ---- of the agent ---- */
    int64_t finished;
    bool running;
    int listed;           /* transfers of the exchange that runs; 0: none does */
    int open_transfers;   /* not done yet */
    int *arrived;         /* [c.keys] transfers of a sum that have arrived */
    ps_message *held;     /* [held_capacity] that arrived before their exchange */
    int held_count, held_capacity;
    bool *was_connected;  /* [world] */
    transport_ticket ticket, failure_ticket;
    error_record failure;
    int64_t begun_ns, last_message_ns;
    atomic_bool ended;    /* the agent has failed */

    const void **sources; /* [threads][world] */
    sync_contribution *contributions; /* [world] the same on a GPU */
    device_stream *stream; /* of sums and copies */
    sync_staging staging;  /* on it */

    /* ---- of the compute thread ---- */
    sync_staging compute; /* on the compute stream */
    device_fence *done;       /* of both threads: the agent counts exchanges, the compute thread waits */
    int64_t exposed_ns;
    _Atomic int64_t total_ns; /* of both threads: the agent adds, the compute thread collects */
};

/* hub_transfers.c: send and receive what is possible now. */
status hub_send_transfers(dp_hub *hub, int64_t now_ns, bool *worked);
status hub_receive(dp_hub *hub, int64_t now_ns, bool *worked);
/* An exchange begins: handles the messages that have arrived for it already. */
status hub_receive_held(dp_hub *hub, int64_t now_ns);
status hub_sum_open(dp_hub *hub);
void hub_sum_close(dp_hub *hub);
/* Sums key `key`, of which all transfers have arrived, and releases their messages. */
status hub_sum(dp_hub *hub, int key);

#endif
