/* The receiving half of a worker's agent, which handles the replies of the servers. */
#include "ps/worker/worker.h"

#include "common/base/least.h"
#include "common/net/status_table.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static status malformed(const ps_message *m)
{
    const message_header *h = &m->header;
    return fail(STATUS_PROTOCOL,
                "parameter server %d sent %s of step %" PRId64 ", key %" PRId64 ", %" PRId64
                " elements in %d frames: not requested, or not of this plan",
                m->peer, message_kind_name(h->kind), h->step, h->key, h->count, h->frames);
}

/* ---- replies ---------------------------------------------------------------------------------- */

/* Returns the last contribution that a reply waited for. The rank of the result is ANATOMY_NOBODY if this
 * rank sent the contribution. */
static anatomy_sent last_of(const worker *w, const message_header *h)
{
    bool other =
        h->last_ns > 0 && h->last_rank < (uint32_t)w->context->world && (int)h->last_rank != w->context->rank;
    if (!other) return (anatomy_sent){.rank = ANATOMY_NOBODY};
    return (anatomy_sent){.ns = h->last_ns, .ready_ns = h->ready_ns, .rank = (int)h->last_rank};
}

/* Records two intervals in which communication for a request was in progress. The first interval begins when
 * the request was sent, at left_ns, and ends when it arrived at the server. The second interval begins when
 * the last contribution was sent, and ends now. It contains the sum, the update and the reply. */
static void record_reply(const worker *w, const message_header *h, int64_t left_ns)
{
    anatomy *a = w->context->anatomy;
    int64_t end_ns = ps_port_now(w->port), last_ns = last_of(w, h).ns;
    if (last_ns <= h->arrived_ns) {
        anatomy_add_span(a, left_ns, end_ns);
    } else {
        anatomy_add_span(a, left_ns, h->arrived_ns);
        anatomy_add_span(a, last_ns, end_ns);
    }
}

static void end_reply(worker *w, int64_t now_ns)
{
    w->last_message_ns = now_ns;
    if (--w->replies_due > 0) return;
    (w->flows ? trace_late_slice : trace_slice)(w->context->trace, TRACE_COMMUNICATION, "push and pull",
                                                TRACE_NO_INDEX, w->waiting_since_ns, now_ns);
    w->flows = false;
    rank_slot_agent(w->context->slot, RANK_START, RANK_NO_BUCKET, now_ns);
}

static bool was_requested(const worker *w, const ps_message *m)
{
    const message_header *h = &m->header;
    const param_set *set = w->context->params;
    if (h->key < 0 || h->key >= w->plan->key_count) return false;
    const ps_key *key = &w->plan->keys[h->key];
    const worker_key *k = &w->keys[h->key];
    if (key->server != m->peer || h->step != k->requested || h->step == k->received) return false;
    if (h->count != key->elements || h->dtype != (int)set->type) return false;
    return ps_port_carries(w->port, m, ps_key_pieces(w->plan, (int)h->key), w->shared->element);
}

/* Copies the elements of the key to `arena`, unless the server has written them to the arena. */
static void copy_key(worker *w, const ps_message *m, char *arena)
{
    const char *from = w->servers[m->peer].params;
    piece_list pieces = ps_key_pieces(w->plan, (int)m->header.key);
    if (m->header.frames > 0)
        ps_take_frames(w->context->device, m, arena, pieces, w->shared->element);
    else if (from)
        ps_copy_pieces(w->context->device, arena, from, pieces, w->shared->element);
}

static void key_arrived(worker *w, int key)
{
    const ps_key *k = &w->plan->keys[key];
    for (int p = k->first_param; p < k->first_param + k->param_count; p++) {
        anatomy_sent *last = &w->shared->params_last[p];
        if (w->missing_keys[p] == w->plan->keys_of[p] || w->keys[key].last.ns > last->ns)
            *last = w->keys[key].last;
        if (--w->missing_keys[p] > 0) continue;
        w->missing_keys[p] = w->plan->keys_of[p];
        device_fence_reach(w->shared->arrived[p], (uint64_t)w->keys[key].received);
    }
}

/* Reports averages that are not finite. All ranks update with the same averages, so only rank 0 prints a
 * warning. */
