#include "ps/server.h"

#include "common/base/clock.h"
#include "common/base/text.h"
#include "ps/server_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGES_AT_ONCE = 64 };

status server_send(ps_server *s, int worker, const message_header *h, const message_frame *frames, int count,
                   transport_ticket *ticket, int64_t payload)
{
    status rc = ps_port_send(&s->port, worker, h, frames, count, ticket, payload);
    if (rc != STATUS_PEER) return rc;
    error_clear();
    return STATUS_OK;
}

/* ---- messages --------------------------------------------------------------------------------- */

static status malformed(const ps_server *s, const ps_message *m)
{
    const message_header *h = &m->header;
    return fail(STATUS_PROTOCOL,
                "parameter server %d: rank %d sent %s of step %" PRId64 ", key %" PRId64 ", %" PRId64 " elements of %s in %d "
                "frames: not of this plan", s->c.index, m->peer, message_kind_name(h->kind), h->step, h->key, h->count,
                h->dtype >= 0 && h->dtype < DTYPE_COUNT ? dtype_name((dtype)h->dtype) : "?", h->frames);
}

/* Whether the message's tensor is that of a key of the shard, in frames or in sight. */
static bool carries_key(const ps_server *s, const ps_message *m)
{
    const message_header *h = &m->header;
    if (h->key < s->first || h->key >= s->first + s->count) return false;
    const ps_key *key = &s->c.plan->keys[h->key];
    if (h->count != key->elements || h->dtype != (int)s->c.params->type) return false;
    if (h->frames == 0) return s->workers[m->peer].params != NULL;
    if (h->frames != key->piece_count) return false;
    piece_list pieces = ps_key_pieces(s->c.plan, (int)h->key);
    for (int i = 0; i < pieces.count; i++)
        if (ps_message_frame(m, i).bytes != (size_t)pieces.pieces[i].count * s->element) return false;
    return true;
}

static status take_push(ps_server *s, ps_message *m)
{
    int local = (int)m->header.key - s->first, worker = m->peer;
    bool pulls = m->header.kind == MESSAGE_PUSH_PULL;
    int64_t round = m->header.step;
    ps_port_count_received(&s->port, worker, server_key_bytes(s, local));
    TRY(server_take_push(s, local, worker, m));
    /* Under sync the next round's parameters are asked for with the push. */
    if (pulls) server_ask(s, local, worker, round + 2, round + 1);
    return STATUS_OK;
}

/* A server of its own starts from what rank 0 hands over. */
static status take_initial(ps_server *s, ps_message *m)
{
    int local = (int)m->header.key - s->first;
    piece_list pieces = ps_key_pieces(s->c.plan, (int)m->header.key);
    for (int i = 0; i < pieces.count; i++) {
        int64_t at = pieces.pieces[i].offset * (int64_t)s->element;
        const void *from = m->header.frames > 0 ? ps_message_frame(m, i).data : s->workers[0].params + at;
        memcpy(s->params + at, from, (size_t)pieces.pieces[i].count * s->element);
    }
    ps_port_count_received(&s->port, 0, server_key_bytes(s, local));
    ps_port_release(&s->port, m);
    s->initialised = ++s->initial_keys == s->count;
    for (int i = 0; s->initialised && i < s->count; i++) server_key_moved(s, i);
    return STATUS_OK;
}

static status take(ps_server *s, ps_message *m)
{
    const message_header *h = &m->header;
    status rc = STATUS_OK;
    s->heard_ns = clock_now_ns();
    s->workers[m->peer].was_there = true;
    switch (h->kind) {
    case MESSAGE_PUSH:
    case MESSAGE_PUSH_PULL:
        if (carries_key(s, m)) return take_push(s, m);
        rc = malformed(s, m);
        break;
    case MESSAGE_PARAMETERS:
        if (carries_key(s, m) && m->peer == 0 && !s->initialised && !s->c.beside) return take_initial(s, m);
        rc = malformed(s, m);
        break;
    case MESSAGE_BUFFERS: return server_take_buffers(s, m);
    case MESSAGE_SUM: return server_take_layer_share(s, m);
    case MESSAGE_FAILED: rc = ps_message_failure(m); break;
    case MESSAGE_PULL: rc = server_take_pull(s, m->peer, h); break;
    case MESSAGE_CONTROL:
        if (s->clips) server_take_norm(s, m->peer, h->doubles[PS_DOUBLE_NORM]);
        else rc = malformed(s, m);
        break;
    default: rc = malformed(s, m); break;
    }
    ps_port_release(&s->port, m);
    return rc;
}

