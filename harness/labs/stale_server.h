/* Lab 6: the student's server, and ranks that the grader plays in virtual time. After each reply a rank
 * computes for a random time, so each seed gives a different interleaving. The grader computes the reference
 * at the same time, and compares every reply with the reference, bit for bit. */
#ifndef HARNESS_LABS_STALE_SERVER_H
#define HARNESS_LABS_STALE_SERVER_H

#include "harness/labs/ranks.h"
#include "harness/labs/students.h"

enum { STALE_MOST_RANKS = 5, STALE_MOST = LAB_RANKS_ELEMENTS };
/* Largest checkpoint, as in labs/runner/stragglers.c. */
enum { STALE_MOST_BYTES = 4096 + 16 * STALE_MOST + 16 * STALE_MOST_RANKS };

/* State of the reference, as in a checkpoint. */
typedef struct stale_state {
    float param[STALE_MOST], velocity[STALE_MOST];
    int64_t clock[STALE_MOST_RANKS];
} stale_state;

typedef struct stale_run {
    const grader *g;
    lab_test *t;
    int ranks, slow_rank;
    int64_t staleness, n, most; /* `most` is the number of pushes after which training ends */
    float lr, momentum;
    double slow;              /* factor by which the slow rank's steps are longer */
    uint64_t start;           /* seed of the drawn times and gradients */
    bool wine;                /* true if g->ranks train, false if gradients are drawn */
    int64_t save_at, kill_at; /* number of pushes before the save or the kill, or -1 for never */
    /* reached_s is the time at which `loss` falls below this limit. 0 if there is no limit. */
    double loss_limit;

    stale_state now;
    double now_s, reached_s, loss; /* times in units of a rank's mean step */
    int64_t pushes;

    /* State of the run, set by stale_serve() and stale_resume(). */
    status rc;
    bool waits[STALE_MOST_RANKS], resumed, saved, killed;
    double ends_s[STALE_MOST_RANKS], losses[STALE_MOST_RANKS];
    float grad[STALE_MOST_RANKS][STALE_MOST], before[STALE_MOST];
    int64_t applied;   /* number of pushes since the current server process began */
    stale_state wrong; /* state of a server that has no momentum, or has lost the velocity */
    stale_state checkpoint;
    char bytes[STALE_MOST_BYTES]; /* [byte_count] the student's checkpoint */
    int64_t byte_count;
} stale_run;

/* Serves from the state in y->now until training ends, or the server is killed. */
status stale_serve(students *s, stale_run *y);
/* Serves from the checkpoint in a new process. */
status stale_resume(students *s, stale_run *y);
/* Returns true if the rank may begin its next step. */
bool stale_may_begin(const int64_t *clock, int ranks, int rank, int64_t staleness);
/* Writes "clocks 3 1 4, staleness 1". */
void stale_describe(const int64_t *clock, int ranks, int64_t staleness, char out[160]);

#endif
