/* A worker's agent: its loop, and servers that do not reply. */
#include "ps/worker/worker_impl.h"

#include "common/base/clock.h"
#include "common/base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

/* "parameter server 1", and where it is. */
static const char *name_server(const worker *w, int server, char *text, size_t size)
{
    const char *url = w->servers[server].url;
    bool own = w->c->policy->placement == PS_PLACEMENT_OWN;
    int used = snprintf(text, size, "parameter server %d", server);
    if (!own) used += snprintf(text + used, size - (size_t)used, " in the process of rank %d", server);
    if (url) snprintf(text + used, size - (size_t)used, " at %s", url);
    return text;
}

/* The first server that owes a reply for a key; -1: none. */
static int owing_server(const worker *w, int *key)
{
    for (int k = 0; k < w->c->plan->key_count; k++) {
        *key = k;
        if (w->requested[k] != w->received[k]) return w->c->plan->keys[k].server;
    }
    *key = -1;
    return -1;
}

static status check_departures(worker *w)
{
    char name[192];
    for (int j = 0; j < w->c->plan->server_count; j++) {
        worker_server *s = &w->servers[j];
        bool connected = ps_port_is_connected(w->port, j);
        s->was_connected = s->was_connected || connected;
        if (s->was_connected && !connected && w->replies_due > 0)
            return fail(STATUS_PEER, "%s has left while rank %d waits for it", name_server(w, j, name, sizeof name),
                        w->c->context->rank);
    }
    return STATUS_OK;
}

/* Servers have the shorter limit: they know which rank is late. */
static int64_t patience(const worker *w)
{
    int64_t limit = w->c->context->stall_timeout_ns;
    return limit + limit / 4;
}

static status stalled(worker *w)
{
    char name[192], waited[32];
    text_format_duration(waited, sizeof waited, (double)patience(w));
    for (int j = 0; j < w->c->plan->server_count; j++)
        if (!w->servers[j].was_connected)
            return fail(STATUS_PEER, "%s was not reached within %s", name_server(w, j, name, sizeof name), waited);
    int key, server = owing_server(w, &key);
    if (server < 0) return fail(STATUS_PEER, "no reply from the parameter servers within %s", waited);
    return fail(STATUS_PEER, "%s has not replied for %s within %s", name_server(w, server, name, sizeof name),
                ps_key_name(w->c->plan, w->c->context->params->model, key), waited);
}

/* Something is to be sent and a server is not connected, or a reply is due. */
static bool waits(const worker *w)
{
    bool due = w->replies_due > 0 || w->sum_due || w->packed_due;
    for (int j = 0; j < w->c->plan->server_count && !due; j++)
        due = w->servers[j].queue.count > 0 || w->servers[j].pull_flags;
    return due;
}

static status check_stall(worker *w, int64_t now_ns, int64_t *deadline_ns)
{
    if (!waits(w)) {
        w->last_message_ns = now_ns;
        return STATUS_OK;
    }
    int64_t limit = w->last_message_ns + patience(w);
    if (now_ns >= limit) return stalled(w);
    if (limit < *deadline_ns) *deadline_ns = limit;
    return STATUS_OK;
}

/* ---- the agent -------------------------------------------------------------------------------- */

static status advance(worker *w, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    worker_pop_events(w, worked);
    TRY(worker_receive(w, now_ns, worked));
    TRY(worker_send(w, now_ns, worked));
    if (*worked) return STATUS_OK;
    TRY(check_departures(w));
    return check_stall(w, now_ns, deadline_ns);
}

/* The transport names peers by number; a worker's peers are servers. */
static void name_lost_server(worker *w)
{
    char name[192];
    if (error_code() != STATUS_PEER || w->c->policy->placement != PS_PLACEMENT_OWN) return;
    for (int j = 0; j < w->c->plan->server_count; j++) {
        if (!w->servers[j].was_connected || ps_port_is_connected(w->port, j)) continue;
        error_clear();
        fail(STATUS_PEER, "%s is lost: its connection has ended", name_server(w, j, name, sizeof name));
        return;
    }
}

/* Servers receive the reason why the rank ends, and forward it to the other ranks. */
static void report_failure(worker *w)
{
    error_copy(&w->failure);
    message_header h = {.kind = MESSAGE_FAILED, .flags = (uint32_t)w->failure.code};
    message_frame text = {w->failure.message, strlen(w->failure.message)};
    error_clear();
    for (int j = 0; j < w->c->plan->server_count; j++) ps_port_send(w->port, j, &h, &text, 1, &w->failure_ticket, 0);
    error_clear();
    error_adopt(&w->failure);
}

static status progress(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    worker *w = context;
    status rc = advance(w, now_ns, deadline_ns, worked);
    if (rc == STATUS_OK) return rc;
    name_lost_server(w);
    report_failure(w);
    return rc;
}

static void wait_for_more(void *context, int64_t deadline_ns)
{
    ps_port_wait(((worker *)context)->port, deadline_ns);
}

static void wake(void *context)
{
    ps_port_wake(((worker *)context)->port);
}

static void failed(void *context, const error_record *error)
{
    worker *w = context;
    atomic_store_explicit(&w->shared->ended, true, memory_order_release);
    for (int i = 0; i < w->c->plan->param_count; i++) device_fence_fail(w->shared->arrived[i], error);
    device_fence_fail(w->shared->packed, error);
    device_fence_fail(w->shared->buffers_arrived, error);
    device_fence_fail(w->shared->summed, error);
}

static const sync_agent_ops agent_ops = {progress, wait_for_more, wake, failed};

status ps_worker_start(ps_worker *p)
{
    const sync_context *c = p->config.context;
    sync_agent_config config = {.ops = &agent_ops,
                                .context = &p->agent,
                                .device = c->device,
                                .name = "ps-worker",
                                .inline_progress = c->inline_progress && !p->config.peers};
    p->agent.last_message_ns = clock_now_ns();
    return sync_agent_open(&config, &p->handle);
}

bool ps_worker_has_failed(const ps_worker *p)
{
    return atomic_load_explicit(&p->shared.ended, memory_order_acquire);
}