static status take_messages(ps_server *s, bool *worked)
{
    for (int i = 0; i < MESSAGES_AT_ONCE; i++) {
        ps_message m;
        status rc = ps_port_receive(&s->port, &m);
        if (rc == STATUS_AGAIN) break;
        if (rc != STATUS_OK) return rc;
        *worked = true;
        TRY(take(s, &m));
    }
    return STATUS_OK;
}

/* ---- ranks that are waited for ---------------------------------------------------------------- */

/* What holds others up, if it is `worker`: "has not pushed conv1.weight of step 3". */
static const char *owes(ps_server *s, int worker, char *text, size_t size)
{
    int64_t rounds = INT64_MAX;
    int key = -1;
    for (int local = 0; local < s->count && s->c.policy->consistency != PS_ASYNC; local++) {
        int64_t pushed = *server_pushed(s, local, worker);
        if (pushed >= s->keys[local].updates + s->slots || *server_arrived(s, local, pushed) == 0 || pushed >= rounds) continue;
        rounds = pushed;
        key = s->first + local;
    }
    if (key >= 0) {
        snprintf(text, size, "has not pushed %s of step %" PRId64, ps_key_name(s->c.plan, s->c.params->model, key),
                 rounds);
    } else if (s->settling > 0 && s->workers[worker].settle_pull == 0) {
        snprintf(text, size, "has not come to an end of step as others have");
    } else if (s->layer_shares > 0 && s->workers[worker].layer_share.header.kind == MESSAGE_NONE) {
        snprintf(text, size, "has not sent its share of a layer's sum of step %" PRId64, s->layer_header.step);
    } else {
        return NULL;
    }
    return text;
}

/* A rank that has said goodbye is missed where others wait for it. */
static status check_departures(ps_server *s, bool *worked)
{
    char text[NN_NAME_MAX + 64];
    for (int i = 0; i < s->c.world; i++) {
        server_worker *w = &s->workers[i];
        if (i == s->port.partner) continue;
        bool there = ps_port_reaches(&s->port, i);
        w->was_there = w->was_there || there;
        if (there || !w->was_there) continue;
        if (!w->gone) {
            atomic_fetch_add_explicit(&s->gone, 1, memory_order_release);
            w->gone = *worked = true;
        }
        if (owes(s, i, text, sizeof text)) return fail(STATUS_PEER, "rank %d has left: it %s", i, text);
    }
    return STATUS_OK;
}

static bool others_wait(const ps_server *s)
{
    return s->incomplete > 0 || s->settling > 0 || s->layer_shares > 0;
}

static status check_stall(ps_server *s, int64_t now_ns, int64_t *deadline_ns)
{
    int64_t limit = s->heard_ns + s->c.stall_timeout_ns;
    if (!others_wait(s)) return STATUS_OK;
    if (now_ns < limit) {
        if (limit < *deadline_ns) *deadline_ns = limit;
        return STATUS_OK;
    }
    char waited[32], text[NN_NAME_MAX + 64];
    text_format_duration(waited, sizeof waited, (double)s->c.stall_timeout_ns);
    for (int w = 0; w < s->c.world; w++)
        if (owes(s, w, text, sizeof text))
            return fail(STATUS_PEER, "parameter server %d: rank %d %s within the stall limit of %s", s->c.index, w, text, waited);
    return fail(STATUS_PEER, "parameter server %d: nothing came within the stall limit of %s", s->c.index, waited);
}

/* ---- the agent -------------------------------------------------------------------------------- */

static status go_on(ps_server *s, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    TRY(take_messages(s, worked));
    TRY(server_update(s, worked));
    TRY(server_send_answers(s, worked));
    TRY(server_send_shared(s, worked));
    if (*worked) return STATUS_OK;
    TRY(check_departures(s, worked));
    return check_stall(s, now_ns, deadline_ns);
}

