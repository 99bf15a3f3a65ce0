/* The inside of a server, for the files that server.h lists. Keys are numbered from the shard's first. */
#ifndef PS_SERVER_IMPL_H
#define PS_SERVER_IMPL_H

#include "ps/compute.h"
#include "ps/protocol.h"
#include "ps/server/server.h"

/* The last of several messages to be sent. */
typedef struct server_last {
    int64_t sent_ns, ready_ns; /* sent_ns 0: none; ready_ns: message_header */
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
    int64_t updates;         /* so far; under sync and ssp also the iteration whose pushes are collected */
    int64_t received;        /* async: pushes so far, applied or not */
    int64_t flushed;         /* updates with which a flush ends */
    server_last last;        /* push that the last update needed */
    transport_ticket ticket; /* of the frames of replies: until they have left the key must not change */
} server_key;

/* What one worker and one key owe each other. */
typedef enum reply_state { REPLY_NONE, REPLY_WAITS, REPLY_QUEUED } reply_state;
typedef struct server_slot {
    ps_message push; /* whose frames are still needed */
    int64_t pushed;  /* iterations pushed */
    int64_t applied; /* async: of them, applied */
    reply_state reply;
    int64_t pull;  /* the reply's number */
    int64_t needs; /* updates that the key must have first; async: of the worker's own, unless it flushes */
    int64_t arrived_ns; /* when the pull, or the push that pulls, arrived */
    int64_t pushed_ns;  /* async, ssp: when the last push arrived */
    server_last last;   /* push that the reply needed */
    int64_t
        staleness; /* async: updates between the worker's last read and its last push; -1: reported already */
} server_slot;

/* What the pushes of an iteration have in common. */
typedef struct server_step {
    int64_t optimizer_step;
    double rate;
} server_step;

typedef struct server_worker {
    char *params, *grads;                    /* its arenas, or NULL: not mapped */
    ps_key_queue outbox;                     /* keys to be replied to */
    int64_t flush_pull, flush_iteration;     /* a flush that waits for the other ranks; pull 0: none */
    int64_t buffers_pull, buffers_iteration; /* a pull for buffers that is due, and for which iteration */
    int64_t buffers_arrived_ns;              /* when that pull arrived */
    bool had_buffers;
    bool gone;              /* has disconnected */
    ps_message layer_share; /* its share of a layer's sum; kind NONE: not received */
    int64_t share_arrived_ns;
    bool norm_due;    /* `norm` is to be sent to it */
    double norm;      /* the shard's share of a squared norm */
    server_step push; /* async: of its last push */
    int pushed_keys;  /* async where updates wait for the norm: of that push */
    double scale;     /* async: of its gradients */
    bool skips;       /* async: its push is not applied */
} server_worker;

typedef struct server_apply {
    int key, worker;
} server_apply;

/* The GPU that sums and updates. Addresses are as if of a whole arena. */
typedef struct server_gpu {
    device *device;
    device_stream *stream;
    sync_staging staging;
    sync_contribution *contributions; /* [world] */
    char *params;
    const char *own_grads; /* sync: of the rank next to it; NULL: they are copied from the host */
    device_memory params_memory, landing; /* landing: one piece of what a rank has pushed */
} server_gpu;

/* Written by the agent and read by the rank's compute thread, or the other way round. */
typedef struct server_shared {
    ps_port port;
    _Atomic int64_t update_ns;
    atomic_int gone; /* workers that have disconnected */
} server_shared;

/* Of the agent's thread; while it waits for the thread pool, the pool's threads read it. */
typedef struct server {
    const ps_server_config *c;
    server_shared *shared;
    ps_port *port;

    /* Fixed when the server is opened. */
    const ps_shard *shard;
    int first, count;     /* keys of the shard */
    int64_t window;       /* iterations that are collected at the same time */
    size_t element;       /* bytes */
    double before, after; /* gradients are divided by `before`, their sum by `after` */
    bool needs_norm;      /* updates wait for the norm over all servers: clipping, --on-nonfinite skip */
    bool writes;          /* replies are written into the workers' arenas where these are mapped */
    server_gpu *gpu;      /* NULL: the host's threads sum and update */
    ps_thread_pool *pool;
    device_stream *stream;
    char *params, *averages;     /* as if of a whole arena */
    const void **gradients;      /* [threads][world] */
    device_memory params_memory; /* where that is not the rank's */
    device_memory averages_memory, copies_memory, squares_memory;

    /* Keys and workers. */
    server_key *keys;        /* [count] */
    server_slot *slots;      /* [count][world] */
    server_worker *workers;  /* [world] */
    server_arrival *arrived; /* [count][window] */
    server_step *steps;      /* [window] */
    ps_key_queue complete;   /* sync, ssp: all pushes of the iteration have arrived */
    int incomplete;          /* keys and iterations of which some pushes have arrived, not all */
    bool initialized;        /* has parameters to hand out */
    int initial_keys;        /* that worker 0 has handed over */
    int flushing;            /* ranks that wait for a flush */
    int flush_replies;       /* of a flush, still to be sent */

    struct { /* sync and ssp where updates wait for the norm: all keys are summed, then all are updated */
        int summed, next_update;
        bool known;
        bool skips; /* the iteration's update is skipped */
        double scale;
        server_last last; /* push of any key */
    } norm;
    struct {                /* async: what is to be applied, in order of arrival */
        server_apply *list; /* [count * world], a ring */
        int first, count;
        int64_t first_step; /* the optimizer's step of a key's first update */
    } apply;
    struct {                      /* server 0 */
        char *data;               /* packed, host memory */
        int64_t bytes, iteration; /* -1: none yet */
        int64_t received;         /* the last iteration that came, accepted or not */
        ps_message next;          /* kind NONE: none */
        server_last last;         /* of rank 0 */
        bool acknowledge;         /* rank 0 is to be sent an acknowledgement */
        transport_ticket ticket;
    } buffers;
    struct { /* server 0 */
        double *sums;
        int shares;            /* that have arrived */
        int replies;           /* still to be sent: to workers world - replies .. */
        server_last last;      /* share that has arrived */
        message_header header; /* of the shares that come */
        message_header reply;  /* of the sums that go */
        transport_ticket ticket;
    } layer;

    int64_t received_ns;     /* when the message that is handled arrived */
    int64_t last_message_ns; /* when something that others wait for came last */
} server;

