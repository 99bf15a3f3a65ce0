/* A call as one or several operations of NCCL, which run as a group. */
#include "ring/collectives/nccl/collective_nccl_impl.h"

#include <stdlib.h>

static nccl_part *add_part(nccl_group *g, const collective_call *call, nccl_kind kind, int peer, int64_t count)
{
    if (g->part_count == g->part_capacity) {
        int capacity = g->part_capacity ? 2 * g->part_capacity : 16;
        nccl_part *more = realloc(g->parts, (size_t)capacity * sizeof *more);
        if (!more) return NULL;
        g->parts = more;
        g->part_capacity = capacity;
    }
    nccl_part *p = &g->parts[g->part_count++];
    *p = (nccl_part){.kind = kind, .op = call->op, .type = call->type, .peer = peer, .count = count};
    return p;
}

static char *element(const collective_buffer *b, dtype type, int64_t i)
{
    return b->base ? (char *)b->base + i * dtype_size(type) : NULL;
}

static status no_memory(const collective_call *call)
{
    char text[128];
    return fail(STATUS_SYSTEM, "no memory for %s", collective_call_format(call, text, sizeof text));
}

/* A part over the elements from `in_at` of `in` and `out_at` of `out`, both without pieces. */
static status add(nccl_group *g, const collective_call *call, nccl_kind kind, int peer, int64_t count, int64_t in_at,
                  int64_t out_at)
{
    if (count == 0) return STATUS_OK;
    nccl_part *p = add_part(g, call, kind, peer, count);
    if (!p) return no_memory(call);
    p->in = element(&call->in, call->type, in_at);
    p->out = element(&call->out, call->type, out_at);
    return STATUS_OK;
}

/* The same elements of both buffers: a part for each piece, where there are pieces. */
static status add_whole(nccl_group *g, const collective_call *call, nccl_kind kind)
{
    const piece_list *pieces = &call->out.pieces;
    if (call->in.pieces.pieces != pieces->pieces)
        return fail(STATUS_INTERNAL, "collectives nccl: `in` and `out` lie in different pieces");
    if (!pieces->pieces) return add(g, call, kind, call->root, call->count, 0, 0);
    for (int i = 0; i < pieces->count; i++)
        TRY(add(g, call, kind, call->root, pieces->pieces[i].count, pieces->pieces[i].offset,
                pieces->pieces[i].offset));
    return STATUS_OK;
}

/* Parts may be of different sizes, so a gather is a broadcast from each rank, a scatter of a reduction a
 * reduction to each. A single part is at its buffer's base. */
static status add_parts(nccl_group *g, const collective_call *call)
{
    int n = g->base.size, me = g->base.rank;
    int64_t mine = collective_part_count(call->count, n, me);
    for (int r = 0; r < n; r++) {
        int64_t at = collective_part_begin(call->count, n, r), count = collective_part_count(call->count, n, r);
        switch (call->kind) {
        case COLLECTIVE_ALL_GATHER:
            TRY(add(g, call, NCCL_BROADCAST, r, count, 0, at));
            break;
        case COLLECTIVE_REDUCE_SCATTER:
            TRY(add(g, call, NCCL_REDUCE, r, count, at, 0));
            break;
        case COLLECTIVE_GATHER:
            if (me == call->root) TRY(add(g, call, NCCL_RECEIVE, r, count, 0, at));
            if (r == call->root) TRY(add(g, call, NCCL_SEND, r, mine, 0, 0));
            break;
        case COLLECTIVE_SCATTER:
            if (me == call->root) TRY(add(g, call, NCCL_SEND, r, count, at, 0));
            if (r == call->root) TRY(add(g, call, NCCL_RECEIVE, r, mine, 0, 0));
            break;
        default: /* all_to_all */
            TRY(add(g, call, NCCL_SEND, r, count, at, 0));
            TRY(add(g, call, NCCL_RECEIVE, r, mine, 0, r * mine));
            break;
        }
    }
    return STATUS_OK;
}

status nccl_make_parts(nccl_group *g, const collective_call *call)
{
    nccl_world *w = (nccl_world *)g->base.world;
    collective_call barrier = {.kind = COLLECTIVE_ALL_REDUCE, .type = DTYPE_I32, .count = 1};
    g->part_count = 0;
    switch (call->kind) {
    case COLLECTIVE_ALL_REDUCE:
        return add_whole(g, call, NCCL_ALL_REDUCE);
    case COLLECTIVE_REDUCE:
        return add_whole(g, call, NCCL_REDUCE);
    case COLLECTIVE_BROADCAST:
        return add_whole(g, call, NCCL_BROADCAST);
    case COLLECTIVE_SEND:
        return add(g, call, NCCL_SEND, call->root, call->count, 0, 0);
    case COLLECTIVE_RECEIVE:
        return add(g, call, NCCL_RECEIVE, call->root, call->count, 0, 0);
    case COLLECTIVE_BARRIER:
        barrier.in.base = barrier.out.base = w->scratch.data;
        return add_whole(g, &barrier, NCCL_ALL_REDUCE);
    default:
        return add_parts(g, call);
    }
}
