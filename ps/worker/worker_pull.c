/* The receiving half of a worker's agent: what servers say. */
#include "ps/compute.h"
#include "ps/worker/worker_impl.h"

#include "common/base/clock.h"
#include "common/net/board.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { MESSAGES_AT_ONCE = 64 };

static bool updates_itself(const ps_worker *w)
{
    return !w->c.policy->server_optimizer;
}

static status malformed(const ps_message *m)
{
    const message_header *h = &m->header;
    return fail(STATUS_PROTOCOL, "parameter server %d sent %s of step %" PRId64 ", key %" PRId64 ", %" PRId64
                " elements in %d frames: not asked for, or not of this plan", m->peer, message_kind_name(h->kind), h->step,
                h->key, h->count, h->frames);
}

/* ---- answers ---------------------------------------------------------------------------------- */

static void answered(ps_worker *w, int64_t now_ns)
{
    w->heard_ns = now_ns;
    if (--w->awaited > 0) return;
    trace_slice(worker_context(w)->trace, TRACE_COMMUNICATION, "push and pull", TRACE_NO_INDEX, w->awaited_ns,
                now_ns);
    atomic_fetch_add_explicit(&w->total_ns, now_ns - w->awaited_ns, memory_order_relaxed);
    board_cell_agent(worker_context(w)->cell, BOARD_START, BOARD_NO_BUCKET, now_ns);
}

static bool was_asked_for(const ps_worker *w, const ps_message *m)
{
    const message_header *h = &m->header;
    const param_set *set = worker_context(w)->params;
    if (h->key < 0 || h->key >= w->c.plan->key_count) return false;
    const ps_key *key = &w->c.plan->keys[h->key];
    if (key->server != m->peer || h->step != w->asked[h->key] || w->got[h->key] == h->step) return false;
    if (h->count != key->elements || h->dtype != (int)set->type) return false;
    if (h->frames == 0) return w->servers[m->peer].sees_us;
    if (w->gpu || h->frames != key->piece_count) return false;
    piece_list pieces = ps_key_pieces(w->c.plan, (int)h->key);
    for (int i = 0; i < pieces.count; i++)
        if (ps_message_frame(m, i).bytes != (size_t)pieces.pieces[i].count * w->element) return false;
    return true;
}

/* Brings the key's elements to `arena`, unless the server has put them there. */
static status bring(ps_worker *w, const ps_message *m, void *arena)
{
    const char *from = w->servers[m->peer].params;
    piece_list pieces = ps_key_pieces(w->c.plan, (int)m->header.key);
    if (m->header.frames == 0 && !from) return STATUS_OK;
    if (w->gpu) return worker_gpu_bring(w, pieces, arena, from);
    for (int i = 0; i < pieces.count; i++) {
        int64_t at = pieces.pieces[i].offset * (int64_t)w->element;
        const void *source = m->header.frames > 0 ? ps_message_frame(m, i).data : from + at;
        ps_copy(worker_context(w)->device, (char *)arena + at, source, (size_t)pieces.pieces[i].count * w->element);
    }
    return STATUS_OK;
}

static void key_arrived(ps_worker *w, int key)
{
    const ps_key *k = &w->c.plan->keys[key];
    for (int p = k->first_param; p < k->first_param + k->param_count; p++) {
        if (--w->missing_keys[p] > 0) continue;
        w->missing_keys[p] = w->c.plan->keys_of[p];
        device_fence_reach(w->arrived[p], (uint64_t)w->got[key]);
    }
}

/* Every rank that updates has the same average: rank 0 warns for all. */
static status report_nonfinite(ps_worker *w, int64_t step)
{
    const sync_context *c = worker_context(w);
    bool stops = optimizer_get_options(c->optimizer)->on_nonfinite == NONFINITE_STOP;
    piece_list all = param_set_pieces(c->params, 0, c->params->model->param_count);
    const char *name;
    if ((!stops && c->rank != 0) || !optimizer_reports_nonfinite(c->optimizer)) return STATUS_OK;
    TRY(sync_find_nonfinite(c->optimizer, w->stream, c->params, c->params->grads.data, all, &name));
    return sync_report_nonfinite(c->optimizer, step, c->rank, name);
}

