#include "ps/port.h"

#include "common/base/clock.h"
#include "common/net/status_table.h"
#include "ps/keys.h"

#include <string.h>

status ps_port_open(ps_port *p, const transport_options *options, int peers, int held, int partner,
                    uint32_t capacity)
{
    p->peers = peers;
    p->partner = partner;
    p->links = ps_allocate(&p->memory, peers, sizeof *p->links);
    p->was_connected = ps_allocate(&p->memory, peers, sizeof *p->was_connected);
    p->in_place = ps_allocate(&p->memory, peers, sizeof *p->in_place);
    TRY(ps_memory_check(&p->memory, "the links of a port"));
    for (int i = 0; i < peers; i++) p->links[i] = PS_NO_PEER;
    if (partner != PS_NO_PEER) TRY(sync_queue_init(&p->in, capacity, sizeof(ps_message)));
    const transport_type *type = transport_hub_type(options->hub);
    p->in_events = type != &transport_zmq;
    p->lends_frames = options->hub != NULL && !p->in_events;
    TRY(transport_open(type, options, &p->transport));
    return transport_reserve(p->transport, held);
}

void ps_port_disconnect(ps_port *p)
{
    sync_agent_close(&p->agent);
    transport_close(&p->transport, NS_PER_S);
}

void ps_port_close(ps_port *p)
{
    ps_port_disconnect(p);
    sync_queue_deinit(&p->in);
    ps_memory_free(&p->memory);
}

int64_t ps_port_now(const ps_port *p)
{
    return p->device ? device_now_ns(p->device) : clock_now_ns();
}

typedef enum port_attention { PORT_AWAKE, PORT_ASLEEP, PORT_WOKEN } port_attention;

/* Wakes the agent after something was posted to it. */
static void wake(void *context)
{
    ps_port *p = context;
    int before = atomic_exchange_explicit(&p->attention, PORT_WOKEN, memory_order_acq_rel);
    if (before == PORT_ASLEEP || p->in_events) transport_wake(p->transport);
}

/* ---- messages --------------------------------------------------------------------------------- */

/* Converts the times in a header to a clock that is `ns` ahead. A time of 0 means unknown, and does not
 * change. */
static void shift_times(message_header *h, int64_t ns)
{
    int64_t *times[] = {&h->sent_ns, &h->ready_ns, &h->arrived_ns, &h->last_ns, &h->pushed_ns};
    for (int i = 0; i < 5 && ns != 0; i++)
        if (*times[i] != 0) *times[i] = (int64_t)((uint64_t)*times[i] + (uint64_t)ns);
}

static status send_to_partner(ps_port *p, const message_header *header, const message_frame *frames,
                              int count)
{
    ps_message m = {.header = *header, .peer = p->other->partner};
    if (count > 0) m.frame = frames[0];
    m.header.frames = count;
    m.header.sent_ns = ps_port_now(p);
    if (!sync_queue_push(&p->other->in, &m)) return STATUS_AGAIN;
    wake(p->other);
    return STATUS_OK;
}

static void count_sent(ps_port *p, int64_t messages, int64_t payload)
{
    atomic_fetch_add_explicit(&p->messages_sent, messages, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->bytes_sent, payload, memory_order_relaxed);
}

status ps_port_send(ps_port *p, int peer, const message_header *header, const message_frame *frames,
                    int count, transport_ticket *ticket, int64_t payload)
{
    if (peer == p->partner) return send_to_partner(p, header, frames, count);
    if (p->links[peer] == PS_NO_PEER) return STATUS_AGAIN;
    /* The message is counted before it is sent, because the receiver may end the step before this thread
     * continues. */
    count_sent(p, 1, payload);
    message_header stamped = *header;
    stamped.sent_ns = ps_port_now(p);
    shift_times(&stamped, -p->ahead_ns);
    status rc = transport_send(p->transport, p->links[peer], &stamped, frames, count, ticket);
    if (rc != STATUS_OK) count_sent(p, -1, -payload);
    return rc;
}

