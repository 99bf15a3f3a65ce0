/* The parameter server's reduction, as every server runs it: receive pushes, sum in rank order, average,
 * update, reply.
 *
 * The model is cut into keys (ps/keys.h). Every key passes through these five steps independently, so one key
 * is updated while the next is still in transit:
 *
 *     rank 0    push g[0] ──┐                                                    ┌──> parameters to rank 0
 *     rank 1    push g[1] ──┤ average    = (g[0] + g[1] + ... + g[n-1]) / n      ├──> parameters to rank 1
 *       ...                 ├─>                                                ──┤      ...
 *     rank n-1  push g[n-1]─┘ parameters = optimizer(parameters, average)        └──> parameters to rank n-1
 *
 * The sum starts when the last push of an iteration has arrived. The sum always runs in rank order, because
 * floating-point addition is not associative: in order of arrival every run would give another result. The
 * rank order is also a promise to other policies. The ring engine's `ddp` and `zero1` with --algorithm
 * two-shot, sync, and ssp with staleness 0 give bit-identical results if --divide is the same (docs/ps.md
 * names an exception for clipping).
 *
 * consistency.c decides when a key is reduced. sync and ssp reduce whole iterations. async applies each push
 * separately. gpu.c is the same reduction on a GPU. A gradient is in the frames of its message, or in shared
 * memory of the rank that pushed it. server_gradient() returns the address. */
#include "ps/server/server.h"

#include "common/reduce/reduce.h"
#include "common/trace/trace.h"

/* 1. Receive: handles a gradient that a rank has pushed. Takes over the message. */
status server_receive_push(ps_server *s, ps_message *m)
{
    const message_header h = m->header;
    int key = (int)h.key - s->first, worker = m->peer;
    ps_update_step step = {h.integers[PS_INT_STEP], h.doubles[PS_DOUBLE_RATE]};
    ps_port_count_received(&s->port, worker, server_key_bytes(s, key));
    TRY(server_check_push(s, key, worker, m));
    server_keep_push(s, key, worker, m);
    server_slot_of(s, key, worker)->pushed++;
    if (s->policy->consistency != PS_SYNC) server_slot_of(s, key, worker)->pushed_ns = s->received_ns;
    if (s->policy->consistency == PS_ASYNC) return server_receive_async(s, key, worker, step);
    s->steps[h.step % s->window] = step;
    server_arrival *arrived = server_arrived(s, key, h.step);
    arrived->last = server_later(arrived->last, server_sent(&h, worker));
    if (++arrived->count == 1) s->incomplete++;
    if (arrived->count == s->world) {
        s->incomplete--;
        if (h.step == s->keys[key].updates) ps_key_queue_put(&s->complete, key);
    }
    /* Under sync a push also pulls the next iteration's parameters. */
    if (h.kind == MESSAGE_PUSH_PULL) server_await_update(s, key, worker, h.step + 2, h.step + 1);
    return STATUS_OK;
}

status server_update_pieces(const server_work *work, const char *grads, piece_list pieces)
{
    ps_server *s = work->server;
    return optimizer_update(s->optimizer, s->staging.stream, s->updated, grads, pieces,
                            work->step.optimizer_step, work->step.rate, work->scale);
}

/* 2. Sum, 3. average, 4. update: processes elements [at, at + count) of a piece of the key, while they are in
 * the cache. Each thread processes a different range. */
static status reduce_range(void *context, int thread, int piece_index, int64_t at, int64_t count)
{
    const server_work *work = context;
    ps_server *s = work->server;
    piece whole = server_pieces(s, work->key).pieces[piece_index], range = {whole.offset + at, count};
    if (work->sums) {
        const void **gradients = s->gradients + (int64_t)thread * s->world;
        for (int w = 0; w < s->world; w++)
            gradients[w] = server_gradient(s, work->key, w, piece_index) + server_bytes(s, at);
        char *average = s->averages + server_bytes(s, range.offset);
        reduce_average(s->set->type, average, gradients, s->world, count, s->before, s->after);
    }
    if (!work->updates) return STATUS_OK;
    const char *gradient = s->averages;
    if (work->worker >= 0) /* async: the gradient of one rank, without a sum */
        TRY(server_pushed(s, work->key, work->worker, piece_index, &gradient));
    int64_t begin_ns = ps_port_now(&s->port);
    TRY(server_update_pieces(work, gradient, (piece_list){&range, 1}));
    if (thread == 0) s->update_ns += ps_port_now(&s->port) - begin_ns;
    return STATUS_OK;
}

