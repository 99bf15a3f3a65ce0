/* The bytes that a call moves between ranks, and an emulated link that carries them. The link only delays: real runs on
 * one machine show what a network would do to them.
 *
 * A step of a ring is a message from the left neighbor, which takes latency + bytes / bandwidth; its slices arrive one
 * after another. 2(n-1) steps of bytes/n each make the textbook's
 *
 *     2 (n-1) latency + 2 (n-1)/n bytes / bandwidth
 *
 * Two-shot moves the same bytes in one message to and from every peer at once: reduce-scatter and all-gather, two
 * latencies. It is charged as a whole, from the moment when all ranks have arrived: what the ranks read of each other's
 * memory in the meantime stands for what the network carries, and sums are computed as it arrives. Every other call is
 * charged in the same way. */
#include "ring/collectives/shm/shm_internal.h"

/* ---- bytes moved by a call, whichever rank copies: what a peer writes into our memory is received ---- */

/* Sums over elements; turned into bytes at the end. */
typedef struct moved {
    int64_t sent, received, messages_sent, messages_received;
} moved;

static moved symmetric(int64_t sent, int64_t received, int64_t messages)
{
    return (moved){sent, received, messages, messages};
}

/* In a ring of `steps` steps rank r receives chunks r-1, r-2, ... and sends r, r-1, ... */
static moved ring_moved(const shm_queue *q)
{
    const collective_call *c = q->call;
    int n = q->size, me = q->me;
    moved m = {0};
    if (c->kind == COLLECTIVE_BROADCAST) {
        int distance = (me - c->root + n) % n;
        if (distance > 0) m.received = c->count, m.messages_received = 1;
        if (distance < n - 1) m.sent = c->count, m.messages_sent = 1;
        return m;
    }
    int steps = (c->kind == COLLECTIVE_ALL_REDUCE ? 2 : 1) * (n - 1);
    int shifted = c->kind == COLLECTIVE_REDUCE_SCATTER;
    for (int s = 0; s < steps; s++) {
        int sends = ((me - shifted - s) % n + 2 * n) % n, takes = (sends - 1 + n) % n;
        if (collective_is_cut(c->kind)) {
            m.sent += collective_part_count(c->count, n, sends);
            m.received += collective_part_count(c->count, n, takes);
        } else {
            m.sent += shm_share_begin(q, c->count, sends + 1) - shm_share_begin(q, c->count, sends);
            m.received += shm_share_begin(q, c->count, takes + 1) - shm_share_begin(q, c->count, takes);
        }
    }
    m.messages_sent = m.messages_received = steps;
    return m;
}

static moved reduce_moved(const shm_queue *q, int64_t share)
{
    const collective_call *c = q->call;
    int peers = q->size - 1;
    bool root = q->me == c->root;
    if (q->mode == SHM_INLINE)
        return root ? (moved){.received = peers * c->count, .messages_received = peers}
                    : (moved){.sent = c->count, .messages_sent = 1};
    return root ? symmetric(c->count - share, peers * share + c->count - share, peers)
                : symmetric(c->count, peers * share, peers);
}

