#include "ring/collectives/shm/shm_internal.h"

static shm_place place_of(const shm_queue *q, const piece_buffer *buffer, int64_t count)
{
    const shm_world *w = (const shm_world *)q->group->base.world;
    shm_place place = {.layout = piece_layout_hash(&buffer->layout)};
    int64_t extent = piece_layout_extent(&buffer->layout, q->call->type, count);
    place.window = collective_find_window(w->windows, w->window_count, buffer->base, extent, &place.offset);
    return place;
}

shm_description shm_describe(const shm_queue *q, int64_t now_ns)
{
    const collective_call *c = q->call;
    shm_description d = {.kind = c->kind,
                         .op = c->op,
                         .type = c->type,
                         .root = c->root,
                         .tag = c->tag,
                         .count = c->count,
                         .in = {.window = SHM_NO_WINDOW},
                         .out = {.window = SHM_NO_WINDOW},
                         .arrived_ns = now_ns};
    if (q->mode == SHM_INLINE) return d;
    bool part = c->kind == COLLECTIVE_GATHER;
    d.in = place_of(q, &q->in, part ? collective_part_count(c->count, q->size, q->me) : c->count);
    d.out = place_of(q, &q->out, c->count);
    return d;
}

/* An area holds a slot for every part. */
static bool has_slots(collective_kind kind)
{
    return collective_is_cut(kind) && kind != COLLECTIVE_GATHER;
}

/* Elements over which rounds run. */
static int64_t total(const shm_queue *q)
{
    int64_t count = q->call->count;
    return collective_is_cut(q->call->kind) ? collective_part_count(count, q->size, 0) : count;
}

static int64_t area_elements(const shm_queue *q, int64_t bytes)
{
    return bytes / dtype_size(q->call->type) / (has_slots(q->call->kind) ? q->size : 1);
}

bool shm_fits_inline(const shm_queue *q)
{
    return q->algorithm == &shm_algorithm_two_shot && total(q) <= area_elements(q, q->inline_bytes);
}

/* ---- in place --------------------------------------------------------------------------------- */

/* Whether a peer touches the member's `in` or `out`. */
static bool exposes_in(const shm_queue *q, int member)
{
    switch (q->call->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_GATHER:
    case COLLECTIVE_ALL_TO_ALL:
        return true;
    case COLLECTIVE_SCATTER:
        return member == q->call->root;
    case COLLECTIVE_SEND:
    case COLLECTIVE_RECEIVE:
        return member == 0;
    default:
        return false;
    }
}

static bool exposes_out(const shm_queue *q, int member)
{
    switch (q->call->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_ALL_GATHER:
        return true;
    case COLLECTIVE_REDUCE:
        return member == q->call->root;
    default:
        return false;
    }
}

/* Every rank has a list of pieces for all `count` elements, which is valid for its peers' buffers too. */
static bool everyone_has_layout(collective_kind kind)
{
    return kind != COLLECTIVE_GATHER && kind != COLLECTIVE_SCATTER && kind != COLLECTIVE_SEND &&
           kind != COLLECTIVE_RECEIVE;
}

static const shm_description *description(const shm_queue *q, int member)
{
    return &q->members[member].slot->calls[(q->completed + 1) & 1];
}

/* Whether the exposed operands are in windows and have the same layout on all members. That is *layout; 0 if nothing is
 * exposed. */
static bool is_alike(const shm_queue *q, bool outs, uint64_t *layout)
{
    bool first = true;
    *layout = 0;
    for (int m = 0; m < q->size; m++) {
        const shm_description *d = description(q, m);
        const shm_place *place = outs ? &d->out : &d->in;
        if (!(outs ? exposes_out(q, m) : exposes_in(q, m))) continue;
        if (place->window == SHM_NO_WINDOW || (!first && place->layout != *layout)) return false;
        *layout = place->layout;
        first = false;
    }
    return true;
}

