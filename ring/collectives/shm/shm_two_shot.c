/* Two-shot: each rank reduces its n-th of all buffers (shot one) and writes it to all ranks (shot two). No rank
 * forwards what it has received.
 *
 *   all_reduce of three ranks over a = a0 a1 a2, b, c (share r is cut on cache lines):
 *
 *     rank 0 reads a0 b0 c0, writes s0 = (a0 + b0) + c0 to all three ranks
 *     rank 1 reads a1 b1 c1, writes s1 to all three
 *     rank 2 reads a2 b2 c2, writes s2 to all three
 *
 * Two waits (all have arrived, all have written) and one pass over memory: each rank reads (n-1)/n of a buffer from its
 * peers and as much is written by them, as in a ring, but without its 2(n-1) consecutive steps. Sums are computed in
 * rank order.
 *
 * Inline (operands in the slots): every rank computes the whole result itself, after a single wait. */
#include "ring/collectives/shm/shm_internal.h"

static bool two_shot_has_form(collective_kind kind)
{
    (void)kind;
    return true;
}

void shm_place_own_part(shm_queue *q)
{
    const collective_call *c = q->call;
    int n = q->size, me = q->me;
    int64_t begin = collective_part_begin(c->count, n, me), part = collective_part_count(c->count, n, me);
    switch (c->kind) {
    case COLLECTIVE_BROADCAST:
        if (me == c->root) pieces_copy(c->type, &q->out, 0, &q->in, 0, c->count);
        break;
    case COLLECTIVE_ALL_GATHER:
        pieces_copy(c->type, &q->out, begin, &q->in, 0, part);
        break;
    case COLLECTIVE_GATHER:
        if (me == c->root) pieces_copy(c->type, &q->out, begin, &q->in, 0, part);
        break;
    case COLLECTIVE_SCATTER:
        if (me == c->root) pieces_copy(c->type, &q->out, 0, &q->in, begin, part);
        break;
    case COLLECTIVE_ALL_TO_ALL:
        pieces_copy(c->type, &q->out, me * part, &q->in, begin, part);
        break;
    default:
        break;
    }
}

void shm_copy_in(shm_queue *q)
{
    const collective_call *c = q->call;
    piece_buffer area = shm_exposed_in(q, q->me);
    int64_t at = q->round_at;
    switch (c->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_SEND:
        pieces_copy(c->type, &area, at, &q->in, at, q->round_count);
        break;
    case COLLECTIVE_BROADCAST:
        if (q->me == c->root) pieces_copy(c->type, &area, at, &q->in, at, q->round_count);
        break;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_GATHER:
        pieces_copy(c->type, &area, shm_exposed_index(q, q->me, at), &q->in, at, shm_round_part(q, q->me));
        break;
    case COLLECTIVE_SCATTER:
        if (q->me != c->root) break;
        /* fall through */
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALL_TO_ALL:
        for (int m = 0; m < q->size; m++)
            pieces_copy(c->type, &area, shm_exposed_index(q, m, at), &q->in,
                        collective_part_begin(c->count, q->size, m) + at, shm_round_part(q, m));
        break;
    case COLLECTIVE_RECEIVE:
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_KIND_COUNT:
        break;
    }
}

/* All ranks' operands over [at, at + count) of what they expose, to `outs`. */
static void reduce_exposed(shm_queue *q, int64_t in_at, char *const *outs, int out_count, piece_layout out_layout,
                           int64_t out_at, int64_t count)
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
    reduce_exposed(q, at, all ? q->exposed_out : &q->exposed_out[q->call->root], all ? q->size : 1, q->out_layout, at,
                   end - begin);
}

/* Copies from the peers what this rank's `out` needs, for all kinds whose results every rank writes itself. */
static void fetch(shm_queue *q)
{
    const collective_call *c = q->call;
    int n = q->size, me = q->me;
    int64_t at = q->round_at, part = collective_part_count(c->count, n, me);
    for (int m = 0; m < n; m++) {
        piece_buffer in = shm_exposed_in(q, m), out = shm_exposed_out(q, m);
        if (m == me) continue;
        switch (c->kind) {
        case COLLECTIVE_BROADCAST:
            if (m == c->root) pieces_copy(c->type, &q->out, at, &out, at, q->round_count);
            break;
        case COLLECTIVE_ALL_GATHER:
            pieces_copy(c->type, &q->out, collective_part_begin(c->count, n, m) + at, &out, shm_exposed_index(q, m, at),
                        shm_round_part(q, m));
            break;
        case COLLECTIVE_GATHER:
            if (me == c->root)
                pieces_copy(c->type, &q->out, collective_part_begin(c->count, n, m) + at, &in,
                            shm_exposed_index(q, m, at), shm_round_part(q, m));
            break;
        case COLLECTIVE_SCATTER:
            if (m == c->root)
                pieces_copy(c->type, &q->out, at, &in, shm_exposed_index(q, me, at), shm_round_part(q, me));
            break;
        case COLLECTIVE_ALL_TO_ALL:
            pieces_copy(c->type, &q->out, m * part + at, &in, shm_exposed_index(q, me, at), shm_round_part(q, me));
            break;
        case COLLECTIVE_RECEIVE:
            pieces_copy(c->type, &q->out, at, &in, at, q->round_count);
            break;
        default:
            break;
        }
    }
}

static void reduce_own_part(shm_queue *q)
{
    reduce_exposed(q, shm_exposed_index(q, q->me, q->round_at), &q->out.base, 1, q->out.layout, q->round_at,
                   shm_round_part(q, q->me));
}

void shm_run_inline(shm_queue *q)
{
    switch (q->call->kind) {
    case COLLECTIVE_REDUCE:
        if (q->me != q->call->root) break;
        /* fall through */
    case COLLECTIVE_ALL_REDUCE:
        reduce_exposed(q, 0, &q->out.base, 1, q->out.layout, 0, q->round_count);
        break;
    case COLLECTIVE_REDUCE_SCATTER:
        reduce_own_part(q);
        break;
    default:
        fetch(q);
        break;
    }
}

static void two_shot_begin_round(shm_queue *q)
{
    switch (q->call->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
        reduce_own_share(q);
        break;
    case COLLECTIVE_REDUCE_SCATTER:
        reduce_own_part(q);
        break;
    default:
        fetch(q);
        break;
    }
    shm_publish(q, 1, shm_everyone(q));
    shm_await(q, q->step, shm_everyone(q));
}

static bool two_shot_advance(shm_queue *q)
{
    (void)q;
    return true;
}

static void two_shot_copy_out(shm_queue *q)
{
    const collective_call *c = q->call;
    bool here = c->kind == COLLECTIVE_ALL_REDUCE || (c->kind == COLLECTIVE_REDUCE && q->me == c->root);
    piece_buffer area = shm_exposed_out(q, q->me);
    if (here) pieces_copy(c->type, &q->out, q->round_at, &area, q->round_at, q->round_count);
}

const shm_algorithm shm_algorithm_two_shot = {
    .has_form = two_shot_has_form,
    .begin_round = two_shot_begin_round,
    .advance = two_shot_advance,
    .copy_out = two_shot_copy_out,
};
