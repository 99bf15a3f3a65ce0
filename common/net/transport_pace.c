/* Delays messages until an emulated link would have delivered them. */
#include "common/net/link.h"
#include "common/net/transport_impl.h"

#include <stdlib.h>
#include <string.h>

/* Allocates the circular queue of a link together with the frames of all entries. */
static status allocate_ring(const transport *t, transport_link *l)
{
    size_t window = (size_t)t->options.window, frames = (size_t)t->options.frames;
    l->deferred = calloc(window, sizeof *l->deferred + frames * sizeof *l->deferred->frames);
    if (!l->deferred) return fail(STATUS_SYSTEM, "transport: no memory for an emulated link");
    message_frame *first = (message_frame *)(l->deferred + window);
    for (size_t i = 0; i < window; i++) l->deferred[i].frames = first + i * frames;
    return STATUS_OK;
}

status transport_room(transport *t, int link)
{
    const transport_link *l = &t->links[link];
    if (!t->options.adapter || !t->type->up(t, link)) return t->type->room(t, link);
    return l->deferred_count < t->options.window ? STATUS_OK : STATUS_AGAIN;
}

status transport_defer(transport *t, int link, const message_header *header, const message_frame *frames,
                       int count, transport_ticket *ticket, int64_t bytes)
{
    transport_link *l = &t->links[link];
    if (!l->deferred) TRY(allocate_ring(t, l));
    if (l->deferred_count == t->options.window) return STATUS_AGAIN;
    transport_deferred *d = &l->deferred[(l->deferred_first + l->deferred_count) % t->options.window];
    d->release_ns = net_adapter_send(t->options.adapter, bytes, clock_now_ns());
    d->header = *header;
    d->count = count;
    d->ticket = ticket;
    if (count > 0) memcpy(d->frames, frames, (size_t)count * sizeof *frames);
    l->deferred_count++;
    t->deferred++;
    return STATUS_OK;
}

static status forward_link(transport *t, int link, int64_t now_ns)
{
    transport_link *l = &t->links[link];
    l->blocked = false;
    while (l->deferred_count > 0 && l->deferred[l->deferred_first].release_ns <= now_ns) {
        transport_deferred *d = &l->deferred[l->deferred_first];
        status result = t->send(t, link, &d->header, d->frames, d->count, d->ticket);
        l->blocked = result == STATUS_AGAIN;
        if (l->blocked) return STATUS_OK;
        if (result != STATUS_OK) return result;
        l->deferred_first = (l->deferred_first + 1) % t->options.window;
        l->deferred_count--;
        t->deferred--;
    }
    return STATUS_OK;
}

status transport_forward_due(transport *t)
{
    if (t->deferred == 0) return STATUS_OK;
    int64_t now_ns = clock_now_ns();
    for (int i = 0; i < 2 * t->options.peers; i++)
        if (t->links[i].deferred_count > 0) TRY(forward_link(t, i, now_ns));
    return STATUS_OK;
}

int64_t transport_next_due(const transport *t)
{
    int64_t due = t->held_count > 0 ? t->held[t->held_first].deliver_ns : CLOCK_NEVER;
    for (int i = 0; t->deferred > 0 && i < 2 * t->options.peers; i++) {
        const transport_link *l = &t->links[i];
        if (l->deferred_count > 0 && !l->blocked && l->deferred[l->deferred_first].release_ns < due)
            due = l->deferred[l->deferred_first].release_ns;
    }
    return due;
}

void transport_drop_deferred(transport *t, transport_link *l)
{
    for (; l->deferred_count > 0; l->deferred_count--, t->deferred--) {
        transport_deferred *d = &l->deferred[l->deferred_first];
        for (int i = 0; i < d->count; i++) transport_frame_released(d->ticket);
        l->deferred_first = (l->deferred_first + 1) % t->options.window;
    }
    free(l->deferred);
    l->deferred = NULL;
}

/* ---- the way in -------------------------------------------------------------------------------- */

/* Receives all messages that have arrived, so that the delay of each message begins at its arrival. */
static status hold(transport *t)
{
    if (!t->held) {
        t->held_size = 2 * t->options.peers * t->options.window;
        t->held = calloc((size_t)t->held_size, sizeof *t->held);
        if (!t->held) return fail(STATUS_SYSTEM, "transport: no memory for an emulated link");
    }
    while (t->held_count < t->held_size) {
        transport_held *h = &t->held[(t->held_first + t->held_count) % t->held_size];
        status result = transport_receive_now(t, &h->message);
        if (result == STATUS_AGAIN) return STATUS_OK;
        if (result != STATUS_OK) return result;
        int64_t bytes = transport_total_bytes(h->message.frames, h->message.header.frames);
        h->deliver_ns = net_adapter_receive(t->options.adapter, bytes, clock_now_ns());
        t->held_count++;
    }
    return STATUS_OK;
}

status transport_receive_due(transport *t, transport_message *out)
{
    TRY(hold(t));
    if (t->held_count == 0 || t->held[t->held_first].deliver_ns > clock_now_ns()) return STATUS_AGAIN;
    *out = t->held[t->held_first].message;
    t->held_first = (t->held_first + 1) % t->held_size;
    t->held_count--;
    return STATUS_OK;
}

void transport_drop_held(transport *t)
{
    for (; t->held_count > 0; t->held_count--) {
        transport_release(t, &t->held[t->held_first].message);
        t->held_first = (t->held_first + 1) % t->held_size;
    }
}
