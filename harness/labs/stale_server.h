/* Lab 6: ranks in virtual time around the student's server. A rank computes for a drawn time from the reply
 * on, so seeds give interleavings. The reference is computed next to the server: every reply is compared with
 * it bit for bit. */
#ifndef HARNESS_LABS_STALE_SERVER_H
#define HARNESS_LABS_STALE_SERVER_H

#include "harness/labs/ranks.h"
#include "harness/labs/students.h"

enum { STALE_MOST_RANKS = 5, STALE_MOST = LAB_RANKS_ELEMENTS };

/* What a checkpoint holds, of the reference. */
typedef struct stale_state {
    float param[STALE_MOST], velocity[STALE_MOST];
    int64_t clock[STALE_MOST_RANKS];
} stale_state;

typedef struct stale_run {
    lab_test *t;
    int ranks, slow_rank;
    int64_t staleness, n, most; /* pushes until training ends */
    float lr, momentum;
    double slow;              /* factor of the slow rank */
    uint64_t start;           /* of drawn times and gradients */
    lab_ranks *wine;          /* NULL: gradients are drawn */
    int64_t save_at, kill_at; /* after so many pushes; -1: never */
    double loss_limit; /* reached_s: when the mean loss of the last pushes is below it; 0: not looked for */

    stale_state now;
    double now_s, reached_s, loss; /* in units of a rank's mean step */
    int64_t pushes;

    /* Only of the run's own. */
    status rc;
    bool waits[STALE_MOST_RANKS], resumed, saved, killed;
    double ends_s[STALE_MOST_RANKS], losses[STALE_MOST_RANKS];
    float grad[STALE_MOST_RANKS][STALE_MOST], before[STALE_MOST];
    int64_t applied;   /* pushes of this process */
    stale_state wrong; /* that of a server without momentum, or of one that has lost the velocity */
    stale_state checkpoint;
    char *bytes; /* of the student's checkpoint [byte_count]; the caller's to free */
    int64_t byte_count;
} stale_run;

/* From the state in y->now until training ends, or the server is killed. */
status stale_serve(students *s, stale_run *y);
/* In a new process, from the checkpoint. */
status stale_resume(students *s, stale_run *y);
/* Whether the rank may begin its next step. */
bool stale_may_begin(const int64_t *clock, int ranks, int rank, int64_t staleness);
/* "3 1 4" */
void stale_clocks(const int64_t *clock, int ranks, char out[96]);

#endif
