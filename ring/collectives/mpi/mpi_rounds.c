/* What one call gives to MPI: first its description, then its rounds. */
#include "ring/collectives/mpi/collective_mpi_impl.h"

#include <string.h>

enum { MOST_COUNT = 1 << 30 }; /* elements a round: MPI counts in int */

static mpi_world *world_of(const mpi_lane *lane)
{
    return (mpi_world *)lane->group->base.world;
}

static status start(mpi_lane *lane, const mpi_module_call *call)
{
    const mpi_world *w = world_of(lane);
    int code = w->module->start(lane->group->comm, call, lane->request);
    if (code) return mpi_fail(w, code, collective_kind_name((collective_kind)call->kind));
    return STATUS_OK;
}

status mpi_test(mpi_lane *lane, bool *done)
{
    const mpi_world *w = world_of(lane);
    int code = w->module->test(lane->request, done);
    if (code) return mpi_fail(w, code, collective_kind_name(lane->call->kind));
    return STATUS_OK;
}

/* ---- descriptions ----------------------------------------------------------------------------- */

static void print_of(const collective_call *c, int64_t *out)
{
    int64_t words[PRINT_WORDS] = {c->kind, c->op, c->type, c->root, c->tag, c->count};
    memcpy(out, words, sizeof words);
}

static status differ(const mpi_lane *lane, int rank, const int64_t *p)
{
    char theirs[128], ours[128];
    collective_call other = {
        (collective_kind)p[0], (reduce_op)p[1], (dtype)p[2], (int)p[3], (int)p[4], p[5], {0}, {0}};
    return fail(STATUS_PROTOCOL, "call %llu of group '%s': its rank %d makes %s, rank %d makes %s",
                (unsigned long long)lane->completed + 1, lane->group->base.name, rank,
                collective_call_format(&other, theirs, sizeof theirs), lane->group->base.rank,
                collective_call_format(lane->call, ours, sizeof ours));
}

status mpi_begin_check(mpi_lane *lane)
{
    mpi_group *g = lane->group;
    const collective_call *c = lane->call;
    lane->phase = LANE_CHECKING;
    if (lane->pair) { /* the sender describes, the receiver compares */
        print_of(c, lane->print);
        bool sends = c->kind == COLLECTIVE_SEND;
        return start(lane, &(mpi_module_call){.kind = c->kind,
                                              .type = DTYPE_I64,
                                              .root = c->root,
                                              .tag = 1,
                                              .count = PRINT_WORDS,
                                              .in = sends ? lane->print : NULL,
                                              .out = sends ? NULL : lane->peer_print});
    }
    int n = g->base.size;
    int64_t *own = g->prints + n * PRINT_WORDS;
    print_of(c, own);
    for (int r = 0; r < n; r++) {
        g->counts[r] = PRINT_WORDS;
        g->counts[n + r] = r * PRINT_WORDS;
    }
    return start(lane, &(mpi_module_call){.kind = COLLECTIVE_ALL_GATHER,
                                          .type = DTYPE_I64,
                                          .counts = g->counts,
                                          .places = g->counts + n,
                                          .in = own,
                                          .out = g->prints});
}

status mpi_end_check(mpi_lane *lane)
{
    const mpi_group *g = lane->group;
    if (lane->call->kind == COLLECTIVE_SEND) return STATUS_OK;
    if (lane->pair) { /* a send to us has our rank where the receive has the sender's */
        bool same = memcmp(lane->print + 1, lane->peer_print + 1, 2 * sizeof(int64_t)) == 0 &&
                    memcmp(lane->print + 4, lane->peer_print + 4, 2 * sizeof(int64_t)) == 0;
        return same ? STATUS_OK : differ(lane, lane->call->root, lane->peer_print);
    }
    const int64_t *own = g->prints + g->base.size * PRINT_WORDS;
    for (int r = 0; r < g->base.size; r++) {
        const int64_t *print = g->prints + r * PRINT_WORDS;
        if (memcmp(print, own, PRINT_WORDS * sizeof *own) != 0) return differ(lane, r, print);
    }
    return STATUS_OK;
}

/* ---- rounds ----------------------------------------------------------------------------------- */

static bool is_cut(collective_kind kind)
{
    return kind == COLLECTIVE_ALL_GATHER || kind == COLLECTIVE_REDUCE_SCATTER || kind == COLLECTIVE_GATHER ||
           kind == COLLECTIVE_SCATTER || kind == COLLECTIVE_ALL_TO_ALL;
}

