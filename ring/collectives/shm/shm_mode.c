#include "ring/collectives/shm/shm_internal.h"

static shm_place place_of(const shm_lane *lane, const buffer_view *view, int64_t count)
{
    const shm_world *w = (const shm_world *)lane->group->base.world;
    shm_place place = {.layout = view_layout_hash(&view->layout)};
    int64_t extent = view_layout_extent(&view->layout, lane->call->type, count);
    place.window = collective_find_window(w->windows, w->window_count, view->base, extent, &place.offset);
    return place;
}

shm_description shm_describe(const shm_lane *lane, int64_t now_ns)
{
    const collective_call *c = lane->call;
    shm_description d = {.kind = c->kind,
                         .op = c->op,
                         .type = c->type,
                         .root = c->root,
                         .tag = c->tag,
                         .count = c->count,
                         .in = {.window = SHM_NO_WINDOW},
                         .out = {.window = SHM_NO_WINDOW},
                         .arrived_ns = now_ns};
    if (lane->mode == SHM_INLINE) return d;
    bool part = c->kind == COLLECTIVE_GATHER;
    d.in = place_of(lane, &lane->in, part ? collective_part_count(c->count, lane->size, lane->me) : c->count);
    d.out = place_of(lane, &lane->out, c->count);
    return d;
}

bool shm_is_cut(collective_kind kind)
{
    return kind == COLLECTIVE_ALL_GATHER || kind == COLLECTIVE_REDUCE_SCATTER || kind == COLLECTIVE_GATHER ||
           kind == COLLECTIVE_SCATTER || kind == COLLECTIVE_ALL_TO_ALL;
}

/* An area holds a slot for every part. */
static bool has_slots(collective_kind kind)
{
    return shm_is_cut(kind) && kind != COLLECTIVE_GATHER;
}

/* Elements over which rounds run. */
static int64_t total(const shm_lane *lane)
{
    int64_t count = lane->call->count;
    return shm_is_cut(lane->call->kind) ? collective_part_count(count, lane->size, 0) : count;
}

static int64_t area_elements(const shm_lane *lane, int64_t bytes)
{
    return bytes / dtype_size(lane->call->type) / (has_slots(lane->call->kind) ? lane->size : 1);
}

bool shm_fits_inline(const shm_lane *lane)
{
    return lane->algorithm == &shm_algorithm_two_shot && total(lane) <= area_elements(lane, lane->inline_bytes);
}

/* ---- in place --------------------------------------------------------------------------------- */

/* Whether a peer touches the member's `in` or `out`. */
static bool exposes_in(const shm_lane *lane, int member)
{
    switch (lane->call->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_GATHER:
    case COLLECTIVE_ALL_TO_ALL:
        return true;
    case COLLECTIVE_SCATTER:
        return member == lane->call->root;
    case COLLECTIVE_SEND:
    case COLLECTIVE_RECEIVE:
        return member == 0;
    default:
        return false;
    }
}

static bool exposes_out(const shm_lane *lane, int member)
{
    switch (lane->call->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_ALL_GATHER:
        return true;
    case COLLECTIVE_REDUCE:
        return member == lane->call->root;
    default:
        return false;
    }
}

/* Every rank has a list of pieces for all `count` elements, by which it can walk its peers' too. */
static bool everyone_has_layout(collective_kind kind)
{
    return kind != COLLECTIVE_GATHER && kind != COLLECTIVE_SCATTER && kind != COLLECTIVE_SEND &&
           kind != COLLECTIVE_RECEIVE;
}

static const shm_description *description(const shm_lane *lane, int member)
{
    return &lane->members[member].slot->calls[(lane->completed + 1) & 1];
}

/* Whether what `exposes` says is in windows, and in the same layout on all members, which is *layout; 0
 * where nothing is exposed. */
static bool is_alike(const shm_lane *lane, bool outs, uint64_t *layout)
{
    bool first = true;
    *layout = 0;
    for (int m = 0; m < lane->size; m++) {
        const shm_description *d = description(lane, m);
        const shm_place *place = outs ? &d->out : &d->in;
        if (!(outs ? exposes_out(lane, m) : exposes_in(lane, m))) continue;
        if (place->window == SHM_NO_WINDOW || (!first && place->layout != *layout)) return false;
        *layout = place->layout;
        first = false;
    }
    return true;
}

