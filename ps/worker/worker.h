/* The worker is the part of a rank that talks to the servers. The compute thread calls the functions of a
 * step, which post events and wait on fences. The rank's agent pops the events, pushes gradients and receives
 * parameters.
 *
 * The files, in the order in which a gradient passes through them:
 *
 *   open.c    opens and closes a worker: memory, fences
 *   step.c    the compute thread: a gradient is ready, parameters are needed
 *   worker.c  the agent: its loop, stalls and departures
 *   push.c    the agent's sending half: events become messages
 *   pull.c    the agent's receiving half: replies become parameters, and fences are reached */
#ifndef PS_WORKER_H
#define PS_WORKER_H

#include "common/sync/queue.h"
#include "common/sync/staging.h"
#include "common/trace/trace.h"
#include "ps/keys.h"
#include "ps/memory.h"
#include "ps/port.h"
#include "ps/protocol.h"
#include "ps/ps.h"

/* Events from the compute thread to the agent. */
typedef enum worker_event {
    WORKER_PUSH,    /* The index is a parameter, and the value is an iteration. */
    WORKER_PULL,    /* The index holds flags (PS_PULL_...), and the value is the number of the pull. */
    WORKER_BUFFERS, /* The value is the iteration that begins with rank 0's current buffers. */
    WORKER_SUM,     /* The index says how many values to sum, and the value is the number of the sum. */
} worker_event;

/* The state of one server, and the messages that must be sent to the server. */
typedef struct worker_server {
    /* The arena from which the worker copies the server's parameters. NULL if the parameters arrive in
     * frames, or if the server writes them into the worker's arena. */
    const char *params;
    const char *url; /* Address for error messages, or NULL if the server is the partner. */
    ps_key_queue queue;
    bool limited; /* Whether --credit-bytes limits the bytes in transit to the server. */
    /* [queue.capacity] Circular queue of keys whose frames are being sent, oldest first. */
    int *on_the_way;
    int first_on_the_way, count_on_the_way;
    int64_t bytes_on_the_way;
    int64_t latest_ready_ns; /* Latest ready_ns of the pushed keys. */
    uint32_t pull_flags;     /* Flags of the pull that must be sent, or 0. */
    bool norm_due;
    double norm_share; /* The server's part of the squared norm, negative if it has not arrived. */
} worker_server;

/* The state of one key: its last push, and the last reply. */
typedef struct worker_key {
    int missing; /* Number of parameters that cannot be pushed yet. */
    transport_ticket ticket;
    int64_t iteration; /* Iteration that is being pushed, or that was pushed last. */
    /* Time at which the gradient was ready, and time at which the push or the pull left. */
    int64_t ready_ns, left_ns;
    bool traced;                 /* True if the key became ready while the trace was on. */
    int64_t pushed_ns;           /* Time at which the push left (async, ssp). */
    int64_t requested, received; /* Numbers of the last requested pull and of the last received reply. */
    int64_t updates_seen;        /* Number of updates that the received parameters include. */
    /* The message that was sent last among the messages that the last reply needed. */
    anatomy_sent last;
} worker_key;

/* Used by the compute thread. */
typedef struct worker_compute {
    int64_t iteration; /* The current iteration. Between iterations, the next iteration. */
    uint64_t pulls;
    uint64_t packs, summed; /* Number of requests to pack the buffers, and number of requested sums. */
    uint64_t unpacked;      /* Number of the pull whose buffers have been copied to the arena. */
    bool begun;             /* True if the iteration's first micro-batch has begun. */
    bool synchronize;
    bool has_data; /* True if a micro-batch of the iteration had samples. */
    bool *pushed;  /* [param_count] Whether the parameter has been pushed in this iteration. */
} worker_compute;

/* Fields that both threads use. A field is constant after the worker has been opened, or is written before an
 * event is posted or a fence is reached, or is atomic. */
