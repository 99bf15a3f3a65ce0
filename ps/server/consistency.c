/* The part of the reduction that depends on the consistency policy. It determines whether a push or a pull is
 * valid, when a key is reduced (with a whole iteration, after the norm, or with each push), when the reply to
 * a pull is due, and how flushes end. */
#include "ps/server/server.h"

#include <inttypes.h>
#include <math.h>

static bool is_async(const ps_server *s)
{
    return s->policy->consistency == PS_ASYNC;
}

/* ---- pushes ----------------------------------------------------------------------------------- */

status server_check_push(ps_server *s, int key, int worker, ps_message *m)
{
    int64_t updates = s->keys[key].updates, expected = server_slot_of(s, key, worker)->pushed,
            iteration = m->header.step;
    if (iteration == expected && (is_async(s) || iteration < updates + s->window)) return STATUS_OK;
    ps_port_release(&s->port, m);
    return fail(STATUS_PROTOCOL,
                "rank %d pushed %s of step %" PRId64 ": expected step %" PRId64 ", at most %" PRId64
                " after the last update, %" PRId64,
                worker, ps_key_name(s->plan, s->set->model, s->first + key), iteration, expected, s->window,
                updates - 1);
}

/* Returns the arena for copies of the gradients that `worker` pushes in `iteration`. */
static char *copies_of(const ps_server *s, int64_t iteration, int worker)
{
    int64_t extent = server_bytes(s, s->shard->end - s->shard->begin);
    char *data = (char *)s->copies_memory.data + (iteration % s->window * s->world + worker) * extent;
    return server_as_arena(data, s->shard->begin, s->element);
}

void server_keep_push(ps_server *s, int key, int worker, ps_message *m)
{
    /* the server reads the gradient in mapped memory, so the message is not needed */
    if (m->header.frames == 0) ps_port_release(&s->port, m);
    /* Under ssp a rank continues before its push is summed, so the server copies the push. */
    if (s->copies_memory.data) {
        char *copies = copies_of(s, m->header.step, worker);
        if (m->remote)
            ps_take_frames(s->device, m, copies, server_pieces(s, key), s->element);
        else
            server_copy_pieces(s, key, copies, s->workers[worker].grads);
        ps_port_release(&s->port, m);
    }
    server_slot_of(s, key, worker)->push = *m;
}

const char *server_gradient(const ps_server *s, int key, int worker, int piece)
{
    const ps_message *m = &server_slot_of(s, key, worker)->push;
    bool local = s->own_grads && worker == s->index;
    if (m->remote && !local) return ps_message_frame(m, piece).data;
    const char *arena = local                   ? s->own_grads
                        : s->copies_memory.data ? copies_of(s, s->keys[key].updates, worker)
                                                : s->workers[worker].grads;
    return arena + server_bytes(s, server_pieces(s, key).pieces[piece].offset);
}

status server_pushed(ps_server *s, int key, int worker, int piece, const char **grads)
{
    const char *pushed = server_gradient(s, key, worker, piece);
    struct piece p = server_pieces(s, key).pieces[piece];
    if (s->landing.data)
        TRY(sync_bring(&s->staging, s->set->type, s->landing.data, pushed, s->own_grads && worker == s->index,
                       p.count, 1));
    *grads = server_as_arena(s->landing.data ? s->landing.data : pushed, p.offset, s->element);
    return STATUS_OK;
}

/* ---- gradients that are not finite -------------------------------------------------------------- */

static status find_in_push(ps_server *s, int worker, int key, const char **name)
{
    piece_list pieces = server_pieces(s, key);
    const char *grads;
    *name = NULL;
    for (int i = 0; i < pieces.count && !*name; i++) {
        TRY(server_pushed(s, key, worker, i, &grads));
        TRY(sync_find_nonfinite(s->optimizer, s->staging.stream, s->set, grads,
                                (piece_list){&pieces.pieces[i], 1}, name));
    }
    return STATUS_OK;
}

/* Reports that keys [first, first + count) contain a gradient that is not finite. If `worker` is negative,
 * the gradient is an average, otherwise `worker` has pushed the gradient. */
