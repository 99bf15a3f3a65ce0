/* The parameter server's reduction, as every server runs it: receive pushes, sum in rank order, average,
 * update, reply.
 *
 * The model is cut into keys (ps/plan.h). Every key passes through these five steps independently, so one key
 * is updated while the next is still in transit:
 *
 *     rank 0    push g[0] ──┐                                                    ┌──> parameters to rank 0
 *     rank 1    push g[1] ──┤ average    = (g[0] + g[1] + ... + g[n-1]) / n      ├──> parameters to rank 1
 *       ...                 ├─>                                                ──┤      ...
 *     rank n-1  push g[n-1]─┘ parameters = optimizer(parameters, average)        └──> parameters to rank n-1
 *
 * The sum starts when the last push of an iteration has arrived. The sum always runs in rank order, because
 * floating-point addition is not associative: in order of arrival every run would give another result.
 *
 * server_policies.c decides when a key is reduced. sync and ssp reduce whole iterations, async applies each
 * push at once. server_gpu.c is the same reduction on a GPU. A gradient is in the frames of its message, or
 * in shared memory of the rank that pushed it. server_gradient() returns the address. */
#include "ps/server/server_impl.h"

#include "common/reduce/reduce.h"
#include "common/trace/trace.h"

/* 1. Receive: handles the gradient of `key` that rank `worker` has pushed. Takes over the message. */
status server_receive_push(server *s, int key, int worker, ps_message *m)
{
    int64_t iteration = m->header.step;
    server_last last = server_last_of(&m->header, worker);
    server_step step = {m->header.integers[PS_INT_STEP], m->header.doubles[PS_DOUBLE_RATE]};
    TRY(server_check_push(s, key, worker, m));
    TRY(server_keep_push(s, key, worker, m));
    server_slot_of(s, key, worker)->pushed++;
    if (s->c->policy->consistency != PS_SYNC) server_slot_of(s, key, worker)->pushed_ns = s->received_ns;
    if (s->c->policy->consistency == PS_ASYNC) return server_receive_async(s, key, worker, step);
    s->steps[iteration % s->window] = step;
    server_arrival *arrived = server_arrived(s, key, iteration);
    arrived->last = server_later(arrived->last, last);
    if (++arrived->count == 1) s->incomplete++;
    if (arrived->count < s->c->world) return STATUS_OK;
    s->incomplete--;
    if (iteration == s->keys[key].updates) ps_key_queue_put(&s->complete, key);
    return STATUS_OK;
}

/* 2. Sum, 3. average, 4. update: processes elements [at, at + count) of a piece of the key, while they are in
 * the cache. Each thread of the pool processes a different range. */
static status reduce_range(void *context, int thread, int piece_index, int64_t at, int64_t count)
{
    const server_work *work = context;
    server *s = work->server;
    dtype type = s->c->params->type;
    piece whole = server_pieces(s, work->key).pieces[piece_index], range = {whole.offset + at, count};
    if (work->sums) {
        const void **gradients = s->gradients + (int64_t)thread * s->c->world;
        for (int w = 0; w < s->c->world; w++)
            gradients[w] = server_gradient(s, work->key, w, piece_index) + server_bytes(s, at);
        char *average = s->averages + server_bytes(s, range.offset);
        reduce_average(type, average, gradients, s->c->world, count, s->before, s->after);
    }
    if (!work->updates) return STATUS_OK;
    const char *gradient = s->averages;
    if (work->worker >= 0) /* async: the gradient of one rank, without a sum */
        gradient = server_as_arena(server_gradient(s, work->key, work->worker, piece_index), whole.offset,
                                   s->element);
    int64_t begin_ns = ps_port_now(s->port);
    TRY(optimizer_update(s->c->optimizer, s->stream, s->params, gradient, (piece_list){&range, 1},
                         work->step.optimizer_step, work->step.rate, work->scale));
    if (thread == 0)
        atomic_fetch_add_explicit(&s->shared->update_ns, ps_port_now(s->port) - begin_ns,
                                  memory_order_relaxed);
    return STATUS_OK;
}

status server_reduce(server_work *work)
{
    server *s = work->server;
    int64_t begin_ns = ps_port_now(s->port);
    if (server_reduces_elsewhere(s))
        TRY(server_reduce_elsewhere(work));
    else
        TRY(ps_thread_pool_run(s->pool, server_pieces(s, work->key), reduce_range, work));
    trace_slice(s->c->trace, TRACE_OPTIMIZER, work->updates ? "update of key" : "average of key",
                s->first + work->key, begin_ns, ps_port_now(s->port));
    return server_check_update(work);
}

status server_reduce_next(server *s, bool updates, int *key)
{
    *key = s->complete.count > 0 ? ps_key_queue_first(&s->complete) : -1;
    if (*key >= 0 && !transport_sent(&s->keys[*key].ticket))
        *key = -1; /* replies of the last iteration still read the key */
    if (*key < 0) return STATUS_OK;
    ps_key_queue_drop(&s->complete);
    server_step step = s->steps[s->keys[*key].updates % s->window];
    server_work work = {
        .server = s, .key = *key, .sums = true, .updates = updates, .worker = -1, .step = step, .scale = 1};
    TRY(server_reduce(&work));
    for (int w = 0; w < s->c->world; w++) ps_port_release(s->port, &server_slot_of(s, *key, w)->push);
    return STATUS_OK;
}

/* 5. Reply: queues replies to the ranks that have pulled the key. A reply holds the parameters of the
 * key, or the averaged gradient if the ranks update. */
void server_key_updated(server *s, int key)
{
    for (int w = 0; w < s->c->world; w++) server_queue_reply(s, key, w);
}

void server_queue_reply(server *s, int key, int worker)
{
    server_slot *slot = server_slot_of(s, key, worker);
    if (slot->reply != REPLY_WAITS || !server_reply_is_due(s, key, worker)) return;
    slot->reply = REPLY_QUEUED;
    slot->last = s->keys[key].last;
    ps_key_queue_put(&s->workers[worker].outbox, key);
}

static status reply(server *s, int key, int worker)
{
    const server_slot *slot = server_slot_of(s, key, worker);
    server_worker *w = &s->workers[worker];
    bool average = !s->c->policy->server_optimizer && s->keys[key].updates > 0;
    const char *from = average ? s->averages : s->params;
    if (s->writes && w->params) TRY(server_copy_pieces(s, key, average ? w->grads : w->params, from));
    message_frame frames[PS_KEY_PIECES];
    int count = w->params ? 0 : ps_frames_of(frames, from, server_pieces(s, key), (int64_t)s->element);
    message_header h = {.kind = MESSAGE_PARAMETERS,
                        .step = slot->pull,
                        .key = s->first + key,
                        .count = s->c->plan->keys[s->first + key].elements,
                        .dtype = s->c->params->type,
                        .arrived_ns = slot->arrived_ns,
                        .pushed_ns = slot->pushed_ns,
                        .integers = {[PS_INT_SKIPPED] = optimizer_skipped(s->c->optimizer),
                                     [PS_INT_UPDATES] = s->keys[key].updates,
                                     [PS_INT_STALENESS] = slot->staleness}};
    server_put_last(&h, slot->last);
    TRY(server_send(s, worker, &h, frames, count, &s->keys[key].ticket, server_key_bytes(s, key)));
    server_end_reply(s, key, worker);
    return STATUS_OK;
}

status server_send_replies(server *s, bool *worked)
{
    for (int w = 0; w < s->c->world; w++) {
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