/* Workers learn why the server ends. */
static void tell_failure(ps_server *s)
{
    error_copy(&s->failure);
    message_header h = {.kind = MESSAGE_FAILED, .flags = (uint32_t)s->failure.code};
    message_frame text = {s->failure.message, strlen(s->failure.message)};
    error_clear();
    for (int w = 0; w < s->c.world; w++) ps_port_send(&s->port, w, &h, &text, 1, &s->failure_ticket, 0);
    error_clear();
    error_adopt(&s->failure);
}

static status progress(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    ps_server *s = context;
    status rc = go_on(s, now_ns, deadline_ns, worked);
    if (rc != STATUS_OK) tell_failure(s);
    return rc;
}

static void wait_for_more(void *context, int64_t deadline_ns)
{
    ps_port_wait(&((ps_server *)context)->port, deadline_ns);
}

static void wake(void *context)
{
    ps_port_wake(&((ps_server *)context)->port);
}

/* The workers have been told. */
static void failed(void *context, const error_record *error)
{
    (void)error;
    atomic_store_explicit(&((ps_server *)context)->ended, true, memory_order_release);
}

static const sync_agent_ops agent_ops = {progress, wait_for_more, wake, failed};

status ps_server_start(ps_server *s)
{
    sync_agent_config config = {.ops = &agent_ops, .context = s, .device = s->c.device, .name = "ps-server"};
    s->heard_ns = clock_now_ns();
    return sync_agent_open(&config, &s->agent);
}

status ps_server_serve(ps_server *s)
{
    enum { IDLE_ROUNDS = 64 };
    s->heard_ns = clock_now_ns();
    for (int idle = 0; atomic_load_explicit(&s->gone, memory_order_relaxed) < s->c.world;) {
        int64_t deadline = CLOCK_NEVER;
        bool worked = false;
        TRY(progress(s, clock_now_ns(), &deadline, &worked));
        if (worked) idle = 0;
        else if (++idle >= IDLE_ROUNDS) wait_for_more(s, deadline);
    }
    return STATUS_OK;
}

/* ---- life ------------------------------------------------------------------------------------- */

static status open_keys(ps_server *s)
{
    size_t count = (size_t)s->count, world = (size_t)s->c.world, slots = (size_t)s->slots;
    s->keys = calloc(count + 1, sizeof *s->keys);
    s->held = calloc(count * world + 1, sizeof *s->held);
    s->pushed = calloc(count * world + 1, sizeof *s->pushed);
    s->applied = calloc(count * world + 1, sizeof *s->applied);
    s->arrived = calloc(count * slots + 1, sizeof *s->arrived);
    s->rounds = calloc(slots, sizeof *s->rounds);
    s->answers = calloc(count * world + 1, sizeof *s->answers);
    s->applies = calloc(count * world + 1, sizeof *s->applies);
    s->workers = calloc(world, sizeof *s->workers);
    if (!s->keys || !s->held || !s->pushed || !s->applied || !s->arrived || !s->rounds || !s->answers || !s->applies || !s->workers)
        return fail(STATUS_SYSTEM, "no memory for parameter server %d", s->c.index);
    for (size_t i = 0; i < count; i++) s->keys[i].ticket.wake = true;
    for (size_t i = 0; i < count * world; i++) s->answers[i].late = -1;
    for (int w = 0; w < s->c.world; w++)
        TRY(ps_key_queue_init(&s->workers[w].outbox, s->count, s->c.policy->priority));
    return ps_key_queue_init(&s->complete, s->count, s->c.policy->priority);
}

/* Under sync a server beside a rank works in the rank's own parameters: nobody reads them while a key's
 * pushes are all there. Otherwise the rank computes on a copy, as every other rank does. */
static status open_params(ps_server *s)
{
    const param_set *set = s->c.params;
    s->params = set->params.data;
    s->own_params.fd = -1;
    if (s->c.policy->consistency == PS_SYNC || !s->c.beside) return STATUS_OK;
    TRY(device_allocate(s->c.device, DEVICE_MEMORY_PRIVATE, (size_t)set->arena_elements * s->element, &s->own_params));
    s->params = s->own_params.data;
    int64_t extent = (s->shard->end - s->shard->begin) * (int64_t)s->element;
    ledger_acquire(s->c.ledger, LEDGER_PARAMETERS, s->shard->elements * (int64_t)s->element, extent);
    return STATUS_OK;
}