bool shm_can_be_in_place(const shm_queue *q)
{
    collective_kind kind = q->call->kind;
    uint64_t in, out;
    if (kind == COLLECTIVE_REDUCE_SCATTER && q->algorithm == &shm_algorithm_ring)
        return false; /* partial sums need a buffer of their own */
    if (!is_alike(q, false, &in) || !is_alike(q, true, &out)) return false;
    if (kind == COLLECTIVE_REDUCE) return out == 0 || out == in; /* only the root has a layout of it */
    return (in == 0 && out == 0) || everyone_has_layout(kind);
}

static char *resolve(const shm_queue *q, int member, const shm_place *place)
{
    const shm_world *w = (const shm_world *)q->group->base.world;
    int rank = q->members[member].rank;
    if (rank == w->base.config.rank) return (char *)w->windows[place->window].data + place->offset;
    return (char *)w->peers[rank * (1 + w->window_count) + 1 + place->window].data + place->offset;
}

static void expose_buffers(shm_queue *q)
{
    collective_kind kind = q->call->kind;
    bool contiguous_out = kind == COLLECTIVE_REDUCE && description(q, q->call->root)->out.layout == 0;
    q->in_layout = q->out_layout = (piece_layout){0};
    if (everyone_has_layout(kind)) {
        q->in_layout = q->in.layout;
        q->out_layout = kind == COLLECTIVE_REDUCE ? q->in.layout : q->out.layout;
    }
    if (contiguous_out) q->out_layout = (piece_layout){0};
    for (int m = 0; m < q->size; m++) {
        const shm_description *d = description(q, m);
        q->exposed_in[m] = exposes_in(q, m) ? resolve(q, m, &d->in) : NULL;
        q->exposed_out[m] = exposes_out(q, m) ? resolve(q, m, &d->out) : NULL;
    }
}

/* ---- rounds ----------------------------------------------------------------------------------- */

static void expose_areas(shm_queue *q)
{
    int64_t other = (int64_t)((q->completed + 1) & 1) * q->area_bytes;
    q->in_layout = (piece_layout){.origin = collective_is_cut(q->call->kind) ? 0 : q->round_at};
    q->out_layout = q->in_layout;
    for (int m = 0; m < q->size; m++) {
        const shm_member *member = &q->members[m];
        q->exposed_in[m] = q->mode == SHM_INLINE ? member->inline_area + other : member->staging;
        q->exposed_out[m] = q->exposed_in[m];
    }
}

static void set_round(shm_queue *q, int64_t at, int64_t most)
{
    q->round_at = at;
    q->round_count = q->round_end - at < most ? q->round_end - at : most;
    if (q->mode == SHM_IN_PLACE)
        expose_buffers(q);
    else
        expose_areas(q);
}

void shm_first_round(shm_queue *q)
{
    q->round_end = total(q);
    set_round(q, 0, q->mode == SHM_STAGED ? area_elements(q, q->staging_bytes) : q->round_end);
}

bool shm_next_round(shm_queue *q)
{
    int64_t at = q->round_at + q->round_count;
    if (at >= q->round_end) return false;
    set_round(q, at, area_elements(q, q->staging_bytes));
    return true;
}

int64_t shm_round_part(const shm_queue *q, int part)
{
    if (!collective_is_cut(q->call->kind)) return q->round_count;
    int64_t left = collective_part_count(q->call->count, q->size, part) - q->round_at;
    return left < 0 ? 0 : left < q->round_count ? left : q->round_count;
}

int64_t shm_exposed_index(const shm_queue *q, int part, int64_t at)
{
    collective_kind kind = q->call->kind;
    if (!collective_is_cut(kind)) return at;
    if (q->mode == SHM_IN_PLACE)
        return at + (kind == COLLECTIVE_GATHER ? 0 : collective_part_begin(q->call->count, q->size, part));
    return at - q->round_at + (has_slots(kind) ? part * q->round_count : 0);
}

piece_buffer shm_exposed_in(const shm_queue *q, int member)
{
    return (piece_buffer){q->exposed_in[member], q->in_layout};
}

piece_buffer shm_exposed_out(const shm_queue *q, int member)
{
    return (piece_buffer){q->exposed_out[member], q->out_layout};
}
