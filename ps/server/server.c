#include "ps/server/server.h"

#include "common/base/clock.h"
#include "common/base/text.h"
#include "ps/bytes.h"
#include "ps/server/server_impl.h"

#include <inttypes.h>
#include <stdio.h>
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
    if (s->c.peers || h->frames != key->piece_count) return false;
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
        ps_move(s->c.device, s->params + at, from, (size_t)pieces.pieces[i].count * s->element);
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
