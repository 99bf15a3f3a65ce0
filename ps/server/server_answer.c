/* Answers: parameters go out to those who asked, as soon as they are new enough. */
#include "ps/bytes.h"
#include "ps/server/server_impl.h"

#include <inttypes.h>
#include <string.h>

/* ---- what is owed ----------------------------------------------------------------------------- */

static void queue_if_due(ps_server *s, int local, int worker)
{
    server_answer *a = server_answer_of(s, local, worker);
    bool own = s->c.policy->consistency == PS_ASYNC && a->pull != s->workers[worker].settle_pull;
    int64_t made = own ? *server_applied(s, local, worker) : s->keys[local].updates;
    if (a->state != ANSWER_WAITS || !s->initialised || made < a->updates) return;
    a->state = ANSWER_QUEUED;
    ps_key_queue_put(&s->workers[worker].outbox, local);
}

void server_ask(ps_server *s, int local, int worker, int64_t pull, int64_t updates)
{
    server_answer *a = server_answer_of(s, local, worker);
    a->pull = pull;
    a->updates = updates;
    a->state = ANSWER_WAITS;
    queue_if_due(s, local, worker);
}

void server_key_moved(ps_server *s, int local)
{
    for (int w = 0; w < s->c.world; w++) queue_if_due(s, local, w);
}

/* The oldest round whose results a worker that begins `round` may start from. */
static int64_t oldest_round(const ps_server *s, int64_t round)
{
    if (s->c.policy->consistency == PS_ASYNC) return 0;
    return round > s->c.policy->staleness ? round - s->c.policy->staleness : 0;
}

/* How many updates it must see; under async at least those that it has pushed. */
static int64_t needed_updates(ps_server *s, int local, int worker, int64_t round)
{
    return s->c.policy->consistency == PS_ASYNC ? *server_pushed(s, local, worker) : oldest_round(s, round);
}

static void ask_for_buffers(ps_server *s, int worker, int64_t pull, int64_t round)
{
    if (s->buffer_bytes == 0) return;
    s->workers[worker].buffers_pull = pull;
    s->workers[worker].buffers_round = round;
}

/* ---- settle: behind all updates, when all ranks ask ------------------------------------------- */

static status check_settled_rounds(const ps_server *s)
{
    if (s->c.policy->consistency == PS_ASYNC) return STATUS_OK;
    for (int w = 1; w < s->c.world; w++) {
        int64_t round = s->workers[w].settle_round, first = s->workers[0].settle_round;
        if (round != first)
            return fail(STATUS_PROTOCOL, "rank %d settles behind %" PRId64 " steps, rank 0 behind %" PRId64, w, round, first);
    }
    return STATUS_OK;
}

static status settle(ps_server *s, int worker, int64_t pull, int64_t round)
{
    s->workers[worker].settle_pull = pull;
    s->workers[worker].settle_round = round;
    if (++s->settling < s->c.world) return STATUS_OK;
    TRY(check_settled_rounds(s));
    s->settling = 0;
    s->settle_owed = s->count * s->c.world;
    for (int local = 0; local < s->count; local++) {
        server_key *key = &s->keys[local];
        key->settled = s->c.policy->consistency == PS_ASYNC ? key->received : round;
        for (int w = 0; w < s->c.world; w++) server_ask(s, local, w, s->workers[w].settle_pull, key->settled);
    }
    for (int w = 1; w < s->c.world; w++)
        ask_for_buffers(s, w, s->workers[w].settle_pull, s->buffers_received);
    return STATUS_OK;
}

/* ---- pulls ------------------------------------------------------------------------------------ */

static status initialise(ps_server *s, int worker)
{
    if (s->initialised || worker != s->port.partner) return STATUS_OK;
    for (int local = 0; local < s->count; local++) {
        TRY(server_copy_pieces(s, local, s->params, s->workers[worker].params));
        if (s->gpu) TRY(server_gpu_start(s, local));
    }
    s->initialised = true;
    for (int local = 0; local < s->count; local++) server_key_moved(s, local);
    return STATUS_OK;
}

status server_take_pull(ps_server *s, int worker, const message_header *h)
{
    int64_t pull = h->step, round = h->integers[PS_INT_ROUND];
    if (pull < 1 || round < 0)
        return fail(STATUS_PROTOCOL, "rank %d asks with pull %" PRId64 " of step %" PRId64, worker, pull, round);
    if (h->flags & PS_PULL_FIRST) TRY(initialise(s, worker));
    if (h->flags & PS_PULL_SETTLE) return settle(s, worker, pull, round);
    if (h->flags & PS_PULL_BUFFERS) ask_for_buffers(s, worker, pull, oldest_round(s, round));
    if (h->flags & PS_PULL_KEYS)
        for (int local = 0; local < s->count; local++)
            server_ask(s, local, worker, pull, needed_updates(s, local, worker, round));
    return STATUS_OK;
}

/* ---- sending ---------------------------------------------------------------------------------- */

static status answer(ps_server *s, int local, int worker)
{
    server_answer *a = server_answer_of(s, local, worker);
    server_key *key = &s->keys[local];
    server_worker *w = &s->workers[worker];
    bool average = !s->c.policy->server_optimizer && key->updates > 0;
    const char *from = !average ? s->params : s->gpu ? s->gpu->sums : s->sums;
    if (s->writes && w->params) TRY(server_copy_pieces(s, local, average ? w->grads : w->params, from));
    piece_list pieces = ps_key_pieces(s->c.plan, s->first + local);
    message_frame frames[PS_KEY_PIECES];
    int count = w->params ? 0 : pieces.count;
    for (int i = 0; i < count; i++)
        frames[i] = (message_frame){from + pieces.pieces[i].offset * (int64_t)s->element,
                                    (size_t)pieces.pieces[i].count * s->element};
    message_header h = {.kind = MESSAGE_PARAMETERS,
                        .step = a->pull,
                        .key = s->first + local,
                        .count = s->c.plan->keys[s->first + local].elements,
                        .dtype = s->c.params->type,
                        .integers = {0, key->updates, a->late}};
    TRY(server_send(s, worker, &h, frames, count, &key->ticket, server_key_bytes(s, local)));
    a->state = ANSWER_NONE;
    a->late = -1;
    if (w->settle_pull == a->pull && --s->settle_owed == 0)
        for (int i = 0; i < s->c.world; i++) s->workers[i].settle_pull = 0;
    return STATUS_OK;
}

status server_send_answers(ps_server *s, bool *worked)
{
    for (int w = 0; w < s->c.world; w++) {
        ps_key_queue *outbox = &s->workers[w].outbox;
        while (outbox->count > 0) {
            status rc = answer(s, ps_key_queue_first(outbox), w);
            if (rc == STATUS_AGAIN) break;
            if (rc != STATUS_OK) return rc;
            ps_key_queue_drop(outbox);
            *worked = true;
        }
    }
    return STATUS_OK;
}
