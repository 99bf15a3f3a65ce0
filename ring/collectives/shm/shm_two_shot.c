/* Two-shot: no rank passes on what it has received. Every operand is read where its owner exposed
 * it; results of an all-reduce are written to all ranks by the one that made them.
 *
 *   all_reduce of three ranks over a = a0 a1 a2, b, c (share r is cut on cache lines):
 *
 *     rank 0 reads a0 b0 c0, writes s0 = (a0 + b0) + c0 to all three ranks
 *     rank 1 reads a1 b1 c1, writes s1 to all three
 *     rank 2 reads a2 b2 c2, writes s2 to all three
 *
 * Two waits (all have arrived, all have written), one pass over memory: each rank reads (n-1)/n of a
 * buffer from its peers and has as much written by them, as in a ring, but without the 2(n-1) steps
 * one behind the other. Sums are taken in rank order.
 *
 * Inline (operands in the slots): every rank makes the whole result by itself, behind a single wait. */
#include "ring/collectives/shm/shm_internal.h"

static bool two_shot_has_form(collective_kind kind)
{
    (void)kind;
    return true;
}

void shm_place_own_part(shm_lane *lane)
{
    const collective_call *c = lane->call;
    int n = lane->size, me = lane->me;
    int64_t begin = collective_part_begin(c->count, n, me), part = collective_part_count(c->count, n, me);
    switch (c->kind) {
    case COLLECTIVE_BROADCAST:
        if (me == c->root) view_copy(c->type, &lane->out, 0, &lane->in, 0, c->count);
        break;
    case COLLECTIVE_ALL_GATHER:
        view_copy(c->type, &lane->out, begin, &lane->in, 0, part);
        break;
    case COLLECTIVE_GATHER:
        if (me == c->root) view_copy(c->type, &lane->out, begin, &lane->in, 0, part);
        break;
    case COLLECTIVE_SCATTER:
        if (me == c->root) view_copy(c->type, &lane->out, 0, &lane->in, begin, part);
        break;
    case COLLECTIVE_ALL_TO_ALL:
        view_copy(c->type, &lane->out, me * part, &lane->in, begin, part);
        break;
    default:
        break;
    }
}

void shm_copy_in(shm_lane *lane)
{
    const collective_call *c = lane->call;
    buffer_view area = shm_exposed_in(lane, lane->me);
    int64_t at = lane->round_at;
    switch (c->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_SEND:
        view_copy(c->type, &area, at, &lane->in, at, lane->round_count);
        break;
    case COLLECTIVE_BROADCAST:
        if (lane->me == c->root) view_copy(c->type, &area, at, &lane->in, at, lane->round_count);
        break;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_GATHER:
        view_copy(c->type, &area, shm_exposed_index(lane, lane->me, at), &lane->in, at,
                  shm_round_part(lane, lane->me));
        break;
    case COLLECTIVE_SCATTER:
        if (lane->me != c->root) break;
        /* fall through */
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALL_TO_ALL:
        for (int m = 0; m < lane->size; m++)
            view_copy(c->type, &area, shm_exposed_index(lane, m, at), &lane->in,
                      collective_part_begin(c->count, lane->size, m) + at, shm_round_part(lane, m));
        break;
    case COLLECTIVE_RECEIVE:
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_KIND_COUNT:
        break;
    }
}

/* All ranks' operands over [at, at + count) of what they expose, to `outs`. */
static void reduce_exposed(shm_lane *lane, int64_t in_at, char *const *outs, int out_count,
                           view_layout out_layout, int64_t out_at, int64_t count)
{
    view_reduction r = {
        .type = lane->call->type,
        .op = lane->call->op,
        .ins = lane->exposed_in,
        .in_count = lane->size,
        .in_layout = lane->in_layout,
        .in_at = in_at,
        .outs = outs,
        .out_count = out_count,
        .out_layout = out_layout,
        .out_at = out_at,
        .count = count,
    };
    view_reduce_many(&r);
}

