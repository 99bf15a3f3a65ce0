/* Rings over shared memory: the functions of a channel, and the table entry of the ring algorithm
 * (shm_algorithm_ring). All collectives of the ring run the steps in ring.c:
 *
 *   all-reduce       n-1 steps that add, then n-1 steps that copy
 *   reduce-scatter   the first half, shifted by one chunk so that chunk r ends at rank r
 *   all-gather       the second half
 *   broadcast        one step, in which a chain from the root copies along the ring, slice by slice */
#include "ring/all_reduce/shm.h"

/* Largest number of slices per chunk. It keeps the steps of a call within SHM_STEP_BITS. */
enum { MOST_SLICES = 1 << 16 };

static int left_of(const shm_queue *q)
{
    return (q->me + q->size - 1) % q->size;
}

static int right_of(const shm_queue *q)
{
    return (q->me + 1) % q->size;
}

/* ---- the channel ------------------------------------------------------------------------------ */

static ring_range whole_chunk(const shm_queue *q, int chunk)
{
    if (collective_is_cut(q->call->kind))
        return (ring_range){shm_exposed_index(q, chunk, q->round_at), shm_round_part(q, chunk)};
    if (q->call->kind == COLLECTIVE_BROADCAST) return (ring_range){q->round_at, q->round_count};
    int64_t begin = shm_share_begin(q, q->round_count, chunk);
    return (ring_range){q->round_at + begin, shm_share_begin(q, q->round_count, chunk + 1) - begin};
}

ring_range ring_channel_slice(const ring_channel *c, int chunk)
{
    ring_range all = whole_chunk(c->queue, chunk);
    return (ring_range){all.begin + collective_part_begin(all.count, c->slices, c->slice),
                        collective_part_count(all.count, c->slices, c->slice)};
}

void ring_channel_publish(ring_channel *c, int slices)
{
    shm_queue *q = c->queue;
    c->slice += slices;
    c->step += c->slice / c->slices;
    c->slice %= c->slices;
    shm_publish(q, slices, shm_bit(right_of(q)) | (c->step == c->steps ? shm_bit(left_of(q)) : 0));
}

void ring_channel_await_left(ring_channel *c, ring_range r)
{
    shm_queue *q = c->queue;
    /* In a chain, step s waits for step s of the left neighbor. In a ring, step s waits for step s-1 of the
     * left neighbor. */
    int steps = c->step + (q->call->kind == COLLECTIVE_BROADCAST);
    int64_t slices = steps == 0 ? 0 : (int64_t)(steps - 1) * c->slices + c->slice + 1;
    shm_await(q, c->base + (uint64_t)slices, shm_bit(left_of(q)));
    if (shm_link_is_emulated(q))
        shm_charge(q, r.count * dtype_size(c->type), c->slice == 0, c->step + c->slice > 0);
}

void ring_channel_await_right(ring_channel *c)
{
    shm_await(c->queue, c->base + (uint64_t)c->steps * (uint64_t)c->slices, shm_bit(right_of(c->queue)));
}

/* ---- the table entry --------------------------------------------------------------------------- */

static void begin_round(shm_queue *q)
{
    const collective_call *call = q->call;
    bool all_reduce = call->kind == COLLECTIVE_ALL_REDUCE, broadcast = call->kind == COLLECTIVE_BROADCAST;
    int half = q->size - 1;
    int64_t elements = all_reduce ? q->round_count / q->size : whole_chunk(q, 0).count;
    int64_t slices = 1 + elements * dtype_size(call->type) / SHM_RING_SLICE_BYTES;
    q->ring = (ring_channel){.ranks = q->size,
                             .type = call->type,
                             .op = call->op,
                             .in = shm_exposed_in(q, q->me),
                             .out = shm_exposed_out(q, q->me),
                             .left_in = shm_exposed_in(q, left_of(q)),
                             .left_out = shm_exposed_out(q, left_of(q)),
                             .first = q->me - 1 - (call->kind == COLLECTIVE_REDUCE_SCATTER),
                             .steps = all_reduce  ? 2 * half
                                      : broadcast ? 1
                                                  : half,
                             .sums = collective_reduces(call->kind) ? half : 0,
                             .slices = slices < MOST_SLICES ? (int)slices : MOST_SLICES,
                             .base = q->step,
                             .queue = q};
    if (broadcast && q->me == call->root) ring_channel_publish(&q->ring, q->ring.slices);
    ring_begin(&q->ring);
}

static bool advance(shm_queue *q)
{
    return ring_advance(&q->ring);
}

const shm_algorithm shm_algorithm_ring = {.kinds = 1U << COLLECTIVE_ALL_REDUCE |
                                                   1U << COLLECTIVE_REDUCE_SCATTER |
                                                   1U << COLLECTIVE_ALL_GATHER | 1U << COLLECTIVE_BROADCAST,
                                          .begin_round = begin_round,
                                          .advance = advance};
