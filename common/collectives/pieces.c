#include "common/collectives/pieces.h"

#include "common/base/least.h"

#include <string.h>

typedef struct cursor {
    const piece_layout *layout;
    int piece;
    int64_t begin; /* Index of the first element of the piece. */
} cursor;

/* Returns the offset of element `index`. Sets *run to the number of contiguous elements that begin at this
 * element. `index` must not be less than in the previous call. */
static int64_t cursor_seek(cursor *c, int64_t index, int64_t *run)
{
    const piece_list *list = &c->layout->pieces;
    if (!list->pieces) {
        *run = INT64_MAX;
        return index - c->layout->origin;
    }
    while (index >= c->begin + list->pieces[c->piece].count) c->begin += list->pieces[c->piece++].count;
    int64_t inside = index - c->begin;
    *run = list->pieces[c->piece].count - inside;
    return list->pieces[c->piece].offset + inside;
}

piece_buffer piece_buffer_of(const collective_buffer *buffer, dtype type)
{
    piece_buffer view = {.base = buffer->base};
    if (buffer->pieces.pieces && buffer->pieces.count == 1)
        view.base += buffer->pieces.pieces[0].offset * dtype_size(type);
    else if (buffer->pieces.count > 1)
        view.layout.pieces = buffer->pieces;
    return view;
}

uint64_t piece_layout_hash(const piece_layout *layout)
{
    if (!layout->pieces.pieces) return 0;
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a over 64-bit words */
    for (int i = 0; i < layout->pieces.count; i++) {
        hash = (hash ^ (uint64_t)layout->pieces.pieces[i].offset) * UINT64_C(0x100000001b3);
        hash = (hash ^ (uint64_t)layout->pieces.pieces[i].count) * UINT64_C(0x100000001b3);
    }
    return hash ? hash : 1;
}

int64_t piece_layout_extent(const piece_layout *layout, dtype type, int64_t count)
{
    int64_t end = count;
    if (layout->pieces.pieces) {
        end = 0;
        for (int i = 0; i < layout->pieces.count; i++) {
            int64_t last = layout->pieces.pieces[i].offset + layout->pieces.pieces[i].count;
            if (last > end) end = last;
        }
    }
    return end * dtype_size(type);
}

void pieces_copy(dtype type, const piece_buffer *to, int64_t to_at, const piece_buffer *from, int64_t from_at,
                 int64_t count)
{
    int size = dtype_size(type);
    cursor t = {.layout = &to->layout}, f = {.layout = &from->layout};
    for (int64_t done = 0, run; done < count; done += run) {
        int64_t to_run, from_run;
        char *target = to->base + cursor_seek(&t, to_at + done, &to_run) * size;
        const char *source = from->base + cursor_seek(&f, from_at + done, &from_run) * size;
        run = least(count - done, least(to_run, from_run));
        if (target != source) memcpy(target, source, (size_t)(run * size));
    }
}

void pieces_reduce_pair(dtype type, reduce_op op, const piece_buffer *out, const piece_buffer *a,
                        const piece_buffer *b, int64_t at, int64_t count)
{
    int size = dtype_size(type);
    cursor o = {.layout = &out->layout}, x = {.layout = &a->layout}, y = {.layout = &b->layout};
    for (int64_t done = 0, run; done < count; done += run) {
        int64_t out_run, a_run, b_run;
        char *target = out->base + cursor_seek(&o, at + done, &out_run) * size;
        const char *left = a->base + cursor_seek(&x, at + done, &a_run) * size;
        const char *right = b->base + cursor_seek(&y, at + done, &b_run) * size;
        run = least(least(count - done, out_run), least(a_run, b_run));
        reduce_pair(type, op, target, left, right, run);
    }
}

void pieces_divide(dtype type, const piece_buffer *out, int64_t at, int64_t count, int n)
{
    int size = dtype_size(type);
    cursor o = {.layout = &out->layout};
    for (int64_t done = 0, run; done < count; done += run) {
        char *target = out->base + cursor_seek(&o, at + done, &run) * size;
        run = least(count - done, run);
        reduce_divide(type, target, target, run, n);
    }
}

void pieces_reduce_many(const pieces_reduction *r)
{
    int size = dtype_size(r->type);
    void *outs[PIECES_MAX_OPERANDS];
    const void *ins[PIECES_MAX_OPERANDS];
    cursor o = {.layout = &r->out_layout}, i = {.layout = &r->in_layout};
    for (int64_t done = 0, run; done < r->count; done += run) {
        int64_t out_run, in_run;
        int64_t out_offset = cursor_seek(&o, r->out_at + done, &out_run) * size;
        int64_t in_offset = cursor_seek(&i, r->in_at + done, &in_run) * size;
        run = least(r->count - done, least(out_run, in_run));
        for (int k = 0; k < r->out_count; k++) outs[k] = r->outs[k] + out_offset;
        for (int k = 0; k < r->in_count; k++) ins[k] = r->ins[k] + in_offset;
        reduce_many(r->type, r->op, outs, r->out_count, ins, r->in_count, run);
    }
}