static void reduce_own_share(shm_lane *lane)
{
    int64_t begin = shm_share_begin(lane, lane->round_count, lane->me);
    int64_t end = shm_share_begin(lane, lane->round_count, lane->me + 1), at = lane->round_at + begin;
    bool all = lane->call->kind == COLLECTIVE_ALL_REDUCE;
    reduce_exposed(lane, at, all ? lane->exposed_out : &lane->exposed_out[lane->call->root],
                   all ? lane->size : 1, lane->out_layout, at, end - begin);
}

/* Takes what this rank's `out` needs of its peers, for all kinds whose results every rank writes itself. */
static void fetch(shm_lane *lane)
{
    const collective_call *c = lane->call;
    int n = lane->size, me = lane->me;
    int64_t at = lane->round_at, part = collective_part_count(c->count, n, me);
    for (int m = 0; m < n; m++) {
        buffer_view in = shm_exposed_in(lane, m), out = shm_exposed_out(lane, m);
        if (m == me) continue;
        switch (c->kind) {
        case COLLECTIVE_BROADCAST:
            if (m == c->root) view_copy(c->type, &lane->out, at, &out, at, lane->round_count);
            break;
        case COLLECTIVE_ALL_GATHER:
            view_copy(c->type, &lane->out, collective_part_begin(c->count, n, m) + at, &out,
                      shm_exposed_index(lane, m, at), shm_round_part(lane, m));
            break;
        case COLLECTIVE_GATHER:
            if (me == c->root)
                view_copy(c->type, &lane->out, collective_part_begin(c->count, n, m) + at, &in,
                          shm_exposed_index(lane, m, at), shm_round_part(lane, m));
            break;
        case COLLECTIVE_SCATTER:
            if (m == c->root)
                view_copy(c->type, &lane->out, at, &in, shm_exposed_index(lane, me, at),
                          shm_round_part(lane, me));
            break;
        case COLLECTIVE_ALL_TO_ALL:
            view_copy(c->type, &lane->out, m * part + at, &in, shm_exposed_index(lane, me, at),
                      shm_round_part(lane, me));
            break;
        case COLLECTIVE_RECEIVE:
            view_copy(c->type, &lane->out, at, &in, at, lane->round_count);
            break;
        default:
            break;
        }
    }
}

static void reduce_own_part(shm_lane *lane)
{
    reduce_exposed(lane, shm_exposed_index(lane, lane->me, lane->round_at), &lane->out.base, 1,
                   lane->out.layout, lane->round_at, shm_round_part(lane, lane->me));
}

void shm_run_inline(shm_lane *lane)
{
    switch (lane->call->kind) {
    case COLLECTIVE_REDUCE:
        if (lane->me != lane->call->root) break;
        /* fall through */
    case COLLECTIVE_ALL_REDUCE:
        reduce_exposed(lane, 0, &lane->out.base, 1, lane->out.layout, 0, lane->round_count);
        break;
    case COLLECTIVE_REDUCE_SCATTER:
        reduce_own_part(lane);
        break;
    default:
        fetch(lane);
        break;
    }
}

static void two_shot_begin_round(shm_lane *lane)
{
    switch (lane->call->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
        reduce_own_share(lane);
        break;
    case COLLECTIVE_REDUCE_SCATTER:
        reduce_own_part(lane);
        break;
    default:
        fetch(lane);
        break;
    }
    shm_publish(lane, 1, shm_everyone(lane));
    shm_await(lane, lane->step, shm_everyone(lane));
}

static bool two_shot_advance(shm_lane *lane)
{
    (void)lane;
    return true;
}

static void two_shot_copy_out(shm_lane *lane)
{
    const collective_call *c = lane->call;
    bool here = c->kind == COLLECTIVE_ALL_REDUCE || (c->kind == COLLECTIVE_REDUCE && lane->me == c->root);
    buffer_view area = shm_exposed_out(lane, lane->me);
    if (here) view_copy(c->type, &lane->out, lane->round_at, &area, lane->round_at, lane->round_count);
}

const shm_algorithm shm_algorithm_two_shot = {
    .has_form = two_shot_has_form,
    .begin_round = two_shot_begin_round,
    .advance = two_shot_advance,
    .copy_out = two_shot_copy_out,
};