static moved two_shot_moved(const shm_queue *q)
{
    const collective_call *c = q->call;
    int me = q->me, peers = q->size - 1;
    bool root = me == c->root;
    int64_t share = shm_share_begin(q, c->count, me + 1) - shm_share_begin(q, c->count, me);
    int64_t part = collective_part_count(c->count, q->size, me);
    switch (c->kind) {
    case COLLECTIVE_ALL_REDUCE:
        if (q->mode == SHM_INLINE) return symmetric(peers * c->count, peers * c->count, peers);
        return symmetric(c->count - share + peers * share, c->count - share + peers * share, 2 * peers);
    case COLLECTIVE_REDUCE:
        return reduce_moved(q, share);
    case COLLECTIVE_BROADCAST:
        return root ? (moved){.sent = peers * c->count, .messages_sent = peers}
                    : (moved){.received = c->count, .messages_received = 1};
    case COLLECTIVE_ALL_GATHER:
        return symmetric(peers * part, c->count - part, peers);
    case COLLECTIVE_REDUCE_SCATTER:
        return symmetric(c->count - part, peers * part, peers);
    case COLLECTIVE_ALL_TO_ALL:
        return symmetric(c->count - part, peers * part, peers);
    case COLLECTIVE_GATHER:
        return root ? (moved){.received = c->count - part, .messages_received = peers}
                    : (moved){.sent = part, .messages_sent = 1};
    case COLLECTIVE_SCATTER:
        return root ? (moved){.sent = c->count - part, .messages_sent = peers}
                    : (moved){.received = part, .messages_received = 1};
    case COLLECTIVE_SEND:
        return (moved){.sent = c->count, .messages_sent = 1};
    case COLLECTIVE_RECEIVE:
        return (moved){.received = c->count, .messages_received = 1};
    default:
        return (moved){0};
    }
}

static moved call_moved(const shm_queue *q)
{
    return q->algorithm == &shm_algorithm_ring ? ring_moved(q) : two_shot_moved(q);
}

static int64_t busier_way_bytes(const shm_queue *q)
{
    moved m = call_moved(q);
    return (m.sent > m.received ? m.sent : m.received) * dtype_size(q->call->type);
}

void shm_count_traffic(shm_queue *q)
{
    collective_traffic *t = &q->group->base.world->traffic;
    int size = dtype_size(q->call->type);
    moved m = call_moved(q);
    t->bytes_sent += m.sent * size;
    t->bytes_received += m.received * size;
    t->messages_sent += m.messages_sent;
    t->messages_received += m.messages_received;
}

/* ---- the emulated link ------------------------------------------------------------------------- */

static net_adapter *adapter_of(const shm_queue *q)
{
    return &((shm_world *)q->group->base.world)->adapter;
}

static bool is_emulated(const shm_queue *q)
{
    return q->size > 1 && net_link_is_emulated(&adapter_of(q)->link);
}

void shm_charge(shm_queue *q, int64_t bytes, bool own_message, bool follows)
{
    if (!is_emulated(q)) return;
    q->charged = true;
    q->charge_bytes = bytes;
    q->charge_latency = own_message;
    q->was_there = follows && shm_queue_may_advance(q);
    q->due_ns = 0;
}

/* The way in is free at in_ns; what is on its way already follows without a gap, whenever it was noticed. */
static int64_t carry(shm_queue *q, int64_t ready_ns)
{
    net_adapter *a = adapter_of(q);
    int64_t ns = net_link_occupied_ns(&a->link, q->charge_bytes);
    int64_t begin = atomic_load_explicit(&a->in_ns, memory_order_relaxed);
    if (!q->was_there && ready_ns > begin) begin = ready_ns;
    if (q->charge_latency) begin += a->link.latency_ns;
    atomic_store_explicit(&a->in_ns, begin + ns, memory_order_relaxed);
    return begin + ns;
}

bool shm_is_due(shm_queue *q, int64_t now_ns)
{
    if (!q->charged) return true;
    if (q->due_ns == 0) q->due_ns = carry(q, now_ns);
    if (now_ns < q->due_ns) return false;
    q->charged = false;
    return true;
}

/* How many messages one after another two-shot would take on a network. */
static int depth(const shm_queue *q)
{
    bool twice = q->call->kind == COLLECTIVE_ALL_REDUCE || q->call->kind == COLLECTIVE_REDUCE;
    return twice && q->mode != SHM_INLINE ? 2 : 1;
}

bool shm_charge_call(shm_queue *q, int64_t arrived_ns)
{
    if (!is_emulated(q) || q->algorithm == &shm_algorithm_ring) return false;
    shm_await(q, q->step, 0);
    shm_charge(q, busier_way_bytes(q), true, false);
    q->due_ns = carry(q, arrived_ns) + (depth(q) - 1) * adapter_of(q)->link.latency_ns;
    return true;
}
