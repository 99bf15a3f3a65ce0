/* The inside of a server, for the files that server.h lists. Keys are numbered from the shard's first. */
#ifndef PS_SERVER_IMPL_H
#define PS_SERVER_IMPL_H

#include "ps/compute.h"
#include "ps/protocol.h"
#include "ps/server/server.h"

/* The latest-sent of the messages that an update or a reply needs. */
typedef struct server_last {
    int64_t sent_ns, ready_ns; /* `sent_ns` is 0 if no message was needed. */
    uint32_t rank;
} server_last;

static inline server_last server_last_of(const message_header *h, int worker)
{
    return (server_last){h->sent_ns, h->ready_ns, (uint32_t)worker};
}

static inline void server_put_last(message_header *reply, server_last last)
{
    reply->last_ns = last.sent_ns;
    reply->ready_ns = last.ready_ns;
    reply->last_rank = last.rank;
}

static inline server_last server_later(server_last a, server_last b)
{
    return b.sent_ns > a.sent_ns ? b : a;
}

/* Pushes of a key in one iteration. */
typedef struct server_arrival {
    int count;
    server_last last;
} server_arrival;

typedef struct server_key {
    /* Number of updates so far. Under sync and ssp also the iteration whose pushes are collected. */
    int64_t updates;
    int64_t received; /* Pushes so far, applied or not (async). */
    int64_t flushed;  /* Number of updates at which a flush ends. */
    server_last last; /* The push that the last update waited for. */
    /* Ticket of the replies that are being sent. The key must not change until all replies have left. */
    transport_ticket ticket;
} server_key;

/* One key and one worker: the last push, and the reply that the worker waits for. */
typedef enum reply_state { REPLY_NONE, REPLY_WAITS, REPLY_QUEUED } reply_state;
typedef struct server_slot {
    ps_message push; /* The last push, whose frames are still needed. */
    int64_t pushed;  /* Number of iterations pushed. */
    int64_t applied; /* Number of pushes applied (async). */
    reply_state reply;
    int64_t pull; /* Number of the pull that is replied to. */
    /* Updates that the key must have before the reply. Under async only updates with the worker's pushes
     * count, unless the worker flushes. */
    int64_t needs;
    int64_t arrived_ns; /* Time at which the pull, or the push that pulls, arrived. */
    int64_t pushed_ns;  /* Time at which the last push arrived (async, ssp). */
    server_last last;   /* The push that the reply waited for. */
    /* Updates between the worker's last read and its last push (async), or -1 if already reported. */
    int64_t staleness;
} server_slot;

/* The optimizer's step and learning rate, the same in all pushes of an iteration. */
typedef struct server_step {
    int64_t optimizer_step;
    double rate;
} server_step;

typedef struct server_worker {
    char *params, *grads; /* Arenas of the worker, or NULL if they are not mapped. */
    ps_key_queue outbox;  /* Keys of which a reply is due. */
    /* A flush that waits for the other ranks. flush_pull is 0 if there is none. */
    int64_t flush_pull, flush_iteration;
    /* A pull for buffers that is due, and the oldest iteration whose buffers it accepts. */
    int64_t buffers_pull, buffers_iteration;
    int64_t buffers_arrived_ns; /* Time at which the pull for buffers arrived. */
    bool had_buffers;
    bool gone;
    /* The worker's share of a layer's sum. The kind is NONE if the share has not arrived. */
    ps_message layer_share;
    int64_t share_arrived_ns;
    bool norm_due;    /* `norm` must be sent to the worker. */
    double norm;      /* The shard's part of a squared norm. */
    server_step push; /* The last push (async). */
    /* Number of keys of the last push, if updates wait for the norm (async). */
    int pushed_keys;
    double scale; /* Factor for the worker's gradients (async). */
    bool skips;   /* The worker's push is not applied (async). */
} server_worker;

typedef struct server_apply {
    int key, worker;
} server_apply;

/* The GPU that sums and updates. `params` and `own_grads` are the addresses at which arenas of the whole
 * model would begin. Only the shard's elements are used. */
