/* The operands of a call: how a rank exposes its operands to the peers, the rounds of a call, and the
 * copies. */
#include "ring/all_reduce/shm.h"

/* Returns the index of the window that contains [data, data + bytes). Sets *offset to the offset of `data` in
 * the window. */
static int find_window(const shm_world *w, const void *data, int64_t bytes, int64_t *offset)
{
    for (int i = 0; i < w->base.config.window_count; i++) {
        const char *begin = w->windows[i].data;
        int64_t at = (const char *)data - begin;
        if ((uintptr_t)data < (uintptr_t)begin || at > w->windows[i].bytes ||
            bytes > w->windows[i].bytes - at)
            continue;
        *offset = at;
        return i;
    }
    return SHM_NO_WINDOW;
}

static shm_place place_of(const shm_queue *q, const piece_buffer *buffer, int64_t count)
{
    shm_place place = {.layout = piece_layout_hash(&buffer->layout)};
    int64_t extent = piece_layout_extent(&buffer->layout, q->call->type, count);
    place.window = find_window(shm_world_of(q), buffer->base, extent, &place.offset);
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
    d.in = place_of(q, &q->in, collective_in_extent(c, q->size, q->me).count);
    d.out = place_of(q, &q->out, collective_out_extent(c, q->size, q->me).count);
    return d;
}

/* Returns true if an area holds one slot per part. */
static bool has_slots(collective_kind kind)
{
    return collective_is_cut(kind) && kind != COLLECTIVE_GATHER;
}

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

/* The members whose operand is read or written by peers. */
typedef enum exposure { OF_NONE, OF_FIRST, OF_ROOT, OF_ALL } exposure;

static const struct {
    exposure in, out;
} exposures[COLLECTIVE_KIND_COUNT] = {
    [COLLECTIVE_ALL_REDUCE] = {OF_ALL, OF_ALL},      [COLLECTIVE_REDUCE] = {OF_ALL, OF_ROOT},
    [COLLECTIVE_BROADCAST] = {OF_NONE, OF_ALL},      [COLLECTIVE_ALL_GATHER] = {OF_NONE, OF_ALL},
    [COLLECTIVE_REDUCE_SCATTER] = {OF_ALL, OF_NONE}, [COLLECTIVE_GATHER] = {OF_ALL, OF_NONE},
    [COLLECTIVE_SCATTER] = {OF_ROOT, OF_NONE},       [COLLECTIVE_ALL_TO_ALL] = {OF_ALL, OF_NONE},
    [COLLECTIVE_SEND] = {OF_FIRST, OF_NONE},         [COLLECTIVE_RECEIVE] = {OF_FIRST, OF_NONE},
};

static bool is_exposed(const shm_queue *q, bool out, int member)
{
    const collective_call *c = q->call;
    exposure e = out ? exposures[c->kind].out : exposures[c->kind].in;
    return e == OF_ALL || (e == OF_ROOT && member == c->root) || (e == OF_FIRST && member == 0);
}

/* Returns true if every rank has a list of pieces for all `count` elements. A rank then uses its list for the
 * buffers of its peers, too. */
static bool everyone_has_layout(collective_kind kind)
{
    return kind != COLLECTIVE_GATHER && kind != COLLECTIVE_SCATTER && !collective_is_pair(kind);
}

/* Returns true if the exposed operands are in windows and have the same layout on all members. Sets *layout
 * to the hash of the layout, or to 0 if nothing is exposed. */
