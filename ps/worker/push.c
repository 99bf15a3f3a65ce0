/* The sending half of a worker's agent, which turns events that the compute thread has posted into
 * messages. */
#include "ps/worker/worker.h"

#include "common/net/status_table.h"

/* ---- events ----------------------------------------------------------------------------------- */

static void queue_key(worker *w, int key)
{
    ps_key_queue_put(&w->servers[w->plan->keys[key].server].queue, key);
}

static void queue_push(worker *w, int param, int64_t iteration)
{
    const ps_plan *plan = w->plan;
    for (int key = plan->first_key[param]; key < plan->first_key[param] + plan->keys_of[param]; key++) {
        if (--w->keys[key].missing > 0) continue;
        w->keys[key].missing = plan->keys[key].param_count;
        w->keys[key].iteration = iteration;
        w->keys[key].ready_ns = ps_port_now(w->port);
        w->keys[key].traced = trace_is_on(w->context->trace);
        queue_key(w, key);
    }
}

static void queue_pull(worker *w, uint32_t flags, int64_t pull)
{
    uint32_t for_keys = flags & ~(uint32_t)PS_PULL_BUFFERS;
    if (for_keys) w->pull = pull;
    w->buffers_pull = pull;
    for (int j = 0; j < w->plan->server_count; j++) w->servers[j].pull_flags |= for_keys;
    if (w->shared->takes_buffers) w->servers[0].pull_flags |= flags & PS_PULL_BUFFERS;
    bool own_servers = w->policy->placement == PS_PLACEMENT_OWN;
    if (!(flags & PS_PULL_FIRST) || !own_servers || w->context->rank != 0) return;
    w->handing_over = true;
    for (int key = 0; key < w->plan->key_count; key++) queue_key(w, key);
}

void worker_pop_events(worker *w, bool *worked)
{
    for (sync_event e; sync_queue_pop(&w->shared->events, &e); *worked = true) {
        switch ((worker_event)e.kind) {
        case WORKER_PUSH:
            queue_push(w, e.index, e.value);
            break;
        case WORKER_PULL:
            queue_pull(w, (uint32_t)e.index, e.value);
            break;
        case WORKER_BUFFERS:
            w->pack_due = true;
            w->pack_iteration = e.value;
            w->buffers_ready_ns = ps_port_now(w->port);
            break;
        case WORKER_SUM:
            w->sum_due = true;
            w->sum_count = e.index;
            w->sum_number = e.value;
            w->sum_ready_ns = ps_port_now(w->port);
            break;
        }
    }
}

/* ---- keys ------------------------------------------------------------------------------------- */

/* Returns true if the bytes in transit to the server leave room for another key. */
static bool has_credit(worker *w, worker_server *s)
{
    while (s->count_on_the_way > 0 && transport_sent(&w->keys[s->on_the_way[s->first_on_the_way]].ticket)) {
        s->bytes_on_the_way -= worker_key_bytes(w, s->on_the_way[s->first_on_the_way]);
        s->first_on_the_way = (s->first_on_the_way + 1) % s->queue.capacity;
        s->count_on_the_way--;
    }
    return s->bytes_on_the_way < w->policy->credit_bytes;
}

static void spend_credit(worker *w, worker_server *s, int key)
{
    s->on_the_way[(s->first_on_the_way + s->count_on_the_way++) % s->queue.capacity] = key;
    s->bytes_on_the_way += worker_key_bytes(w, key);
}

static message_header push_header(const worker *w, int key)
{
    const ps_update_step *iteration = &w->shared->iterations[w->keys[key].iteration % 2];
    message_header h = {.key = key, .count = w->plan->keys[key].elements, .dtype = w->context->params->type};
    h.kind = w->handing_over                     ? MESSAGE_PARAMETERS
             : w->policy->consistency == PS_SYNC ? MESSAGE_PUSH_PULL
                                                 : MESSAGE_PUSH;
    if (w->handing_over) return h;
    h.step = w->keys[key].iteration;
    h.ready_ns = w->keys[key].ready_ns;
    h.integers[PS_INT_STEP] = iteration->optimizer_step;
    h.integers[PS_INT_UPDATES] = w->keys[key].updates_seen;
    h.doubles[PS_DOUBLE_RATE] = iteration->rate;
    return h;
}

