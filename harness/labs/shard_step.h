/* Lab 7: sharded optimizer steps on ranks that run the student's function, next to the same steps without
 * shards. */
#ifndef HARNESS_LABS_SHARD_STEP_H
#define HARNESS_LABS_SHARD_STEP_H

#include "harness/labs/ranks.h"
#include "harness/labs/students.h"

enum { SHARD_MOST_RANKS = 6, SHARD_MOST = LAB_RANKS_ELEMENTS };

typedef struct shard_run {
    lab_test *t;
    int ranks;
    int64_t n, step;
    float param[SHARD_MOST], m[SHARD_MOST], v[SHARD_MOST]; /* of the reference */
    float grad[SHARD_MOST_RANKS][SHARD_MOST];              /* of the next step; set by the caller */
    int64_t most_bytes;                                    /* that a rank's function has had allocated */

    /* Only of the run's own: what the ranks are in. */
    float next[SHARD_MOST];
    int waits[SHARD_MOST_RANKS]; /* kind of the collective; 0: none */
    float given[SHARD_MOST_RANKS][SHARD_MOST];
    bool ended[SHARD_MOST_RANKS];
} shard_run;

status shard_ranks_open(grader *g, int ranks, students *s);
/* One step; y->param becomes the reference's. Fails y->t where a rank's differs. */
status shard_step(students *s, shard_run *y);

#endif