typedef struct server_gpu {
    device *device;
    device_stream *stream;
    sync_staging staging;
    sync_contribution *contributions; /* [world] */
    char *params;
    /* Gradients of the adjacent rank under sync, or NULL if its gradients are copied from the host. */
    const char *own_grads;
    device_memory params_memory, landing; /* `landing` holds one piece of a pushed gradient. */
} server_gpu;

/* Written by the agent and read by the rank's compute thread, or the reverse. */
typedef struct server_shared {
    ps_port port;
    _Atomic int64_t update_ns;
    atomic_int gone; /* Number of workers that have disconnected. */
} server_shared;

/* The state of the agent's thread. While the agent waits for the thread pool, the threads of the pool read
 * this state. */
typedef struct server {
    const ps_server_config *c;
    server_shared *shared;
    ps_port *port;

    /* Fixed when the server is opened. */
    const ps_shard *shard;
    int first, count;     /* Range of keys of the shard. */
    int64_t window;       /* Number of iterations that are collected at the same time. */
    size_t element;       /* Bytes of an element. */
    double before, after; /* Gradients are divided by `before`, their sum by `after`. */
    bool needs_norm;      /* Updates wait for the norm over all servers (clipping, --on-nonfinite skip). */
    bool writes;          /* Replies are written into the workers' arenas if these are mapped. */
    server_gpu *gpu;      /* NULL if the host's threads sum and update. */
    ps_thread_pool *pool;
    device_stream *stream;
    char *params, *averages;     /* Addresses at which arenas of the whole model would begin. */
    const void **gradients;      /* [threads][world] */
    device_memory params_memory; /* Used if the server has a copy of the parameters. */
    device_memory averages_memory, copies_memory, squares_memory;

    server_key *keys;        /* [count] */
    server_slot *slots;      /* [count][world] */
    server_worker *workers;  /* [world] */
    server_arrival *arrived; /* [count][window] */
    server_step *steps;      /* [window] */
    ps_key_queue complete;   /* Keys that all ranks have pushed (sync, ssp). */
    int incomplete;          /* Number of keys and iterations that some ranks have pushed, but not all. */
    bool initialized;        /* The server has parameters to send. */
    int initial_keys;        /* Number of keys whose initial parameters worker 0 has sent. */
    int flushing;            /* Number of ranks that wait for a flush. */
    int flush_replies;       /* Number of replies to a flush that are still to be sent. */

    /* Used under sync and ssp if updates wait for the norm. All keys are summed, then all are updated. */
    struct {
        int summed, next_update;
        bool known;
        bool skips;
        double scale;
        server_last last; /* The latest push of any key. */
    } norm;
    struct {                /* Pushes to be applied, in order of arrival (async). */
        server_apply *list; /* [count * world] A ring. */
        int first, count;
        int64_t first_step; /* Step of the optimizer at a key's first update. */
    } apply;
    struct {                      /* Used on server 0. */
        char *data;               /* Packed buffers in host memory. */
        int64_t bytes, iteration; /* `iteration` is -1 if there are no buffers yet. */
        int64_t received;         /* Last iteration whose buffers arrived, accepted or not. */
        ps_message next;          /* Buffers to be accepted. The kind is NONE if there are none. */
        server_last last;         /* The message of rank 0 that brought `data`. */
        bool acknowledge;         /* An acknowledgement must be sent to rank 0. */
        transport_ticket ticket;
    } buffers;
    struct { /* Used on server 0. */
        double *sums;
        int shares;
        int replies;           /* Number of replies to be sent, to workers world - replies and following. */
        server_last last;      /* The latest share that has arrived. */
        message_header header; /* Header of the last share, which the next shares must match. */
        message_header reply;
        transport_ticket ticket;
    } layer;

    int64_t received_ns;     /* Time at which the current message arrived. */
    int64_t last_message_ns; /* Time from which the stall limit counts. */
} server;

struct ps_server {
    ps_server_config config; /* Never changes. */
    server_shared shared;
    server agent;
};

static inline server_slot *server_slot_of(const server *s, int key, int worker)
{
    return &s->slots[(int64_t)key * s->c->world + worker];
}

static inline server_arrival *server_arrived(const server *s, int key, int64_t iteration)
{
    return &s->arrived[key * s->window + iteration % s->window];
}