static int64_t most_a_round(const mpi_lane *lane)
{
    int64_t elements = lane->staging_bytes / dtype_size(lane->call->type);
    if (!lane->staged) return MOST_COUNT;
    if (lane->call->kind == COLLECTIVE_ALL_TO_ALL) elements /= 2;
    return is_cut(lane->call->kind) ? elements / lane->group->base.size : elements;
}

/* Elements of part `rank` in this round; sets counts and places of all parts in the staging buffer. */
static void cut_round(mpi_lane *lane)
{
    mpi_group *g = lane->group;
    int n = g->base.size, *counts = g->counts, *places = counts + n, *out_counts = counts + 2 * n,
        *out_places = counts + 3 * n, at = 0;
    for (int r = 0; r < n; r++) {
        int64_t left = collective_part_count(lane->call->count, n, r) - lane->round_at;
        counts[r] = (int)(left < 0 ? 0 : left < lane->round_count ? left : lane->round_count);
        places[r] = at;
        at += counts[r];
    }
    for (int r = 0; r < n; r++) {
        out_counts[r] = counts[g->base.rank];
        out_places[r] = r * out_counts[r];
    }
}

static buffer_view staging(const mpi_lane *lane, int64_t element)
{
    return (buffer_view){.base = lane->staging + element * dtype_size(lane->call->type)};
}

/* Where all_to_all receives. */
static int64_t second_half(const mpi_lane *lane)
{
    return lane->group->base.size * most_a_round(lane);
}

static void copy_part_in(mpi_lane *lane, int part, int64_t from)
{
    const int *counts = lane->group->counts, *places = counts + lane->group->base.size;
    buffer_view area = staging(lane, places[part]);
    view_copy(lane->call->type, &area, 0, &lane->in, from + lane->round_at, counts[part]);
}

static void copy_part_out(mpi_lane *lane, int64_t place, int count, int64_t to)
{
    buffer_view area = staging(lane, place);
    view_copy(lane->call->type, &lane->out, to + lane->round_at, &area, 0, count);
}

static int64_t part_begin(const mpi_lane *lane, int part)
{
    return collective_part_begin(lane->call->count, lane->group->base.size, part);
}

static status start_cut(mpi_lane *lane)
{
    const collective_call *c = lane->call;
    const mpi_group *g = lane->group;
    int n = g->base.size, me = g->base.rank;
    bool root = me == c->root;
    cut_round(lane);
    char *own = staging(lane, g->counts[n + me]).base;
    mpi_module_call call = {.kind = c->kind,
                            .op = c->op,
                            .type = c->type,
                            .root = c->root,
                            .counts = g->counts,
                            .places = g->counts + n,
                            .out_counts = g->counts + 2 * n,
                            .out_places = g->counts + 3 * n,
                            .out = lane->staging};
    switch (c->kind) {
    case COLLECTIVE_ALL_GATHER:
        copy_part_in(lane, me, 0);
        break;
    case COLLECTIVE_GATHER:
        copy_part_in(lane, me, 0);
        call.in = root ? NULL : own;
        break;
    case COLLECTIVE_SCATTER:
        call.in = lane->staging;
        call.out = root ? NULL : own;
        if (!root) break;
        /* fall through */
    default:
        for (int r = 0; r < n; r++) copy_part_in(lane, r, part_begin(lane, r));
    }
    if (c->kind == COLLECTIVE_ALL_TO_ALL) {
        call.in = lane->staging;
        call.out = staging(lane, second_half(lane)).base;
    }
    return start(lane, &call);
}

static void end_cut(mpi_lane *lane)
{
    const collective_call *c = lane->call;
    const int *counts = lane->group->counts;
    int n = lane->group->base.size, me = lane->group->base.rank;
    switch (c->kind) {
    case COLLECTIVE_GATHER:
        if (me != c->root) break;
        /* fall through */
    case COLLECTIVE_ALL_GATHER:
        for (int r = 0; r < n; r++) copy_part_out(lane, counts[n + r], counts[r], part_begin(lane, r));
        break;
    case COLLECTIVE_SCATTER:
        copy_part_out(lane, counts[n + me], counts[me], 0);
        break;
    case COLLECTIVE_REDUCE_SCATTER:
        copy_part_out(lane, 0, counts[me], 0);
        if (c->op == REDUCE_MEAN) view_divide(c->type, &lane->out, lane->round_at, counts[me], n);
        break;
    default: /* all_to_all */
        for (int r = 0; r < n; r++)
            copy_part_out(lane, second_half(lane) + counts[3 * n + r], counts[me],
                          r * collective_part_count(c->count, n, me));
    }
}