static status report_nonfinite(worker *w, int64_t step)
{
    const sync_context *c = w->context;
    bool stops = optimizer_get_options(c->optimizer)->on_nonfinite == NONFINITE_STOP;
    piece_list all = param_set_pieces(c->params, 0, c->params->model->param_count);
    const char *name;
    if ((!stops && c->rank != 0) || !optimizer_reports_nonfinite(c->optimizer)) return STATUS_OK;
    TRY(sync_find_nonfinite(c->optimizer, w->stream, c->params, c->params->grads.data, all, &name));
    return sync_report_nonfinite(c->optimizer, step, SYNC_THIS_RANK, name);
}

/* Returns the step of the iteration to which the received average of a key belongs. */
static const ps_update_step *step_of(const worker *w, int key)
{
    return &w->shared->iterations[(w->keys[key].received - 2) % 2];
}

static status update_key(worker *w, int key, double scale)
{
    const sync_context *c = w->context;
    const ps_update_step *step = step_of(w, key);
    int64_t begin = ps_port_now(w->port);
    TRY(optimizer_update(c->optimizer, w->stream, c->params->params.data, c->params->grads.data,
                         ps_key_pieces(w->plan, key), step->optimizer_step, step->rate, scale));
    if (optimizer_found_nonfinite(c->optimizer)) TRY(report_nonfinite(w, step->optimizer_step));
    int64_t end = ps_port_now(w->port);
    trace_slice(c->trace, TRACE_OPTIMIZER, "update of key", key, begin, end);
    anatomy_add_span(c->anatomy, begin, end);
    atomic_fetch_add_explicit(&w->shared->update_ns, end - begin, memory_order_relaxed);
    key_arrived(w, key);
    return STATUS_OK;
}

/* Handles the average of a key. If updates need the norm, updates all keys when the averages of all keys have
 * arrived, otherwise updates the key at once. */
static status receive_average(worker *w, int key)
{
    const sync_context *c = w->context;
    if (!sync_update_needs_norm(c)) return update_key(w, key, 1.0);
    if (++w->averages < w->plan->key_count) return STATUS_OK;
    w->averages = 0;
    /* The norm needs all keys, so every update has waited for the push that was sent last, over all keys. */
    for (int k = 0; k < w->plan->key_count; k++)
        if (w->keys[k].last.ns > w->keys[key].last.ns) w->keys[key].last = w->keys[k].last;
    for (int k = 0; k < w->plan->key_count; k++) w->keys[k].last = w->keys[key].last;
    double squares = 0;
    piece_list all = param_set_pieces(c->params, 0, c->params->model->param_count);
    TRY(optimizer_sum_squares(c->optimizer, w->stream, c->params->grads.data, all, &squares));
    if (sync_skips_nonfinite(c) && !isfinite(squares)) {
        optimizer_skip(c->optimizer);
        for (int k = 0; k < w->plan->key_count; k++) key_arrived(w, k);
        return report_nonfinite(w, step_of(w, key)->optimizer_step);
    }
    double clip_norm = optimizer_get_options(c->optimizer)->clip_norm;
    double scale = clip_norm > 0 ? optimizer_clip_scale(clip_norm, squares) : 1.0;
    for (int k = 0; k < w->plan->key_count; k++) TRY(update_key(w, k, scale));
    return STATUS_OK;
}

/* Writes the request and the reply of a key to the trace. If a push requested the reply, an arrow of the
 * trace connects the gradient, the push and the reply. */
static void trace_key(worker *w, int key, int64_t now_ns)
{
    trace *t = w->context->trace;
    worker_key *k = &w->keys[key];
    bool pushed = w->policy->consistency == PS_SYNC && k->traced;
    if (!trace_is_on(t)) return;
    int64_t id = k->received * w->plan->key_count + key;
    trace_async(t, pushed ? "push and pull of key" : "pull of key", key, id, k->left_ns, now_ns);
    if (!pushed) return;
    trace_flow(t, TRACE_FLOW_BEGIN, TRACE_COMPUTE, id, least(k->ready_ns, k->left_ns));
    trace_flow(t, TRACE_FLOW_STEP, TRACE_COMMUNICATION, id, k->left_ns);
    trace_flow(t, TRACE_FLOW_END, TRACE_COMMUNICATION, id, now_ns);
    k->traced = false;
    w->flows = true;
}

