/* A call as operations of MPI: first its description, then its rounds. */
#include "ring/collectives/mpi/collective_mpi_impl.h"

#include <string.h>

enum { MOST_COUNT = 1 << 30 }; /* elements per round: MPI counts in int */

static mpi_world *world_of(const mpi_queue *q)
{
    return (mpi_world *)q->group->base.world;
}

static status start(mpi_queue *q, const mpi_module_call *call)
{
    const mpi_world *w = world_of(q);
    int code = w->module->start(q->group->comm, call, q->request);
    if (code) return mpi_fail(w, code, collective_kind_name((collective_kind)call->kind));
    return STATUS_OK;
}

status mpi_test(mpi_queue *q, bool *done)
{
    const mpi_world *w = world_of(q);
    int code = w->module->test(q->request, done);
    if (code) return mpi_fail(w, code, collective_kind_name(q->call->kind));
    return STATUS_OK;
}

/* ---- descriptions ----------------------------------------------------------------------------- */

static void print_of(const collective_call *c, int64_t *out)
{
    int64_t words[PRINT_WORDS] = {c->kind, c->op, c->type, c->root, c->tag, c->count};
    memcpy(out, words, sizeof words);
}

static status differ(const mpi_queue *q, int rank, const int64_t *p)
{
    char theirs[128], ours[128];
    collective_call other = {(collective_kind)p[0], (reduce_op)p[1], (dtype)p[2], (int)p[3], (int)p[4], p[5], {0}, {0}};
    return fail(STATUS_PROTOCOL, "call %llu of group '%s': its rank %d makes %s, rank %d makes %s",
                (unsigned long long)q->completed + 1, q->group->base.name, rank,
                collective_call_format(&other, theirs, sizeof theirs), q->group->base.rank,
                collective_call_format(q->call, ours, sizeof ours));
}

status mpi_begin_check(mpi_queue *q)
{
    mpi_group *g = q->group;
    const collective_call *c = q->call;
    q->phase = QUEUE_CHECKING;
    if (q->pair) { /* the sender describes, the receiver compares */
        print_of(c, q->print);
        bool sends = c->kind == COLLECTIVE_SEND;
        return start(q, &(mpi_module_call){.kind = c->kind,
                                           .type = DTYPE_I64,
                                           .root = c->root,
                                           .tag = 1,
                                           .count = PRINT_WORDS,
                                           .in = sends ? q->print : NULL,
                                           .out = sends ? NULL : q->peer_print});
    }
    int n = g->base.size;
    int64_t *own = g->prints + n * PRINT_WORDS;
    print_of(c, own);
    for (int r = 0; r < n; r++) {
        g->counts[r] = PRINT_WORDS;
        g->counts[n + r] = r * PRINT_WORDS;
    }
    return start(q, &(mpi_module_call){.kind = COLLECTIVE_ALL_GATHER,
                                       .type = DTYPE_I64,
                                       .counts = g->counts,
                                       .places = g->counts + n,
                                       .in = own,
                                       .out = g->prints});
}

status mpi_end_check(mpi_queue *q)
{
    const mpi_group *g = q->group;
    if (q->call->kind == COLLECTIVE_SEND) return STATUS_OK;
    if (q->pair) { /* a send to us has our rank where the receive has the sender's */
        bool same = memcmp(q->print + 1, q->peer_print + 1, 2 * sizeof(int64_t)) == 0 &&
                    memcmp(q->print + 4, q->peer_print + 4, 2 * sizeof(int64_t)) == 0;
        return same ? STATUS_OK : differ(q, q->call->root, q->peer_print);
    }
    const int64_t *own = g->prints + g->base.size * PRINT_WORDS;
    for (int r = 0; r < g->base.size; r++) {
        const int64_t *print = g->prints + r * PRINT_WORDS;
        if (memcmp(print, own, PRINT_WORDS * sizeof *own) != 0) return differ(q, r, print);
    }
    return STATUS_OK;
}

/* ---- rounds ----------------------------------------------------------------------------------- */

