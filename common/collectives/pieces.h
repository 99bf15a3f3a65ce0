/* Copies and reductions of buffers that are lists of pieces, for implementations of collectives.
 *
 * A layout maps element i to its offset from the buffer's base. The layout is separate from the base because
 * the buffers of all ranks share a layout. */
#ifndef COMMON_COLLECTIVES_PIECES_H
#define COMMON_COLLECTIVES_PIECES_H

#include "common/collectives/collective.h"

enum { PIECES_MAX_OPERANDS = 64 };

typedef struct piece_layout {
    piece_list pieces; /* The pieces. The layout is contiguous if the array is NULL. */
    int64_t origin;    /* If the layout is contiguous, index of the element at the base. */
} piece_layout;

/* A buffer at its address in this process. */
typedef struct piece_buffer {
    char *base;
    piece_layout layout;
} piece_buffer;

/* Returns a view of the caller's buffer. A single piece becomes a contiguous layout. */
piece_buffer piece_buffer_of(const collective_buffer *buffer, dtype type);

/* Returns 0 for a contiguous layout, else a hash of the list of pieces. */
uint64_t piece_layout_hash(const piece_layout *layout);

/* Returns the number of bytes from the base to the end of the last element. `count` is the number of elements
 * if the layout is contiguous. */
int64_t piece_layout_extent(const piece_layout *layout, dtype type, int64_t count);

/* Copies elements [from_at, from_at + count) of `from` to [to_at, to_at + count) of `to`. Does nothing if
 * both are at the same address. */
void pieces_copy(dtype type, const piece_buffer *to, int64_t to_at, const piece_buffer *from, int64_t from_at,
                 int64_t count);

/* Computes out = a op b over elements [at, at + count) of all three buffers. For MEAN, op is an addition. */
void pieces_reduce_pair(dtype type, reduce_op op, const piece_buffer *out, const piece_buffer *a,
                        const piece_buffer *b, int64_t at, int64_t count);

/* Computes out /= n over elements [at, at + count). */
void pieces_divide(dtype type, const piece_buffer *out, int64_t at, int64_t count, int n);

/* Operands of pieces_reduce_many(), which reduces elements [in_at, in_at + count) of all `ins` and writes the
 * result to [out_at, out_at + count) of all `outs`. All inputs have the same layout, and all outputs have the
 * same layout. */
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
