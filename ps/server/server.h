/* A server: sums the pushes of its shard's keys in rank order, updates them, and replies to pulls. Server 0
 * also keeps the buffers and adds up what layers share. It is a state machine with an agent of its own: a
 * thread next to a rank, or the main thread of a process.
 *
 * In the order in which a gradient passes through them:
 *
 *   server_open.c      memory, port, start and end
 *   server.c           the agent: messages come in, stalls and departures are noticed
 *   reduction.c        one key: receive pushes, sum in rank order, average, update, reply
 *   server_policies.c  when a key is reduced: clipping, ssp, async; when a pull is due; flushes
 *   server_gpu.c       the sum and the update on a GPU
 *   server_shared.c    server 0: buffers and the sums of layers */
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
    int index; /* of the server */
    int world; /* workers */
    const ps_policy *policy;
    const ps_plan *plan;
    device *device;
    param_set *params; /* next to a rank: the rank's; else the server's own, without gradients */
    const struct sync_context
        *front; /* the device that sums and updates, of which `params` are the staged copy; or NULL */
    optimizer *optimizer; /* of the device that updates */
    ledger *ledger;
    bool colocated; /* with rank `index`, whose worker is the port's partner */
    int threads;
    const sync_context *context; /* Context of the rank next to it, or of the process. */
    struct trace *trace;         /* The trace of the rank next to it, or NULL. */
} ps_server_config;

status ps_server_open(const ps_server_config *config, ps_server **out);
status ps_server_open_port(ps_server *s, const transport_options *options);
void ps_server_close(ps_server **server);

ps_port *ps_server_port(ps_server *s);

/* Before ps_server_start: where worker `worker`'s arenas are mapped; NULL: tensors come in frames. */
void ps_server_map_worker(ps_server *s, int worker, void *params, void *grads);
/* Starts an agent with a thread of its own; */
status ps_server_start(ps_server *s);
/* or the caller's thread is the agent, until all workers have disconnected. */
status ps_server_serve(ps_server *s);

/* Waits until all workers have disconnected, at most `limit_ns`; returns at once where the server has failed.
 */
void ps_server_linger(ps_server *s, int64_t limit_ns);

/* The averaged gradients of the last iteration, laid out like the parameters where the shard's pieces are. */
const void *ps_server_averages(const ps_server *s);

/* Time spent in updates since the last call. */
int64_t ps_server_update_ns(const ps_server *s);

#endif