static status start_whole(mpi_lane *lane)
{
    const collective_call *c = lane->call;
    int64_t bytes = lane->round_at * dtype_size(c->type);
    bool root = lane->group->base.rank == c->root;
    mpi_module_call call = {.kind = c->kind,
                            .op = c->op,
                            .type = c->type,
                            .root = c->root,
                            .count = (int)lane->round_count,
                            .in = lane->in.base + bytes,
                            .out = lane->out.base + bytes};
    if (c->kind == COLLECTIVE_BROADCAST && root)
        view_copy(c->type, &lane->out, lane->round_at, &lane->in, lane->round_at, lane->round_count);
    if (lane->staged) {
        buffer_view area = staging(lane, 0);
        bool has_in = c->kind != COLLECTIVE_RECEIVE && (c->kind != COLLECTIVE_BROADCAST || root);
        if (has_in) view_copy(c->type, &area, 0, &lane->in, lane->round_at, lane->round_count);
        call.in = call.out = lane->staging;
    }
    bool reduces_here = c->kind == COLLECTIVE_ALL_REDUCE || (c->kind == COLLECTIVE_REDUCE && root);
    if (reduces_here && call.in == call.out) call.in = NULL;
    return start(lane, &call);
}

static void end_whole(mpi_lane *lane)
{
    const collective_call *c = lane->call;
    bool root = lane->group->base.rank == c->root;
    bool has_result = c->kind == COLLECTIVE_ALL_REDUCE || (c->kind == COLLECTIVE_REDUCE && root);
    bool has_out = has_result || c->kind == COLLECTIVE_RECEIVE || (c->kind == COLLECTIVE_BROADCAST && !root);
    if (lane->staged && has_out) copy_part_out(lane, 0, (int)lane->round_count, 0);
    if (has_result && c->op == REDUCE_MEAN)
        view_divide(c->type, &lane->out, lane->round_at, lane->round_count, lane->group->base.size);
}

static status start_round(mpi_lane *lane)
{
    int64_t left = lane->round_end - lane->round_at, most = most_a_round(lane);
    lane->round_count = left < most ? left : most;
    return is_cut(lane->call->kind) ? start_cut(lane) : start_whole(lane);
}

status mpi_first_round(mpi_lane *lane)
{
    const collective_call *c = lane->call;
    bool cut = is_cut(c->kind);
    lane->in = view_of(&c->in, c->type);
    lane->out = view_of(&c->out, c->type);
    lane->staged = cut || lane->in.layout.pieces.pieces || lane->out.layout.pieces.pieces;
    lane->round_at = 0;
    lane->round_end = cut ? collective_part_count(c->count, lane->group->base.size, 0) : c->count;
    lane->phase = LANE_RUNNING;
    return start_round(lane);
}

/* Every member sends and receives alike in MPI's rings; counted as an all-reduce's share of the bytes. */
static void count_traffic(mpi_lane *lane)
{
    collective_traffic *t = &lane->group->base.world->traffic;
    int64_t n = lane->group->base.size, bytes = lane->call->count * dtype_size(lane->call->type);
    int64_t share = bytes * (n - 1) / n * (lane->call->kind == COLLECTIVE_ALL_REDUCE ? 2 : 1);
    bool sends = lane->call->kind != COLLECTIVE_RECEIVE, receives = lane->call->kind != COLLECTIVE_SEND;
    t->bytes_sent += sends ? (receives ? share : bytes) : 0;
    t->bytes_received += receives ? (sends ? share : bytes) : 0;
    t->messages_sent += sends;
    t->messages_received += receives;
}

status mpi_end_round(mpi_lane *lane, bool *more)
{
    if (is_cut(lane->call->kind))
        end_cut(lane);
    else
        end_whole(lane);
    lane->round_at += lane->round_count;
    *more = lane->round_at < lane->round_end;
    if (*more) return start_round(lane);
    count_traffic(lane);
    return STATUS_OK;
}
