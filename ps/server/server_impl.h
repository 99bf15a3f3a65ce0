/* The inside of a server, for server*.c. Keys are numbered from the shard's first: `local`. */
#ifndef PS_SERVER_IMPL_H
#define PS_SERVER_IMPL_H

#include "ps/key_queue.h"
#include "ps/protocol.h"
#include "ps/server/server.h"
#include "ps/server/team.h"

typedef struct server_key {
    int64_t updates;         /* made so far: under sync and ssp the round that is collected */
    int64_t received;        /* async: pushes so far, whether applied or not */
    int64_t settled;         /* updates that a settle ends with */
    transport_ticket ticket; /* of the frames of answers: while it is out, the key stays as it is */
} server_key;

/* What a worker is owed for a key. */
typedef enum answer_state { ANSWER_NONE, ANSWER_WAITS, ANSWER_QUEUED } answer_state;
typedef struct server_answer {
    int64_t pull;    /* its number */
    int64_t updates; /* that the key must have first; async: of the worker's own pushes, unless it settles */
    int64_t late;    /* async: updates between the worker's last read and its last push; -1: told already */
    answer_state state;
} server_answer;

/* What the pushes of a round have in common. */
typedef struct server_round {
    int64_t optimizer_step;
    double rate;
} server_round;

typedef struct server_worker {
    char *params, *grads;   /* its arenas, or NULL: out of sight */
    ps_key_queue outbox;    /* keys to be answered */
    int64_t settle_pull, settle_round;   /* a settle that waits for the other ranks; pull 0: none */
    int64_t buffers_pull, buffers_round; /* a pull for buffers that is owed; for which round */
    bool had_buffers;
    bool was_there, gone;
    ps_message layer_share; /* its share of what a layer adds up; kind NONE: not there */
    bool norm_due;          /* `norm` is to be sent to it */
    double norm;            /* the shard's share of a squared norm */
    server_round push;      /* async: its last */
    int pushed_keys;        /* async with clipping: of that push */
    double scale;           /* async: of its gradients */
} server_worker;

typedef struct server_apply {
    int local, worker;
} server_apply;

/* The GPU that sums and updates. Arenas are as if of a whole one. */
typedef struct server_gpu {
    device *device;
    device_stream *stream;
    char *params, *sums;
    const char *own_grads; /* sync: of the rank beside it; NULL: they are taken from the host */
    device_memory params_memory, sums_memory, landing; /* landing: one piece of what a rank has pushed */
} server_gpu;

struct ps_server {
    ps_server_config c;
    server_gpu *gpu; /* NULL: the host's threads do it */
    ps_port port;
    sync_agent *agent;
    device_stream *stream;
    ps_team *team;
    const ps_shard *shard;
    int first, count;  /* keys of the shard */
    int64_t slots;     /* rounds that are collected at the same time */
    size_t element;    /* bytes */
    bool clips, writes; /* answers are written into the workers' arenas where these are in sight */
    bool initialised;  /* has parameters to hand out */
    int initial_keys;  /* that worker 0 has handed over */

    char *params;             /* arena */
    device_memory own_params; /* where that is not the rank's */
    device_memory sums_memory, holds_memory, squares_memory;
    char *sums;               /* as if of a whole arena */
    const void **sources;     /* [threads][world] */
    char *scratch;            /* [threads] chunks, where gradients are divided before the sum */

    server_key *keys;       /* [count] */
    ps_message *held;       /* [count][world] pushes whose frames are still needed */
    int64_t *pushed;        /* [count][world] rounds pushed */
    int64_t *applied;       /* [count][world] async: and applied */
    int *arrived;           /* [count][slots] pushes of a round */
    server_round *rounds;   /* [slots] */
    server_answer *answers; /* [count][world] */
    server_worker *workers; /* [world] */
    ps_key_queue complete;  /* sync, ssp: all pushes of the round are there */
    int incomplete;         /* keys and rounds of which some pushes are there, not all */

    /* sync and ssp with clipping: all keys are summed, then all are updated */
    int summed, next_update;
    bool norm_known;
    double scale;

    /* async: what is to be applied, in order of arrival */
    server_apply *applies; /* [count * world], a ring */
    int apply_first, apply_count;
    int64_t first_step;    /* the optimizer's step of a key's first update */

    int settling;    /* ranks that ask for a settle */
    int settle_owed; /* its answers that are still to be sent */

    char *buffers; /* server 0: packed, host memory */
    int64_t buffer_bytes, buffers_round; /* -1: none yet */
    ps_message buffers_next; /* kind NONE: none */
    bool acknowledge_buffers; /* rank 0 is to be told that they were taken */
    int64_t buffers_received; /* the last round that came, taken or not */
    transport_ticket buffers_ticket;