static status report_nonfinite(ps_server *s, int worker, int first, int count, int64_t step)
{
    optimizer *o = s->optimizer;
    const char *name = NULL;
    bool stops = optimizer_get_options(o)->on_nonfinite == NONFINITE_STOP;
    if ((!stops && s->index != 0) || !optimizer_reports_nonfinite(o)) return STATUS_OK;
    for (int key = first; key < first + count && !name; key++) {
        if (worker < 0)
            TRY(sync_find_nonfinite(o, s->staging.stream, s->set, s->averages, server_pieces(s, key), &name));
        else if (!s->landing.data)
            TRY(find_in_push(s, worker, key, &name));
        else if (count == 1)
            name = ps_key_name(s->plan, s->set->model, s->first + key);
    }
    return sync_report_nonfinite(o, step, worker, name);
}

status server_check_update(const server_work *work)
{
    ps_server *s = work->server;
    if (!work->updates || !optimizer_found_nonfinite(s->optimizer)) return STATUS_OK;
    int64_t step =
        work->worker < 0 ? work->step.optimizer_step : s->workers[work->worker].push.optimizer_step;
    return report_nonfinite(s, work->worker, work->key, 1, step);
}

/* ---- the norm over the keys of all servers (clipping, --on-nonfinite skip) ----------------------- */

/* Sets *sum to the sum of the squared elements of this server's shard. The elements are the gradients that
 * `worker` has pushed, or the averages if `worker` is negative. */
static status sum_squares(ps_server *s, int worker, double *sum)
{
    const char *grads;
    *sum = 0;
    if (worker < 0)
        return optimizer_sum_squares(s->optimizer, s->staging.stream, s->averages, s->shard->pieces, sum);
    for (int key = 0; key < s->count; key++) {
        piece_list pieces = server_pieces(s, key);
        for (int i = 0; i < pieces.count; i++) {
            TRY(server_pushed(s, key, worker, i, &grads));
            TRY(optimizer_sum_squares(s->optimizer, s->staging.stream, grads,
                                      (piece_list){&pieces.pieces[i], 1}, sum));
        }
    }
    return STATUS_OK;
}

/* Computes this server's part of a squared norm, as sum_squares() does for `of_worker`. Sends this part to
 * `worker`, which adds up the parts of all servers. */
static status share_norm(ps_server *s, int worker, int of_worker)
{
    server_worker *w = &s->workers[worker];
    TRY(sum_squares(s, of_worker, &w->norm));
    if (s->policy->servers == 1) return server_receive_norm(s, worker, w->norm);
    w->norm_due = true;
    return STATUS_OK;
}

static void queue_apply(ps_server *s, int key, int worker)
{
    int at = (s->apply.first + s->apply.count++) % (s->count * s->world);
    s->apply.list[at] = (server_apply){key, worker};
}

status server_receive_norm(ps_server *s, int worker, double sum_squares)
{
    const optimizer_options *o = optimizer_get_options(s->optimizer);
    double scale = o->clip_norm > 0 ? optimizer_clip_scale(o->clip_norm, sum_squares) : 1.0;
    bool skips = o->on_nonfinite == NONFINITE_SKIP && !isfinite(sum_squares);
    if (!is_async(s)) {
        s->norm.scale = scale;
        s->norm.skips = skips;
        s->norm.known = true;
        ps_update_step step = s->steps[s->keys[0].updates % s->window];
        return skips ? report_nonfinite(s, -1, 0, s->count, step.optimizer_step) : STATUS_OK;
    }
    server_worker *w = &s->workers[worker];
    w->scale = scale;
    w->skips = skips;
    for (int key = 0; key < s->count; key++) queue_apply(s, key, worker);
    return skips ? report_nonfinite(s, worker, 0, s->count, w->push.optimizer_step) : STATUS_OK;
}

/* ---- sync, ssp: whole iterations ---------------------------------------------------------------- */

static void end_iteration(ps_server *s, int key)
{
    server_key *k = &s->keys[key];
    server_arrival *ended = server_arrived(s, key, k->updates);
    k->last = server_later(ended->last, s->norm.last);
    *ended = (server_arrival){0};
    k->updates++;
    if (server_arrived(s, key, k->updates)->count == s->world) ps_key_queue_put(&s->complete, key);
    server_key_updated(s, key);
}

