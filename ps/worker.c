#include "ps/worker.h"

#include "common/base/clock.h"
#include "common/base/text.h"
#include "ps/worker_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
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
                                .inline_progress = c->inline_progress};
    w->heard_ns = clock_now_ns();
    return sync_agent_open(&config, &w->agent);
}

/* ---- life ------------------------------------------------------------------------------------- */

static status no_memory(void)
{
    return fail(STATUS_SYSTEM, "no memory for a parameter server's worker");
}

static status open_fences(ps_worker *w)
{
    device *d = worker_context(w)->device;
    w->arrived = calloc((size_t)w->c.plan->param_count + 1, sizeof *w->arrived);
    if (!w->arrived) return no_memory();
    for (int i = 0; i < w->c.plan->param_count; i++) TRY(device_fence_open(d, &w->arrived[i]));
    TRY(device_fence_open(d, &w->packed));
    TRY(device_fence_open(d, &w->buffers));
    return device_fence_open(d, &w->summed);
}

static status open_keys(ps_worker *w)
{
    const ps_plan *plan = w->c.plan;
    size_t keys = (size_t)plan->key_count + 1, params = (size_t)plan->param_count + 1;
    w->missing = calloc(keys, sizeof *w->missing);
    w->tickets = calloc(keys, sizeof *w->tickets);
    w->round_of = calloc(keys, sizeof *w->round_of);
    w->asked = calloc(keys, sizeof *w->asked);
    w->got = calloc(keys, sizeof *w->got);
    w->seen = calloc(keys, sizeof *w->seen);
    w->missing_keys = calloc(params, sizeof *w->missing_keys);
    w->pushed = calloc(params, sizeof *w->pushed);
    if (!w->missing || !w->tickets || !w->round_of || !w->asked || !w->got || !w->seen || !w->missing_keys || !w->pushed)
        return no_memory();
    for (int k = 0; k < plan->key_count; k++) {
        w->missing[k] = plan->keys[k].param_count;
        w->tickets[k].wake = true;
    }
    for (int p = 0; p < plan->param_count; p++) w->missing_keys[p] = plan->keys_of[p];
    /* A round's pushes, and the few other events of a step. */
    return event_queue_init(&w->events, (uint32_t)(2 * plan->param_count + 16));
}

static status open_servers(ps_worker *w)
{
    const ps_plan *plan = w->c.plan;
    w->servers = calloc((size_t)plan->server_count, sizeof *w->servers);
    if (!w->servers) return no_memory();
    for (int j = 0; j < plan->server_count; j++) {
        worker_server *s = &w->servers[j];
        s->norm_share = -1;
        s->on_the_way = calloc((size_t)plan->key_count + 1, sizeof *s->on_the_way);
        if (!s->on_the_way) return no_memory();
        TRY(ps_key_queue_init(&s->queue, plan->key_count, w->c.policy->priority));
    }
    return STATUS_OK;
}

static status open_buffers(ps_worker *w)
{
    const sync_context *c = worker_context(w);
    int64_t bytes = c->params->buffer_bytes;
    w->gives_buffers = bytes > 0 && c->rank == 0;
    w->takes_buffers = bytes > 0 && c->rank != 0;
    if (bytes == 0) return STATUS_OK;
    w->staging_ticket.wake = true;
    w->staging = malloc((size_t)bytes);
    if (!w->staging) return no_memory();
    ledger_acquire(c->ledger, LEDGER_BUCKETS, bytes, bytes);
    return STATUS_OK;
}

status ps_worker_open(const ps_worker_config *config, ps_worker **out)
{
    *out = NULL;
    ps_worker *w = calloc(1, sizeof *w);
    if (!w) return no_memory();
    w->c = *config;
    w->element = (size_t)dtype_size(worker_context(w)->params->type);
    w->squares.fd = -1;
    device *d = worker_context(w)->device;
    status rc;
    TRY_GOTO(rc, open_fences(w), failed);
    TRY_GOTO(rc, open_keys(w), failed);
    TRY_GOTO(rc, open_servers(w), failed);
    TRY_GOTO(rc, open_buffers(w), failed);
    TRY_GOTO(rc, device_stream_open(d, DEVICE_STREAM_COMMUNICATION, &w->stream), failed);
    TRY_GOTO(rc, device_allocate(d, DEVICE_MEMORY_PRIVATE, sizeof(double), &w->squares), failed);
    *out = w;
    return STATUS_OK;
failed:
    ps_worker_close(&w);
    return rc;
}

status ps_worker_open_port(ps_worker *w, const transport_options *options)
{
    int partner = w->c.beside ? worker_context(w)->rank : PS_NO_PEER;
    return ps_port_open(&w->port, options, w->c.plan->server_count, partner, (uint32_t)(2 * w->c.plan->key_count + 64));
}

status ps_worker_connect(ps_worker *w, int server, const char *url)
{
    w->servers[server].url = strdup(url);
    if (!w->servers[server].url) return no_memory();
    return transport_connect(w->port.transport, server, url, &w->port.links[server]);
}

void ps_worker_see(ps_worker *w, int server, const void *params, bool sees_us)
{
    w->servers[server].params = params;
    w->servers[server].sees_us = sees_us;
}

void ps_worker_leave(ps_worker *w)
{
    sync_agent_close(&w->agent);
    ps_port_hang_up(&w->port, NS_PER_S);
}

static void close_server(worker_server *s)
{
    free(s->url);
    free(s->on_the_way);
    ps_key_queue_deinit(&s->queue);
}

void ps_worker_close(ps_worker **pointer)
{
    ps_worker *w = *pointer;
    if (!w) return;
    ps_worker_leave(w);
    ps_port_close(&w->port);
    for (int i = 0; w->arrived && i < w->c.plan->param_count; i++) device_fence_close(&w->arrived[i]);
    device_fence_close(&w->packed);
    device_fence_close(&w->buffers);
    device_fence_close(&w->summed);
    for (int j = 0; w->servers && j < w->c.plan->server_count; j++) close_server(&w->servers[j]);
    device_stream_close(&w->stream);
    device_free(worker_context(w)->device, &w->squares);
    event_queue_deinit(&w->events);
    free(w->servers);
    free(w->arrived);
    free(w->missing);
    free(w->tickets);
    free(w->round_of);
    free(w->asked);
    free(w->got);
    free(w->seen);
    free(w->missing_keys);
    free(w->pushed);
    free(w->staging);
    free(w);
    *pointer = NULL;
}

ps_port *ps_worker_port(ps_worker *w)
{
    return &w->port;
}

bool ps_worker_has_failed(const ps_worker *w)
{
    return atomic_load_explicit(&w->ended, memory_order_acquire);
}