static int64_t most_a_round(const mpi_queue *q)
{
    int64_t elements = q->staging_bytes / dtype_size(q->call->type);
    if (!q->staged) return MOST_COUNT;
    if (q->call->kind == COLLECTIVE_ALL_TO_ALL) elements /= 2;
    return collective_is_cut(q->call->kind) ? elements / q->group->base.size : elements;
}

/* Elements of part `rank` in this round; sets counts and places of all parts in the staging buffer. */
static void cut_round(mpi_queue *q)
{
    mpi_group *g = q->group;
    int n = g->base.size, *counts = g->counts, *places = counts + n, *out_counts = counts + 2 * n,
        *out_places = counts + 3 * n, at = 0;
    for (int r = 0; r < n; r++) {
        int64_t left = collective_part_count(q->call->count, n, r) - q->round_at;
        counts[r] = (int)(left < 0 ? 0 : left < q->round_count ? left : q->round_count);
        places[r] = at;
        at += counts[r];
    }
    for (int r = 0; r < n; r++) {
        out_counts[r] = counts[g->base.rank];
        out_places[r] = r * out_counts[r];
    }
}

static piece_buffer staging(const mpi_queue *q, int64_t element)
{
    return (piece_buffer){.base = q->staging + element * dtype_size(q->call->type)};
}

/* Where all_to_all receives. */
static int64_t second_half(const mpi_queue *q)
{
    return q->group->base.size * most_a_round(q);
}

static void copy_part_in(mpi_queue *q, int part, int64_t from)
{
    const int *counts = q->group->counts, *places = counts + q->group->base.size;
    piece_buffer area = staging(q, places[part]);
    pieces_copy(q->call->type, &area, 0, &q->in, from + q->round_at, counts[part]);
}

static void copy_part_out(mpi_queue *q, int64_t place, int count, int64_t to)
{
    piece_buffer area = staging(q, place);
    pieces_copy(q->call->type, &q->out, to + q->round_at, &area, 0, count);
}

static int64_t part_begin(const mpi_queue *q, int part)
{
    return collective_part_begin(q->call->count, q->group->base.size, part);
}

static status start_cut(mpi_queue *q)
{
    const collective_call *c = q->call;
    const mpi_group *g = q->group;
    int n = g->base.size, me = g->base.rank;
    bool root = me == c->root;
    cut_round(q);
    char *own = staging(q, g->counts[n + me]).base;
    mpi_module_call call = {.kind = c->kind,
                            .op = c->op,
                            .type = c->type,
                            .root = c->root,
                            .counts = g->counts,
                            .places = g->counts + n,
                            .out_counts = g->counts + 2 * n,
                            .out_places = g->counts + 3 * n,
                            .out = q->staging};
    switch (c->kind) {
    case COLLECTIVE_ALL_GATHER:
        copy_part_in(q, me, 0);
        break;
    case COLLECTIVE_GATHER:
        copy_part_in(q, me, 0);
        call.in = root ? NULL : own;
        break;
    case COLLECTIVE_SCATTER:
        call.in = q->staging;
        call.out = root ? NULL : own;
        if (!root) break;
        /* fall through */
    default:
        for (int r = 0; r < n; r++) copy_part_in(q, r, part_begin(q, r));
    }
    if (c->kind == COLLECTIVE_ALL_TO_ALL) {
        call.in = q->staging;
        call.out = staging(q, second_half(q)).base;
    }
    return start(q, &call);
}

static void end_cut(mpi_queue *q)
{
    const collective_call *c = q->call;
    const int *counts = q->group->counts;
    int n = q->group->base.size, me = q->group->base.rank;
    switch (c->kind) {
    case COLLECTIVE_GATHER:
        if (me != c->root) break;
        /* fall through */
    case COLLECTIVE_ALL_GATHER:
        for (int r = 0; r < n; r++) copy_part_out(q, counts[n + r], counts[r], part_begin(q, r));
        break;
    case COLLECTIVE_SCATTER:
        copy_part_out(q, counts[n + me], counts[me], 0);
        break;
    case COLLECTIVE_REDUCE_SCATTER:
        copy_part_out(q, 0, counts[me], 0);
        if (c->op == REDUCE_MEAN) pieces_divide(c->type, &q->out, q->round_at, counts[me], n);
        break;
    default: /* all_to_all */
        for (int r = 0; r < n; r++)
            copy_part_out(q, second_half(q) + counts[3 * n + r], counts[me],
                          r * collective_part_count(c->count, n, me));
    }
}

