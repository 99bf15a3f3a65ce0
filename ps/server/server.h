/* A server sums the pushes of its shard's keys in rank order, updates the keys, and replies to pulls. Server
 * 0 also keeps rank 0's buffers and sums values for layers. A server is a state machine that an agent drives.
 * The agent is a thread in the process of a rank, or the main thread of a separate process. In these files,
 * key 0 is the first key of the shard.
 *
 * The files, in the order in which a gradient passes through them:
 *
 *   open.c         memory, start and end
 *   server.c       the agent: receives messages, notices stalls and departures
 *   reduction.c    one key: receive pushes, sum in rank order, average, update, reply
 *   consistency.c  when a key is reduced (clipping, ssp, async), when a reply is due, flushes
 *   shared.c       buffers and sums of layers, on server 0 */
#ifndef PS_SERVER_H
#define PS_SERVER_H

#include "common/sync/average.h"
#include "ps/keys.h"
#include "ps/memory.h"
#include "ps/port.h"
#include "ps/protocol.h"

/* Returns the time and the sender of a message that contributes to an update or a reply. */
static inline anatomy_sent server_sent(const message_header *h, int worker)
{
    return (anatomy_sent){.ns = h->sent_ns, .ready_ns = h->ready_ns, .rank = worker};
}

static inline void server_put_last(message_header *reply, anatomy_sent last)
{
    reply->last_ns = last.ns;
    reply->ready_ns = last.ready_ns;
    reply->last_rank = (uint32_t)last.rank;
}

static inline anatomy_sent server_later(anatomy_sent a, anatomy_sent b)
{
    return b.ns > a.ns ? b : a;
}

/* The number of pushes of one key that have arrived in one iteration, and the push that was sent last. */
typedef struct server_arrival {
    int count;
    anatomy_sent last;
} server_arrival;

typedef struct server_key {
    /* Number of updates so far. Under sync and ssp, also the number of the iteration whose pushes are summed
     * next. */
    int64_t updates;
    /* Number of pushes that have arrived, including pushes that have not been applied (async). */
    int64_t received;
    int64_t flushed;   /* Number of updates that the key must have when a flush ends. */
    anatomy_sent last; /* The push that was sent last among the pushes that the last update needed. */
    /* Ticket of the replies that are being sent. The parameters of the key must not change until all replies
     * have left. */
    transport_ticket ticket;
} server_key;

/* The state of one key for one worker: the last push, and the reply that the worker waits for. */
typedef enum reply_state { REPLY_NONE, REPLY_WAITS, REPLY_QUEUED } reply_state;
typedef struct server_slot {
    ps_message push; /* The last push, kept as long as its frames are needed. */
    int64_t pushed;  /* Number of iterations that the worker has pushed. */
    int64_t applied; /* Number of pushes that have been applied (async). */
    reply_state reply;
    int64_t pull; /* Number of the pull to which `reply` belongs. */
    /* Number of updates that the key must have received before the reply. Under async, only updates with
     * pushes of this worker count, unless the worker flushes. */
    int64_t needs;
    int64_t arrived_ns; /* Time at which the pull, or the push that includes a pull, arrived. */
    int64_t pushed_ns;  /* Time at which the last push arrived (async, ssp). */
    anatomy_sent last;  /* The push that was sent last among the pushes that the reply needed. */
    /* Number of updates between the worker's last read and the update with its last push (async). -1 if this
     * number has already been reported. */
    int64_t staleness;
} server_slot;

typedef struct server_worker {
    char *params, *grads; /* Arenas of the worker, or NULL if they are not mapped. */
    ps_key_queue outbox;  /* Keys whose replies to this worker are due. */
    /* A flush that has been requested and has not ended. flush_pull is 0 if there is none. */
    int64_t flush_pull, flush_iteration;
    /* Number of a pull for buffers that has not been answered, and the oldest iteration whose buffers are a
     * valid reply. */
    int64_t buffers_pull, buffers_iteration;
    int64_t buffers_arrived_ns; /* Time at which the pull for buffers arrived. */
    bool had_buffers;
    bool gone;
    /* The worker's share of a layer's sum. The kind of the message is MESSAGE_NONE if the share has not
     * arrived. */
    ps_message layer_share;
    bool norm_due;       /* True if `norm` must be sent to the worker. */
    double norm;         /* This server's part of a squared norm. */
    ps_update_step push; /* Step and learning rate of the last push (async). */
    /* Number of keys of the current iteration that the worker has pushed, if updates wait for the norm
     * (async). */
    int pushed_keys;
    double scale; /* Factor for the worker's gradients (async). */
    bool skips;   /* True if the worker's push is not applied (async). */
} server_worker;

