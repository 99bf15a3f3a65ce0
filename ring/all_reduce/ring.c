/* Ring all-reduce: every rank ends with the sum of all ranks' buffers.
 *
 * The ranks form a ring, and each rank reads only from its left neighbor. Every link therefore carries the
 * same traffic, 2(n-1)/n times the size of the buffer. This is less than twice the buffer for any number of
 * ranks. No all-reduce can send less (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
 * clusters of workstations", JPDC 2009).
 *
 * The buffer is cut into n chunks. In step s rank r works on chunk (r - 1 - s) mod n:
 *
 *   reduce-scatter, steps 0 to n-2        add the left neighbor's partial sum to rank r's values
 *   all-gather,     steps n-1 to 2(n-1)-1 copy the left neighbor's finished chunk
 *
 * Five ranks with buffers a to e, chunks 0 to 4; "ea4" is e4 + a4, capitals are finished sums:
 *
 *      step      rank 0   rank 1   rank 2   rank 3   rank 4
 *        0        ea4      ab0      bc1      cd2      de3
 *        1        dea3     eab4     abc0     bcd1     cde2
 *        2        cdea2    deab3    eabc4    abcd0    bcde1
 *        3        BCDEA1   CDEAB2   DEABC3   EABCD4   ABCDE0
 *      ------------------------------------------------------
 *        4        0        1        2        3        4          chunk copied from the left
 *        5        4        0        1        2        3
 *        6        3        4        0        1        2
 *        7        2        3        4        0        1
 *
 * Chunk c is summed in the order c, c+1, ..., c-1, so every run gives bit-identical results.
 *
 * Chunks are processed in slices. A rank may begin slice i of step s when its left neighbor has finished
 * slice i of step s-1, which produced the input. This is the only wait.
 *
 * The wait also keeps a rank from overwriting values that its right neighbor still has to read. Rank r writes
 * chunk r+1 only once, in step n-2. It writes chunk r only in step n-1, after rank r+1 has read the old
 * values in step 0. Rank r writes each of the remaining chunks twice, in steps s and s+n. Step s+n of rank r
 * depends on step s+1 of rank r+1, because the chain of waits goes once around the ring. Rank r+1 reads the
 * chunk in step s+1, so it has read the chunk before rank r writes it again.
 *
 * At the end each rank waits until its right neighbor has finished. Then the caller may change the buffers.
 *
 * A reduce-scatter has only the first n-1 steps, an all-gather only the last n-1. Both run the functions
 * below, and so does a broadcast. channel.c sets the first chunk and the numbers of steps, and puts the
 * functions into the table as shm_algorithm_ring. */
#include "ring/all_reduce/channel.h"

static int chunk_of_step(const ring_channel *c)
{
    return (c->first - c->step + 2 * c->ranks) % c->ranks;
}

void ring_begin(ring_channel *c)
{
    if (c->step < c->steps)
        ring_channel_await_left(c, ring_channel_slice(c, chunk_of_step(c)));
    else
        ring_channel_await_right(c);
}

bool ring_advance(ring_channel *c)
{
    if (c->step == c->steps) return true;
    ring_range r = ring_channel_slice(c, chunk_of_step(c));
    if (c->step < c->sums) {
        /* In step 0 the partial sum is the left neighbor's own values. */
        const piece_buffer *left = c->step == 0 ? &c->left_in : &c->left_out;
        pieces_reduce_pair(c->type, c->op, &c->out, left, &c->in, r.begin, r.count);
        if (c->step == c->sums - 1 && c->op == REDUCE_MEAN)
            pieces_divide(c->type, &c->out, r.begin, r.count, c->ranks);
    } else {
        pieces_copy(c->type, &c->out, r.begin, &c->left_out, r.begin, r.count);
    }
    ring_channel_publish(c, 1);
    ring_begin(c);
    return false;
}
