/* A rank's side of the parameter server. The compute thread calls the stages, which post events and wait on
 * fences. The rank's agent pops the events, pushes gradients and receives parameters.
 *
 * The files, in the order in which a gradient passes through them:
 *
 *   worker_open.c    memory, fences, connections and end
 *   worker_stages.c  the compute thread: a gradient is ready, parameters are needed
 *   worker.c         the agent: its loop, stalls and departures
 *   worker_push.c    the agent's sending half: events become messages
 *   worker_pull.c    the agent's receiving half: replies become parameters, and fences are reached */
#ifndef PS_WORKER_H
#define PS_WORKER_H

#include "common/sync/agent.h"
#include "common/sync/engine.h"
#include "ps/plan.h"
#include "ps/policy.h"
#include "ps/port.h"
#include "ps/ps.h"

typedef struct ps_worker ps_worker;

/* Everything is borrowed and outlives the worker. */
typedef struct ps_worker_config {
    const sync_context *context;
    const ps_policy *policy;
    const ps_plan *plan;
    bool colocated; /* Server `rank` runs in this process and is the port's partner. */
} ps_worker_config;

status ps_worker_open(const ps_worker_config *config, ps_worker **out);
/* Opens the port. ps_worker_connect() then connects to one server, and is not called for the partner. */
status ps_worker_open_port(ps_worker *w, const transport_options *options);
status ps_worker_connect(ps_worker *w, int server, const char *url);
/* Sets how tensors reach server `server`. Called before ps_worker_start(). `params` is the server's arena if
 * the worker may copy parameters from it, else NULL. `maps_us` means that the server maps the worker's
 * arenas, so pushes need no frames. */
void ps_worker_map_server(ps_worker *w, int server, const void *params, bool maps_us);
status ps_worker_start(ps_worker *w);
/* Ends the agent and disconnects from the servers. The partner may still use the port. */
void ps_worker_leave(ps_worker *w);
void ps_worker_close(ps_worker **worker);

ps_port *ps_worker_port(ps_worker *w);

/* The stages of the engine, as sync_engine_type describes them. */
status ps_worker_begin_forward(sync_engine *e, const sync_step *step);
status ps_worker_need(sync_engine *e, int param);
status ps_worker_end_forward(sync_engine *e, const sync_step *step);
status ps_worker_ready(sync_engine *e, int param);
status ps_worker_finish(ps_worker *w, const sync_step *step);
status ps_worker_flush(sync_engine *e);
status ps_worker_group_sum(sync_engine *e, double *values, int count);

void ps_worker_collect_times(const ps_worker *w, sync_counters *out);
/* Returns the number of updates skipped so far, by this rank or by servers (--on-nonfinite skip). */
int64_t ps_worker_updates_skipped(const ps_worker *w);
/* Returns the staleness of reads so far. Called in flushed state. */
void ps_worker_report(const ps_worker *w, ps_report *out);

#endif