static status receive_parameters(worker *w, const ps_message *m, int64_t now_ns)
{
    if (!was_requested(w, m)) return malformed(m);
    const message_header *h = &m->header;
    const param_set *set = w->context->params;
    int key = (int)h->key;
    bool average = !w->policy->server_optimizer && h->step > 1;
    ps_port_count_received(w->port, m->peer, worker_key_bytes(w, key));
    copy_key(w, m, average ? set->grads.data : set->params.data);
    w->keys[key].received = h->step;
    w->keys[key].updates_seen = h->integers[PS_INT_UPDATES];
    w->keys[key].last = last_of(w, h);
    if (h->integers[PS_INT_SKIPPED] > atomic_load_explicit(&w->shared->skipped, memory_order_relaxed))
        atomic_store_explicit(&w->shared->skipped, h->integers[PS_INT_SKIPPED], memory_order_relaxed);
    trace_key(w, key, now_ns);
    if (h->integers[PS_INT_STALENESS] >= 0) worker_record_staleness(w, h->integers[PS_INT_STALENESS]);
    record_reply(w, h, w->keys[key].left_ns);
    anatomy_add_span(w->context->anatomy, w->keys[key].pushed_ns, h->pushed_ns);
    if (average)
        TRY(receive_average(w, key));
    else
        key_arrived(w, key);
    end_reply(w, now_ns);
    return STATUS_OK;
}

static status receive_buffers(worker *w, const ps_message *m, int64_t now_ns)
{
    const param_set *set = w->context->params;
    message_frame frame = m->header.frames == 1 ? ps_message_frame(m, 0) : (message_frame){0};
    if (!w->shared->takes_buffers || (int64_t)frame.bytes != set->buffer_bytes ||
        m->header.step != w->buffers_pull)
        return malformed(m);
    ps_port_count_received(w->port, m->peer, set->buffer_bytes);
    memcpy(w->shared->packed_buffers, frame.data, frame.bytes);
    w->shared->buffers_last = last_of(w, &m->header);
    record_reply(w, &m->header, w->buffers_left_ns);
    end_reply(w, now_ns);
    device_fence_reach(w->shared->buffers_arrived, (uint64_t)m->header.step);
    return STATUS_OK;
}

static status receive_sum(worker *w, const ps_message *m, int64_t now_ns)
{
    const message_header *h = &m->header;
    size_t bytes = (size_t)w->sum_count * sizeof(double);
    if (h->step != w->sum_number || h->count != w->sum_count || h->frames != 1 ||
        ps_message_frame(m, 0).bytes != bytes)
        return malformed(m);
    ps_port_count_received(w->port, m->peer, (int64_t)bytes);
    sync_copy(w->context->device, w->shared->sum_values, ps_message_frame(m, 0).data, bytes);
    w->shared->sum_last = last_of(w, h);
    record_reply(w, h, w->sum_left_ns);
    end_reply(w, now_ns);
    device_fence_reach(w->shared->summed, (uint64_t)h->step);
    return STATUS_OK;
}

/* Receives a server's part of the squared norm. When all parts have arrived, adds them in the order of the
 * servers, and sends every server the total. */
static status receive_norm_share(worker *w, const ps_message *m)
{
    w->servers[m->peer].norm_share = m->header.doubles[PS_DOUBLE_NORM];
    w->norm = 0;
    for (int j = 0; j < w->plan->server_count; j++) {
        if (w->servers[j].norm_share < 0) return STATUS_OK;
        w->norm += w->servers[j].norm_share;
    }
    for (int j = 0; j < w->plan->server_count; j++) {
        w->servers[j].norm_share = -1;
        w->servers[j].norm_due = true;
    }
    return STATUS_OK;
}

static status receive(worker *w, const ps_message *m, int64_t now_ns)
{
    switch (m->header.kind) {
    case MESSAGE_PARAMETERS:
        return receive_parameters(w, m, now_ns);
    case MESSAGE_BUFFERS:
        return receive_buffers(w, m, now_ns);
    case MESSAGE_SUM:
        return receive_sum(w, m, now_ns);
    case MESSAGE_FAILED:
        return ps_message_failure(m);
    case MESSAGE_ACKNOWLEDGE:
        w->packed_out = false;
        return STATUS_OK;
    case MESSAGE_CONTROL:
        return receive_norm_share(w, m);
    default:
        return malformed(m);
    }
}

status worker_handle(void *context, ps_message *m, int64_t now_ns)
{
    worker *w = context;
    return ps_port_done(w->port, m, receive(w, m, now_ns));
}