static status send_key(worker *w, int server, int key)
{
    worker_server *s = &w->servers[server];
    const param_set *set = w->context->params;
    const char *arena = w->handing_over ? set->params.data : set->grads.data;
    message_header h = push_header(w, key);
    TRY(ps_port_send_pieces(w->port, server, &h, arena, ps_key_pieces(w->plan, key), w->shared->element,
                            &w->keys[key].ticket, worker_key_bytes(w, key)));
    if (s->limited) spend_credit(w, s, key);
    return STATUS_OK;
}

static void count_overtaken(worker *w, worker_server *s, int64_t ready_ns)
{
    if (ready_ns < s->latest_ready_ns)
        atomic_fetch_add_explicit(&w->shared->overtaken, 1, memory_order_relaxed);
    else
        s->latest_ready_ns = ready_ns;
}

static status send_keys(worker *w, int server, int64_t now_ns, bool *worked)
{
    worker_server *s = &w->servers[server];
    const sync_context *c = w->context;
    while (s->queue.count > 0 && has_credit(w, s)) {
        int key = ps_key_queue_first(&s->queue);
        TRY(send_key(w, server, key));
        ps_key_queue_drop(&s->queue);
        w->keys[key].left_ns = now_ns;
        if (w->policy->consistency != PS_SYNC) w->keys[key].pushed_ns = now_ns;
        *worked = true;
        if (w->handing_over) continue;
        count_overtaken(w, s, w->keys[key].ready_ns);
        rank_slot_agent(c->slot, RANK_PUSH, key, now_ns);
        /* Under async, the server reports the staleness in a reply. */
        if (w->policy->consistency == PS_ASYNC) continue;
        worker_record_staleness(w, w->keys[key].iteration - w->keys[key].updates_seen);
        if (w->policy->consistency != PS_SYNC) continue;
        w->keys[key].requested = w->keys[key].iteration + 2;
        worker_await(w, 1, now_ns);
    }
    return STATUS_OK;
}

/* ---- pulls, buffers, sums, norms -------------------------------------------------------------- */

/* Sends a pull. A pull for keys is sent after the pushes that the reply must include. A pull that requests
 * only buffers is sent before the pushes of the iteration. Therefore, when a server updates a key, it has
 * received the pulls for the next iteration's buffers from all ranks. */
static status send_pull(worker *w, int server, int64_t now_ns)
{
    worker_server *s = &w->servers[server];
    bool for_keys = s->pull_flags & ~(uint32_t)PS_PULL_BUFFERS;
    if (for_keys && (s->queue.count > 0 || w->pack_due || w->packed_due)) return STATUS_OK;
    message_header h = {.kind = MESSAGE_PULL,
                        .step = for_keys ? w->pull : w->buffers_pull,
                        .flags = s->pull_flags,
                        .integers = {[PS_INT_ITERATION] = w->shared->pull_iteration}};
    TRY(ps_port_send(w->port, server, &h, NULL, 0, NULL, 0));
    const ps_shard *shard = &w->plan->shards[server];
    bool settles = s->pull_flags & PS_PULL_FLUSH;
    int replies = for_keys ? shard->key_count : 0;
    for (int i = 0; i < replies; i++) {
        w->keys[shard->first_key + i].requested = w->pull;
        w->keys[shard->first_key + i].left_ns = now_ns;
    }
    if (server == 0 && w->shared->takes_buffers && (settles || s->pull_flags & PS_PULL_BUFFERS)) replies++;
    if (server == 0) w->buffers_left_ns = now_ns;
    s->pull_flags = 0;
    worker_await(w, replies, now_ns);
    rank_slot_agent(w->context->slot, RANK_PULL, RANK_NO_BUCKET, now_ns);
    return STATUS_OK;
}

