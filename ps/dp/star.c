#include "ps/dp/star_impl.h"

#include "common/base/clock.h"
#include "common/base/text.h"
#include "common/net/board.h"
#include "common/trace/trace.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- peers that are waited for ---------------------------------------------------------------- */

static const dp_item *first_open(const dp_star *s)
{
    for (int i = 0; i < s->listed; i++)
        if (!s->items[i].done) return &s->items[i];
    return NULL;
}

/* "rank 0 at ipc://@...". */
static const char *name_peer(const dp_star *s, int peer, char *text, size_t size)
{
    snprintf(text, size, "rank %d%s%s", peer, s->url ? " at " : "", s->url ? s->url : "");
    return text;
}

static status check_departures(dp_star *s)
{
    for (int i = 0; i < s->listed; i++) {
        const dp_item *item = &s->items[i];
        bool there = ps_port_reaches(&s->port, item->peer);
        s->was_there[item->peer] = s->was_there[item->peer] || there;
        if (!item->done && !there && s->was_there[item->peer])
            return fail(STATUS_PEER, "rank %d has left while rank %d waits for %s of step %" PRId64,
                        item->peer, s->c.context->rank, message_kind_name(item->header.kind),
                        item->header.step);
    }
    return STATUS_OK;
}

/* Rank 0 has the shorter patience: it knows which rank is late. */
static status check_stall(dp_star *s, int64_t now_ns, int64_t *deadline_ns)
{
    const sync_context *c = s->c.context;
    int64_t patience = c->stall_timeout_ns + (c->rank == 0 ? 0 : c->stall_timeout_ns / 4);
    if (now_ns < s->heard_ns + patience) {
        if (s->heard_ns + patience < *deadline_ns) *deadline_ns = s->heard_ns + patience;
        return STATUS_OK;
    }
    char name[192], waited[32];
    text_format_duration(waited, sizeof waited, (double)patience);
    const dp_item *item = first_open(s);
    if (!item) return fail(STATUS_PEER, "what rank %d sent was not taken within %s", c->rank, waited);
    name_peer(s, item->peer, name, sizeof name);
    if (!s->was_there[item->peer]) return fail(STATUS_PEER, "%s was not reached within %s", name, waited);
    return fail(STATUS_PEER, "%s has not %s %s of step %" PRId64 " within the stall limit of %s", name,
                item->direction == DP_SEND ? "taken" : "sent", message_kind_name(item->header.kind),
                item->header.step, waited);
}

/* ---- the agent -------------------------------------------------------------------------------- */

static status begin_round(dp_star *s, int64_t now_ns, bool *worked)
{
    if (s->running || atomic_load_explicit(&s->posted, memory_order_acquire) == s->finished) return STATUS_OK;
    s->running = *worked = true;
    s->open_items = s->listed = s->count;
    s->begun_ns = s->heard_ns = now_ns;
    for (int k = 0; s->sums && k < s->sum.keys; k++) s->arrived[k] = 0;
    return star_take_held(s, now_ns);
}

static void end_round(dp_star *s, int64_t now_ns, bool *worked)
{
    if (!s->running || s->open_items > 0 || !transport_sent(&s->ticket)) return;
    s->running = false;
    s->listed = 0;
    *worked = true;
    s->finished++;
    trace_slice(s->c.context->trace, TRACE_COMMUNICATION, "exchange", TRACE_NO_INDEX, s->begun_ns, now_ns);
    atomic_fetch_add_explicit(&s->total_ns, now_ns - s->begun_ns, memory_order_relaxed);
    board_cell_agent(s->c.context->cell, BOARD_START, BOARD_NO_BUCKET, now_ns);
    device_fence_reach(s->done, (uint64_t)s->finished);
}

static status go_on(dp_star *s, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    TRY(begin_round(s, now_ns, worked));
    if (s->running) TRY(star_send_items(s, now_ns, worked));
    TRY(star_receive(s, now_ns, worked));
    end_round(s, now_ns, worked);
    if (*worked || !s->running) return STATUS_OK;
    TRY(check_departures(s));
    return check_stall(s, now_ns, deadline_ns);
}

/* The others learn why this rank ends. */
static void tell_failure(dp_star *s)
{
    error_copy(&s->failure);
    message_header h = {.kind = MESSAGE_FAILED, .flags = (uint32_t)s->failure.code};
    message_frame text = {s->failure.message, strlen(s->failure.message)};
    error_clear();
    for (int p = 0; p < s->c.context->world; p++)
        ps_port_send(&s->port, p, &h, &text, 1, &s->failure_ticket, 0);
    error_clear();
    error_adopt(&s->failure);
}

static status progress(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    dp_star *s = context;
    status rc = go_on(s, now_ns, deadline_ns, worked);
    if (rc != STATUS_OK) tell_failure(s);
    return rc;
}

static void wait_for_more(void *context, int64_t deadline_ns)
{
    ps_port_wait(&((dp_star *)context)->port, deadline_ns);
}

static void wake(void *context)
{
    ps_port_wake(&((dp_star *)context)->port);
}

static void failed(void *context, const error_record *error)
{
    dp_star *s = context;
    atomic_store_explicit(&s->ended, true, memory_order_release);
    device_fence_fail(s->done, error);
}

static const sync_agent_ops agent_ops = {progress, wait_for_more, wake, failed};

status dp_star_start(dp_star *s)
{
    const sync_context *c = s->c.context;
    sync_agent_config config = {.ops = &agent_ops,
                                .context = s,
                                .device = c->device,
                                .name = "ps-star",
                                .inline_progress = c->inline_progress && !s->stream};
    return sync_agent_open(&config, &s->agent);
}