static inline int64_t server_bytes(const server *s, int64_t elements)
{
    return elements * (int64_t)s->element;
}

static inline int64_t server_key_bytes(const server *s, int key)
{
    return server_bytes(s, s->c->plan->keys[s->first + key].elements);
}

static inline piece_list server_pieces(const server *s, int key)
{
    return ps_key_pieces(s->c->plan, s->first + key);
}

/* Returns the address at which an arena would begin if `data` is its element `first`. */
static inline char *server_as_arena(const void *data, int64_t first, size_t element)
{
    return (char *)((uintptr_t)data - (uintptr_t)first * element);
}

/* server.c: sends as ps_port_send() does, but drops messages to a rank that has disconnected. The receiving
 * side reports the lost rank. */
status server_send(server *s, int worker, const message_header *h, const message_frame *frames, int count,
                   transport_ticket *ticket, int64_t payload);

/* reduction.c. A reduction of one key. */
typedef struct server_work {
    server *server;
    int key;
    bool sums;    /* Compute the average over the ranks, in rank order. */
    bool updates; /* Run the optimizer. */
    int worker;   /* Rank whose gradient the optimizer uses, or -1 for the average. */
    server_step step;
    double scale;
} server_work;
/* Handles a gradient that has arrived, and takes over the message. */
status server_receive_push(server *s, int key, int worker, ps_message *m);
/* Sums the first key that all ranks have pushed, and updates it if `updates`. *key is -1 if there is none. */
status server_reduce_next(server *s, bool updates, int *key);
status server_reduce(server_work *work);
/* Queues the replies that waited for an update of the key, or for the initial parameters. */
void server_key_updated(server *s, int key);
void server_queue_reply(server *s, int key, int worker);
status server_send_replies(server *s, bool *worked);

/* server_policies.c */
status server_check_push(server *s, int key, int worker, ps_message *m);
/* Keeps the pushed gradient readable until it is summed. */
status server_keep_push(server *s, int key, int worker, ps_message *m);
/* Returns the address of a piece that `worker` pushed for the key's present iteration, in host memory. */
const char *server_gradient(const server *s, int key, int worker, int piece);
/* Sets *grads to the address at which the arena of this piece would begin, in the memory of the device that
 * updates. On a GPU the next call overwrites the piece. */
status server_pushed(server *s, int key, int worker, int piece, const char **grads);
status server_receive_async(server *s, int key, int worker, server_step step);
void server_end_iteration(server *s, int key);
/* Handles the squared norm of the gradient over all servers. The gradient is the push of `worker` under
 * async, else the average of the iteration. */
status server_receive_norm(server *s, int worker, double sum_squares);
/* Stops the server or warns if an update found gradients that are not finite, as --on-nonfinite says. */
status server_check_update(const server_work *work);
/* Reduces or updates at most one key. */
status server_update(server *s, bool *worked);
status server_receive_pull(server *s, int worker, const message_header *h);
void server_await_update(server *s, int key, int worker, int64_t pull, int64_t updates);
bool server_reply_is_due(server *s, int key, int worker);
void server_end_reply(server *s, int key, int worker);

/* server_gpu.c. Returns true if the host's threads do not run the reduction, on a GPU or in virtual time. */
bool server_reduces_elsewhere(const server *s);
status server_reduce_elsewhere(server_work *work);
/* Copies a key's pieces between arenas. Returns when the copy has ended. */
status server_copy_pieces(server *s, int key, char *to, const char *from);
status server_gpu_open(server *s);
void server_gpu_close(server *s);
/* Copies a piece that `worker` has pushed to `landing`. */
status server_land(server *s, int key, int worker, int piece);
/* Copies a key's parameters from `params` to the GPU. */
status server_gpu_start(server *s, int key);

/* server_shared.c */
status server_shared_open(server *s);
void server_shared_close(server *s);
/* server_receive_buffers() and server_receive_layer_share() take over the message. */
status server_receive_buffers(server *s, ps_message *m);
status server_receive_layer_share(server *s, ps_message *m);
status server_send_shared(server *s, bool *worked);

#endif
