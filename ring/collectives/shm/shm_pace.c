/* An emulated link between ranks that share memory: nothing but waiting, so that real runs on one machine
 * show what a network would do to them.
 *
 * A step of a ring is a message from the left neighbour, which takes latency + bytes / bandwidth; its items
 * come in one behind the other. 2(n-1) steps of bytes/n each make the textbook's
 *
 *     2 (n-1) latency + 2 (n-1)/n bytes / bandwidth
 *
 * Two-shot moves the same bytes in one message to and from every peer at once: reduce-scatter and
 * all-gather, two latencies. It is charged as a whole, from the moment when all ranks have arrived: what the
 * ranks read of each other's memory in the meantime is what the network carries, and sums are taken as it
 * comes in. Every other call is charged alike. */
#include "ring/collectives/shm/shm_internal.h"

static net_adapter *adapter_of(const shm_lane *lane)
{
    return &((shm_world *)lane->group->base.world)->adapter;
}

static bool is_emulated(const shm_lane *lane)
{
    return lane->size > 1 && net_link_is_emulated(&adapter_of(lane)->link);
}

void shm_charge(shm_lane *lane, int64_t bytes, bool own_message, bool follows)
{
    if (!is_emulated(lane)) return;
    lane->charged = true;
    lane->charge_bytes = bytes;
    lane->charge_latency = own_message;
    lane->was_there = follows && shm_lane_may_advance(lane);
    lane->due_ns = 0;
}

/* The way in is free at in_ns; what is on its way already follows without a gap, whenever it was noticed. */
static int64_t carry(shm_lane *lane, int64_t ready_ns)
{
    net_adapter *a = adapter_of(lane);
    int64_t ns = net_link_occupied_ns(&a->link, lane->charge_bytes);
    int64_t begin = atomic_load_explicit(&a->in_ns, memory_order_relaxed);
    if (!lane->was_there && ready_ns > begin) begin = ready_ns;
    if (lane->charge_latency) begin += a->link.latency_ns;
    atomic_store_explicit(&a->in_ns, begin + ns, memory_order_relaxed);
    return begin + ns;
}

bool shm_is_due(shm_lane *lane, int64_t now_ns)
{
    if (!lane->charged) return true;
    if (lane->due_ns == 0) lane->due_ns = carry(lane, now_ns);
    if (now_ns < lane->due_ns) return false;
    lane->charged = false;
    return true;
}

/* How many messages one after another two-shot would take on a network. */
static int depth(const shm_lane *lane)
{
    bool twice = lane->call->kind == COLLECTIVE_ALL_REDUCE || lane->call->kind == COLLECTIVE_REDUCE;
    return twice && lane->mode != SHM_INLINE ? 2 : 1;
}

bool shm_charge_call(shm_lane *lane, int64_t arrived_ns)
{
    if (!is_emulated(lane) || lane->algorithm == &shm_algorithm_ring) return false;
    shm_await(lane, lane->step, 0);
    shm_charge(lane, shm_busier_way_bytes(lane), true, false);
    lane->due_ns = carry(lane, arrived_ns) + (depth(lane) - 1) * adapter_of(lane)->link.latency_ns;
    return true;
}
