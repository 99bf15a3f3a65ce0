/* A list of pieces describes a range of an arena. Tensors in an arena are aligned, with padding between them.
 * A bucket, a message or a hash over several tensors uses only the pieces, which hold elements, and skips the
 * padding. Padding is always zero, and is never counted. */
#ifndef COMMON_MEMORY_PIECE_H
#define COMMON_MEMORY_PIECE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct piece {
    int64_t offset; /* offset from the start of the arena, in elements */
    int64_t count;  /* number of elements */
} piece;

typedef struct piece_list { /* the list does not own the array */
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
    /* If true, a group ends before it would exceed the limit. If false, a group ends when it has reached or
     * exceeded the limit. */
    bool within;
    int64_t size; /* size of the current group, 0 if it is empty */
} list_cut;

/* Adds an item. Sets *before to true if a group ends before the item, and *after to true if a group ends with
 * the item. */
void list_cut_add(list_cut *c, int64_t size, bool *before, bool *after);

#endif
