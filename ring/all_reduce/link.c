/* An emulated link between ranks. The link only delays calls, so that runs on one machine show the effect of
 * a network.
 *
 * Each step of a ring is a message from the left neighbor and takes latency + bytes / bandwidth. The slices
 * of a step arrive one after another. The 2(n-1) steps of an all-reduce, each with bytes/n, take the time
 * that textbooks give,
 *
 *     2 (n-1) latency + 2 (n-1)/n bytes / bandwidth
 *
 * Two-shot moves the same number of bytes in two halves, a reduce-scatter and an all-gather. In each half a
 * rank exchanges messages with all peers at the same time, so a call takes two latencies. A call of two-shot
 * is one transfer on the link, which begins when all ranks have arrived. The time of the copies through
 * shared memory counts as part of this transfer. Every call that does not run as a ring is charged like a
 * call of two-shot. */
#include "ring/all_reduce/shm.h"

void shm_charge(shm_queue *q, int64_t bytes, bool own_message, bool follows)
{
    q->charged = true;
    q->charge_bytes = bytes;
    q->charge_latency = own_message;
    q->was_there = follows && shm_queue_may_advance(q);
    q->due_ns = 0;
}

/* Returns the time at which the transfer arrives, and occupies the link until then. The adapter's in_ns is
 * the time from which the link is free. A transfer that began before this rank began to wait uses the link
 * from in_ns on, even if this rank notices the transfer late. Other transfers do not begin before
 * ready_ns. */
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

/* Returns the number of messages that follow each other in a call of two-shot. */
static int depth(const shm_queue *q)
{
    bool twice = q->call->kind == COLLECTIVE_ALL_REDUCE || q->call->kind == COLLECTIVE_REDUCE;
    return twice && q->mode != SHM_INLINE ? 2 : 1;
}

void shm_charge_call(shm_queue *q, int64_t arrived_ns)
{
    collective_traffic moved = shm_call_moved(q);
    shm_await(q, q->step, 0);
    shm_charge(q, moved.bytes_sent > moved.bytes_received ? moved.bytes_sent : moved.bytes_received, true,
               false);
    q->due_ns = carry(q, arrived_ns) + (depth(q) - 1) * shm_world_of(q)->adapter.link.latency_ns;
}