static status update_after_norm(ps_server *s, bool *worked)
{
    int key = s->norm.next_update;
    if (!transport_sent(&s->keys[key].ticket)) return STATUS_OK;
    *worked = true;
    ps_update_step step = s->steps[s->keys[key].updates % s->window];
    server_work work = {
        .server = s, .key = key, .updates = true, .worker = -1, .step = step, .scale = s->norm.scale};
    if (!s->norm.skips) TRY(server_reduce(&work));
    end_iteration(s, key);
    if (++s->norm.next_update == s->count) {
        if (s->norm.skips) optimizer_skip(s->optimizer);
        s->norm.known = false;
        s->norm.next_update = s->norm.summed = 0;
        s->norm.last = (anatomy_sent){0};
    }
    return STATUS_OK;
}

static status update_iteration(ps_server *s, bool *worked)
{
    int key;
    if (s->norm.known) return update_after_norm(s, worked);
    if (s->needs_norm && s->norm.summed == s->count)
        return STATUS_OK; /* The norm over all servers has not arrived. */
    TRY(server_reduce_next(s, s->policy->server_optimizer && !s->needs_norm, &key));
    if (key < 0) return STATUS_OK;
    *worked = true;
    if (!s->needs_norm) {
        end_iteration(s, key);
        return STATUS_OK;
    }
    s->norm.last = server_later(s->norm.last, server_arrived(s, key, s->keys[key].updates)->last);
    return ++s->norm.summed == s->count ? share_norm(s, 0, -1) : STATUS_OK;
}

/* ---- async: each push separately ----------------------------------------------------------------- */

status server_receive_async(ps_server *s, int key, int worker, ps_update_step step)
{
    server_worker *w = &s->workers[worker];
    if (server_slot_of(s, key, worker)->pushed == 1) s->apply.first_step = step.optimizer_step;
    w->push = step;
    s->keys[key].received++;
    if (!s->needs_norm) {
        queue_apply(s, key, worker);
        return STATUS_OK;
    }
    if (++w->pushed_keys < s->count) return STATUS_OK;
    w->pushed_keys = 0;
    return share_norm(s, worker, worker);
}

static status update_async(ps_server *s, bool *worked)
{
    if (s->apply.count == 0) return STATUS_OK;
    server_apply a = s->apply.list[s->apply.first];
    server_key *key = &s->keys[a.key];
    bool flushing = s->flush_replies > 0 && key->updates >= key->flushed;
    if (flushing || !transport_sent(&key->ticket)) return STATUS_OK;
    *worked = true;
    s->apply.first = (s->apply.first + 1) % (s->count * s->world);
    s->apply.count--;
    server_worker *w = &s->workers[a.worker];
    server_slot *slot = server_slot_of(s, a.key, a.worker);
    server_work work = {.server = s,
                        .key = a.key,
                        .updates = true,
                        .worker = a.worker,
                        .step = {.optimizer_step = s->apply.first_step + key->updates, .rate = w->push.rate},
                        .scale = s->needs_norm ? w->scale : 1.0};
    if (!w->skips)
        TRY(server_reduce(&work));
    else if (a.key == s->count - 1)
        optimizer_skip(s->optimizer);
    key->last = server_sent(&slot->push.header, a.worker);
    slot->staleness = key->updates - slot->push.header.integers[PS_INT_UPDATES];
    ps_port_release(&s->port, &slot->push);
    key->updates++;
    slot->applied++;
    server_key_updated(s, a.key);
    return STATUS_OK;
}

status server_update(ps_server *s, bool *worked)
{
    if (!s->initialized) return STATUS_OK;
    return is_async(s) ? update_async(s, worked) : update_iteration(s, worked);
}

/* ---- pulls and flushes -------------------------------------------------------------------------- */

bool server_reply_is_due(ps_server *s, int key, int worker)
{
    const server_slot *slot = server_slot_of(s, key, worker);
    bool own = is_async(s) && slot->pull != s->workers[worker].flush_pull;
    return s->initialized && (own ? slot->applied : s->keys[key].updates) >= slot->needs;
}

void server_await_update(ps_server *s, int key, int worker, int64_t pull, int64_t updates)
{
    server_slot *slot = server_slot_of(s, key, worker);
    slot->pull = pull;
    slot->needs = updates;
    slot->arrived_ns = s->received_ns;
    slot->reply = REPLY_WAITS;
    server_queue_reply(s, key, worker);
}

void server_end_reply(ps_server *s, int key, int worker)
{
    server_slot *slot = server_slot_of(s, key, worker);
    slot->reply = REPLY_NONE;
    slot->staleness = -1;
    if (s->workers[worker].flush_pull != slot->pull || --s->flush_replies > 0) return;
    /* A worker that has all its replies may have requested the next flush already. */
    for (int w = 0; w < s->world; w++)
        if (s->workers[w].flush_pull <= server_slot_of(s, key, w)->pull) s->workers[w].flush_pull = 0;
}

