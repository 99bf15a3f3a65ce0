/* Walking buffers that are lists of pieces: for implementations of collectives.
 *
 * A layout says at which offset from its base element i of a buffer lies. Layouts are apart from bases,
 * because the same layout holds for the buffers of many ranks. */
#ifndef RING_COLLECTIVES_VIEW_H
#define RING_COLLECTIVES_VIEW_H

#include "ring/collectives/collective.h"

enum { VIEW_MAX_OPERANDS = 64 };

typedef struct view_layout {
    piece_list pieces; /* without an array: contiguous */
    int64_t origin;    /* contiguous: the element that lies at the base */
} view_layout;

/* One buffer as seen from this process. */
typedef struct buffer_view {
    char *base;
    view_layout layout;
} buffer_view;

/* The caller's buffer; one piece counts as contiguous. */
buffer_view view_of(const collective_buffer *buffer, dtype type);

/* 0 for a contiguous layout; else equal for equal lists, whatever the base. */
uint64_t view_layout_hash(const view_layout *layout);

/* Bytes from the base to the end of the last element of `count`. */
int64_t view_layout_extent(const view_layout *layout, dtype type, int64_t count);

/* Elements [from_at, from_at + count) of `from` to [to_at, ...) of `to`. Copying onto itself does nothing. */
void view_copy(dtype type, const buffer_view *to, int64_t to_at, const buffer_view *from, int64_t from_at,
               int64_t count);

/* out = a op b over elements [at, at + count) of all three; MEAN adds. */
void view_reduce_pair(dtype type, reduce_op op, const buffer_view *out, const buffer_view *a,
                      const buffer_view *b, int64_t at, int64_t count);

/* out /= n */
void view_divide(dtype type, const buffer_view *out, int64_t at, int64_t count, int n);

/* Elements [in_at, in_at + count) of all `ins`, which share a layout, to [out_at, ...) of all `outs`,
 * which share another: reduce_many(). */
typedef struct view_reduction {
    dtype type;
    reduce_op op;
    char *const *ins;
    int in_count;
    view_layout in_layout;
    int64_t in_at;
    char *const *outs;
    int out_count;
    view_layout out_layout;
    int64_t out_at;
    int64_t count;
} view_reduction;
void view_reduce_many(const view_reduction *r);

#endif
