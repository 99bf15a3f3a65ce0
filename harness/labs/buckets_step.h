/* Lab 5: a backward pass in virtual time, on ranks that run the student's launch rule next to one that runs
 * the ring's (ring/buckets/schedule.c). */
#ifndef HARNESS_LABS_BUCKETS_STEP_H
#define HARNESS_LABS_BUCKETS_STEP_H

#include "harness/labs/students.h"
#include "ring/buckets/buckets.h"

enum { STEP_RANKS = 3, STEP_MOST = 1024 }; /* gradients */

typedef struct buckets_step {
    int count;                        /* gradients */
    bucket_schedule *schedule;        /* their buckets */
    int order[STEP_RANKS][STEP_MOST]; /* in which each rank computes them */
    double compute_s[STEP_MOST];      /* of each gradient */
    double latency_s, bytes_per_s;    /* of an all-reduce: latency + bytes / rate */
    int late, waits_early; /* results: a bucket that was launched later than it might have been, or waited
                            * for before the last gradient; BUCKET_NONE */
    double exposed_s, reference_s; /* results: the longest of the student's ranks; if all ran the reference */
} buckets_step;

/* By DistributedDataParallel's rule, gradients in the order of `bytes`; the caller closes it. */
status buckets_of(const int64_t *bytes, int count, int64_t first_limit, int64_t limit, bucket_schedule *out);

/* The student's ranks: processes that serve steps until students_end(); the last rank is the reference. */
status buckets_ranks_open(grader *g, students *s);
/* Runs one step; fails `t` where a rule is broken. */
status buckets_step_run(students *s, buckets_step *step, lab_test *t);

#endif
