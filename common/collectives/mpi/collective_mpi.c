/* Collectives through Open MPI. MPI needs contiguous operands and int counts, so a call runs in segments.
 * Contiguous operands are passed to MPI directly, and other operands through a staging buffer. Before the
 * first segment the members exchange descriptions of the call, because MPI may hang or mix data if the
 * members make different calls. */
#include "common/collectives/collective_impl.h"
#include "common/collectives/mpi/mpi_module.h"
#include "common/collectives/pieces.h"

#include <stdlib.h>
#include <string.h>

enum {
    STAGING_BYTES = 1 << 20,
    PAIR_STAGING_BYTES = 64 << 10,
    MOST_COUNT = 1 << 30,  /* Largest number of elements in a segment. MPI counts in int. */
    DESCRIPTION_WORDS = 6, /* kind, op, type, root, tag, count */
};

typedef enum mpi_phase { QUEUE_IDLE, QUEUE_CHECKING, QUEUE_RUNNING } mpi_phase;

typedef struct mpi_queue {
    collective_queue base;
    bool pair;
    void *request;
    char *staging;
    int64_t staging_bytes;
    /* The call in progress. */
    mpi_phase phase;
    const collective_call *call;
    /* [members + 1][DESCRIPTION_WORDS] A description from each member, and at the end this rank's. A send or
     * receive has the peer as its only member. */
    int64_t *descriptions;
    piece_buffer in, out;
    /* `apart` is true if MPI gets two buffers and does not work in place. */
    bool staged, apart;
    /* First element, number of elements, and end of the present segment. They count from the start of each
     * part if the call has parts (collective_is_cut()), else from the start of the buffer. */
    int64_t segment_at, segment_count, segment_end;
} mpi_queue;

typedef struct mpi_world {
    collective_world base;
    const mpi_module *module;
} mpi_world;

typedef struct mpi_group {
    collective_group base;
    void *comm;
    int *counts; /* [4][size]: `counts`, `places`, `out_counts` and `out_places` of an mpi_module_call. */
} mpi_group;

static mpi_group *group_of(const mpi_queue *q)
{
    return (mpi_group *)q->base.group;
}

static const mpi_module *module_of(const mpi_queue *q)
{
    return ((const mpi_world *)q->base.group->world)->module;
}

/* ---- descriptions ----------------------------------------------------------------------------- */

static status start(mpi_queue *q, const mpi_module_call *call)
{
    return mpi_module_check(module_of(q), module_of(q)->start(group_of(q)->comm, call, q->request),
                            collective_kind_name((collective_kind)call->kind));
}

static int member_count(const mpi_queue *q)
{
    return q->pair ? 1 : q->base.group->size;
}

static status differ(const mpi_queue *q, int rank, const int64_t *p)
{
    char theirs[128], ours[128];
    collective_call other = {
        (collective_kind)p[0], (reduce_op)p[1], (dtype)p[2], (int)p[3], (int)p[4], p[5], {0}, {0}, false};
    return fail(STATUS_PROTOCOL, "call %llu of group '%s': its rank %d makes %s, rank %d makes %s",
                (unsigned long long)q->base.completed + 1, q->base.group->name, rank,
                collective_call_format(&other, theirs, sizeof theirs), q->base.group->rank,
                collective_call_format(q->call, ours, sizeof ours));
}

/* The members gather all descriptions. A sender sends its description, and the receiver compares. */
static status begin_check(mpi_queue *q)
{
    const collective_call *c = q->call;
    int n = q->base.group->size, *counts = group_of(q)->counts;
    const int64_t words[DESCRIPTION_WORDS] = {c->kind, c->op, c->type, c->root, c->tag, c->count};
    int64_t *own = q->descriptions + member_count(q) * DESCRIPTION_WORDS;
    memcpy(own, words, sizeof words);
    q->phase = QUEUE_CHECKING;
    for (int r = 0; r < n && !q->pair; r++) {
        counts[r] = DESCRIPTION_WORDS;
        counts[n + r] = r * DESCRIPTION_WORDS;
    }
    return start(q, &(mpi_module_call){.kind = q->pair ? c->kind : COLLECTIVE_ALL_GATHER,
                                       .type = DTYPE_I64,
                                       .root = c->root,
                                       .tag = 1,
                                       .count = DESCRIPTION_WORDS,
                                       .counts = counts,
                                       .places = counts + n,
                                       .in = own,
                                       .out = q->descriptions});
}