static status start_whole(mpi_queue *q)
{
    const collective_call *c = q->call;
    int64_t bytes = q->round_at * dtype_size(c->type);
    bool root = q->group->base.rank == c->root;
    mpi_module_call call = {.kind = c->kind,
                            .op = c->op,
                            .type = c->type,
                            .root = c->root,
                            .count = (int)q->round_count,
                            .in = q->in.base + bytes,
                            .out = q->out.base + bytes};
    if (c->kind == COLLECTIVE_BROADCAST && root)
        pieces_copy(c->type, &q->out, q->round_at, &q->in, q->round_at, q->round_count);
    if (q->staged) {
        piece_buffer area = staging(q, 0);
        bool has_in = c->kind != COLLECTIVE_RECEIVE && (c->kind != COLLECTIVE_BROADCAST || root);
        if (has_in) pieces_copy(c->type, &area, 0, &q->in, q->round_at, q->round_count);
        call.in = call.out = q->staging;
    }
    bool reduces_here = c->kind == COLLECTIVE_ALL_REDUCE || (c->kind == COLLECTIVE_REDUCE && root);
    if (reduces_here && call.in == call.out) call.in = NULL;
    return start(q, &call);
}

static void end_whole(mpi_queue *q)
{
    const collective_call *c = q->call;
    bool root = q->group->base.rank == c->root;
    bool has_result = c->kind == COLLECTIVE_ALL_REDUCE || (c->kind == COLLECTIVE_REDUCE && root);
    bool has_out = has_result || c->kind == COLLECTIVE_RECEIVE || (c->kind == COLLECTIVE_BROADCAST && !root);
    if (q->staged && has_out) copy_part_out(q, 0, (int)q->round_count, 0);
    if (has_result && c->op == REDUCE_MEAN)
        pieces_divide(c->type, &q->out, q->round_at, q->round_count, q->group->base.size);
}

static status start_round(mpi_queue *q)
{
    int64_t left = q->round_end - q->round_at, most = most_a_round(q);
    q->round_count = left < most ? left : most;
    return collective_is_cut(q->call->kind) ? start_cut(q) : start_whole(q);
}

status mpi_first_round(mpi_queue *q)
{
    const collective_call *c = q->call;
    bool cut = collective_is_cut(c->kind);
    q->in = piece_buffer_of(&c->in, c->type);
    q->out = piece_buffer_of(&c->out, c->type);
    q->staged = cut || q->in.layout.pieces.pieces || q->out.layout.pieces.pieces;
    q->round_at = 0;
    q->round_end = cut ? collective_part_count(c->count, q->group->base.size, 0) : c->count;
    q->phase = QUEUE_RUNNING;
    return start_round(q);
}

/* Every member sends and receives alike in MPI's rings; counted as an all-reduce's share of the bytes. */
static void count_traffic(mpi_queue *q)
{
    collective_traffic *t = &q->group->base.world->traffic;
    int64_t n = q->group->base.size, bytes = q->call->count * dtype_size(q->call->type);
    int64_t share = bytes * (n - 1) / n * (q->call->kind == COLLECTIVE_ALL_REDUCE ? 2 : 1);
    bool sends = q->call->kind != COLLECTIVE_RECEIVE, receives = q->call->kind != COLLECTIVE_SEND;
    t->bytes_sent += sends ? (receives ? share : bytes) : 0;
    t->bytes_received += receives ? (sends ? share : bytes) : 0;
    t->messages_sent += sends;
    t->messages_received += receives;
}

status mpi_end_round(mpi_queue *q, bool *more)
{
    if (collective_is_cut(q->call->kind))
        end_cut(q);
    else
        end_whole(q);
    q->round_at += q->round_count;
    *more = q->round_at < q->round_end;
    if (*more) return start_round(q);
    count_traffic(q);
    return STATUS_OK;
}
