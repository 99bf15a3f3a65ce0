/* An emulated link that carries the bytes that a call moves between ranks. It only delays: real runs on one
 * machine show what a network would do to them.
 *
 * A step of a ring is a message from the left neighbor, which takes latency + bytes / bandwidth; its slices
 * arrive one after another. 2(n-1) steps of bytes/n each make the textbook's
 *
 *     2 (n-1) latency + 2 (n-1)/n bytes / bandwidth
 *
 * Two-shot moves the same bytes in one message to and from every peer at once: reduce-scatter and all-gather,
 * two latencies. It is charged as a whole, from the moment when all ranks have arrived: what the ranks read
 * of each other's memory in the meantime stands for what the network carries, and sums are computed as it
 * arrives. Every other call is charged in the same way. */
#include "common/collectives/shm/shm_internal.h"

static int64_t busier_way_bytes(const shm_queue *q)
{
    shm_moved m = shm_call_moved(q);
    return (m.sent > m.received ? m.sent : m.received) * dtype_size(q->call->type);
}

void shm_charge(shm_queue *q, int64_t bytes, bool own_message, bool follows)
{
    q->charged = true;
    q->charge_bytes = bytes;
    q->charge_latency = own_message;
    q->was_there = follows && shm_queue_may_advance(q);
    q->due_ns = 0;
}

/* The way in is free at in_ns; what is on its way already follows without a gap, whenever it was noticed. */
static int64_t carry(shm_queue *q, int64_t ready_ns)
{
    net_adapter *a = &shm_world_of(q)->adapter;
    int64_t ns = net_link_occupied_ns(&a->link, q->charge_bytes);
    int64_t begin = atomic_load_explicit(&a->in_ns, memory_order_relaxed);
    if (!q->was_there && ready_ns > begin) begin = ready_ns;
    if (q->charge_latency) begin += a->link.latency_ns;
    atomic_store_explicit(&a->in_ns, begin + ns, memory_order_relaxed);
    return begin + ns;
}

bool shm_is_due(shm_queue *q, int64_t now_ns)
{
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

void shm_charge_call(shm_queue *q, int64_t arrived_ns)
{
    shm_await(q, q->step, 0);
    shm_charge(q, busier_way_bytes(q), true, false);
    q->due_ns = carry(q, arrived_ns) + (depth(q) - 1) * shm_world_of(q)->adapter.link.latency_ns;
}
