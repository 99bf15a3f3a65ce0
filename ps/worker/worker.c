/* The agent of a worker. progress() sends and receives, and fails if servers do not reply. */
#include "ps/worker/worker.h"

#include "common/base/clock.h"
#include "common/base/text.h"

#include <stdio.h>

void worker_await(worker *w, int replies, int64_t now_ns)
{
    if (replies > 0 && w->replies_due == 0) w->waiting_since_ns = w->last_message_ns = now_ns;
    w->replies_due += replies;
}

void worker_record_staleness(worker *w, int64_t late)
{
    ps_report *r = &w->report;
    r->reads++;
    r->stale[late < PS_STALENESS_BINS ? late : PS_STALENESS_BINS - 1]++;
    if (late > r->most) r->most = late;
    w->staleness_total += (double)late;
}

/* ---- servers that this rank waits for -------------------------------------------------------------- */

/* Writes the name and the location of a server, for example "parameter server 1 in the process of rank 1". */
static const char *name_server(const worker *w, int server, char *text, size_t size)
{
    const char *url = w->servers[server].url;
    bool own = w->policy->placement == PS_PLACEMENT_OWN;
    int used = snprintf(text, size, "parameter server %d", server);
    if (!own) used += snprintf(text + used, size - (size_t)used, " in the process of rank %d", server);
    if (url) snprintf(text + used, size - (size_t)used, " at %s", url);
    return text;
}

/* Returns the first server that has not replied for a key, or -1 if all servers have replied. */
static int owing_server(const worker *w, int *key)
{
    for (int k = 0; k < w->plan->key_count; k++) {
        *key = k;
        if (w->keys[k].requested != w->keys[k].received) return w->plan->keys[k].server;
    }
    *key = -1;
    return -1;
}

static status check_departures(worker *w)
{
    char name[192];
    for (int j = 0; j < w->plan->server_count; j++)
        if (ps_port_has_left(w->port, j) && w->replies_due > 0)
            return fail(STATUS_PEER, "%s has left while rank %d waits for it",
                        name_server(w, j, name, sizeof name), w->context->rank);
    return STATUS_OK;
}

/* Returns the worker's stall limit. The limit of servers is shorter, so that a server, which knows which rank
 * is late, reports that rank first. */
static int64_t patience(const worker *w)
{
    int64_t limit = w->context->stall_timeout_ns;
    return limit + limit / 4;
}

static status stalled(worker *w)
{
    char name[192], waited[32];
    text_format_duration(waited, sizeof waited, (double)patience(w));
    for (int j = 0; j < w->plan->server_count; j++)
        if (!w->port->was_connected[j])
            return fail(STATUS_PEER, "%s was not reached within %s", name_server(w, j, name, sizeof name),
                        waited);
    int key, server = owing_server(w, &key);
    if (server < 0) return fail(STATUS_PEER, "no reply from the parameter servers within %s", waited);
    return fail(STATUS_PEER, "%s has not replied for %s within %s", name_server(w, server, name, sizeof name),
                ps_key_name(w->plan, w->context->params->model, key), waited);
}

/* Returns true if a reply is due, or if a message waits to be sent. */
static bool waits(const worker *w)
{
    bool due = w->replies_due > 0 || w->sum_due || w->packed_due;
    for (int j = 0; j < w->plan->server_count && !due; j++)
        due = w->servers[j].queue.count > 0 || w->servers[j].pull_flags;
    return due;
}

static status check_stall(worker *w, int64_t now_ns, int64_t *deadline_ns)
{
    if (!waits(w)) {
        w->last_message_ns = now_ns;
        return STATUS_OK;
    }
    return ps_is_late(w->context, &w->last_message_ns, patience(w), now_ns, deadline_ns) ? stalled(w)
                                                                                         : STATUS_OK;
}

/* ---- the agent -------------------------------------------------------------------------------- */

/* If the transport has reported a lost peer, replaces the error, which contains only the peer's number, by an
 * error that names the server. */
static void name_lost_server(worker *w)
{
    char name[192];
    if (error_code() != STATUS_PEER || w->policy->placement != PS_PLACEMENT_OWN) return;
    for (int j = 0; j < w->plan->server_count; j++) {
        if (!w->port->was_connected[j] || ps_port_is_connected(w->port, j)) continue;
        error_clear();
        fail(STATUS_PEER, "%s is lost: its connection has ended", name_server(w, j, name, sizeof name));
        return;
    }
}

static status advance(worker *w, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    worker_pop_events(w, worked);
    TRY(ps_port_receive(w->port, now_ns, worked));
    TRY(worker_send(w, now_ns, worked));
    if (*worked) return STATUS_OK;
    TRY(check_departures(w));
    return check_stall(w, now_ns, deadline_ns);
}

static status progress(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    status rc = advance(context, now_ns, deadline_ns, worked);
    if (rc != STATUS_OK) name_lost_server(context);
    return rc;
}

static void failed(void *context, const error_record *error)
{
    worker *w = context;
    for (int i = 0; i < w->plan->param_count; i++) device_fence_fail(w->shared->arrived[i], error);
    device_fence_fail(w->shared->packed, error);
    device_fence_fail(w->shared->buffers_arrived, error);
    device_fence_fail(w->shared->summed, error);
}

status ps_worker_start(ps_worker *p)
{
    static const ps_port_ops ops = {progress, worker_handle, failed};
    const sync_context *c = p->context;
    p->agent.last_message_ns = clock_now_ns();
    return ps_port_start(p->agent.port, &ops, &p->agent, c->device, "ps-worker",
                         c->inline_progress ? c : NULL);
}