static bool is_alike(const shm_queue *q, bool outs, uint64_t *layout)
{
    bool first = true;
    *layout = 0;
    for (int m = 0; m < q->size; m++) {
        const shm_description *d = shm_description_of(q, m);
        const shm_place *place = outs ? &d->out : &d->in;
        if (!is_exposed(q, outs, m)) continue;
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
        return false; /* Partial sums need a separate buffer. */
    if (!is_alike(q, false, &in) || !is_alike(q, true, &out)) return false;
    /* Only the root has an output, and therefore a layout of the output. */
    if (kind == COLLECTIVE_REDUCE) return out == 0 || out == in;
    return (in == 0 && out == 0) || everyone_has_layout(kind);
}

static char *resolve(const shm_queue *q, int member, const shm_place *place)
{
    const shm_world *w = shm_world_of(q);
    int rank = q->members[member].rank;
    if (rank == w->base.config.rank) return (char *)w->windows[place->window].data + place->offset;
    return (char *)w->peers[rank * (1 + w->base.config.window_count) + 1 + place->window].data +
           place->offset;
}

static void expose_buffers(shm_queue *q)
{
    collective_kind kind = q->call->kind;
    bool contiguous_out = kind == COLLECTIVE_REDUCE && shm_description_of(q, q->call->root)->out.layout == 0;
    q->in_layout = q->out_layout = (piece_layout){0};
    if (everyone_has_layout(kind)) {
        q->in_layout = q->in.layout;
        q->out_layout = kind == COLLECTIVE_REDUCE ? q->in.layout : q->out.layout;
    }
    if (contiguous_out) q->out_layout = (piece_layout){0};
    for (int m = 0; m < q->size; m++) {
        const shm_description *d = shm_description_of(q, m);
        q->exposed_in[m] = is_exposed(q, false, m) ? resolve(q, m, &d->in) : NULL;
        q->exposed_out[m] = is_exposed(q, true, m) ? resolve(q, m, &d->out) : NULL;
    }
}

/* ---- rounds ----------------------------------------------------------------------------------- */

static void expose_areas(shm_queue *q)
{
    int64_t other = (int64_t)((q->base.completed + 1) & 1) * q->area_bytes;
    q->in_layout = (piece_layout){.origin = collective_is_cut(q->call->kind) ? 0 : q->round_at};
    q->out_layout = q->in_layout;
    for (int m = 0; m < q->size; m++) {
        char *areas = (char *)(q->members[m].slot + 1);
        q->exposed_in[m] = q->exposed_out[m] = areas + (q->mode == SHM_INLINE ? other : 2 * q->area_bytes);
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

/* ---- copies ----------------------------------------------------------------------------------- */

static int parts_of(const shm_queue *q)
{
    return collective_is_cut(q->call->kind) ? q->size : 1;
}

/* Returns the index of the first element of part `part` in a buffer that holds the elements `held`, or -1 if
 * the buffer does not contain the part. `part` is 0 if the call is not cut into parts. */
static int64_t part_at(const shm_queue *q, collective_extent held, int part)
{
    if (collective_is_cut(q->call->kind)) return collective_part_at(q->call, held, q->size, part);
    return held.count > 0 ? 0 : -1;
}

/* Returns the number of elements that member `from` passes to member `to` in a call that does not reduce. */
static int64_t given(const shm_queue *q, int from, int to)
{
    const collective_call *c = q->call;
    if (collective_is_pair(c->kind)) return from == 0 && to == 1 ? c->count : 0;
    if (c->kind == COLLECTIVE_ALL_TO_ALL) return collective_part_count(c->count, q->size, to);
    collective_extent in = collective_in_extent(c, q->size, from),
                      out = collective_out_extent(c, q->size, to);
    return in.count < out.count ? in.count : out.count;
}

void shm_place_own_part(shm_queue *q)
{
    const collective_call *c = q->call;
    int me = q->me;
    int64_t count = given(q, me, me);
    if (collective_reduces(c->kind) || count == 0) return;
    int64_t part = collective_is_cut(c->kind) ? collective_part_begin(c->count, q->size, me) : 0;
    int64_t in = collective_in_extent(c, q->size, me).begin,
            out = collective_out_extent(c, q->size, me).begin;
    pieces_copy(c->type, &q->out, c->kind == COLLECTIVE_ALL_TO_ALL ? me * count : part - out, &q->in,
                part - in, count);
}

void shm_copy_in(shm_queue *q)
{
    collective_extent in = collective_in_extent(q->call, q->size, q->me);
    piece_buffer area = shm_exposed_in(q, q->me);
    for (int p = 0; p < parts_of(q); p++) {
        int64_t at = part_at(q, in, p);
        if (at >= 0)
            pieces_copy(q->call->type, &area, shm_exposed_index(q, p, q->round_at), &q->in, at + q->round_at,
                        shm_round_part(q, p));
    }
}

void shm_copy_out(shm_queue *q)
{
    const collective_call *c = q->call;
    collective_extent out = collective_out_extent(c, q->size, q->me);
    piece_buffer area = shm_exposed_out(q, q->me);
    for (int p = 0; p < parts_of(q); p++) {
        int64_t at = part_at(q, out, p);
        bool placed = (c->kind == COLLECTIVE_ALL_GATHER && p == q->me) ||
                      (c->kind == COLLECTIVE_BROADCAST && q->me == c->root);
        if (at >= 0 && !placed)
            pieces_copy(c->type, &q->out, at + q->round_at, &area, shm_exposed_index(q, p, q->round_at),
                        shm_round_part(q, p));
    }
}

void shm_fetch(shm_queue *q)
{
    const collective_call *c = q->call;
    bool gathers = c->kind == COLLECTIVE_ALL_GATHER || c->kind == COLLECTIVE_GATHER;
    collective_extent out = collective_out_extent(c, q->size, q->me);
    for (int m = 0; m < q->size; m++) {
        if (m == q->me || given(q, m, q->me) == 0) continue;
        int part = gathers ? m : collective_is_cut(c->kind) ? q->me : 0;
        int64_t at = c->kind == COLLECTIVE_ALL_TO_ALL ? m * given(q, m, q->me) : part_at(q, out, part);
        piece_buffer from = is_exposed(q, true, m) ? shm_exposed_out(q, m) : shm_exposed_in(q, m);
        pieces_copy(c->type, &q->out, at + q->round_at, &from, shm_exposed_index(q, part, q->round_at),
                    shm_round_part(q, part));
    }
}

/* ---- what is moved ---------------------------------------------------------------------------- */

static int64_t chunk_bytes(const shm_queue *q, int chunk)
{
    const collective_call *c = q->call;
    int k = (chunk + q->size) % q->size;
    int64_t count = collective_is_cut(c->kind)
                        ? collective_part_count(c->count, q->size, k)
                        : shm_share_begin(q, c->count, k + 1) - shm_share_begin(q, c->count, k);
    return count * dtype_size(c->type);
}

/* Counts the bytes of a ring. In n-1 steps, rank r sends all chunks except chunk k, and receives all chunks
 * except chunk k-1. In a reduce-scatter call k is r, because part r ends at rank r. In the second half of an
 * all-reduce k is r+2. In all other cases k is r+1. */
static collective_traffic ring_moved(const shm_queue *q)
{
    const collective_call *c = q->call;
    int n = q->size, me = q->me;
    int64_t bytes = collective_bytes(c);
    if (c->kind == COLLECTIVE_BROADCAST) {
        int distance = (me - c->root + n) % n;
        bool sends = distance<n - 1, receives = distance> 0;
        return (collective_traffic){sends ? bytes : 0, receives ? bytes : 0, sends, receives};
    }
    int kept = c->kind == COLLECTIVE_REDUCE_SCATTER ? me : me + 1;
    collective_traffic m = {bytes - chunk_bytes(q, kept), bytes - chunk_bytes(q, kept - 1), n - 1, n - 1};
    if (c->kind != COLLECTIVE_ALL_REDUCE) return m;
    m.bytes_sent += bytes - chunk_bytes(q, kept + 1);
    m.bytes_received += bytes - chunk_bytes(q, kept);
    m.messages_sent = m.messages_received = 2 * (n - 1);
    return m;
}

/* Counts the bytes of two-shot. Each rank reduces one share of the elements. Every rank first sends its own
 * values of share r to rank r. Then it sends the share that it has reduced to all ranks that need the result.
 */
static collective_traffic shares_moved(const shm_queue *q)
{
    const collective_call *c = q->call;
    bool all = c->kind == COLLECTIVE_ALL_REDUCE, root = q->me == c->root;
    int peers = q->size - 1, takers = all ? peers : !root, messages = all ? 2 * peers : peers;
    int64_t share = chunk_bytes(q, q->me), others = collective_bytes(c) - share;
    return (collective_traffic){others + takers * share, peers * share + (all || root ? others : 0), messages,
                                messages};
}

collective_traffic shm_call_moved(const shm_queue *q)
{
    collective_kind kind = q->call->kind;
    if (q->algorithm == &shm_algorithm_ring) return ring_moved(q);
    if (q->mode != SHM_INLINE && (kind == COLLECTIVE_ALL_REDUCE || kind == COLLECTIVE_REDUCE))
        return shares_moved(q);
    collective_traffic m = {0};
    for (int peer = 0; peer < q->size; peer++) {
        if (peer == q->me) continue;
        int64_t sent = given(q, q->me, peer), received = given(q, peer, q->me);
        m.bytes_sent += sent * dtype_size(q->call->type);
        m.bytes_received += received * dtype_size(q->call->type);
        m.messages_sent += sent > 0;
        m.messages_received += received > 0;
    }
    return m;
}
