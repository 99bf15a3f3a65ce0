/* What server 0 does beside its shard: it keeps rank 0's buffers, and adds up what layers share. */
#include "ps/bytes.h"
#include "ps/server/server_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

status server_shared_open(ps_server *s)
{
    const param_set *set = s->c.params;
    s->buffers_round = -1;
    if (s->c.index != 0) return STATUS_OK;
    s->buffer_bytes = set->buffer_bytes;
    s->buffers = malloc((size_t)s->buffer_bytes + 1);
    s->layer_sums = calloc((size_t)s->c.plan->largest_sum + 1, sizeof *s->layer_sums);
    if (!s->buffers || !s->layer_sums) return fail(STATUS_SYSTEM, "no memory for parameter server 0");
    ledger_acquire(s->c.ledger, LEDGER_BUCKETS, s->buffer_bytes, s->buffer_bytes);
    return STATUS_OK;
}

void server_shared_close(ps_server *s)
{
    free(s->buffers);
    free(s->layer_sums);
}

static status unexpected(const ps_server *s, const ps_message *m, const char *expected)
{
    return fail(STATUS_PROTOCOL, "parameter server %d: rank %d sent %s of step %" PRId64 " with %d frames, expected is %s",
                s->c.index, m->peer, message_kind_name(m->header.kind), m->header.step, m->header.frames, expected);
}

/* ---- buffers ---------------------------------------------------------------------------------- */

status server_take_buffers(ps_server *s, ps_message *m)
{
    bool fits = m->peer == 0 && s->buffer_bytes > 0 && m->header.frames == 1 &&
                (int64_t)ps_message_frame(m, 0).bytes == s->buffer_bytes && s->buffers_next.header.kind == MESSAGE_NONE;
    if (!fits) {
        status rc = unexpected(s, m, "the buffers of rank 0, once a step");
        ps_port_release(&s->port, m);
        return rc;
    }
    ps_port_count_received(&s->port, m->peer, s->buffer_bytes);
    s->buffers_received = m->header.step;
    s->buffers_next = *m;
    return STATUS_OK;
}

static bool buffers_due(const ps_server *s, int worker)
{
    const server_worker *w = &s->workers[worker];
    return w->buffers_pull > 0 && s->buffers_round >= 0 && s->buffers_round >= w->buffers_round;
}

/* Whether somebody still is to get the present buffers: who asked for them, and at the start who has yet to
 * come. Later rank 0 cannot have new ones before all have what they began the last round with. */
static bool buffers_needed(const ps_server *s)
{
    bool by_rounds = s->c.policy->consistency != PS_ASYNC && s->buffers_round >= 0;
    for (int w = 1; w < s->c.world; w++)
        if (buffers_due(s, w) || (by_rounds && !s->workers[w].had_buffers)) return true;
    return false;
}

static void accept_buffers(ps_server *s, bool *worked)
{
    ps_message *m = &s->buffers_next;
    if (m->header.kind == MESSAGE_NONE || !transport_sent(&s->buffers_ticket) || buffers_needed(s)) return;
    memcpy(s->buffers, ps_message_frame(m, 0).data, (size_t)s->buffer_bytes);
    s->buffers_round = m->header.step;
    ps_port_release(&s->port, m);
    m->header.kind = MESSAGE_NONE;
    s->acknowledge_buffers = true;
    *worked = true;
}

static status acknowledge_buffers(ps_server *s, bool *worked)
{
    if (!s->acknowledge_buffers) return STATUS_OK;
    message_header taken = {.kind = MESSAGE_ACKNOWLEDGE, .step = s->buffers_round};
    status rc = server_send(s, 0, &taken, NULL, 0, NULL, 0);
    if (rc != STATUS_OK) return rc == STATUS_AGAIN ? STATUS_OK : rc;
    s->acknowledge_buffers = false;
    *worked = true;
    return STATUS_OK;
}