    double *layer_sums; /* server 0 */
    int layer_shares;   /* that are there */
    int layer_owed;     /* answers still to be sent: to workers world - layer_owed .. */
    message_header layer_header; /* of the shares that come */
    message_header layer_answer; /* of the sums that go */
    transport_ticket layer_ticket;

    int64_t heard_ns;        /* when something that others wait for came last */
    error_record failure;    /* its text is the frame of FAILED */
    transport_ticket failure_ticket;
    _Atomic int64_t update_ns;
    atomic_int gone;         /* workers that have said goodbye */
    atomic_bool ended;       /* the agent has failed */
};

static inline ps_message *server_held(ps_server *s, int local, int worker)
{
    return &s->held[(int64_t)local * s->c.world + worker];
}

static inline int64_t *server_pushed(ps_server *s, int local, int worker)
{
    return &s->pushed[(int64_t)local * s->c.world + worker];
}

static inline int64_t *server_applied(ps_server *s, int local, int worker)
{
    return &s->applied[(int64_t)local * s->c.world + worker];
}

static inline server_answer *server_answer_of(ps_server *s, int local, int worker)
{
    return &s->answers[(int64_t)local * s->c.world + worker];
}

static inline int *server_arrived(ps_server *s, int local, int64_t round)
{
    return &s->arrived[local * s->slots + round % s->slots];
}

static inline int64_t server_key_bytes(const ps_server *s, int local)
{
    return s->c.plan->keys[s->first + local].elements * (int64_t)s->element;
}

/* ps_port_send(), but what goes to a rank that has said goodbye is dropped. That one is lost says the
 * receiving side. */
status server_send(ps_server *s, int worker, const message_header *h, const message_frame *frames, int count,
                   transport_ticket *ticket, int64_t payload);

/* server_sum.c: arithmetic and the memory that it needs. */
status server_sum_open(ps_server *s);
void server_sum_close(ps_server *s);
/* Element 0 of piece `index` of what `worker` has pushed for the key's present round; host memory. */
const char *server_pushed_piece(ps_server *s, int local, int worker, int index);
/* The address at which an arena would begin of which `data` is element `first`. */
static inline char *server_as_arena(const void *data, int64_t first, size_t element)
{
    return (char *)((uintptr_t)data - (uintptr_t)first * element);
}
/* What is done with a key. */
typedef struct server_work {
    int local;
    bool sums;    /* the average over the ranks is taken, in the order of the ranks */
    bool updates; /* the optimizer runs: */
    int worker;   /* with the gradient that this rank pushed; -1: with the average */
    server_round info;
    double scale;
} server_work;
status server_do(ps_server *s, const server_work *work);
/* Copies a key's pieces between arenas; it is done when this returns. */
status server_copy_pieces(ps_server *s, int local, char *to, const char *from);
/* ssp: copies a push of `round` aside. */
status server_copy_push(ps_server *s, int local, int worker, const ps_message *m);
/* The shard's squared norm: of the averages, or of what `worker` has pushed. */
status server_squares(ps_server *s, int worker, double *out);

/* server_gpu.c: the same by the GPU; what it updates comes down to `params`. */
status server_gpu_open(ps_server *s);
void server_gpu_close(ps_server *s);
status server_gpu_do(ps_server *s, const server_work *work);
status server_gpu_squares(ps_server *s, int worker, double *out);
/* Takes a key's parameters from `params`. */
status server_gpu_start(ps_server *s, int local);
/* Among GPUs: server_copy_pieces(). */
status server_gpu_copy(ps_server *s, int local, char *to, const char *from);

/* server_update.c */
/* A gradient came; takes over the message. */
status server_take_push(ps_server *s, int local, int worker, ps_message *m);
/* The squared norm over all servers, of worker `worker`'s push (async) or of the round. */
void server_take_norm(ps_server *s, int worker, double sum_squares);
/* Does one piece of work. */
status server_update(ps_server *s, bool *worked);

/* server_answer.c */
status server_take_pull(ps_server *s, int worker, const message_header *h);
void server_ask(ps_server *s, int local, int worker, int64_t pull, int64_t updates);
/* A key was updated, or all were handed over: who waited for that is answered. */
void server_key_moved(ps_server *s, int local);
status server_send_answers(ps_server *s, bool *worked);

/* server_shared.c: what server 0 does beside. */
status server_shared_open(ps_server *s);
void server_shared_close(ps_server *s);
/* Both take over the message. */
status server_take_buffers(ps_server *s, ps_message *m);
status server_take_layer_share(ps_server *s, ps_message *m);
status server_send_shared(ps_server *s, bool *worked);

#endif
