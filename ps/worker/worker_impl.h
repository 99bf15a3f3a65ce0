/* The inside of a worker, for worker*.c. */
#ifndef PS_WORKER_IMPL_H
#define PS_WORKER_IMPL_H

#include "common/sync/event_queue.h"
#include "common/sync/handover.h"
#include "common/trace/trace.h"
#include "ps/protocol.h"
#include "ps/worker/worker.h"

/* From the compute thread to the agent. */
typedef enum worker_event {
    WORKER_PUSH,    /* index: parameter, value: round */
    WORKER_PULL,    /* index: flags, value: number of the pull */
    WORKER_BUFFERS, /* value: the round that begins with rank 0's present buffers */
    WORKER_SUM,     /* index: count, value: number of the sum */
} worker_event;

/* What the compute thread knows of a round. The agent is done with a round before the next but one begins. */
typedef struct worker_round {
    int64_t optimizer_step;
    double rate;
} worker_round;

/* What is known of a server, and what is to be sent to it. */
typedef struct worker_server {
    const char *params; /* its arena, where the worker copies from it; NULL: what comes is in frames or in place */
    bool sees_us;       /* pushes need no frames */
    bool was_there;
    char *url;          /* for messages */
    ps_key_queue queue; /* keys to be pushed */
    int *on_the_way;    /* keys whose frames are being sent, oldest first: a ring */
    int first_on_the_way, count_on_the_way;
    int64_t bytes_on_the_way;
    uint32_t pull_flags; /* of a pull to be sent; 0: none */
    bool norm_due;       /* the squared norm is to be sent */
    double norm_share;   /* the server's share of it; below 0: not there */
} worker_server;

/* Where tensors stay in memory of GPUs. */
typedef struct worker_gpu {
    sync_handover launched; /* gradients and buffers that the compute stream is to come to */
    double *sums;           /* [largest_sum] a layer's, on the host */
} worker_gpu;

struct ps_worker {
    ps_worker_config c;
    worker_gpu *gpu; /* NULL: it works in host memory */
    ps_port port;
    sync_agent *agent;
    event_queue events;
    size_t element; /* bytes */
    bool lends; /* frames are the server's until all ranks' have come: it waits for other keys meanwhile */
    bool gives_buffers, takes_buffers; /* this rank's buffers are everybody's; come from rank 0 */

    /* ---- of the compute thread ---- */
    int64_t round;         /* that runs, or is to begin */
    uint64_t pulls;        /* asked for so far */
    uint64_t packs, sums;  /* likewise */
    uint64_t unpacked;     /* the pull whose buffers are in place */
    bool begun;            /* the round; its first micro-batch does what is done once a round */
    bool entered;          /* the present stage's side effects are done: only its wait is left */
    bool synchronize;
    bool has_data;         /* a micro-batch of the round had samples */
    bool *pushed;          /* [param_count] this round */
    int64_t wait_begin_ns; /* 0: no wait */
    int64_t exposed_ns;

    /* ---- written by the compute thread before it posts ---- */
    worker_round rounds[2]; /* by round modulo 2 */
    int64_t pull_round;     /* that the last pull is for */
    double *sum_values;

    /* ---- fences ---- */
    device_fence **arrived; /* [param_count] the pull that has */
    device_fence *packed, *buffers, *summed;

    /* ---- of the agent: pushes ---- */
    worker_server *servers;    /* [server_count] */
    int *missing;              /* [key_count] parameters that cannot be pushed yet */
    transport_ticket *tickets; /* [key_count] */
    int64_t *round_of;         /* [key_count] that is pushed, or was last */
    int64_t *ready_ns, *left_ns; /* [key_count] its gradient was ready; its push, or the pull for it, left */
    bool handing_over;         /* the queues hold what servers of their own start from */
    int64_t pull, buffers_pull; /* numbers of the last pulls for keys and buffers */

    /* ---- pulls ---- */
    int64_t *asked, *got; /* [key_count] numbers of pulls */
    int64_t *seen;        /* [key_count] updates that the parameters had */
    int *missing_keys;    /* [param_count] of the pull that comes in */
    int awaited;          /* answers */
    int64_t awaited_ns;   /* since when there are any */
    int64_t heard_ns;     /* when the last came, or the first was asked for */

    /* ---- updates by the rank itself ---- */
    device_stream *stream;
    device_memory squares;
    int averages; /* that are there, where clipping waits for all */

    /* ---- buffers, sums of layers, norms ---- */
    char *staging; /* packed buffers: rank 0's that are to leave; on other ranks what has come */
    bool pack_due, staging_due, staging_out; /* to be packed; packed, to be sent; with the server */
    int64_t pack_round;
    uint64_t packs_made;
    bool sum_due;
    int sum_count;
    int64_t sum_number;
    transport_ticket staging_ticket, sum_ticket, failure_ticket;
    double norm;

    error_record failure;
    atomic_bool ended; /* the agent has failed */
    ps_report report;
    double late_total;
    _Atomic int64_t total_ns, update_ns;
    _Atomic int64_t skipped; /* updates that servers have skipped */
};

static inline const sync_context *worker_context(const ps_worker *w)
{
    return w->c.context;
}

static inline int64_t worker_key_bytes(const ps_worker *w, int key)
{
    return w->c.plan->keys[key].elements * (int64_t)w->element;
}

/* `answers` more are awaited. */
void worker_await(ps_worker *w, int answers, int64_t now_ns);
/* What a push was computed from lacked `late` updates. */
void worker_record_staleness(ps_worker *w, int64_t late);

/* worker_stages.c: the stream has come to a gradient; to the end of rank 0's forward pass. */
status worker_post_gradient(ps_worker *w, int param);
status worker_post_buffers(ps_worker *w);

/* worker_gpu.c: in place of what is done in host memory. */
status worker_gpu_open(ps_worker *w);
void worker_gpu_close(ps_worker *w);
/* The compute thread: a gradient, and rank 0's buffers, are ready behind what was launched. */
status worker_gpu_ready(ps_worker *w, int param);
status worker_gpu_pack(ps_worker *w);
/* Waits until all that were ready have been posted. */
status worker_gpu_finish(ps_worker *w);
status worker_gpu_unpack_buffers(ps_worker *w);
status worker_gpu_clear(ps_worker *w);
status worker_gpu_take_sums(ps_worker *w, const double *values, int count);
status worker_gpu_give_sums(ps_worker *w, double *values, int count);
/* The agent: copies pieces between arenas of GPUs; rank 0's buffers to `staging`. Both are done when they return. */
status worker_gpu_bring(ps_worker *w, piece_list pieces, char *arena, const char *from);
status worker_gpu_pack_buffers(ps_worker *w);

/* worker_push.c: events in, messages out. */
void worker_take_events(ps_worker *w, bool *worked);
status worker_send(ps_worker *w, int64_t now_ns, bool *worked);

/* worker_pull.c: messages in. */
status worker_receive(ps_worker *w, int64_t now_ns, bool *worked);

#endif