static status send_buffers(ps_server *s, bool *worked)
{
    for (int i = 0; i < s->c.world; i++) {
        server_worker *w = &s->workers[i];
        if (!buffers_due(s, i)) continue;
        message_header h = {.kind = MESSAGE_BUFFERS, .step = w->buffers_pull, .integers = {0, s->buffers_round}};
        message_frame frame = {s->buffers, (size_t)s->buffer_bytes};
        status rc = server_send(s, i, &h, &frame, 1, &s->buffers_ticket, s->buffer_bytes);
        if (rc == STATUS_AGAIN) continue;
        if (rc != STATUS_OK) return rc;
        w->buffers_pull = 0;
        w->had_buffers = true;
        *worked = true;
    }
    return STATUS_OK;
}

/* ---- layers' sums ----------------------------------------------------------------------------- */

status server_take_layer_share(ps_server *s, ps_message *m)
{
    server_worker *w = &s->workers[m->peer];
    const message_header *h = &m->header;
    bool fits = s->c.index == 0 && h->frames == 1 && h->count > 0 && h->count <= s->c.plan->largest_sum &&
                ps_message_frame(m, 0).bytes == (size_t)h->count * sizeof(double) &&
                w->layer_share.header.kind == MESSAGE_NONE;
    if (fits && s->layer_shares > 0) fits = h->count == s->layer_header.count && h->step == s->layer_header.step;
    if (!fits) {
        status rc = unexpected(s, m, "one share of the same layer's sum from every rank");
        ps_port_release(&s->port, m);
        return rc;
    }
    ps_port_count_received(&s->port, m->peer, h->count * (int64_t)sizeof(double));
    s->layer_header = *h;
    w->layer_share = *m;
    s->layer_shares++;
    return STATUS_OK;
}

static void add_layer_shares(ps_server *s)
{
    for (int64_t i = 0; i < s->layer_header.count; i++) s->layer_sums[i] = 0;
    for (int w = 0; w < s->c.world; w++) {
        ps_message *m = &s->workers[w].layer_share;
        const double *share = ps_message_frame(m, 0).data;
        bool exist = ps_bytes_exist(s->c.device);
        for (int64_t i = 0; exist && i < s->layer_header.count; i++) s->layer_sums[i] += share[i];
        ps_port_release(&s->port, m);
        m->header.kind = MESSAGE_NONE;
    }
    s->layer_answer = (message_header){.kind = MESSAGE_SUM, .step = s->layer_header.step, .count = s->layer_header.count};
    s->layer_shares = 0;
    s->layer_owed = s->c.world;
}

static status send_layer_sums(ps_server *s, bool *worked)
{
    message_frame frame = {s->layer_sums, (size_t)s->layer_answer.count * sizeof(double)};
    while (s->layer_owed > 0) {
        status rc = server_send(s, s->c.world - s->layer_owed, &s->layer_answer, &frame, 1, &s->layer_ticket,
                                 (int64_t)frame.bytes);
        if (rc != STATUS_OK) return rc == STATUS_AGAIN ? STATUS_OK : rc;
        s->layer_owed--;
        *worked = true;
    }
    return STATUS_OK;
}

/* ---- squared norms ---------------------------------------------------------------------------- */

static status send_norms(ps_server *s, bool *worked)
{
    if (!s->clips) return STATUS_OK;
    for (int i = 0; i < s->c.world; i++) {
        server_worker *w = &s->workers[i];
        if (!w->norm_due) continue;
        message_header h = {.kind = MESSAGE_CONTROL, .doubles = {w->norm}};
        status rc = server_send(s, i, &h, NULL, 0, NULL, 0);
        if (rc == STATUS_AGAIN) continue;
        if (rc != STATUS_OK) return rc;
        w->norm_due = false;
        *worked = true;
    }
    return STATUS_OK;
}

status server_send_shared(ps_server *s, bool *worked)
{
    TRY(send_norms(s, worked));
    if (s->c.index != 0) return STATUS_OK;
    accept_buffers(s, worked);
    TRY(acknowledge_buffers(s, worked));
    TRY(send_buffers(s, worked));
    if (s->layer_shares == s->c.world && s->layer_owed == 0 && transport_sent(&s->layer_ticket)) add_layer_shares(s);
    return send_layer_sums(s, worked);
}
