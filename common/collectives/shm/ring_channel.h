/* A rank's place in a ring, for the length of one collective call: its own buffers, its left neighbor's, and
 * two ways to wait. A rank reads its left neighbor's memory and writes only its own.
 *
 * Steps work on chunks. A chunk is handed on in slices, so that neighbors work at the same time: all slices
 * of step 0, then all of step 1, and so on. Each rank publishes how many slices it has finished; that number
 * only grows.
 *
 * Nothing here blocks. An algorithm is two functions: `begin` ends with what to wait for, and `advance` is
 * called each time that has happened; it works on one slice and sets what to wait for next. */
#ifndef COMMON_COLLECTIVES_SHM_RING_CHANNEL_H
#define COMMON_COLLECTIVES_SHM_RING_CHANNEL_H

#include "common/collectives/pieces.h" /* pieces_copy(), pieces_reduce_pair(): memcpy and a + b over lists of pieces */

typedef struct ring_channel {
    int rank, ranks;
    dtype type;
    reduce_op op;
    piece_buffer in, out;           /* this rank's operand and result; may be the same memory */
    piece_buffer left_in, left_out; /* the left neighbor's */
    int step, steps;                /* the step that is worked on; how many there are */
    int slice, slices;              /* and the slice of it; how many a chunk has */
    uint64_t base;                  /* the counter when the steps began */
    struct shm_queue *queue;        /* the call queue that drives this */
} ring_channel;

typedef struct ring_range {
    int64_t begin, count; /* elements */
} ring_range;

/* The present slice of a chunk, 0 <= chunk < ranks. */
ring_range ring_channel_slice(const ring_channel *c, int chunk);

/* Publishes the present slice as finished, and moves on to the next slice or step. */
void ring_channel_publish(ring_channel *c);

/* Waits until the left neighbor has finished the present slice in `steps` steps; `r` is what will be read of
 * it then. */
void ring_channel_await_left(ring_channel *c, int steps, ring_range r);

/* Waits until the right neighbor has finished all steps: it will not read this rank's buffers again. */
void ring_channel_await_right(ring_channel *c);

/* ring_all_reduce.c */
void ring_all_reduce_begin(ring_channel *c);
bool ring_all_reduce_advance(ring_channel *c); /* true: the call is done */

#endif
