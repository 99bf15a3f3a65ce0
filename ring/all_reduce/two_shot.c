/* Two-shot all-reduce: each rank reduces its share, one n-th, of all buffers (shot one) and writes the result
 * to all ranks (shot two). No rank forwards data that it has received.
 *
 * An all-reduce of three ranks with the buffers a = a0 a1 a2, b and c (shares begin at cache lines):
 *
 *   rank 0 reads a0 b0 c0, writes s0 = (a0 + b0) + c0 to all three ranks
 *   rank 1 reads a1 b1 c1, writes s1 to all three
 *   rank 2 reads a2 b2 c2, writes s2 to all three
 *
 * Each rank waits twice: until all ranks have arrived, and until all ranks have written. Each rank reads
 * (n-1)/n of a buffer from its peers, and the peers write the same number of bytes to the rank's buffer.
 * Two-shot moves as many bytes as a ring, but does not need the ring's 2(n-1) consecutive steps. Sums are
 * computed in rank order.
 *
 * In mode INLINE the operands are in the slots, and every rank computes the whole result itself after a
 * single wait. */
#include "ring/all_reduce/shm.h"

/* Reduces `count` elements of the exposed operands of all ranks, beginning at element in_at. Writes the
 * result to every buffer in `outs`. */
static void reduce_exposed(shm_queue *q, int64_t in_at, char *const *outs, int out_count,
                           piece_layout out_layout, int64_t out_at, int64_t count)
{
    pieces_reduction r = {
        .type = q->call->type,
        .op = q->call->op,
        .ins = q->exposed_in,
        .in_count = q->size,
        .in_layout = q->in_layout,
        .in_at = in_at,
        .outs = outs,
        .out_count = out_count,
        .out_layout = out_layout,
        .out_at = out_at,
        .count = count,
    };
    pieces_reduce_many(&r);
}

static void reduce_own_share(shm_queue *q)
{
    int64_t begin = shm_share_begin(q, q->round_count, q->me);
    int64_t end = shm_share_begin(q, q->round_count, q->me + 1), at = q->round_at + begin;
    bool all = q->call->kind == COLLECTIVE_ALL_REDUCE;
    reduce_exposed(q, at, all ? q->exposed_out : &q->exposed_out[q->call->root], all ? q->size : 1,
                   q->out_layout, at, end - begin);
}

static void reduce_or_fetch(shm_queue *q)
{
    collective_kind kind = q->call->kind;
    if (kind == COLLECTIVE_ALL_REDUCE || kind == COLLECTIVE_REDUCE)
        reduce_own_share(q);
    else if (kind == COLLECTIVE_REDUCE_SCATTER)
        reduce_exposed(q, shm_exposed_index(q, q->me, q->round_at), &q->out.base, 1, q->out.layout,
                       q->round_at, shm_round_part(q, q->me));
    else
        shm_fetch(q);
}

void shm_run_inline(shm_queue *q)
{
    const collective_call *c = q->call;
    if (c->kind == COLLECTIVE_ALL_REDUCE || (c->kind == COLLECTIVE_REDUCE && q->me == c->root))
        reduce_exposed(q, 0, &q->out.base, 1, q->out.layout, 0, q->round_count);
    else if (c->kind != COLLECTIVE_REDUCE)
        reduce_or_fetch(q);
}

static void begin_round(shm_queue *q)
{
    reduce_or_fetch(q);
    shm_publish(q, 1, shm_everyone(q));
    shm_await(q, q->step, shm_everyone(q));
}

const shm_algorithm shm_algorithm_two_shot = {.kinds = UINT32_MAX, .begin_round = begin_round};
