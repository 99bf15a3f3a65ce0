/* Lab 7: sharded optimizer steps on ranks that run the student's function. The grader computes the reference,
 * which is the same steps without shards. */
#ifndef HARNESS_LABS_SHARD_STEP_H
#define HARNESS_LABS_SHARD_STEP_H

#include "harness/labs/ranks.h"
#include "harness/labs/students.h"

enum { SHARD_MOST_RANKS = 6, SHARD_MOST = LAB_RANKS_ELEMENTS };

typedef struct shard_run {
    lab_test *t;
    int ranks;
    int64_t n, step;
    float param[SHARD_MOST], m[SHARD_MOST], v[SHARD_MOST]; /* state of the reference */
    float grad[SHARD_MOST_RANKS][SHARD_MOST]; /* gradients of the next step; the caller sets them */
    int64_t most_bytes;                       /* largest allocation of a rank's function */

    /* State of the run, set by the functions below. */
    float next[SHARD_MOST];
    int waits[SHARD_MOST_RANKS]; /* kind of the collective for which each rank waits, or 0 */
    float given[SHARD_MOST_RANKS][SHARD_MOST];
    bool ended[SHARD_MOST_RANKS];
} shard_run;

/* Runs one step and updates the reference in y->param. Fails y->t if a rank's parameters differ. */
status shard_step(students *s, shard_run *y);

#endif
