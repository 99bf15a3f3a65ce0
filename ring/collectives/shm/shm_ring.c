/* Rings. Rank r takes from its left neighbour r-1 only, so whatever the number of ranks each link carries
 * the same traffic (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
 * workstations", JPDC 2009).
 *
 * All-reduce cuts the buffer into n chunks and makes 2(n-1) steps. In step s rank r works on chunk
 * (r - 1 - s) mod n: in the first n-1 steps (reduce-scatter) it adds its own values to the left
 * neighbour's partial sum, in the other n-1 (all-gather) it copies the left neighbour's finished chunk.
 * Five ranks, buffers a to e, chunks 0 to 4; "ea4" is e4 + a4, capitals are finished sums:
 *
 *      step      rank 0   rank 1   rank 2   rank 3   rank 4
 *        0        ea4      ab0      bc1      cd2      de3
 *        1        dea3     eab4     abc0     bcd1     cde2
 *        2        cdea2    deab3    eabc4    abcd0    bcde1
 *        3        BCDEA1   CDEAB2   DEABC3   EABCD4   ABCDE0
 *      ------------------------------------------------------
 *        4        0        1        2        3        4          chunk copied from the left
 *        5        4        0        1        2        3
 *        6        3        4        0        1        2
 *        7        2        3        4        0        1
 *
 * So chunk c is summed in the order c, c+1, ..., c-1: the ring's order. Each rank reads 2(n-1)/n of a
 * buffer. Chunks are handed on in items of SHM_RING_ITEM_BYTES, so that the steps of neighbours overlap
 * and an item is read while it is still in a cache: item t of rank r waits for item t - items_a_chunk of
 * rank r-1, that is for the same item of the step before.
 *
 * No rank overwrites what its right neighbour still needs: chunk c is written by r in steps s and s + n,
 * and for step s + n of r the dependence has gone once around, through step s + 1 of r+1, which read it.
 *
 * Reduce-scatter is the first half, shifted by one chunk so that chunk r ends at rank r; all-gather the
 * second half; broadcast a chain from the root along the ring, item by item. */
#include "ring/collectives/shm/shm_internal.h"

enum { MOST_ITEMS_A_CHUNK = 1 << 16 };

static bool ring_has_form(collective_kind kind)
{
    return kind == COLLECTIVE_ALL_REDUCE || kind == COLLECTIVE_REDUCE_SCATTER ||
           kind == COLLECTIVE_ALL_GATHER || kind == COLLECTIVE_BROADCAST;
}

static int left_of(const shm_lane *lane)
{
    return (lane->me + lane->size - 1) % lane->size;
}

static int right_of(const shm_lane *lane)
{
    return (lane->me + 1) % lane->size;
}

/* A range of the exposed operands. */
typedef struct range {
    int64_t begin, count; /* exposed index, elements */
} range;

static range chunk_range(const shm_lane *lane, int chunk)
{
    if (shm_is_cut(lane->call->kind))
        return (range){shm_exposed_index(lane, chunk, lane->round_at), shm_round_part(lane, chunk)};
    if (lane->call->kind == COLLECTIVE_BROADCAST) return (range){lane->round_at, lane->round_count};
    int64_t begin = shm_share_begin(lane, lane->round_count, chunk);
    return (range){lane->round_at + begin, shm_share_begin(lane, lane->round_count, chunk + 1) - begin};
}

static range item_range(const shm_lane *lane, int chunk, int64_t item)
{
    range all = chunk_range(lane, chunk);
    int64_t begin = collective_part_begin(all.count, (int)lane->items_a_chunk, (int)item);
    return (range){all.begin + begin, collective_part_count(all.count, (int)lane->items_a_chunk, (int)item)};
}

static void add_item(shm_lane *lane, int64_t step, range r, bool last)
{
    const collective_call *c = lane->call;
    buffer_view own = shm_exposed_in(lane, lane->me), out = shm_exposed_out(lane, lane->me);
    buffer_view left = step == 0 ? shm_exposed_in(lane, left_of(lane)) : shm_exposed_out(lane, left_of(lane));
    view_reduce_pair(c->type, c->op, &out, &left, &own, r.begin, r.count);
    if (last && c->op == REDUCE_MEAN) view_divide(c->type, &out, r.begin, r.count, lane->size);
}

static void copy_item(shm_lane *lane, range r)
{
    buffer_view out = shm_exposed_out(lane, lane->me), left = shm_exposed_out(lane, left_of(lane));
    view_copy(lane->call->type, &out, r.begin, &left, r.begin, r.count);
}