status ps_server_open(const ps_server_config *config, ps_server **out)
{
    *out = NULL;
    ps_server *s = calloc(1, sizeof *s);
    if (!s) return fail(STATUS_SYSTEM, "no memory for parameter server %d", config->index);
    s->c = *config;
    s->shard = &config->plan->shards[config->index];
    s->first = s->shard->first_key;
    s->count = s->shard->key_count;
    s->slots = config->policy->staleness + 1;
    s->element = (size_t)dtype_size(config->params->type);
    s->writes = config->policy->consistency != PS_SYNC || !config->policy->server_optimizer;
    s->clips = config->policy->server_optimizer && optimizer_get_options(config->optimizer)->clip_norm > 0;
    s->buffers_ticket.wake = s->layer_ticket.wake = true;
    status rc;
    TRY_GOTO(rc, open_keys(s), failed);
    TRY_GOTO(rc, open_params(s), failed);
    TRY_GOTO(rc, server_sum_open(s), failed);
    TRY_GOTO(rc, server_shared_open(s), failed);
    *out = s;
    return STATUS_OK;
failed:
    ps_server_close(&s);
    return rc;
}

status ps_server_open_port(ps_server *s, const transport_options *options)
{
    int partner = s->c.beside ? s->c.index : PS_NO_PEER;
    /* A push of every key, a share of a sum and the buffers, and the message at hand. */
    int held = (s->count + 1) * s->c.world + 2;
    return ps_port_open(&s->port, options, s->c.world, held, partner, (uint32_t)(2 * s->count + 64));
}

static void release_messages(ps_server *s)
{
    for (int64_t i = 0; s->held && i < (int64_t)s->count * s->c.world; i++) ps_port_release(&s->port, &s->held[i]);
    for (int w = 0; s->workers && w < s->c.world; w++) ps_port_release(&s->port, &s->workers[w].layer_share);
    ps_port_release(&s->port, &s->buffers_next);
}

void ps_server_close(ps_server **pointer)
{
    ps_server *s = *pointer;
    if (!s) return;
    sync_agent_close(&s->agent);
    release_messages(s);
    ps_port_hang_up(&s->port, NS_PER_S);
    ps_port_close(&s->port);
    server_shared_close(s);
    server_sum_close(s);
    if (s->own_params.data) device_free(s->c.device, &s->own_params);
    for (int w = 0; s->workers && w < s->c.world; w++) ps_key_queue_deinit(&s->workers[w].outbox);
    ps_key_queue_deinit(&s->complete);
    free(s->keys);
    free(s->held);
    free(s->pushed);
    free(s->applied);
    free(s->arrived);
    free(s->rounds);
    free(s->answers);
    free(s->applies);
    free(s->workers);
    free(s);
    *pointer = NULL;
}

ps_port *ps_server_port(ps_server *s)
{
    return &s->port;
}

void ps_server_see(ps_server *s, int worker, void *params, void *grads)
{
    s->workers[worker].params = params;
    s->workers[worker].grads = grads;
}

void ps_server_linger(ps_server *s, int64_t limit_ns)
{
    int others = s->c.world - (s->c.beside ? 1 : 0);
    for (int64_t until = clock_now_ns() + limit_ns; clock_now_ns() < until;) {
        if (atomic_load_explicit(&s->gone, memory_order_acquire) == others) return;
        if (atomic_load_explicit(&s->ended, memory_order_acquire)) return;
        sync_agent_wake(s->agent);
        clock_sleep_ns(NS_PER_MS);
    }
}

status ps_server_error(ps_server *s)
{
    return sync_agent_error(s->agent);
}

const void *ps_server_averages(const ps_server *s)
{
    return s->sums;
}

int64_t ps_server_take_update_ns(ps_server *s)
{
    return atomic_exchange_explicit(&s->update_ns, 0, memory_order_relaxed);
}