/* Returns the oldest iteration whose results a worker may use when it begins `iteration`. */
static int64_t oldest_iteration(const ps_server *s, int64_t iteration)
{
    if (is_async(s)) return 0;
    return iteration > s->policy->staleness ? iteration - s->policy->staleness : 0;
}

static void await_buffers(ps_server *s, int worker, int64_t pull, int64_t iteration)
{
    if (s->buffers.bytes == 0) return;
    s->workers[worker].buffers_pull = pull;
    s->workers[worker].buffers_arrived_ns = s->received_ns;
    s->workers[worker].buffers_iteration = iteration;
}

static status check_flushed_iterations(const ps_server *s)
{
    if (is_async(s)) return STATUS_OK;
    for (int w = 1; w < s->world; w++) {
        int64_t iteration = s->workers[w].flush_iteration, first = s->workers[0].flush_iteration;
        if (iteration != first)
            return fail(STATUS_PROTOCOL, "rank %d flushes after %" PRId64 " steps, rank 0 after %" PRId64, w,
                        iteration, first);
    }
    return STATUS_OK;
}

/* Registers the flush that a worker has requested. The server replies when all ranks have requested a flush
 * and all updates are done. */
static status flush(ps_server *s, int worker, int64_t pull, int64_t iteration)
{
    s->workers[worker].flush_pull = pull;
    s->workers[worker].flush_iteration = iteration;
    if (++s->flushing < s->world) return STATUS_OK;
    TRY(check_flushed_iterations(s));
    s->flushing = 0;
    s->flush_replies = s->count * s->world;
    for (int key = 0; key < s->count; key++) {
        server_key *k = &s->keys[key];
        k->flushed = is_async(s) ? k->received : iteration;
        for (int w = 0; w < s->world; w++)
            server_await_update(s, key, w, s->workers[w].flush_pull, k->flushed);
    }
    for (int w = 1; w < s->world; w++) await_buffers(s, w, s->workers[w].flush_pull, s->buffers.received);
    return STATUS_OK;
}

/* Copies the initial parameters of a key to the server. If a GPU updates parameters in a copy, also copies
 * the parameters to the GPU. */
static status start_key(ps_server *s, int key, const char *params)
{
    piece_list pieces = server_pieces(s, key);
    server_copy_pieces(s, key, s->params, params);
    for (int i = 0; s->updated_memory.data && i < pieces.count; i++) {
        int64_t at = server_bytes(s, pieces.pieces[i].offset);
        TRY(sync_copy_up(&s->staging, s->updated + at, s->params + at,
                         server_bytes(s, pieces.pieces[i].count)));
    }
    return s->updated_memory.data ? sync_staging_end(&s->staging) : STATUS_OK;
}

/* If the server is in the process of rank `worker`, sets the server's initial parameters to the parameters
 * of this rank. Otherwise does nothing. */
static status initialize(ps_server *s, int worker)
{
    if (s->initialized || worker != s->port.partner) return STATUS_OK;
    for (int key = 0; key < s->count; key++) TRY(start_key(s, key, s->workers[worker].params));
    s->initialized = true;
    for (int key = 0; key < s->count; key++) server_key_updated(s, key);
    return STATUS_OK;
}

status server_receive_pull(ps_server *s, int worker, const message_header *h)
{
    int64_t pull = h->step, iteration = h->integers[PS_INT_ITERATION];
    if (pull < 1 || iteration < 0)
        return fail(STATUS_PROTOCOL, "rank %d sent pull %" PRId64 " of step %" PRId64, worker, pull,
                    iteration);
    if (h->flags & PS_PULL_FIRST) TRY(initialize(s, worker));
    if (h->flags & PS_PULL_FLUSH) return flush(s, worker, pull, iteration);
    if (h->flags & PS_PULL_BUFFERS) await_buffers(s, worker, pull, oldest_iteration(s, iteration));
    for (int key = 0; h->flags & PS_PULL_KEYS && key < s->count; key++) {
        int64_t needs = is_async(s) ? server_slot_of(s, key, worker)->pushed : oldest_iteration(s, iteration);
        server_await_update(s, key, worker, pull, needs);
    }
    return STATUS_OK;
}
