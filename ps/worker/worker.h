/* A rank's side of the parameter server. The compute thread calls the stages, which post events and wait on
 * fences; the rank's agent pops the events, pushes gradients and receives parameters.
 *
 * In the order in which a gradient passes through them:
 *
 *   worker_open.c    memory, fences, connections and end
 *   worker_stages.c  the compute thread: a gradient is ready, parameters are needed
 *   worker.c         the agent: its loop, stalls and departures
 *   worker_push.c    the agent's sending half: events become messages
 *   worker_pull.c    its receiving half: replies become parameters, and fences are reached */
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
    bool colocated; /* server `rank` runs in this process and is the port's partner */
} ps_worker_config;

status ps_worker_open(const ps_worker_config *config, ps_worker **out);
/* Opens the port, then connects to server `server` at `url`, unless it is the partner. */
status ps_worker_open_port(ps_worker *w, const transport_options *options);
status ps_worker_connect(ps_worker *w, int server, const char *url);
/* Before ps_worker_start: the arena in which server `server` keeps parameters, where the worker may copy from
 * it. `maps_us`: the server maps the worker's arenas, so that pushes need no frames. */
void ps_worker_map_server(ps_worker *w, int server, const void *params, bool maps_us);
status ps_worker_start(ps_worker *w);
/* Ends the agent and disconnects from the servers; the partner may still use the port. */
void ps_worker_leave(ps_worker *w);
void ps_worker_close(ps_worker **worker);

ps_port *ps_worker_port(ps_worker *w);

/* The stages of the engine; sync_engine_type says what each must do. */
status ps_worker_begin_forward(sync_engine *e, const sync_step *step);
status ps_worker_need(sync_engine *e, int param);
status ps_worker_end_forward(sync_engine *e, const sync_step *step);
status ps_worker_ready(sync_engine *e, int param);
status ps_worker_finish(ps_worker *w, const sync_step *step);
status ps_worker_flush(sync_engine *e);
status ps_worker_group_sum(sync_engine *e, double *values, int count);

/* Times so far; adds to *out. */
void ps_worker_collect_times(const ps_worker *w, sync_counters *out);
/* Updates skipped so far, here or by servers: --on-nonfinite skip. */
int64_t ps_worker_updates_skipped(const ps_worker *w);
/* The staleness of reads so far; in flushed state. */
void ps_worker_report(const ps_worker *w, ps_report *out);

#endif