struct ps_server {
    ps_server_config config; /* never changes */
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

/* The address at which an arena would begin of which `data` is element `first`. */
static inline char *server_as_arena(const void *data, int64_t first, size_t element)
{
    return (char *)((uintptr_t)data - (uintptr_t)first * element);
}

/* server.c: ps_port_send(), but what goes to a rank that has disconnected is dropped. The receiving side
 * reports that the rank is lost. */
status server_send(server *s, int worker, const message_header *h, const message_frame *frames, int count,
                   transport_ticket *ticket, int64_t payload);

/* reduction.c. What is done with a key: */
typedef struct server_work {
    server *server;
    int key;
    bool sums;    /* the average over the ranks is computed, in rank order */
    bool updates; /* the optimizer runs: */
    int worker;   /* with the gradient that this rank pushed; -1: with the average */
    server_step step;
    double scale;
} server_work;
/* A gradient has arrived; takes over the message. */
status server_receive_push(server *s, int key, int worker, ps_message *m);
/* Sums the first key of which all pushes have arrived, and updates it if `updates`. *key: which; -1: none. */
status server_reduce_next(server *s, bool updates, int *key);
status server_reduce(server_work *work);
/* A key was updated, or all were handed over: pulls that waited for that are due. */
void server_key_updated(server *s, int key);
void server_queue_reply(server *s, int key, int worker);
status server_send_replies(server *s, bool *worked);

/* server_policies.c */
status server_check_push(server *s, int key, int worker, ps_message *m);
/* Sees to it that the pushed gradient stays readable until it is summed. */
status server_keep_push(server *s, int key, int worker, ps_message *m);
/* Element 0 of piece `piece` of what `worker` has pushed for the key's present iteration; host memory. */
const char *server_gradient(const server *s, int key, int worker, int piece);
/* The same for the device that updates, as an arena; a GPU's next call overwrites it. */
status server_pushed(server *s, int key, int worker, int piece, const char **grads);
status server_receive_async(server *s, int key, int worker, server_step step);
void server_end_iteration(server *s, int key);
/* The squared norm over all servers, of worker `worker`'s push (async) or of the iteration. */
status server_receive_norm(server *s, int worker, double sum_squares);
/* After a reduction: gradients that are not finite stop the server, or are warned of, as --on-nonfinite says.
 */
status server_check_update(const server_work *work);
/* Does one piece of work. */
status server_update(server *s, bool *worked);
status server_receive_pull(server *s, int worker, const message_header *h);
void server_await_update(server *s, int key, int worker, int64_t pull, int64_t updates);
bool server_reply_is_due(server *s, int key, int worker);
void server_end_reply(server *s, int key, int worker);

/* server_gpu.c. A reduction that the host's threads do not run: on the GPU, or in virtual time. */
bool server_reduces_elsewhere(const server *s);
status server_reduce_elsewhere(server_work *work);
/* Copies a key's pieces between arenas; has ended when it returns. */
status server_copy_pieces(server *s, int key, char *to, const char *from);
status server_gpu_open(server *s);
void server_gpu_close(server *s);
/* Copies what `worker` has pushed for a piece to `landing`. */
status server_land(server *s, int key, int worker, int piece);
/* Copies a key's parameters from `params` to the GPU. */
status server_gpu_start(server *s, int key);

/* server_shared.c */
status server_shared_open(server *s);
void server_shared_close(server *s);
/* Both take over the message. */
status server_receive_buffers(server *s, ps_message *m);
status server_receive_layer_share(server *s, ps_message *m);
status server_send_shared(server *s, bool *worked);

#endif