static status update_key(ps_worker *w, int key, double scale)
{
    const sync_context *c = worker_context(w);
    int64_t round = w->got[key] - 2; /* whose average it is */
    int64_t begin = clock_now_ns();
    TRY(optimizer_update(c->optimizer, w->stream, c->params->params.data, c->params->grads.data,
                         ps_key_pieces(w->c.plan, key), w->rounds[round % 2].optimizer_step, w->rounds[round % 2].rate,
                         scale));
    if (w->gpu) TRY(device_stream_synchronize(w->stream));
    if (optimizer_found_nonfinite(c->optimizer)) TRY(report_nonfinite(w, w->rounds[round % 2].optimizer_step));
    int64_t end = clock_now_ns();
    trace_slice(c->trace, TRACE_OPTIMIZER, "update of key", key, begin, end);
    atomic_fetch_add_explicit(&w->update_ns, end - begin, memory_order_relaxed);
    key_arrived(w, key);
    return STATUS_OK;
}

/* The average of a key is there. Where the norm decides all must be: it is over all of them. */
static status take_average(ps_worker *w, int key)
{
    const sync_context *c = worker_context(w);
    const optimizer_options *o = optimizer_get_options(c->optimizer);
    bool skips = o->on_nonfinite == NONFINITE_SKIP && ps_has_bytes(c->device);
    if (o->clip_norm <= 0 && !skips) return update_key(w, key, 1.0);
    if (++w->averages < w->c.plan->key_count) return STATUS_OK;
    w->averages = 0;
    double none = 0, *squares = ps_has_bytes(c->device) && !w->gpu ? w->squares.data : &none;
    *squares = 0;
    piece_list all = param_set_pieces(c->params, 0, c->params->model->param_count);
    TRY(optimizer_sum_squares(c->optimizer, w->stream, c->params->grads.data, all, squares));
    if (skips && !isfinite(*squares)) {
        optimizer_skip(c->optimizer);
        for (int k = 0; k < w->c.plan->key_count; k++) key_arrived(w, k);
        return report_nonfinite(w, w->rounds[(w->got[key] - 2) % 2].optimizer_step);
    }
    double scale = o->clip_norm > 0 ? optimizer_clip_scale(o->clip_norm, *squares) : 1.0;
    for (int k = 0; k < w->c.plan->key_count; k++) TRY(update_key(w, k, scale));
    return STATUS_OK;
}

/* From the gradient, where it asked for the answer, over the message that left to the answer. */
static void trace_key(const ps_worker *w, int key, int64_t now_ns)
{
    trace *t = worker_context(w)->trace;
    bool pushed = w->c.policy->consistency == PS_SYNC && w->ready_ns[key] > 0;
    if (!trace_is_on(t)) return;
    int64_t id = w->got[key] * w->c.plan->key_count + key;
    trace_async(t, pushed ? "push and pull of key" : "pull of key", key, id, w->left_ns[key], now_ns);
    if (!pushed) return;
    int64_t ready_ns = w->ready_ns[key] < w->left_ns[key] ? w->ready_ns[key] : w->left_ns[key];
    trace_flow(t, TRACE_FLOW_BEGIN, TRACE_COMPUTE, id, ready_ns);
    trace_flow(t, TRACE_FLOW_STEP, TRACE_COMMUNICATION, id, w->left_ns[key]);
    trace_flow(t, TRACE_FLOW_END, TRACE_COMMUNICATION, id, now_ns);
    w->ready_ns[key] = 0;
}

