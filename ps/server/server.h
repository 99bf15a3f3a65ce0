/* A server: sums the pushes of its shard's keys, updates them, and answers pulls. Server 0 also keeps the
 * buffers and adds up what layers share. A state machine with an agent of its own, which is a thread
 * beside a rank or a process's main thread (server_process.h). */
#ifndef PS_SERVER_H
#define PS_SERVER_H

#include "common/optim/optimizer.h"
#include "common/sync/agent.h"
#include "common/sync/engine.h"
#include "ps/plan.h"
#include "ps/policy.h"
#include "ps/port.h"

typedef struct ps_server ps_server;

/* Everything is borrowed and outlives the server. */
typedef struct ps_server_config {
    int index;         /* of the server */
    int world;         /* workers */
    const ps_policy *policy;
    const ps_plan *plan;
    device *device;
    param_set *params; /* beside a rank: the rank's, else the server's own, without gradients */
    const struct sync_context *front; /* `params` are the mirror of this one's, whose device sums and updates; or NULL */
    bool peers;        /* all arenas in sight are in memory of GPUs, which copy from each other; `front` is the rank's own */
    optimizer *optimizer; /* of the device that updates */
    ledger *ledger;
    bool beside;       /* worker `index` is the partner */
    int threads;
    int64_t stall_timeout_ns;
    struct trace *trace; /* of the rank beside it, or NULL */
} ps_server_config;

status ps_server_open(const ps_server_config *config, ps_server **out);
status ps_server_open_port(ps_server *s, const transport_options *options);
void ps_server_close(ps_server **server);

ps_port *ps_server_port(ps_server *s);

/* Before ps_server_start: where worker `worker`'s arenas are in sight; NULL: they come in frames. */
void ps_server_see(ps_server *s, int worker, void *params, void *grads);
/* Starts an agent with a thread of its own; */
status ps_server_start(ps_server *s);
/* or the caller's thread is the agent, until all workers have said goodbye. */
status ps_server_serve(ps_server *s);

/* Waits until all workers have said goodbye, at most so long; at once where the server has failed. */
void ps_server_linger(ps_server *s, int64_t limit_ns);

/* What the agent failed with; STATUS_OK if it has not. */
status ps_server_error(ps_server *s);

/* The averaged gradients of the last round, laid out like the parameters where the shard's pieces are. */
const void *ps_server_averages(const ps_server *s);

/* Time spent in updates since the last call. */
int64_t ps_server_take_update_ns(ps_server *s);

#endif