static status end_check(mpi_queue *q)
{
    const int64_t *own = q->descriptions + member_count(q) * DESCRIPTION_WORDS;
    if (q->call->kind == COLLECTIVE_SEND) return STATUS_OK;
    for (int r = 0; r < member_count(q); r++) {
        const int64_t *theirs = q->descriptions + r * DESCRIPTION_WORDS;
        for (int w = 0; w < DESCRIPTION_WORDS; w++) {
            /* A send matches a receive. The root of each is the rank of the other. */
            bool differs = theirs[w] != own[w] && !(q->pair && (w == 0 || w == 3));
            if (differs) return differ(q, q->pair ? q->call->root : r, theirs);
        }
    }
    return STATUS_OK;
}

/* ---- segments --------------------------------------------------------------------------------- */

static int64_t segment_limit(const mpi_queue *q)
{
    int64_t elements = q->staging_bytes / dtype_size(q->call->type);
    if (!q->staged) return MOST_COUNT;
    if (q->apart || q->call->kind == COLLECTIVE_ALL_TO_ALL) elements /= 2;
    return collective_is_cut(q->call->kind) ? elements / q->base.group->size : elements;
}

static void cut_segment(mpi_queue *q)
{
    mpi_group *g = group_of(q);
    int n = g->base.size, *counts = g->counts, *places = counts + n, *out_counts = counts + 2 * n,
        *out_places = counts + 3 * n, at = 0;
    for (int r = 0; r < n; r++) {
        int64_t left = collective_part_count(q->call->count, n, r) - q->segment_at;
        counts[r] = (int)(left < 0 ? 0 : left < q->segment_count ? left : q->segment_count);
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

/* Returns the index of the first element of a second area in the staging buffer. The output is in this area
 * if it must not overlap the input. */
static int64_t second_half(const mpi_queue *q)
{
    return q->apart ? segment_limit(q) : q->base.group->size * segment_limit(q);
}

static void copy_in(mpi_queue *q, int64_t place, int64_t count, int64_t from)
{
    piece_buffer area = staging(q, place);
    pieces_copy(q->call->type, &area, 0, &q->in, from + q->segment_at, count);
}

static void copy_out(mpi_queue *q, int64_t place, int64_t count, int64_t to)
{
    piece_buffer area = staging(q, place);
    pieces_copy(q->call->type, &q->out, to + q->segment_at, &area, 0, count);
}

static status start_cut(mpi_queue *q)
{
    const collective_call *c = q->call;
    const mpi_group *g = group_of(q);
    int n = g->base.size, me = g->base.rank;
    bool root = me == c->root;
    cut_segment(q);
    for (int r = 0; r < n; r++) {
        int64_t at = collective_part_at(c, collective_in_extent(c, n, me), n, r);
        if (at >= 0) copy_in(q, g->counts[n + r], g->counts[r], at);
    }
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
    if (c->kind == COLLECTIVE_GATHER && !root) call.in = own;
    if (c->kind == COLLECTIVE_SCATTER || c->kind == COLLECTIVE_ALL_TO_ALL) call.in = q->staging;
    if (c->kind == COLLECTIVE_SCATTER) call.out = root ? NULL : own;
    if (c->kind == COLLECTIVE_ALL_TO_ALL) call.out = staging(q, second_half(q)).base;
    return start(q, &call);
}

static void end_cut(mpi_queue *q)
{
    const collective_call *c = q->call;
    const int *counts = group_of(q)->counts;
    int n = q->base.group->size, me = q->base.group->rank;
    for (int r = 0; r < n; r++) {
        int64_t at = collective_part_at(c, collective_out_extent(c, n, me), n, r);
        if (c->kind == COLLECTIVE_ALL_TO_ALL)
            copy_out(q, second_half(q) + counts[3 * n + r], counts[me],
                     r * collective_part_count(c->count, n, me));
        else if (at >= 0) /* MPI reduces to the start of the staging buffer. */
            copy_out(q, collective_reduces(c->kind) ? 0 : counts[n + r], counts[r], at);
    }
    if (collective_reduces(c->kind) && c->op == REDUCE_MEAN)
        pieces_divide(c->type, &q->out, q->segment_at, counts[me], n);
}

static status start_whole(mpi_queue *q)
{
    const collective_call *c = q->call;
    int n = q->base.group->size, me = q->base.group->rank;
    bool has_in = collective_in_extent(c, n, me).count > 0,
         has_out = collective_out_extent(c, n, me).count > 0;
    int64_t bytes = q->segment_at * dtype_size(c->type);
    mpi_module_call call = {.kind = c->kind,
                            .op = c->op,
                            .type = c->type,
                            .root = c->root,
                            .count = (int)q->segment_count,
                            .in = q->in.base + bytes,
                            .out = q->out.base + bytes};
    if (c->kind == COLLECTIVE_BROADCAST && has_in)
        pieces_copy(c->type, &q->out, q->segment_at, &q->in, q->segment_at, q->segment_count);
    if (q->staged) {
        if (has_in) copy_in(q, 0, q->segment_count, 0);
        call.in = q->staging;
        call.out = q->apart ? staging(q, second_half(q)).base : q->staging;
    }
    if (collective_reduces(c->kind) && has_out && call.in == call.out) call.in = NULL;
    return start(q, &call);
}

static void end_whole(mpi_queue *q)
{
    const collective_call *c = q->call;
    int n = q->base.group->size;
    if (collective_out_extent(c, n, q->base.group->rank).count == 0) return;
    if (q->staged) copy_out(q, q->apart ? second_half(q) : 0, q->segment_count, 0);
    if (collective_reduces(c->kind) && c->op == REDUCE_MEAN)
        pieces_divide(c->type, &q->out, q->segment_at, q->segment_count, n);
}

static status start_segment(mpi_queue *q)
{
    int64_t left = q->segment_end - q->segment_at, most = segment_limit(q);
    q->segment_count = left < most ? left : most;
    return collective_is_cut(q->call->kind) ? start_cut(q) : start_whole(q);
}

static status first_segment(mpi_queue *q)
{
    const collective_call *c = q->call;
    bool cut = collective_is_cut(c->kind);
    q->in = piece_buffer_of(&c->in, c->type);
    q->out = piece_buffer_of(&c->out, c->type);
    /* Open MPI's ring writes to `out` before it has read `in`, so `in` and `out` must not be the same. */
    q->apart = c->kind == COLLECTIVE_ALL_REDUCE &&
               q->base.group->world->config.algorithm == COLLECTIVE_ALGORITHM_RING;
    q->staged = cut || q->apart || q->in.layout.pieces.pieces || q->out.layout.pieces.pieces;
    q->segment_at = 0;
    q->segment_end = cut ? collective_part_count(c->count, q->base.group->size, 0) : c->count;
    q->phase = QUEUE_RUNNING;
    return start_segment(q);
}

/* Counts the bytes of a ring. MPI does not report the bytes that it has sent. */
static void count_traffic(mpi_queue *q)
{
    const collective_call *c = q->call;
    int64_t n = q->base.group->size, bytes = collective_bytes(c);
    if (!collective_is_pair(c->kind))
        bytes = bytes * (n - 1) / n * (c->kind == COLLECTIVE_ALL_REDUCE ? 2 : 1);
    collective_count_call(q->base.group->world, c->kind, bytes, 1);
}

static status advance(collective_queue *base, int64_t now_ns, bool *worked)
{
    mpi_queue *q = (mpi_queue *)base;
    collective_queued *queued = collective_queued_at(base, base->completed + 1);
    bool done = false;
    if (q->phase == QUEUE_IDLE) {
        q->call = &queued->call;
        base->since_ns = queued->times.began_ns = now_ns;
        *worked = true;
        return begin_check(q);
    }
    TRY(mpi_module_check(module_of(q), module_of(q)->test(q->request, &done),
                         collective_kind_name(q->call->kind)));
    if (!done) return STATUS_OK;
    *worked = true;
    base->since_ns = now_ns;
    if (q->phase == QUEUE_CHECKING) {
        TRY(end_check(q));
        queued->times.started_ns = now_ns;
        return first_segment(q);
    }
    (collective_is_cut(q->call->kind) ? end_cut : end_whole)(q);
    q->segment_at += q->segment_count;
    if (q->segment_at < q->segment_end) return start_segment(q);
    count_traffic(q);
    queued->times.finished_ns = now_ns;
    q->phase = QUEUE_IDLE;
    base->completed++;
    return STATUS_OK;
}

static status mpi_progress(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    return collective_poll(world, advance, now_ns, deadline_ns, worked);
}

/* ---- groups ----------------------------------------------------------------------------------- */

static status mpi_group_open(collective_group *group)
{
    const mpi_module *module = ((mpi_world *)group->world)->module;
    const collective_config *c = &group->world->config;
    mpi_group *g = (mpi_group *)group;
    g->counts = calloc((size_t)(4 * group->size), sizeof *g->counts);
    bool whole = g->counts;
    for (int i = 0; whole && i < group->queue_count; i++) {
        mpi_queue *q = (mpi_queue *)collective_queue_at(group, i);
        q->pair = i > 0;
        q->descriptions = calloc((size_t)(member_count(q) + 1) * DESCRIPTION_WORDS, sizeof *q->descriptions);
        q->request = malloc((size_t)module->request_bytes);
        q->staging_bytes = i > 0 ? PAIR_STAGING_BYTES : STAGING_BYTES;
        if (c->staging_bytes > 0) q->staging_bytes = c->staging_bytes;
        q->staging = malloc((size_t)q->staging_bytes);
        whole = q->descriptions && q->request && q->staging;
    }
    if (!whole) return fail(STATUS_SYSTEM, "no memory for group '%s'", group->name);
    return mpi_module_check(module, module->group_open(group->ranks, group->size, &g->comm),
                            "MPI_Comm_create_group");
}

static void mpi_group_close(collective_group *group)
{
    mpi_group *g = (mpi_group *)group;
    for (int i = 0; i < group->queue_count; i++) {
        mpi_queue *q = (mpi_queue *)collective_queue_at(group, i);
        free(q->descriptions);
        free(q->request);
        free(q->staging);
    }
    if (g->comm) ((mpi_world *)group->world)->module->group_close(g->comm);
    free(g->counts);
}

/* ---- worlds ----------------------------------------------------------------------------------- */

static status mpi_open(collective_world *world)
{
    return mpi_module_open(&world->config, &((mpi_world *)world)->module);
}

static void mpi_abort(collective_world *world, const error_record *why)
{
    ((mpi_world *)world)->module->give_up(status_exit_code(why->code));
}

const collective_type collective_mpi = {
    .name = "mpi",
    .algorithms = COLLECTIVE_HAS(LIBRARY) | COLLECTIVE_HAS(RING),
    .algorithm = COLLECTIVE_ALGORITHM_LIBRARY,
    .world_bytes = sizeof(mpi_world),
    .group_bytes = sizeof(mpi_group),
    .queue_bytes = sizeof(mpi_queue),
    .pairs = true,
    .open = mpi_open,
    .group_open = mpi_group_open,
    .group_close = mpi_group_close,
    .progress = mpi_progress,
    .wait = collective_poll_wait,
    .wake = collective_poll_wake,
    .abort = mpi_abort,
};
