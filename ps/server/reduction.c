/* The reduction of the parameter server. Every server runs five steps: receive pushes, sum in rank order,
 * average, update, reply.
 *
 * The model is split into keys (ps/keys.h). Every key passes through the five steps independently, so one key
 * can be updated while the pushes of the next key are still in transit:
 *
 *     rank 0    push g[0] ──┐                                                    ┌──> parameters to rank 0
 *     rank 1    push g[1] ──┤ average    = (g[0] + g[1] + ... + g[n-1]) / n      ├──> parameters to rank 1
 *       ...                 ├─>                                                ──┤      ...
 *     rank n-1  push g[n-1]─┘ parameters = optimizer(parameters, average)        └──> parameters to rank n-1
 *
 * The sum starts when the last push of an iteration has arrived. The sum always runs in rank order, because
 * floating-point addition is not associative: if pushes were added in order of arrival, the result would
 * differ from run to run. All policies that sum gradients use this order. Therefore sync, ssp with staleness
 * 0, and the ring engine's `ddp` and `zero1` with --algorithm two-shot give bit-identical results if --divide
 * is the same (docs/ps.md names an exception for clipping).
 *
 * consistency.c decides when a key is reduced. sync and ssp reduce whole iterations. async applies each push
 * separately. A pushed gradient is in the frames of the message, in shared memory of the rank that pushed it,
 * or in the memory of that rank's GPU. server_gradient() returns the address.
 *
 * If the rank of a server computes on a GPU, the server sums and updates on this GPU. If the engine works on
 * a staged copy in host memory (common/sync/staged.h), the updated parameters are then copied to the host,
 * because replies are sent from the host. */
#include "ps/server/server.h"

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

const char *server_contribution(const void *context, int worker, int piece, int64_t element)
{
    const server_work *work = context;
    const ps_server *s = work->server;
    int64_t first = server_pieces(s, work->key).pieces[piece].offset;
    return server_gradient(s, work->key, worker, piece) + server_bytes(s, element - first);
}

static status update(const server_work *work, const char *grads, piece_list pieces)
{
    ps_server *s = work->server;
    return optimizer_update(s->optimizer, s->staging.stream, s->updated, grads, pieces,
                            work->step.optimizer_step, work->step.rate, work->scale);
}

/* In virtual time, spends the time of an update, which reads the gradients, and reads and writes parameters
 * and optimizer state. */
static void spend_update(const server_work *work)
{
    const ps_server *s = work->server;
    int states = optimizer_state_count(optimizer_get_options(s->optimizer));
    sync_spend_update(s->device, (double)server_key_bytes(s, work->key) * (3 + 2 * states), s->threads);
}

/* 4. Update. The first range is in piece `first` of the key. Under async, the pieces of a push may be at
 * unrelated addresses, so each piece is updated separately. */
static status update_ranges(const server_work *work, int first, piece_list ranges)
{
    ps_server *s = work->server;
    const char *gradient;
    if (work->worker < 0) TRY(update(work, s->averages, ranges));
    for (int i = 0; work->worker >= 0 && i < ranges.count; i++) {
        TRY(server_pushed(s, work->key, work->worker, first + i, &gradient));
        TRY(update(work, gradient, (piece_list){&ranges.pieces[i], 1}));
    }
    for (int i = 0; i < ranges.count; i++) {
        int64_t at = server_bytes(s, ranges.pieces[i].offset);
        TRY(sync_copy_down(&s->staging, s->params + at, s->updated + at,
                           server_bytes(s, ranges.pieces[i].count)));
    }
    return sync_staging_end(&s->staging);
}

/* 2. Sum, 3. average, 4. update. One function does all three steps, while the elements are in the cache. Each
 * thread processes a different range. */
static status reduce_ranges(void *context, int thread, int first, piece_list ranges)
{
    const server_work *work = context;
    ps_server *s = work->server;
    if (work->sums) TRY(sync_average_ranges(&s->average, thread, first, ranges));
    if (!work->updates) return sync_staging_end(&s->staging);
    int64_t begin_ns = ps_port_now(&s->port);
    if (ps_has_bytes(s->device))
        TRY(update_ranges(work, first, ranges));
    else
        spend_update(work);
    if (thread == 0) s->update_ns += ps_port_now(&s->port) - begin_ns;
    return STATUS_OK;
}

/* In virtual time, spends the time of the copies that a reduction on a GPU needs: pushes to the GPU, but
 * under sync not the push of the server's own rank, and updated parameters to the host. */
static void spend_copies(const server_work *work)
{
    const ps_server *s = work->server;
    int pushes = !work->sums ? work->worker >= 0 : s->world - (s->policy->consistency == PS_SYNC);
    sync_spend_copies(s->device, (double)server_key_bytes(s, work->key) * (pushes + work->updates));
}

status server_reduce(server_work *work)
{
    ps_server *s = work->server;
    int64_t begin_ns = ps_port_now(&s->port);
    if (s->threads == 0) spend_copies(work);
    s->average.context = work;
    TRY(sync_run_ranges(&s->staging, s->threads, server_pieces(s, work->key), reduce_ranges, work));
    trace_slice(s->context->trace, TRACE_OPTIMIZER, work->updates ? "update of key" : "average of key",
                s->first + work->key, begin_ns, ps_port_now(&s->port));
    return server_check_update(work);
}

status server_reduce_next(ps_server *s, bool updates, int *key)
{
    *key = s->complete.count > 0 ? ps_key_queue_first(&s->complete) : -1;
    if (*key >= 0 && !transport_sent(&s->keys[*key].ticket))
        *key = -1; /* replies of the previous iteration are still being sent from the key's memory */
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
    if (s->writes) server_copy_pieces(s, key, average ? w->grads : w->params, from);
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
    TRY(server_forgive_left(ps_port_send_pieces(&s->port, worker, &h, from, server_pieces(s, key), s->element,
                                                &s->keys[key].ticket, server_key_bytes(s, key))));
    server_end_reply(s, key, worker);
    return STATUS_OK;
}

status server_send_replies(ps_server *s, bool *worked)
{
    for (int w = 0; w < s->world; w++) {
        ps_key_queue *outbox = &s->workers[w].outbox;
        while (outbox->count > 0) {
            status rc = reply(s, ps_key_queue_first(outbox), w);
            /* There is no room on the link. The next call continues with this reply. */
            if (rc == STATUS_AGAIN) break;
            if (rc != STATUS_OK) return rc;
            ps_key_queue_drop(outbox);
            *worked = true;
        }
    }
    return STATUS_OK;
}