typedef struct server_apply {
    int key, worker;
} server_apply;

/* The state of a server, which only the agent writes. If the agent runs a reduction on several threads, these
 * threads read the state. */
typedef struct ps_server {
    /* Set by the owner of the server. Everything is borrowed and outlives the server. */
    /* Context of the rank in the same process, or of the server's separate process. */
    const sync_context *context;
    const ps_policy *policy;
    const ps_plan *plan;
    int index;
    /* True if the server is in the process of rank `index`. The worker of this rank is then the port's
     * partner. */
    bool colocated;
    int threads; /* Number of threads that sum and update, or 0 if a virtual GPU does. */

    ps_port port;
    _Atomic int64_t update_ns; /* Time spent in updates. */
    atomic_int gone;           /* Number of workers that have disconnected. */

    /* Fixed when the server is opened. */
    const ps_shard *shard;
    device *device;
    /* The rank's parameters if the server is in the process of a rank, otherwise separate parameters without
     * gradients. */
    param_set *set;
    optimizer *optimizer;
    int world;
    int first, count; /* Range of keys of the shard. */
    int64_t window;   /* Number of iterations whose pushes are collected at the same time. */
    int64_t element;  /* Bytes of an element. */
    bool needs_norm; /* True if updates wait for the norm over all servers (clipping, --on-nonfinite skip). */
    bool writes;     /* True if the server writes replies into the mapped arenas of workers. */
    /* The device that sums and updates (the host or the rank's GPU), and the stream of this device. */
    sync_staging staging;
    /* Base addresses of three arenas: parameters that replies contain, parameters that the optimizer updates,
     * and averages. Addresses count from the first element of the model, but only the elements of the shard
     * are used. `params` and `updated` differ only if a GPU updates. */
    char *params, *updated, *averages;
    /* Under sync, the gradients of the rank in the same process, in GPU memory. NULL if gradients are read
     * from host memory. */
    const char *own_grads;
    device_memory landing; /* GPU memory for one piece of a pushed gradient. */
    device_memory params_memory, updated_memory, averages_memory, copies_memory;
    sync_average average; /* Describes how `averages` are computed. server_reduce() sets `average.context`. */

    ps_memory memory;
    server_key *keys;        /* [count] */
    server_slot *slots;      /* [count][world] */
    server_worker *workers;  /* [world] */
    server_arrival *arrived; /* [count][window] */
    ps_update_step *steps;   /* [window] */
    ps_key_queue complete;   /* Keys that all ranks have pushed (sync, ssp). */
    int incomplete;          /* Number of pairs (key, iteration) that some ranks have pushed, but not all. */
    bool initialized;        /* True if the server has received its initial parameters. */
    int initial_keys;        /* Number of keys whose initial parameters worker 0 has sent. */
    int flushing;            /* Number of ranks that wait for a flush. */
    int flush_replies;       /* Number of replies to a flush that are still to be sent. */

    /* Used under sync and ssp if updates wait for the norm. First all keys are summed, then all keys are
     * updated. */
    struct {
        int summed, next_update;
        bool known;
        bool skips;
        double scale;
        anatomy_sent last; /* The push that was sent last, over all keys. */
    } norm;
    struct {                /* Pushes that have not been applied, in order of arrival (async). */
        server_apply *list; /* [count * world] A circular queue. */
        int first, count;
        int64_t first_step; /* Step of the optimizer at a key's first update. */
    } apply;
    struct {                      /* Used on server 0. */
        char *data;               /* Packed buffers in host memory. */
        int64_t bytes, iteration; /* `iteration` is -1 if there are no buffers yet. */
        /* Last iteration whose buffers have arrived, even if they have not been accepted. */
        int64_t received;
        /* Buffers that have arrived and have not been accepted. The kind of the message is MESSAGE_NONE if no
         * buffers wait to be accepted. */
        ps_message next;
        anatomy_sent last; /* The message of rank 0 that contained `data`. */
        bool acknowledge;  /* True if an acknowledgement must be sent to rank 0. */
        transport_ticket ticket;
    } buffers;
    struct { /* Used on server 0. */
        double *sums;
        int shares;
        int replies;       /* Number of workers, counted from the last one, that must still get a reply. */
        anatomy_sent last; /* The share that was sent last. */
        message_header header; /* Header of the last share. Further shares must match this header. */
        message_header reply;
        transport_ticket ticket;
    } layer;

    int64_t received_ns;     /* Time at which the current message arrived. */
    int64_t last_message_ns; /* Time from which the stall limit counts. */
} ps_server;