/* Spends the time of a reduction in virtual time. The sum reads every push and writes one. An update reads
 * and writes parameters and state. */
static void spend_time(const server_work *work)
{
    ps_server *s = work->server;
    double bytes = (double)server_key_bytes(s, work->key);
    int states = optimizer_state_count(optimizer_get_options(s->optimizer));
    if (work->sums) ps_charge_pass(s->device, bytes * (s->world + 1), s->threads);
    int64_t summed_ns = ps_port_now(&s->port);
    if (work->updates) ps_charge_pass(s->device, bytes * (3 + 2 * states), s->threads);
    s->update_ns += ps_port_now(&s->port) - summed_ns;
}

status server_reduce(server_work *work)
{
    ps_server *s = work->server;
    int64_t begin_ns = ps_port_now(&s->port);
    if (s->staging.separate)
        TRY(server_reduce_on_gpu(work));
    else if (ps_has_bytes(s->device))
        TRY(ps_run_ranges(s->threads, server_pieces(s, work->key), reduce_range, work));
    else
        spend_time(work);
    trace_slice(s->context->trace, TRACE_OPTIMIZER, work->updates ? "update of key" : "average of key",
                s->first + work->key, begin_ns, ps_port_now(&s->port));
    return server_check_update(work);
}

status server_reduce_next(ps_server *s, bool updates, int *key)
{
    *key = s->complete.count > 0 ? ps_key_queue_first(&s->complete) : -1;
    if (*key >= 0 && !transport_sent(&s->keys[*key].ticket))
        *key = -1; /* replies of the last iteration still read the key */
    if (*key < 0) return STATUS_OK;
    ps_key_queue_drop(&s->complete);
    ps_update_step step = s->steps[s->keys[*key].updates % s->window];
    server_work work = {
        .server = s, .key = *key, .sums = true, .updates = updates, .worker = -1, .step = step, .scale = 1};
    TRY(server_reduce(&work));
    for (int w = 0; w < s->world; w++) ps_port_release(&s->port, &server_slot_of(s, *key, w)->push);
    return STATUS_OK;
}

/* 5. Reply: queues replies to the ranks that have pulled the key. A reply holds the parameters of the
 * key, or the averaged gradient if the ranks update. */
void server_key_updated(ps_server *s, int key)
{
    for (int w = 0; w < s->world; w++) server_queue_reply(s, key, w);
}

void server_queue_reply(ps_server *s, int key, int worker)
{
    server_slot *slot = server_slot_of(s, key, worker);
    if (slot->reply != REPLY_WAITS || !server_reply_is_due(s, key, worker)) return;
    slot->reply = REPLY_QUEUED;
    slot->last = s->keys[key].last;
    ps_key_queue_put(&s->workers[worker].outbox, key);
}

static status reply(ps_server *s, int key, int worker)
{
    const server_slot *slot = server_slot_of(s, key, worker);
    server_worker *w = &s->workers[worker];
    bool average = !s->policy->server_optimizer && s->keys[key].updates > 0;
    const char *from = average ? s->averages : s->params;
    if (s->writes && w->params) server_copy_pieces(s, key, average ? w->grads : w->params, from);
    message_frame frames[PS_KEY_PIECES];
    int count = w->params ? 0 : ps_frames_of(frames, from, server_pieces(s, key), (int64_t)s->element);
    message_header h = {.kind = MESSAGE_PARAMETERS,
                        .step = slot->pull,
                        .key = s->first + key,
                        .count = s->plan->keys[s->first + key].elements,
                        .dtype = s->set->type,
                        .arrived_ns = slot->arrived_ns,
                        .pushed_ns = slot->pushed_ns,
                        .integers = {[PS_INT_SKIPPED] = optimizer_skipped(s->optimizer),
                                     [PS_INT_UPDATES] = s->keys[key].updates,
                                     [PS_INT_STALENESS] = slot->staleness}};
    server_put_last(&h, slot->last);
    TRY(server_send(s, worker, &h, frames, count, &s->keys[key].ticket, server_key_bytes(s, key)));
    server_end_reply(s, key, worker);
    return STATUS_OK;
}

status server_send_replies(ps_server *s, bool *worked)
{
    for (int w = 0; w < s->world; w++) {
        ps_key_queue *outbox = &s->workers[w].outbox;
        while (outbox->count > 0) {
            status rc = reply(s, ps_key_queue_first(outbox), w);
            if (rc == STATUS_AGAIN) break; /* no room on the link: the next call continues here */
            if (rc != STATUS_OK) return rc;
            ps_key_queue_drop(outbox);
            *worked = true;
        }
    }
    return STATUS_OK;
}
