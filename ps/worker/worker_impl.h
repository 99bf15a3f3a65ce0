/* The inside of a worker, for worker*.c. */
#ifndef PS_WORKER_IMPL_H
#define PS_WORKER_IMPL_H

#include "common/sync/anatomy.h"
#include "common/sync/queue.h"
#include "common/sync/staging.h"
#include "common/trace/trace.h"
#include "ps/protocol.h"
#include "ps/worker/worker.h"

/* From the compute thread to the agent. */
typedef enum worker_event {
    WORKER_PUSH,    /* index: parameter, value: iteration */
    WORKER_PULL,    /* index: flags, value: number of the pull */
    WORKER_BUFFERS, /* value: the iteration that begins with rank 0's present buffers */
    WORKER_SUM,     /* index: count, value: number of the sum */
} worker_event;

/* What the compute thread hands over with an iteration. The agent has ended an iteration before the next but
 * one begins. */
typedef struct worker_iteration {
    int64_t optimizer_step;
    double rate;
} worker_iteration;

/* The state of a server, and what is to be sent to it. */
typedef struct worker_server {
    const char *params; /* its arena, from which the worker copies; NULL: replies are in frames or in place */
    bool maps_us;       /* pushes need no frames */
    char *url;          /* for messages */
    ps_key_queue queue; /* keys to be pushed */
    int *on_the_way;    /* keys whose frames are being sent, oldest first: a ring */
    int first_on_the_way, count_on_the_way;
    int64_t bytes_on_the_way;
    int64_t latest_ready_ns; /* of the keys that have been pushed */
    uint32_t pull_flags;     /* of a pull to be sent; 0: none */
    bool norm_due;           /* the squared norm is to be sent */
    double norm_share;       /* the server's share of it; below 0: not received */
} worker_server;

/* A key on its way to its server and back. */
typedef struct worker_key {
    int missing; /* parameters that cannot be pushed yet */
    transport_ticket ticket;
    int64_t iteration;           /* that is pushed, or was last */
    int64_t ready_ns, left_ns;   /* its gradient was ready; its push, or the pull for it, left */
    bool traced;                 /* it was ready while the trace was on */
    int64_t pushed_ns;           /* async, ssp: when its push left */
    int64_t requested, received; /* numbers of pulls */
    int64_t updates_seen;        /* updates that the parameters had */
    anatomy_sent last;           /* what the last reply needed */
} worker_key;

/* Of the compute thread, which calls the stages. */
typedef struct worker_compute {
    int64_t iteration;      /* that runs, or is to begin */
    uint64_t pulls;         /* requested so far */
    uint64_t packs, summed; /* likewise */
    uint64_t unpacked;      /* the pull whose buffers are in place */
    bool begun;             /* the iteration; its first micro-batch does what is done once per iteration */
    bool synchronize;
    bool has_data;          /* a micro-batch of the iteration had samples */
    bool *pushed;           /* [param_count] in this iteration */
    sync_staging staging;   /* on the compute stream */
    sync_handover launched; /* gradients and buffers that the compute stream is still to reach */
    double *sums;           /* [largest_sum] of a layer, on the host */
} worker_compute;

/* Of both threads: fixed when the worker is opened, written before an event is posted or a fence reached, or
 * atomic. */
typedef struct worker_shared {
    size_t element;    /* bytes */
    bool lends_frames; /* frames are the server's until all ranks' have arrived: it waits for other keys
                          meanwhile */
    bool gives_buffers, takes_buffers; /* this rank's buffers are everybody's; come from rank 0 */

    sync_queue events; /* from the compute thread to the agent; written before they are posted: */
    worker_iteration iterations[2]; /* by iteration modulo 2 */
    int64_t pull_iteration;         /* that the last pull is for */
    double *sum_values;

    ps_port port;
    char *packed_buffers;   /* rank 0's that are to leave; on other ranks what has arrived */
    device_fence **arrived; /* [param_count] number of the pull whose parameters have arrived */
    device_fence *packed, *buffers_arrived, *summed;
    /* The last contribution to what has arrived, written before the fence is reached: to a parameter,
     * buffers, a sum. */
    anatomy_sent *params_last; /* [param_count] */
    anatomy_sent buffers_last, sum_last;

    _Atomic int64_t update_ns;
    _Atomic int64_t skipped;   /* updates that servers have skipped */
    _Atomic int64_t overtaken; /* pushes that left after a key that was ready later */
} worker_shared;

/* Of the agent. */
typedef struct worker {
    const ps_worker_config *c;
    worker_shared *shared;
    ps_port *port;

    /* ---- pushes ---- */
    worker_server *servers; /* [server_count] */
    worker_key *keys;       /* [key_count] */
    bool handing_over; /* the queues hold the parameters that servers in their own processes start from */
    int64_t pull, buffers_pull; /* numbers of the last pulls for keys and buffers */

    /* ---- pulls ---- */
    int *missing_keys; /* [param_count] of the pull that arrives */
    int replies_due;
    int64_t waiting_since_ns;             /* since when replies are due */
    bool flows;                           /* pass through the slice of the trace that began then */
    int64_t buffers_left_ns, sum_left_ns; /* when they were requested */
    int64_t last_message_ns;              /* when the last reply arrived, or the first was requested */

    /* ---- updates by the rank itself ---- */
    device_stream *stream;
    sync_staging staging; /* on it */
    device_memory squares;
    int averages; /* that have arrived, where clipping waits for all */

    /* ---- buffers, sums of layers, norms ---- */
    bool pack_due, packed_due, packed_out; /* buffers to be packed; packed, to be sent; with the server */
    int64_t pack_iteration;
    uint64_t packs_made;
    bool sum_due;
    int sum_count;
    int64_t sum_number;
    int64_t sum_ready_ns, buffers_ready_ns; /* when they had been computed */
    transport_ticket packed_ticket, sum_ticket;
    double norm;

    ps_report report;
    double staleness_total;
} worker;

struct ps_worker {
    ps_worker_config config; /* never changes */
    worker_compute compute;
    worker_shared shared;
    worker agent;
};

static inline int64_t worker_key_bytes(const worker *w, int key)
{
    return w->c->plan->keys[key].elements * (int64_t)w->shared->element;
}

/* `replies` more are due. */
void worker_await(worker *w, int replies, int64_t now_ns);
/* The parameters from which a push was computed lacked `late` updates. */
void worker_record_staleness(worker *w, int64_t late);

/* worker_stages.c: the compute stream has reached a parameter's gradient, or the buffers. */
status ps_worker_post_item(void *worker, int item);

/* worker_push.c: events in, messages out. */
void worker_pop_events(worker *w, bool *worked);
status worker_send(worker *w, int64_t now_ns, bool *worked);

/* worker_pull.c: messages in; for ps_port_ops. */
status worker_handle(void *context, ps_message *m, int64_t now_ns);

#endif
