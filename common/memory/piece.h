/* A range of an arena as a list of pieces. Tensors in an arena are aligned, with padding between them. A
 * bucket, message or hash over several tensors uses the pieces that hold elements and skips the padding.
 * Padding is always zero and never counted. */
#ifndef COMMON_MEMORY_PIECE_H
#define COMMON_MEMORY_PIECE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct piece {
    int64_t offset; /* elements from the start of the arena */
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

/* Splits a list of items into groups (buckets, chunks) of limited size, in bytes or elements. */
typedef struct list_cut {
    int64_t limit;
    bool within; /* If true, a group ends before it would exceed the limit. If false, a group ends when it has
                    reached the limit, and may overshoot. */
    int64_t size; /* size of the current group, 0 if it is empty */
} list_cut;

/* Adds an item. Sets *before if a group ended before the item, and *after if a group ends with it. */
void list_cut_add(list_cut *c, int64_t size, bool *before, bool *after);

#endif
