/* A range of an arena as a list of pieces. Tensors in an arena are aligned, so a bucket, a message or
 * a hash over several of them skips the padding between them: it uses the pieces that hold elements.
 * Padding is zero, stays zero, and is never counted. */
#ifndef COMMON_MEMORY_PIECE_H
#define COMMON_MEMORY_PIECE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct piece {
    int64_t offset; /* elements from the arena's start */
    int64_t count;  /* elements */
} piece;

typedef struct piece_list { /* borrows its array */
    const piece *pieces;
    int count;
} piece_list;

static inline int64_t piece_list_elements(piece_list list)
{
    int64_t total = 0;
    for (int i = 0; i < list.count; i++) total += list.pieces[i].count;
    return total;
}

/* Cuts a list of items into groups (buckets, chunks) at a limit, in bytes or elements. */
typedef struct list_cut {
    int64_t limit;
    bool within;  /* a group ends before it would have more than the limit; else when it has reached it, and
                     may overshoot */
    int64_t size; /* of the group so far; 0: it is empty */
} list_cut;

/* Adds an item. *before: a group ended before it, *after: one ends with it. */
void list_cut_add(list_cut *c, int64_t size, bool *before, bool *after);

#endif