static status receive_one(ps_port *p, ps_message *out)
{
    if (p->partner != PS_NO_PEER && sync_queue_pop(&p->in, out)) return STATUS_OK;
    TRY(transport_receive(p->transport, &out->message));
    out->header = out->message.header;
    shift_times(&out->header, p->ahead_ns);
    out->peer = transport_link_peer(p->transport, out->message.link);
    out->remote = true;
    p->was_connected[out->peer] = true;
    atomic_fetch_add_explicit(&p->messages_received, 1, memory_order_relaxed);
    return STATUS_OK;
}

status ps_port_receive(ps_port *p, int64_t now_ns, bool *worked)
{
    enum { MESSAGES_AT_ONCE = 64 };
    for (int i = 0; i < MESSAGES_AT_ONCE; i++) {
        ps_message m;
        status rc = receive_one(p, &m);
        if (rc == STATUS_AGAIN) return STATUS_OK;
        if (rc != STATUS_OK) return rc;
        *worked = true;
        m.arrived_ns = now_ns > m.header.sent_ns ? now_ns : m.header.sent_ns;
        TRY(p->ops->handle(p->context, &m, now_ns));
    }
    return STATUS_OK;
}

void ps_port_release(ps_port *p, ps_message *m)
{
    if (m->remote) transport_release(p->transport, &m->message);
    m->remote = false;
}

status ps_port_done(ps_port *p, ps_message *m, status rc)
{
    ps_port_release(p, m);
    return rc;
}

int ps_frames_of(message_frame *frames, const void *arena, piece_list pieces, int64_t size)
{
    for (int i = 0; i < pieces.count; i++)
        frames[i] = (message_frame){(const char *)arena + pieces.pieces[i].offset * size,
                                    (size_t)(pieces.pieces[i].count * size)};
    return pieces.count;
}

status ps_port_send_pieces(ps_port *p, int peer, const message_header *header, const void *arena,
                           piece_list pieces, int64_t size, transport_ticket *ticket, int64_t payload)
{
    message_frame frames[PS_KEY_PIECES];
    int count = p->in_place[peer] ? 0 : ps_frames_of(frames, arena, pieces, size);
    return ps_port_send(p, peer, header, frames, count, ticket, payload);
}

bool ps_has_frames_of(const ps_message *m, piece_list pieces, int64_t size)
{
    if (m->header.frames != pieces.count) return false;
    for (int i = 0; i < pieces.count; i++)
        if (ps_message_frame(m, i).bytes != (size_t)(pieces.pieces[i].count * size)) return false;
    return true;
}

bool ps_port_carries(const ps_port *p, const ps_message *m, piece_list pieces, int64_t size)
{
    return m->header.frames == 0 ? p->in_place[m->peer] : ps_has_frames_of(m, pieces, size);
}

void ps_take_frames(device *d, const ps_message *m, void *arena, piece_list pieces, int64_t size)
{
    for (int i = 0; i < pieces.count; i++)
        sync_copy(d, (char *)arena + pieces.pieces[i].offset * size, ps_message_frame(m, i).data,
                  (size_t)(pieces.pieces[i].count * size));
}

void ps_copy_pieces(device *d, void *to, const void *from, piece_list pieces, int64_t size)
{
    for (int i = 0; i < pieces.count; i++) {
        int64_t at = pieces.pieces[i].offset * size;
        sync_copy(d, (char *)to + at, (const char *)from + at, (size_t)(pieces.pieces[i].count * size));
    }
}

status ps_message_failure(const ps_message *m)
{
    return message_failure(&m->header, m->header.frames > 0 ? ps_message_frame(m, 0) : (message_frame){0});
}

void ps_port_count_received(ps_port *p, int peer, int64_t payload)
{
    if (peer != p->partner) atomic_fetch_add_explicit(&p->bytes_received, payload, memory_order_relaxed);
}