static inline server_slot *server_slot_of(const ps_server *s, int key, int worker)
{
    return &s->slots[(int64_t)key * s->world + worker];
}

static inline server_arrival *server_arrived(const ps_server *s, int key, int64_t iteration)
{
    return &s->arrived[key * s->window + iteration % s->window];
}

static inline int64_t server_bytes(const ps_server *s, int64_t elements)
{
    return elements * s->element;
}

static inline int64_t server_key_bytes(const ps_server *s, int key)
{
    return server_bytes(s, s->plan->keys[s->first + key].elements);
}

static inline piece_list server_pieces(const ps_server *s, int key)
{
    return ps_key_pieces(s->plan, s->first + key);
}

/* Returns the address of element 0 of an arena whose element `first` is at `data`. */
static inline char *server_as_arena(const void *data, int64_t first, int64_t element)
{
    return (char *)((uintptr_t)data - (uintptr_t)(first * element));
}

/* server.c: turns the result of a send to a rank that has disconnected into success. check_departures()
 * reports the lost rank if other ranks wait for a message from it. */
status server_forgive_left(status sent);
/* Copies a key's pieces between arenas in host memory. Does nothing if `to` is NULL, which means that the
 * arena is not mapped. */
void server_copy_pieces(const ps_server *s, int key, char *to, const char *from);

/* reduction.c. A reduction of one key. */
typedef struct server_work {
    ps_server *server;
    int key;
    bool sums;    /* Whether to compute the average over the ranks, in rank order. */
    bool updates; /* Whether to run the optimizer. */
    int worker;   /* Rank whose gradient the optimizer uses, or -1 for the average. */
    ps_update_step step;
    double scale;
} server_work;
/* Handles a pushed gradient of a key of the shard. Takes over the message. */
status server_receive_push(ps_server *s, ps_message *m);
/* Sums the first key that all ranks have pushed, and updates the key if `updates` is true. *key is -1 if no
 * key is complete. */
status server_reduce_next(ps_server *s, bool updates, int *key);
status server_reduce(server_work *work);
/* Implements sync_average.source(). `context` is a server_work. */
const char *server_contribution(const void *context, int worker, int piece, int64_t element);
/* Queues the replies that waited for an update of the key, or for the initial parameters. */
void server_key_updated(ps_server *s, int key);
void server_queue_reply(ps_server *s, int key, int worker);
status server_send_replies(ps_server *s, bool *worked);

/* consistency.c */
status server_check_push(ps_server *s, int key, int worker, ps_message *m);
/* Keeps the pushed gradient readable until it is summed. */
void server_keep_push(ps_server *s, int key, int worker, ps_message *m);
/* Returns the address of a piece that `worker` pushed for the key's current iteration. The piece is in host
 * memory, or in GPU memory if `own_grads` is set and `worker` is the rank of the server. */
const char *server_gradient(const ps_server *s, int key, int worker, int piece);
/* Makes the piece readable for the device that updates. Sets *grads to the base address of an arena in which
 * the piece is at its usual offset. On a GPU the next call overwrites the piece. */
status server_pushed(ps_server *s, int key, int worker, int piece, const char **grads);
status server_receive_async(ps_server *s, int key, int worker, ps_update_step step);
/* Handles the sum of the squared norms of all servers. Under async, this sum belongs to the push of
 * `worker`. Under other policies, this sum belongs to the averages of the iteration. */
status server_receive_norm(ps_server *s, int worker, double sum_squares);
/* If an update found gradients that are not finite, stops the server or prints a warning, as --on-nonfinite
 * says. */
status server_check_update(const server_work *work);
/* Reduces or updates one key if a key is ready. */
status server_update(ps_server *s, bool *worked);
status server_receive_pull(ps_server *s, int worker, const message_header *h);
void server_await_update(ps_server *s, int key, int worker, int64_t pull, int64_t updates);
bool server_reply_is_due(ps_server *s, int key, int worker);
void server_end_reply(ps_server *s, int key, int worker);

/* shared.c: server_receive_buffers() and server_receive_layer_share() take over the message. */
status server_receive_buffers(ps_server *s, ps_message *m);
status server_receive_layer_share(ps_server *s, ps_message *m);
status server_send_shared(ps_server *s, bool *worked);

/* server.c: ps_server_start() starts the agent in a separate thread. ps_server_serve() runs the agent in the
 * calling thread until all workers have disconnected. */
status ps_server_start(ps_server *s);
status ps_server_serve(ps_server *s);

/* open.c: opens a server with the owner's fields of `setup`. The caller then opens the port. */
status ps_server_open(const ps_server *setup, ps_server **out);
void ps_server_close(ps_server **server);

#endif