void worker_copy_buffers(const param_set *set, char *packed, bool packs)
{
    int64_t size = dtype_size(set->type);
    for (int i = 0; i < set->model->buffer_count; i++) {
        char *buffer = (char *)set->buffers.data + set->buffer_pieces[i].offset * size;
        int64_t bytes = set->buffer_pieces[i].count * size;
        sync_copy(set->device, packs ? packed : buffer, packs ? buffer : packed, (size_t)bytes);
        packed += bytes;
    }
}

static status send_buffers(worker *w, bool *worked)
{
    if (w->pack_due && !w->packed_due && !w->packed_out && transport_sent(&w->packed_ticket)) {
        worker_copy_buffers(w->context->params, w->shared->packed_buffers, true);
        w->pack_due = false;
        w->packed_due = true;
        *worked = true;
        device_fence_reach(w->shared->packed, ++w->packs_made);
    }
    if (!w->packed_due) return STATUS_OK;
    int64_t bytes = w->context->params->buffer_bytes;
    message_header h = {.kind = MESSAGE_BUFFERS, .step = w->pack_iteration, .ready_ns = w->buffers_ready_ns};
    message_frame frame = {w->shared->packed_buffers, (size_t)bytes};
    TRY(ps_port_send(w->port, 0, &h, &frame, 1, &w->packed_ticket, bytes));
    w->packed_due = false;
    w->packed_out = true;
    *worked = true;
    return STATUS_OK;
}

static status send_sum(worker *w, int64_t now_ns)
{
    message_header h = {
        .kind = MESSAGE_SUM, .step = w->sum_number, .count = w->sum_count, .ready_ns = w->sum_ready_ns};
    message_frame frame = {w->shared->sum_values, (size_t)w->sum_count * sizeof(double)};
    TRY(ps_port_send(w->port, 0, &h, &frame, 1, &w->sum_ticket, (int64_t)frame.bytes));
    w->sum_due = false;
    w->sum_left_ns = now_ns;
    worker_await(w, 1, now_ns);
    return STATUS_OK;
}

static status send_norm(worker *w, int server)
{
    message_header h = {.kind = MESSAGE_CONTROL, .doubles = {[PS_DOUBLE_NORM] = w->norm}};
    TRY(ps_port_send(w->port, server, &h, NULL, 0, NULL, 0));
    w->servers[server].norm_due = false;
    return STATUS_OK;
}

/* Turns STATUS_AGAIN into STATUS_OK, because the agent tries again when it runs next. */
static status or_later(status rc)
{
    return rc == STATUS_AGAIN ? STATUS_OK : rc;
}

static status send_to(worker *w, int server, int64_t now_ns, bool *worked)
{
    worker_server *s = &w->servers[server];
    if (s->norm_due) TRY(or_later(send_norm(w, server)));
    if (s->pull_flags == PS_PULL_BUFFERS) {
        status rc = send_pull(w, server, now_ns);
        if (rc != STATUS_OK) return or_later(rc); /* this pull must be sent before the pushes */
    }
    TRY(or_later(send_keys(w, server, now_ns, worked)));
    return s->pull_flags ? or_later(send_pull(w, server, now_ns)) : STATUS_OK;
}

status worker_send(worker *w, int64_t now_ns, bool *worked)
{
    TRY(or_later(send_buffers(w, worked)));
    if (w->sum_due) TRY(or_later(send_sum(w, now_ns)));
    bool queued = false;
    for (int j = 0; j < w->plan->server_count; j++) {
        TRY(send_to(w, j, now_ns, worked));
        queued = queued || w->servers[j].queue.count > 0;
    }
    w->handing_over = w->handing_over && queued;
    return STATUS_OK;
}
