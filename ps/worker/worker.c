#include "ps/worker/worker.h"

#include "common/base/clock.h"
#include "common/base/text.h"
#include "ps/worker/worker_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void worker_await(ps_worker *w, int answers, int64_t now_ns)
{
    if (answers > 0 && w->awaited == 0) w->awaited_ns = w->heard_ns = now_ns;
    w->awaited += answers;
}

void worker_record_staleness(ps_worker *w, int64_t late)
{
    ps_report *r = &w->report;
    r->reads++;
    r->stale[late < PS_STALENESS_BINS ? late : PS_STALENESS_BINS - 1]++;
    if (late > r->most) r->most = late;
    w->late_total += (double)late;
}

/* ---- servers that are waited for -------------------------------------------------------------- */

/* "parameter server 1", and where it is. */
static const char *name_server(const ps_worker *w, int server, char *text, size_t size)
{
    const char *url = w->servers[server].url;
    bool own = w->c.policy->placement == PS_PLACEMENT_OWN;
    int used = snprintf(text, size, "parameter server %d", server);
    if (!own) used += snprintf(text + used, size - (size_t)used, " beside rank %d", server);
    if (url) snprintf(text + used, size - (size_t)used, " at %s", url);
    return text;
}

/* The first server that owes an answer; -1: none that can be told. */
static int owing_server(const ps_worker *w, int *key)
{
    for (int k = 0; k < w->c.plan->key_count; k++) {
        *key = k;
        if (w->asked[k] != w->got[k]) return w->c.plan->keys[k].server;
    }
    *key = -1;
    return -1;
}

static status check_departures(ps_worker *w)
{
    char name[192];
    for (int j = 0; j < w->c.plan->server_count; j++) {
        worker_server *s = &w->servers[j];
        bool there = ps_port_reaches(&w->port, j);
        s->was_there = s->was_there || there;
        if (s->was_there && !there && w->awaited > 0)
            return fail(STATUS_PEER, "%s has left while rank %d waits for it", name_server(w, j, name, sizeof name),
                        worker_context(w)->rank);
    }
    return STATUS_OK;
}

/* Servers have the shorter patience: they know which rank is late. */
static int64_t patience(const ps_worker *w)
{
    int64_t limit = worker_context(w)->stall_timeout_ns;
    return limit + limit / 4;
}

static status stalled(ps_worker *w)
{
    char name[192], waited[32];
    text_format_duration(waited, sizeof waited, (double)patience(w));
    for (int j = 0; j < w->c.plan->server_count; j++)
        if (!w->servers[j].was_there)
            return fail(STATUS_PEER, "%s was not reached within %s", name_server(w, j, name, sizeof name), waited);
    int key, server = owing_server(w, &key);
    if (server < 0) return fail(STATUS_PEER, "no answer from the parameter servers within %s", waited);
    return fail(STATUS_PEER, "%s has not answered for %s within %s", name_server(w, server, name, sizeof name),
                ps_key_name(w->c.plan, worker_context(w)->params->model, key), waited);
}

/* Something is to be sent and somebody is not there, or an answer is owed. */
static bool waits(const ps_worker *w)
{
    bool due = w->awaited > 0 || w->sum_due || w->staging_due;
    for (int j = 0; j < w->c.plan->server_count && !due; j++)
        due = w->servers[j].queue.count > 0 || w->servers[j].pull_flags;
    return due;
}

static status check_stall(ps_worker *w, int64_t now_ns, int64_t *deadline_ns)
{
    if (!waits(w)) {
        w->heard_ns = now_ns;
        return STATUS_OK;
    }
    int64_t limit = w->heard_ns + patience(w);
    if (now_ns >= limit) return stalled(w);
    if (limit < *deadline_ns) *deadline_ns = limit;
    return STATUS_OK;
}

/* ---- the agent -------------------------------------------------------------------------------- */

static status go_on(ps_worker *w, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    worker_take_events(w, worked);
    TRY(worker_receive(w, now_ns, worked));
    TRY(worker_send(w, now_ns, worked));
    if (*worked) return STATUS_OK;
    TRY(check_departures(w));
    return check_stall(w, now_ns, deadline_ns);
}

/* The transport knows peers by number; behind a worker's numbers are servers. */
static void name_lost_server(ps_worker *w)
{
    char name[192];
    if (error_code() != STATUS_PEER || w->c.policy->placement != PS_PLACEMENT_OWN) return;
    for (int j = 0; j < w->c.plan->server_count; j++) {
        if (!w->servers[j].was_there || ps_port_reaches(&w->port, j)) continue;
        error_clear();
        fail(STATUS_PEER, "%s is lost: its connection has ended", name_server(w, j, name, sizeof name));
        return;
    }
}

/* Servers learn why the rank ends, and tell the other ranks. */
static void tell_failure(ps_worker *w)
{
    error_copy(&w->failure);
    message_header h = {.kind = MESSAGE_FAILED, .flags = (uint32_t)w->failure.code};
    message_frame text = {w->failure.message, strlen(w->failure.message)};
    error_clear();
    for (int j = 0; j < w->c.plan->server_count; j++) ps_port_send(&w->port, j, &h, &text, 1, &w->failure_ticket, 0);
    error_clear();
    error_adopt(&w->failure);
}

static status progress(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    ps_worker *w = context;
    status rc = go_on(w, now_ns, deadline_ns, worked);
    if (rc == STATUS_OK) return rc;
    name_lost_server(w);
    tell_failure(w);
    return rc;
}

static void wait_for_more(void *context, int64_t deadline_ns)
{
    ps_port_wait(&((ps_worker *)context)->port, deadline_ns);
}

static void wake(void *context)
{
    ps_port_wake(&((ps_worker *)context)->port);
}

static void failed(void *context, const error_record *error)
{
    ps_worker *w = context;
    atomic_store_explicit(&w->ended, true, memory_order_release);
    for (int i = 0; i < w->c.plan->param_count; i++) device_fence_fail(w->arrived[i], error);
    device_fence_fail(w->packed, error);
    device_fence_fail(w->buffers, error);
    device_fence_fail(w->summed, error);
}

static const sync_agent_ops agent_ops = {progress, wait_for_more, wake, failed};

status ps_worker_start(ps_worker *w)
{
    const sync_context *c = worker_context(w);
    sync_agent_config config = {.ops = &agent_ops,
                                .context = w,
                                .device = c->device,
                                .name = "ps-worker",
                                .inline_progress = c->inline_progress && !w->gpu};
    w->heard_ns = clock_now_ns();
    return sync_agent_open(&config, &w->agent);
}

bool ps_worker_has_failed(const ps_worker *w)
{
    return atomic_load_explicit(&w->ended, memory_order_acquire);
}