bool dp_star_has_failed(const dp_star *s)
{
    return atomic_load_explicit(&s->ended, memory_order_acquire);
}

/* ---- the compute thread ------------------------------------------------------------------------ */

void dp_star_begin(dp_star *s)
{
    s->count = 0;
}

dp_item *dp_star_add(dp_star *s, dp_direction direction, int peer, message_kind kind, int64_t step,
                     int64_t key)
{
    dp_item *item = &s->items[s->count++];
    *item =
        (dp_item){.direction = direction, .peer = peer, .header = {.kind = kind, .step = step, .key = key}};
    return item;
}

/* What the rank does meanwhile, as others see it: it waits for what comes, or for what leaves. */
static board_operation operation_of(const dp_star *s)
{
    for (int i = 0; i < s->count; i++)
        if (s->items[i].direction != DP_SEND) return BOARD_PULL;
    return BOARD_PUSH;
}

/* A GPU's stream would wait for the round, and the host go on: here the host waits, since it reads what has come
 * and lists the next round. */
static status await_round(dp_star *s, int64_t round)
{
    enum { LOOKS = 1000, NAP_NS = 20000 };
    for (int looks = 0; !device_fence_reached(s->done, (uint64_t)round); looks++) {
        if (looks < LOOKS) sched_yield();
        else clock_sleep_ns(NAP_NS);
    }
    return device_stream_wait(s->c.context->compute, s->done, (uint64_t)round);
}

status dp_star_run(dp_star *s, const dp_sum *sum)
{
    const sync_context *c = s->c.context;
    if (s->count == 0 || device_get_info(c->device)->plans) return STATUS_OK;
    board_operation before = (board_operation)atomic_load_explicit(&c->cell->operation, memory_order_relaxed);
    board_operation during = operation_of(s);
    if (s->stream) TRY(device_stream_synchronize(c->compute)); /* what is to be sent is there */
    s->sums = sum != NULL;
    if (sum) s->sum = *sum;
    int64_t round = atomic_fetch_add_explicit(&s->posted, 1, memory_order_release) + 1;
    sync_agent_wake(s->agent);
    int64_t begin = device_now_ns(c->device);
    board_cell_enter(c->cell, during, begin);
    status rc = s->stream ? await_round(s, round) : device_stream_wait(c->compute, s->done, (uint64_t)round);
    int64_t end = device_now_ns(c->device);
    trace_slice(c->trace, TRACE_COMPUTE, "wait", TRACE_NO_INDEX, begin, end);
    s->exposed_ns += end - begin;
    if (rc == STATUS_OK) board_cell_enter(c->cell, before, end);
    return rc;
}

void dp_star_collect_times(dp_star *s, sync_counters *out)
{
    out->exposed_ns += s->exposed_ns;
    s->exposed_ns = 0;
    out->total_ns += atomic_exchange_explicit(&s->total_ns, 0, memory_order_relaxed);
}

/* ---- life ------------------------------------------------------------------------------------- */

status dp_star_open(const dp_star_config *config, dp_star **out)
{
    *out = NULL;
    dp_star *s = calloc(1, sizeof *s);
    if (!s) return fail(STATUS_SYSTEM, "no memory for a star of ranks");
    s->c = *config;
    s->ticket.wake = true;
    /* Of the round at hand, and of the next one. */
    s->held_capacity = 2 * config->items + config->context->world;
    s->items = calloc((size_t)config->items + 1, sizeof *s->items);
    s->held = calloc((size_t)s->held_capacity, sizeof *s->held);
    s->was_there = calloc((size_t)config->context->world, sizeof *s->was_there);
    status rc = STATUS_OK;
    if (!s->items || !s->held || !s->was_there) rc = fail(STATUS_SYSTEM, "no memory for a star of ranks");
    if (rc == STATUS_OK) rc = star_sum_open(s);
    if (rc == STATUS_OK) rc = device_fence_open(config->context->device, &s->done);
    if (rc != STATUS_OK) dp_star_close(&s);
    *out = s;
    return rc;
}

status dp_star_open_port(dp_star *s, const transport_options *options)
{
    return ps_port_open(&s->port, options, s->c.context->world, s->held_capacity + s->c.items, PS_NO_PEER, 0);
}

status dp_star_connect(dp_star *s, const char *url)
{
    s->url = strdup(url);
    if (!s->url) return fail(STATUS_SYSTEM, "no memory for an address");
    return transport_connect(s->port.transport, 0, url, &s->port.links[0]);
}

/* Messages must have been released before the transport ends. */
static void release_messages(dp_star *s)
{
    for (int i = 0; i < s->held_count; i++) ps_port_release(&s->port, &s->held[i]);
    for (int i = 0; i < s->count; i++) ps_port_release(&s->port, &s->items[i].message);
    s->held_count = s->count = 0;
}

void dp_star_leave(dp_star *s)
{
    sync_agent_close(&s->agent);
    if (!s->port.transport) return;
    release_messages(s);
    ps_port_hang_up(&s->port, NS_PER_S);
}

void dp_star_close(dp_star **pointer)
{
    dp_star *s = *pointer;
    if (!s) return;
    dp_star_leave(s);
    ps_port_close(&s->port);
    device_fence_close(&s->done);
    star_sum_close(s);
    free(s->items);
    free(s->held);
    free(s->was_there);
    free(s->url);
    free(s);
    *pointer = NULL;
}

ps_port *dp_star_port(dp_star *s)
{
    return &s->port;
}
