/* Items of a round: sent, received, and kept where they come before their round. */
#include "ps/dp/star_impl.h"

#include "common/net/board.h"
#include "ps/compute.h"

#include <inttypes.h>
#include <string.h>

enum { MESSAGES_AT_ONCE = 64 };

int64_t dp_region_bytes(const dp_region *r)
{
    return piece_list_elements((piece_list){r->pieces, r->count}) * r->element;
}

static status copy_region(dp_star *s, const dp_region *r, char *to, const char *from)
{
    for (int i = 0; i < r->count; i++) {
        int64_t at = r->pieces[i].offset * r->element, bytes = r->pieces[i].count * r->element;
        if (s->c.peers) TRY(device_convert(s->stream, to + at, DTYPE_U8, from + at, DTYPE_U8, bytes, 1));
        else memcpy(to + at, from + at, (size_t)bytes);
    }
    return s->c.peers ? device_stream_synchronize(s->stream) : STATUS_OK;
}

/* ---- sending ---------------------------------------------------------------------------------- */

static void item_done(dp_star *s, dp_item *item, int64_t now_ns)
{
    item->done = true;
    s->open_items--;
    s->heard_ns = now_ns;
}

static status send_item(dp_star *s, dp_item *item, int64_t now_ns)
{
    const dp_region *r = &item->region;
    message_frame frames[MESSAGE_FRAMES_MAX];
    int count = item->shared ? 0 : r->count;
    for (int i = 0; i < count; i++)
        frames[i] = (message_frame){r->base + r->pieces[i].offset * r->element,
                                    (size_t)(r->pieces[i].count * r->element)};
    if (item->shared && item->remote && !item->copied) TRY(copy_region(s, r, item->remote, r->base));
    item->copied = true;
    TRY(ps_port_send(&s->port, item->peer, &item->header, frames, count, &s->ticket, dp_region_bytes(r)));
    board_cell_agent(s->c.context->cell, BOARD_PUSH, (int)item->header.key, now_ns);
    item_done(s, item, now_ns);
    return STATUS_OK;
}

/* A peer without room does not hold up the others; its turn comes again. */
status star_send_items(dp_star *s, int64_t now_ns, bool *worked)
{
    int blocked = -1;
    for (int i = 0; i < s->listed && s->open_items > 0; i++) {
        dp_item *item = &s->items[i];
        if (item->done || item->direction != DP_SEND || item->peer == blocked) continue;
        status rc = send_item(s, item, now_ns);
        if (rc == STATUS_AGAIN)
            blocked = item->peer;
        else if (rc != STATUS_OK)
            return rc;
        else
            *worked = true;
    }
    return STATUS_OK;
}

/* ---- receiving -------------------------------------------------------------------------------- */

static status malformed(const dp_star *s, const ps_message *m)
{
    const message_header *h = &m->header;
    return fail(STATUS_PROTOCOL,
                "rank %d: rank %d sent %s of step %" PRId64 ", key %" PRId64
                ", in %d frames: not of this round",
                s->c.context->rank, m->peer, message_kind_name(h->kind), h->step, h->key, h->frames);
}

static dp_item *find_item(dp_star *s, const ps_message *m)
{
    for (int i = 0; i < s->listed; i++) {
        dp_item *item = &s->items[i];
        if (item->done || item->direction == DP_SEND || item->peer != m->peer) continue;
        const message_header *a = &item->header, *b = &m->header;
        if (a->kind == b->kind && a->step == b->step && a->key == b->key) return item;
    }
    return NULL;
}

static bool fits(const dp_item *item, const ps_message *m)
{
    const dp_region *r = &item->region;
    if (m->header.frames != (item->shared ? 0 : r->count)) return false;
    for (int i = 0; i < m->header.frames; i++)
        if (ps_message_frame(m, i).bytes != (size_t)(r->pieces[i].count * r->element)) return false;
    return true;
}

/* Takes over the message. */
static status take_item(dp_star *s, dp_item *item, ps_message *m, int64_t now_ns)
{
    const dp_region *r = &item->region;
    if (!fits(item, m)) {
        status rc = malformed(s, m);
        ps_port_release(&s->port, m);
        return rc;
    }
    ps_port_count_received(&s->port, m->peer, dp_region_bytes(r));
    item->header = m->header;
    if (item->direction == DP_REDUCE) {
        int key = (int)m->header.key;
        item->message = *m;
        if (++s->arrived[key] == s->sum.present - 1) TRY(star_sum(s, key));
    } else {
        if (item->shared && item->remote) TRY(copy_region(s, r, r->base, item->remote));
        for (int i = 0; i < m->header.frames; i++)
            ps_copy(s->c.context->device, r->base + r->pieces[i].offset * r->element,
                    ps_message_frame(m, i).data, (size_t)(r->pieces[i].count * r->element));
        ps_port_release(&s->port, m);
    }
    item_done(s, item, now_ns);
    return STATUS_OK;
}

/* Between rounds the items are the compute thread's, which lists the next one. A peer is at most one round
 * ahead: more than `held` has room for is no mistake of timing. */
static status take(dp_star *s, ps_message *m, int64_t now_ns)
{
    s->was_there[m->peer] = true;
    if (m->header.kind == MESSAGE_FAILED) {
        status rc = ps_message_failure(m);
        ps_port_release(&s->port, m);
        return rc;
    }
    dp_item *item = s->running ? find_item(s, m) : NULL;
    if (item) return take_item(s, item, m, now_ns);
    if (s->held_count < s->held_capacity) {
        s->held[s->held_count++] = *m;
        return STATUS_OK;
    }
    status rc = malformed(s, m);
    ps_port_release(&s->port, m);
    return rc;
}

status star_take_held(dp_star *s, int64_t now_ns)
{
    int kept = 0;
    for (int i = 0; i < s->held_count; i++) {
        ps_message m = s->held[i];
        dp_item *item = find_item(s, &m);
        if (item)
            TRY(take_item(s, item, &m, now_ns));
        else
            s->held[kept++] = m;
    }
    s->held_count = kept;
    return STATUS_OK;
}

status star_receive(dp_star *s, int64_t now_ns, bool *worked)
{
    for (int i = 0; i < MESSAGES_AT_ONCE; i++) {
        ps_message m;
        status rc = ps_port_receive(&s->port, &m);
        if (rc == STATUS_AGAIN) return STATUS_OK;
        if (rc != STATUS_OK) return rc;
        *worked = true;
        TRY(take(s, &m, now_ns));
    }
    return STATUS_OK;
}