/* What this rank works on as its item t. */
static range range_of_item(const shm_lane *lane, int64_t t)
{
    int n = lane->size;
    int64_t step = t / lane->items_a_chunk;
    bool shifted = lane->call->kind == COLLECTIVE_REDUCE_SCATTER;
    int chunk = (int)(((lane->me - 1 - shifted - step) % n + n) % n);
    return item_range(lane, chunk, t % lane->items_a_chunk);
}

static void run_item(shm_lane *lane)
{
    int n = lane->size;
    int64_t step = lane->item / lane->items_a_chunk;
    bool gathers = lane->call->kind == COLLECTIVE_ALL_GATHER || lane->call->kind == COLLECTIVE_BROADCAST;
    range r = range_of_item(lane, lane->item);
    if (gathers || step >= n - 1)
        copy_item(lane, r);
    else
        add_item(lane, step, r, step == n - 2);
}

/* ---- waiting ---------------------------------------------------------------------------------- */

/* Items of the left neighbour that item t needs to have been finished. */
static int64_t needed_items(const shm_lane *lane, int64_t t)
{
    if (lane->call->kind == COLLECTIVE_BROADCAST) return t + 1;
    return t < lane->items_a_chunk ? 0 : t - lane->items_a_chunk + 1;
}

static uint64_t step_before_items(const shm_lane *lane)
{
    return lane->step - (uint64_t)lane->item;
}

static void await_next(shm_lane *lane)
{
    if (lane->item < lane->items) {
        shm_await(lane, step_before_items(lane) + (uint64_t)needed_items(lane, lane->item),
                  shm_bit(left_of(lane)));
        shm_charge(lane, range_of_item(lane, lane->item).count * dtype_size(lane->call->type),
                   lane->item % lane->items_a_chunk == 0, lane->item > 0);
    } else /* until the right neighbour has read everything */
        shm_await(lane, step_before_items(lane) + (uint64_t)lane->items, shm_bit(right_of(lane)));
}

static void finish_items(shm_lane *lane, int64_t items)
{
    lane->item += items;
    uint64_t left = lane->item == lane->items ? shm_bit(left_of(lane)) : 0;
    shm_publish(lane, items, shm_bit(right_of(lane)) | left);
}

static int64_t steps_of(const shm_lane *lane)
{
    if (lane->call->kind == COLLECTIVE_BROADCAST) return 1;
    return (lane->call->kind == COLLECTIVE_ALL_REDUCE ? 2 : 1) * (lane->size - 1);
}

static void ring_begin_round(shm_lane *lane)
{
    int64_t bytes = chunk_range(lane, 0).count * dtype_size(lane->call->type);
    if (!shm_is_cut(lane->call->kind) && lane->call->kind != COLLECTIVE_BROADCAST)
        bytes = lane->round_count * dtype_size(lane->call->type) / lane->size;
    lane->items_a_chunk = 1 + bytes / SHM_RING_ITEM_BYTES;
    if (lane->items_a_chunk > MOST_ITEMS_A_CHUNK) lane->items_a_chunk = MOST_ITEMS_A_CHUNK;
    lane->items = steps_of(lane) * lane->items_a_chunk;
    lane->item = 0;
    if (lane->call->kind == COLLECTIVE_BROADCAST && lane->me == lane->call->root)
        finish_items(lane, lane->items);
    await_next(lane);
}

static bool ring_advance(shm_lane *lane)
{
    if (lane->item == lane->items) return true;
    run_item(lane);
    finish_items(lane, 1);
    await_next(lane);
    return false;
}

/* ---- staged ----------------------------------------------------------------------------------- */

static void take_part(shm_lane *lane, int part, int64_t out_at)
{
    buffer_view area = shm_exposed_out(lane, lane->me);
    view_copy(lane->call->type, &lane->out, out_at, &area, shm_exposed_index(lane, part, lane->round_at),
              shm_round_part(lane, part));
}

static void ring_copy_out(shm_lane *lane)
{
    const collective_call *c = lane->call;
    int64_t at = lane->round_at;
    switch (c->kind) {
    case COLLECTIVE_ALL_REDUCE:
        take_part(lane, 0, at);
        break;
    case COLLECTIVE_BROADCAST:
        if (lane->me != c->root) take_part(lane, 0, at);
        break;
    case COLLECTIVE_REDUCE_SCATTER:
        take_part(lane, lane->me, at);
        break;
    case COLLECTIVE_ALL_GATHER:
        for (int m = 0; m < lane->size; m++)
            if (m != lane->me) take_part(lane, m, collective_part_begin(c->count, lane->size, m) + at);
        break;
    default:
        break;
    }
}

const shm_algorithm shm_algorithm_ring = {
    .has_form = ring_has_form,
    .begin_round = ring_begin_round,
    .advance = ring_advance,
    .copy_out = ring_copy_out,
};
