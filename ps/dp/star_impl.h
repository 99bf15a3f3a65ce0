/* The inside of a star, for star*.c. */
#ifndef PS_DP_STAR_IMPL_H
#define PS_DP_STAR_IMPL_H

#include "ps/dp/star.h"

struct dp_star {
    dp_star_config c;
    ps_port port;
    sync_agent *agent;
    ps_thread_pool *pool;
    char *url; /* of rank 0, for messages; NULL there */

    dp_item *items; /* [c.items]: of the compute thread until it posts the round, then of the agent */
    int count;      /* of the compute thread */
    dp_sum sum;
    bool sums;
    _Atomic int64_t posted; /* rounds; written by the compute thread behind the items */

    /* ---- of the agent ---- */
    int64_t finished;
    bool running;
    int listed;           /* items of the round that runs; 0: none does */
    int open_items;       /* that are not done */
    int *arrived;         /* [c.keys] items of a sum that are there */
    ps_message *held;     /* [held_capacity] that came before their round */
    int held_count, held_capacity;
    bool *was_there;      /* [world] */
    transport_ticket ticket, failure_ticket;
    error_record failure;
    int64_t begun_ns, heard_ns;
    atomic_bool ended;    /* the agent has failed */

    const void **sources; /* [threads][world] */
    device_stream *stream; /* on a GPU: sums, and copies between GPUs; else NULL */

    /* ---- of the compute thread ---- */
    device_fence *done;
    int64_t exposed_ns;
    _Atomic int64_t total_ns;
};

/* Its memory is out of the host's reach. */
static inline bool star_has_gpu(const dp_star *s)
{
    const device_info *info = device_get_info(s->c.context->device);
    return info->real && !info->host_addressable;
}

/* star_items.c: what can be done now. */
status star_send_items(dp_star *s, int64_t now_ns, bool *worked);
status star_receive(dp_star *s, int64_t now_ns, bool *worked);
/* A round begins: what has come for it already. */
status star_take_held(dp_star *s, int64_t now_ns);

/* star_sum.c */
status star_sum_open(dp_star *s);
void star_sum_close(dp_star *s);
/* Adds up key `key`, of which all items are there, and releases their messages. */
status star_sum(dp_star *s, int key);

#endif
