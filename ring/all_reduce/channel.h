/* A rank's state in a ring during one collective call: buffers, progress and two ways to wait. Rank r reads
 * the buffers of its left neighbor, rank r-1, and writes only to the buffers of rank r.
 *
 * Each step works on one chunk. Chunks are processed in slices, so that neighbors work at the same time. A
 * rank first processes all slices of step 0, then all slices of step 1, and so on. Each rank publishes the
 * number of slices that it has finished.
 *
 * Nothing here blocks. ring_begin() calls one of the await functions below. ring_advance() is called when
 * this wait has ended. It processes one slice, and then calls an await function again. */
#ifndef RING_ALL_REDUCE_CHANNEL_H
#define RING_ALL_REDUCE_CHANNEL_H

#include "common/collectives/pieces.h" /* memcpy and a + b over lists of pieces */

typedef struct ring_channel {
    int ranks;
    dtype type;
    reduce_op op;
    piece_buffer in, out;           /* Operand and result of this rank. They may be the same memory. */
    piece_buffer left_in, left_out; /* Operand and result of the left neighbor. */
    int first;                      /* Chunk of step 0. Step s works on chunk `first` - s. */
    int step, steps;                /* Current step, and number of steps. */
    int sums;                       /* Number of the first steps that add. The other steps copy. */
    int slice, slices;              /* Current slice of the step, and slices per chunk. */
    uint64_t base;                  /* Value of the published counter before step 0. */
    struct shm_queue *queue;        /* Call queue that runs this call. */
} ring_channel;

typedef struct ring_range {
    int64_t begin, count; /* In elements. */
} ring_range;

/* Returns the range of elements of the current slice in a chunk, 0 <= chunk < ranks. */
ring_range ring_channel_slice(const ring_channel *c, int chunk);

/* Publishes that `slices` slices are finished, beginning with the current one. The next slice, or slice 0 of
 * the next step, becomes the current one. */
void ring_channel_publish(ring_channel *c, int slices);

/* Makes the call wait until the left neighbor has finished the current slice of the step before the current
 * step. In step 0 the call does not wait for the neighbor. In a broadcast the call waits for the current
 * slice of the current step. After the wait this rank reads range `r` from the neighbor. An emulated link
 * delays the call by the time that the bytes of `r` take. */
void ring_channel_await_left(ring_channel *c, ring_range r);

/* Makes the call wait until the right neighbor has finished all steps. The neighbor then no longer reads this
 * rank's buffers. */
void ring_channel_await_right(ring_channel *c);

/* ring.c. ring_begin() waits for the input of the current slice, or for the end of the call.
 * ring_advance() returns true when the call is done. */
void ring_begin(ring_channel *c);
bool ring_advance(ring_channel *c);

#endif
