/* Buffers that are lists of pieces: for implementations of collectives.
 *
 * A layout gives the offset of element i from the buffer's base. It is separate from the base, because the
 * buffers of all ranks share a layout. */
#ifndef COMMON_COLLECTIVES_PIECES_H
#define COMMON_COLLECTIVES_PIECES_H

#include "common/collectives/collective.h"

enum { PIECES_MAX_OPERANDS = 64 };

typedef struct piece_layout {
    piece_list pieces; /* without an array: contiguous */
    int64_t origin;    /* contiguous: the element at the base */
} piece_layout;

/* One buffer as seen from this process. */
typedef struct piece_buffer {
    char *base;
    piece_layout layout;
} piece_buffer;

/* The caller's buffer; one piece counts as contiguous. */
piece_buffer piece_buffer_of(const collective_buffer *buffer, dtype type);

/* 0 for a contiguous layout; else equal for equal lists, whatever the base. */
uint64_t piece_layout_hash(const piece_layout *layout);

/* Bytes from the base to the end of the last element of `count`. */
int64_t piece_layout_extent(const piece_layout *layout, dtype type, int64_t count);

/* Elements [from_at, from_at + count) of `from` to [to_at, ...) of `to`. Copying onto itself does nothing. */
void pieces_copy(dtype type, const piece_buffer *to, int64_t to_at, const piece_buffer *from, int64_t from_at,
                 int64_t count);

/* out = a op b over elements [at, at + count) of all three; MEAN adds. */
void pieces_reduce_pair(dtype type, reduce_op op, const piece_buffer *out, const piece_buffer *a,
                        const piece_buffer *b, int64_t at, int64_t count);

/* out /= n */
void pieces_divide(dtype type, const piece_buffer *out, int64_t at, int64_t count, int n);

/* Elements [in_at, in_at + count) of all `ins`, which share a layout, to [out_at, ...) of all `outs`,
 * which share another: reduce_many(). */
typedef struct pieces_reduction {
    dtype type;
    reduce_op op;
    char *const *ins;
    int in_count;
    piece_layout in_layout;
    int64_t in_at;
    char *const *outs;
    int out_count;
    piece_layout out_layout;
    int64_t out_at;
    int64_t count;
} pieces_reduction;
void pieces_reduce_many(const pieces_reduction *r);

#endif
