/* A rank's state in a ring during one collective call: buffers, progress and two ways to wait. A rank
 * reads from its left neighbor and writes only to its buffers.
 *
 * Each step works on one chunk. Chunks are processed in slices, so that neighbors work at the same time:
 * first all slices of step 0, then all slices of step 1, and so on. Each rank publishes the number of slices
 * that it has finished, which only grows.
 *
 * Nothing here blocks. An algorithm has two functions. `begin` ends by calling one of the await functions
 * below. `advance` is called when the awaited position is reached: it processes one slice and awaits the
 * next position. */
#ifndef RING_ALL_REDUCE_CHANNEL_H
#define RING_ALL_REDUCE_CHANNEL_H

#include "common/collectives/pieces.h" /* memcpy and a + b over lists of pieces */

typedef struct ring_channel {
    int rank, ranks;
    dtype type;
    reduce_op op;
    piece_buffer in, out;           /* Operand and result of this rank. May be the same memory. */
    piece_buffer left_in, left_out; /* Operand and result of the left neighbor. */
    int step, steps;                /* Present step, and number of steps. */
    int slice, slices;              /* Present slice of the step, and slices per chunk. */
    uint64_t base;                  /* Published counter at the beginning of the steps. */
    struct shm_queue *queue;        /* Call queue that runs this call. */
} ring_channel;

typedef struct ring_range {
    int64_t begin, count; /* In elements. */
} ring_range;

/* Returns the present slice of a chunk, 0 <= chunk < ranks. */
ring_range ring_channel_slice(const ring_channel *c, int chunk);

/* Publishes the present slice as finished, and moves on to the next slice or step. */
void ring_channel_publish(ring_channel *c);

/* Makes the call wait until the left neighbor has finished the present slice of its first `steps` steps. `r`
 * is the range that will then be read. An emulated link charges the bytes of this range. */
void ring_channel_await_left(ring_channel *c, int steps, ring_range r);

/* Makes the call wait until the right neighbor has finished all steps and no longer reads this rank's
 * buffers. */
void ring_channel_await_right(ring_channel *c);

/* ring.c */
void ring_all_reduce_begin(ring_channel *c);
bool ring_all_reduce_advance(ring_channel *c); /* Returns true when the call is done. */

#endif