bool shm_can_be_in_place(const shm_lane *lane)
{
    collective_kind kind = lane->call->kind;
    uint64_t in, out;
    if (kind == COLLECTIVE_REDUCE_SCATTER && lane->algorithm == &shm_algorithm_ring)
        return false; /* partial sums need a place of their own */
    if (!is_alike(lane, false, &in) || !is_alike(lane, true, &out)) return false;
    if (kind == COLLECTIVE_REDUCE)
        return out == 0 || out == in; /* others than the root know no layout of it */
    return (in == 0 && out == 0) || everyone_has_layout(kind);
}

static char *resolve(const shm_lane *lane, int member, const shm_place *place)
{
    const shm_world *w = (const shm_world *)lane->group->base.world;
    int rank = lane->members[member].rank;
    if (rank == w->base.config.rank) return (char *)w->windows[place->window].data + place->offset;
    return (char *)w->peers[rank * (1 + w->window_count) + 1 + place->window].data + place->offset;
}

static void expose_buffers(shm_lane *lane)
{
    collective_kind kind = lane->call->kind;
    bool contiguous_out = kind == COLLECTIVE_REDUCE && description(lane, lane->call->root)->out.layout == 0;
    lane->in_layout = lane->out_layout = (view_layout){0};
    if (everyone_has_layout(kind)) {
        lane->in_layout = lane->in.layout;
        lane->out_layout = kind == COLLECTIVE_REDUCE ? lane->in.layout : lane->out.layout;
    }
    if (contiguous_out) lane->out_layout = (view_layout){0};
    for (int m = 0; m < lane->size; m++) {
        const shm_description *d = description(lane, m);
        lane->exposed_in[m] = exposes_in(lane, m) ? resolve(lane, m, &d->in) : NULL;
        lane->exposed_out[m] = exposes_out(lane, m) ? resolve(lane, m, &d->out) : NULL;
    }
}

/* ---- rounds ----------------------------------------------------------------------------------- */

static void expose_areas(shm_lane *lane)
{
    int64_t other = (int64_t)((lane->completed + 1) & 1) * lane->area_bytes;
    lane->in_layout = (view_layout){.origin = shm_is_cut(lane->call->kind) ? 0 : lane->round_at};
    lane->out_layout = lane->in_layout;
    for (int m = 0; m < lane->size; m++) {
        const shm_member *member = &lane->members[m];
        lane->exposed_in[m] = lane->mode == SHM_INLINE ? member->inline_area + other : member->staging;
        lane->exposed_out[m] = lane->exposed_in[m];
    }
}

static void set_round(shm_lane *lane, int64_t at, int64_t most)
{
    lane->round_at = at;
    lane->round_count = lane->round_end - at < most ? lane->round_end - at : most;
    if (lane->mode == SHM_IN_PLACE)
        expose_buffers(lane);
    else
        expose_areas(lane);
}

void shm_first_round(shm_lane *lane)
{
    lane->round_end = total(lane);
    set_round(lane, 0, lane->mode == SHM_STAGED ? area_elements(lane, lane->staging_bytes) : lane->round_end);
}

bool shm_next_round(shm_lane *lane)
{
    int64_t at = lane->round_at + lane->round_count;
    if (at >= lane->round_end) return false;
    set_round(lane, at, area_elements(lane, lane->staging_bytes));
    return true;
}

int64_t shm_round_part(const shm_lane *lane, int part)
{
    if (!shm_is_cut(lane->call->kind)) return lane->round_count;
    int64_t left = collective_part_count(lane->call->count, lane->size, part) - lane->round_at;
    return left < 0 ? 0 : left < lane->round_count ? left : lane->round_count;
}

int64_t shm_exposed_index(const shm_lane *lane, int part, int64_t at)
{
    collective_kind kind = lane->call->kind;
    if (!shm_is_cut(kind)) return at;
    if (lane->mode == SHM_IN_PLACE)
        return at +
               (kind == COLLECTIVE_GATHER ? 0 : collective_part_begin(lane->call->count, lane->size, part));
    return at - lane->round_at + (has_slots(kind) ? part * lane->round_count : 0);
}

buffer_view shm_exposed_in(const shm_lane *lane, int member)
{
    return (buffer_view){lane->exposed_in[member], lane->in_layout};
}

buffer_view shm_exposed_out(const shm_lane *lane, int member)
{
    return (buffer_view){lane->exposed_out[member], lane->out_layout};
}
