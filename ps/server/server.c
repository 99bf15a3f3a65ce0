/* A server's agent: receives messages, drives the reduction, sends replies, and notices stalls and
 * departures. */
#include "ps/server/server.h"

#include "common/base/clock.h"
#include "common/base/text.h"

#include <inttypes.h>
#include <stdio.h>

status server_forgive_left(status sent)
{
    if (sent != STATUS_PEER) return sent;
    error_clear();
    return STATUS_OK;
}

void server_copy_pieces(const ps_server *s, int key, char *to, const char *from)
{
    if (to && to != from) ps_copy_pieces(s->device, to, from, server_pieces(s, key), s->element);
}

/* ---- messages --------------------------------------------------------------------------------- */

static status malformed(const ps_server *s, const ps_message *m)
{
    const message_header *h = &m->header;
    return fail(STATUS_PROTOCOL,
                "parameter server %d: rank %d sent %s of step %" PRId64 ", key %" PRId64 ", %" PRId64
                " elements of %s in %d "
                "frames: not of this plan",
                s->index, m->peer, message_kind_name(h->kind), h->step, h->key, h->count,
                h->dtype >= 0 && h->dtype < DTYPE_COUNT ? dtype_name((dtype)h->dtype) : "?", h->frames);
}

static bool carries_key(const ps_server *s, const ps_message *m)
{
    const message_header *h = &m->header;
    if (h->key < s->first || h->key >= s->first + s->count) return false;
    const ps_key *key = &s->plan->keys[h->key];
    if (h->count != key->elements || h->dtype != (int)s->set->type) return false;
    return ps_port_carries(&s->port, m, ps_key_pieces(s->plan, (int)h->key), s->element);
}

/* Stores initial parameters of a key, which rank 0 sends to a server in a separate process. */
static status receive_initial(ps_server *s, ps_message *m)
{
    int key = (int)m->header.key - s->first;
    if (m->header.frames > 0)
        ps_take_frames(s->device, m, s->params, server_pieces(s, key), s->element);
    else
        server_copy_pieces(s, key, s->params, s->workers[0].params);
    ps_port_count_received(&s->port, 0, server_key_bytes(s, key));
    ps_port_release(&s->port, m);
    s->initialized = ++s->initial_keys == s->count;
    for (int i = 0; s->initialized && i < s->count; i++) server_key_updated(s, i);
    return STATUS_OK;
}

static status handle(void *context, ps_message *m, int64_t now_ns)
{
    ps_server *s = context;
    const message_header *h = &m->header;
    (void)now_ns; /* The stall limit uses the wall clock, because virtual ranks do not stall. */
    s->received_ns = m->arrived_ns;
    s->last_message_ns = clock_now_ns();
    switch (h->kind) {
    case MESSAGE_PUSH:
    case MESSAGE_PUSH_PULL:
        if (carries_key(s, m)) return server_receive_push(s, m);
        break;
    case MESSAGE_PARAMETERS:
        if (carries_key(s, m) && m->peer == 0 && !s->initialized && !s->colocated)
            return receive_initial(s, m);
        break;
    case MESSAGE_BUFFERS:
        return server_receive_buffers(s, m);
    case MESSAGE_SUM:
        return server_receive_layer_share(s, m);
    case MESSAGE_FAILED:
        return ps_port_done(&s->port, m, ps_message_failure(m));
    case MESSAGE_PULL:
        return ps_port_done(&s->port, m, server_receive_pull(s, m->peer, h));
    case MESSAGE_CONTROL:
        if (!s->needs_norm) break;
        return ps_port_done(&s->port, m, server_receive_norm(s, m->peer, h->doubles[PS_DOUBLE_NORM]));
    default:
        break;
    }
    return ps_port_done(&s->port, m, malformed(s, m));
}

/* ---- ranks that others wait for --------------------------------------------------------------- */

/* Describes the message from `worker` that other ranks wait for, for example "has not pushed conv1.weight of
 * step 3". Returns NULL if no rank waits for `worker`. */
static const char *owes(const ps_server *s, int worker, char *text, size_t size)
{
    int64_t iteration = INT64_MAX;
    int late = -1;
    for (int key = 0; key < s->count && s->policy->consistency != PS_ASYNC; key++) {
        int64_t pushed = server_slot_of(s, key, worker)->pushed;
        if (pushed >= s->keys[key].updates + s->window || server_arrived(s, key, pushed)->count == 0 ||
            pushed >= iteration)
            continue;
        iteration = pushed;
        late = s->first + key;
    }
    if (late >= 0) {
        snprintf(text, size, "has not pushed %s of step %" PRId64, ps_key_name(s->plan, s->set->model, late),
                 iteration);
    } else if (s->flushing > 0 && s->workers[worker].flush_pull == 0) {
        snprintf(text, size, "has not ended its step as the other ranks have");
    } else if (s->layer.shares > 0 && s->workers[worker].layer_share.header.kind == MESSAGE_NONE) {
        snprintf(text, size, "has not sent its share of a layer's sum of step %" PRId64,
                 s->layer.header.step);
    } else {
        return NULL;
    }
    return text;
}

/* Fails if a rank has disconnected and other ranks wait for a message from this rank. */
static status check_departures(ps_server *s, bool *worked)
{
    char text[NN_NAME_MAX + 64];
    for (int w = 0; w < s->world; w++) {
        if (!ps_port_has_left(&s->port, w)) continue;
        if (!s->workers[w].gone) {
            s->gone++;
            s->workers[w].gone = *worked = true;
        }
        if (owes(s, w, text, sizeof text)) return fail(STATUS_PEER, "rank %d has left: it %s", w, text);
    }
    return STATUS_OK;
}

static status check_stall(ps_server *s, int64_t now_ns, int64_t *deadline_ns)
{
    bool others_wait = s->incomplete > 0 || s->flushing > 0 || s->layer.shares > 0;
    if (!others_wait ||
        !ps_is_late(s->context, &s->last_message_ns, s->context->stall_timeout_ns, now_ns, deadline_ns))
        return STATUS_OK;
    char waited[32], text[NN_NAME_MAX + 64];
    text_format_duration(waited, sizeof waited, (double)s->context->stall_timeout_ns);
    for (int w = 0; w < s->world; w++)
        if (owes(s, w, text, sizeof text))
            return fail(STATUS_PEER, "parameter server %d: rank %d %s within the stall limit of %s", s->index,
                        w, text, waited);
    return fail(STATUS_PEER, "parameter server %d: no message arrived within the stall limit of %s", s->index,
                waited);
}

/* ---- the agent -------------------------------------------------------------------------------- */

static status progress(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    ps_server *s = context;
    TRY(ps_port_receive(&s->port, now_ns, worked));
    TRY(server_update(s, worked));
    TRY(server_send_replies(s, worked));
    TRY(server_send_shared(s, worked));
    if (*worked) return STATUS_OK;
    TRY(check_departures(s, worked));
    return check_stall(s, now_ns, deadline_ns);
}

/* Does nothing: the workers have received the reason, and no other thread waits. */
static void failed(void *context, const error_record *error)
{
    (void)context, (void)error;
}

static const ps_port_ops port_ops = {progress, handle, failed};

status ps_server_start(ps_server *s)
{
    s->last_message_ns = clock_now_ns();
    return ps_port_start(&s->port, &port_ops, s, s->device, "ps-server", NULL);
}

status ps_server_serve(ps_server *s)
{
    s->last_message_ns = clock_now_ns();
    return ps_port_serve(&s->port, &port_ops, s, &s->gone, s->world);
}