static status take_parameters(ps_worker *w, const ps_message *m, int64_t now_ns)
{
    if (!was_asked_for(w, m)) return malformed(m);
    const message_header *h = &m->header;
    const param_set *set = worker_context(w)->params;
    int key = (int)h->key;
    bool average = updates_itself(w) && h->step > 1;
    ps_port_count_received(&w->port, m->peer, worker_key_bytes(w, key));
    TRY(bring(w, m, average ? set->grads.data : set->params.data));
    w->got[key] = h->step;
    w->seen[key] = h->integers[PS_INT_UPDATES];
    if (h->integers[PS_INT_SKIPPED] > atomic_load_explicit(&w->skipped, memory_order_relaxed))
        atomic_store_explicit(&w->skipped, h->integers[PS_INT_SKIPPED], memory_order_relaxed);
    trace_key(w, key, now_ns);
    if (h->integers[PS_INT_STALENESS] >= 0) worker_record_staleness(w, h->integers[PS_INT_STALENESS]);
    if (average) TRY(take_average(w, key));
    else key_arrived(w, key);
    answered(w, now_ns);
    return STATUS_OK;
}

static status take_buffers(ps_worker *w, const ps_message *m, int64_t now_ns)
{
    const param_set *set = worker_context(w)->params;
    message_frame frame = m->header.frames == 1 ? ps_message_frame(m, 0) : (message_frame){0};
    if (!w->takes_buffers || (int64_t)frame.bytes != set->buffer_bytes || m->header.step != w->buffers_pull)
        return malformed(m);
    ps_port_count_received(&w->port, m->peer, set->buffer_bytes);
    memcpy(w->staging, frame.data, frame.bytes);
    device_fence_reach(w->buffers, (uint64_t)m->header.step);
    answered(w, now_ns);
    return STATUS_OK;
}

static status take_sum(ps_worker *w, const ps_message *m, int64_t now_ns)
{
    const message_header *h = &m->header;
    size_t bytes = (size_t)w->sum_count * sizeof(double);
    if (h->step != w->sum_number || h->count != w->sum_count || h->frames != 1 || ps_message_frame(m, 0).bytes != bytes)
        return malformed(m);
    ps_port_count_received(&w->port, m->peer, (int64_t)bytes);
    ps_copy(worker_context(w)->device, w->sum_values, ps_message_frame(m, 0).data, bytes);
    device_fence_reach(w->summed, (uint64_t)h->step);
    answered(w, now_ns);
    return STATUS_OK;
}

/* A server's share of the squared norm: when all are there, in the servers' order, all learn the whole. */
static void take_norm_share(ps_worker *w, const ps_message *m)
{
    w->servers[m->peer].norm_share = m->header.doubles[PS_DOUBLE_NORM];
    w->norm = 0;
    for (int j = 0; j < w->c.plan->server_count; j++) {
        if (w->servers[j].norm_share < 0) return;
        w->norm += w->servers[j].norm_share;
    }
    for (int j = 0; j < w->c.plan->server_count; j++) {
        w->servers[j].norm_share = -1;
        w->servers[j].norm_due = true;
    }
}

static status take(ps_worker *w, ps_message *m, int64_t now_ns)
{
    status rc;
    w->servers[m->peer].was_there = true;
    switch (m->header.kind) {
    case MESSAGE_PARAMETERS: rc = take_parameters(w, m, now_ns); break;
    case MESSAGE_BUFFERS: rc = take_buffers(w, m, now_ns); break;
    case MESSAGE_SUM: rc = take_sum(w, m, now_ns); break;
    case MESSAGE_FAILED: rc = ps_message_failure(m); break;
    case MESSAGE_ACKNOWLEDGE:
        w->staging_out = false;
        rc = STATUS_OK;
        break;
    case MESSAGE_CONTROL:
        take_norm_share(w, m);
        rc = STATUS_OK;
        break;
    default: rc = malformed(m); break;
    }
    ps_port_release(&w->port, m);
    return rc;
}

status worker_receive(ps_worker *w, int64_t now_ns, bool *worked)
{
    for (int i = 0; i < MESSAGES_AT_ONCE; i++) {
        ps_message m;
        status rc = ps_port_receive(&w->port, &m);
        if (rc == STATUS_AGAIN) return STATUS_OK;
        if (rc != STATUS_OK) return rc;
        *worked = true;
        TRY(take(w, &m, now_ns));
    }
    return STATUS_OK;
}
