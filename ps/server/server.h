/* A server sums the pushes of its shard's keys in rank order, updates the keys, and replies to pulls. Server
 * 0 also keeps the buffers and sums values for layers. A server is a state machine that an agent drives: a
 * thread next to a rank, or the main thread of a separate process.
 *
 * The files, in the order in which a gradient passes through them:
 *
 *   server_open.c      memory, port, start and end
 *   server.c           the agent: receives messages, notices stalls and departures
 *   reduction.c        one key: receive pushes, sum in rank order, average, update, reply
 *   server_policies.c  when a key is reduced (clipping, ssp, async), when a pull is due, flushes
 *   server_gpu.c       the sum and the update on a GPU
 *   server_shared.c    buffers and layers' sums, on server 0 */
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
    int index;
    int world;
    const ps_policy *policy;
    const ps_plan *plan;
    device *device;
    /* The rank's parameters if the server is next to a rank, otherwise separate ones without gradients. */
    param_set *params;
    /* Context of the GPU that sums and updates, or NULL if `device` sums and updates. With a GPU, `params` is
     * a staged copy of the GPU's parameters. */
    const struct sync_context *front;
    optimizer *optimizer; /* Optimizer of the device that updates. */
    ledger *ledger;
    bool colocated; /* The server is in the process of rank `index`, whose worker is the port's partner. */
    int threads;
    const sync_context *context; /* Context of the adjacent rank, or of the process. */
    struct trace *trace;         /* Trace of the adjacent rank, or NULL. */
} ps_server_config;

status ps_server_open(const ps_server_config *config, ps_server **out);
status ps_server_open_port(ps_server *s, const transport_options *options);
void ps_server_close(ps_server **server);

ps_port *ps_server_port(ps_server *s);

/* Sets the addresses at which the arenas of worker `worker` are mapped. Called before ps_server_start().
 * Without a call of ps_server_map_worker() the tensors of the worker arrive in message frames. */
void ps_server_map_worker(ps_server *s, int worker, void *params, void *grads);
/* Starts an agent with a separate thread. */
status ps_server_start(ps_server *s);
/* Runs the agent in the calling thread until all workers have disconnected. */
status ps_server_serve(ps_server *s);

/* Waits until all workers in other processes have disconnected, at most `limit_ns`. Returns at once if the
 * server has failed. */
void ps_server_linger(ps_server *s, int64_t limit_ns);

/* Returns the averaged gradients of the last iteration as an arena, of which only the shard's pieces
 * exist. */
const void *ps_server_averages(const ps_server *s);

/* Returns the time spent in updates so far, in ns. */
int64_t ps_server_update_ns(const ps_server *s);

#endif