typedef struct worker_shared {
    int64_t element; /* Bytes of an element. */
    /* Whether this rank sends its buffers to all ranks, and whether this rank receives rank 0's buffers. */
    bool gives_buffers, takes_buffers;

    /* Data from the compute thread to the agent. The compute thread writes `iterations`, `pull_iteration` and
     * `sum_values` before it posts an event. */
    sync_queue events;
    /* Index is the iteration modulo 2. Two entries are enough, because the agent ends iteration i before
     * iteration i + 2 begins. */
    ps_update_step iterations[2];
    int64_t pull_iteration; /* Iteration of the last pull. */
    double *sum_values;

    ps_port port;
    char *packed_buffers; /* Packed copy of rank 0's buffers, which rank 0 sends and other ranks receive. */
    /* [param_count] Fences of the parameters. The value of a fence is the number of the last pull for
     * which the parameter has arrived. */
    device_fence **arrived;
    device_fence *packed, *buffers_arrived, *summed;
    /* For each parameter, for the buffers and for the sum: the message that was sent last among the messages
     * that were needed. The agent writes these fields before it reaches the fence that the compute thread
     * waits for. */
    anatomy_sent *params_last; /* [param_count] */
    anatomy_sent buffers_last, sum_last;

    _Atomic int64_t update_ns;
    _Atomic int64_t skipped; /* Number of updates that servers have skipped. */
    /* Number of pushes that were sent after the push of a key that became ready later. */
    _Atomic int64_t overtaken;
} worker_shared;

/* Fields that only the agent uses. */
typedef struct worker {
    const sync_context *context;
    const ps_policy *policy;
    const ps_plan *plan;
    worker_shared *shared;
    ps_port *port;

    /* ---- pushes ---- */
    worker_server *servers; /* [server_count] */
    worker_key *keys;       /* [key_count] */
    /* True while the queues contain the initial parameters for servers in separate processes. */
    bool handing_over;
    int64_t pull, buffers_pull; /* Numbers of the last pulls for keys and for buffers. */

    /* ---- pulls ---- */
    /* [param_count] Number of keys of the parameter that have not arrived in the current pull. */
    int *missing_keys;
    int replies_due;
    int64_t waiting_since_ns; /* Time at which `replies_due` last became positive. */
    /* True if an arrow of the trace ends in the slice that begins at waiting_since_ns. */
    bool flows;
    int64_t buffers_left_ns, sum_left_ns; /* Times at which buffers and the sum were requested. */
    int64_t last_message_ns;              /* Time from which the stall limit counts. */

    /* ---- updates by the rank itself ---- */
    device_stream *stream;
    int averages; /* Number of averages that have arrived, if updates wait for the norm. */

    /* ---- buffers, sums of layers, norms ---- */
    /* Rank 0's buffers must be packed (pack_due), have been packed and must be sent (packed_due), or have
     * been sent and are not acknowledged (packed_out). */
    bool pack_due, packed_due, packed_out;
    int64_t pack_iteration;
    uint64_t packs_made;
    bool sum_due;
    int sum_count;
    int64_t sum_number;
    int64_t sum_ready_ns, buffers_ready_ns; /* Times at which the values had been computed. */
    transport_ticket packed_ticket, sum_ticket;
    double norm;

    ps_report report;
    double staleness_total;
} worker;

typedef struct ps_worker {
    /* Set by the owner of the worker. Everything is borrowed and outlives the worker. */
    const sync_context *context;
    const ps_policy *policy;
    const ps_plan *plan;

    ps_memory memory;
    worker_compute compute;
    worker_shared shared;
    worker agent;
} ps_worker;

static inline int64_t worker_key_bytes(const worker *w, int key)
{
    return w->plan->keys[key].elements * w->shared->element;
}

/* Records that the servers owe `replies` more replies. */
void worker_await(worker *w, int replies, int64_t now_ns);
/* Records the staleness of a push: `late` updates were missing from the parameters from which the push was
 * computed. */
void worker_record_staleness(worker *w, int64_t late);

/* push.c: turns events into messages. */
void worker_pop_events(worker *w, bool *worked);
status worker_send(worker *w, int64_t now_ns, bool *worked);
/* Copies all buffers from the arena to the packed copy if `packs` is true, else from the packed copy to the
 * arena. */
void worker_copy_buffers(const param_set *set, char *packed, bool packs);

/* pull.c: handles a message, for ps_port_ops. */
status worker_handle(void *context, ps_message *m, int64_t now_ns);

/* open.c: opens a worker with the owner's fields of `setup`. The caller then opens the port and
 * connects it to the servers. */
status ps_worker_open(const ps_worker *setup, ps_worker **out);
void ps_worker_close(ps_worker **worker);

/* worker.c */
status ps_worker_start(ps_worker *w);

/* step.c: the calls of a step. sync_engine_type describes them. */
status ps_worker_begin_forward(sync_engine *e, const sync_step *step);
status ps_worker_need(sync_engine *e, int param);
status ps_worker_end_forward(sync_engine *e, const sync_step *step);
status ps_worker_ready(sync_engine *e, int param);
status ps_worker_finish(ps_worker *w, const sync_step *step);
status ps_worker_flush(sync_engine *e);
status ps_worker_group_sum(sync_engine *e, double *values, int count);

#endif