void ps_port_collect(const ps_port *p, sync_counters *out)
{
    out->agents_cpu_ns += sync_agent_cpu_ns(p->agent);
    out->bytes_sent += atomic_load_explicit(&p->bytes_sent, memory_order_relaxed);
    out->bytes_received += atomic_load_explicit(&p->bytes_received, memory_order_relaxed);
    out->messages_sent += atomic_load_explicit(&p->messages_sent, memory_order_relaxed);
    out->messages_received += atomic_load_explicit(&p->messages_received, memory_order_relaxed);
}

bool ps_port_is_connected(const ps_port *p, int peer)
{
    if (peer == p->partner) return true;
    return p->links[peer] != PS_NO_PEER && transport_link_up(p->transport, p->links[peer]);
}

bool ps_port_has_left(ps_port *p, int peer)
{
    bool connected = ps_port_is_connected(p, peer);
    p->was_connected[peer] = p->was_connected[peer] || connected;
    return p->was_connected[peer] && !connected;
}

bool ps_is_late(const sync_context *c, int64_t *since_ns, int64_t patience_ns, int64_t now_ns,
                int64_t *deadline_ns)
{
    if (now_ns >= *since_ns + patience_ns) {
        int64_t moved_ns = status_table_others_ns(c->table, c->slot);
        if (moved_ns > *since_ns) *since_ns = moved_ns;
    }
    int64_t limit = *since_ns + patience_ns;
    if (now_ns < limit && limit < *deadline_ns) *deadline_ns = limit;
    return now_ns >= limit;
}

/* ---- the agent -------------------------------------------------------------------------------- */

/* Sleeps until there may be work. Returns at once if the port has been woken since the last wait. */
static void wait_for_more(void *context, int64_t deadline_ns)
{
    ps_port *p = context;
    int before = atomic_exchange_explicit(&p->attention, PORT_ASLEEP, memory_order_acq_rel);
    if (before != PORT_WOKEN) transport_wait(p->transport, deadline_ns);
    atomic_exchange_explicit(&p->attention, PORT_AWAKE, memory_order_acq_rel);
}

static status progress(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    ps_port *p = context;
    status rc = p->ops->progress(p->context, now_ns, deadline_ns, worked);
    if (rc == STATUS_OK) return rc;
    error_copy(&p->failure);
    message_header h = {.kind = MESSAGE_FAILED, .flags = (uint32_t)p->failure.code};
    message_frame text = {p->failure.message, strlen(p->failure.message)};
    error_clear();
    for (int i = 0; i < p->peers; i++) ps_port_send(p, i, &h, &text, 1, &p->failure_ticket, 0);
    error_clear();
    return error_adopt(&p->failure);
}

static void failed(void *context, const error_record *error)
{
    ps_port *p = context;
    atomic_store_explicit(&p->ended, true, memory_order_release);
    p->ops->failed(p->context, error);
}

status ps_port_start(ps_port *p, const ps_port_ops *ops, void *context, device *d, const char *name,
                     const sync_context *inline_for)
{
    static const sync_agent_ops agent_ops = {progress, wait_for_more, wake, failed};
    p->ops = ops;
    p->context = context;
    p->device = d;
    sync_agent_config config = {
        &agent_ops, p, d, name, inline_for != NULL, inline_for ? inline_for->anatomy : NULL};
    return sync_agent_open(&config, &p->agent);
}

status ps_port_serve(ps_port *p, const ps_port_ops *ops, void *context, const atomic_int *until, int count)
{
    enum { IDLE_LOOPS = 64 };
    p->ops = ops;
    p->context = context;
    for (int idle = 0; atomic_load_explicit(until, memory_order_relaxed) < count;) {
        int64_t deadline = CLOCK_NEVER;
        bool worked = false;
        TRY(progress(p, clock_now_ns(), &deadline, &worked));
        if (worked)
            idle = 0;
        else if (++idle >= IDLE_LOOPS)
            wait_for_more(p, deadline);
    }
    return STATUS_OK;
}

bool ps_port_has_failed(const ps_port *p)
{
    return atomic_load_explicit(&p->ended, memory_order_acquire);
}
