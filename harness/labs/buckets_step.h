/* Lab 5: a backward pass in virtual time. Some ranks run the student's launch rule, and one rank runs the
 * launch rule of the ring engine (ring/ddp/schedule.c). */
#ifndef HARNESS_LABS_BUCKETS_STEP_H
#define HARNESS_LABS_BUCKETS_STEP_H

#include "harness/labs/students.h"
#include "ring/ddp/buckets.h"

/* STEP_MOST is the largest number of gradients. */
enum { STEP_RANKS = 3, STEP_STUDENTS = STEP_RANKS - 1, STEP_MOST = 1024 };

/* Buckets of at most STEP_MOST gradients. */
typedef struct lab_buckets {
    bucket_schedule schedule;
    bucket buckets[STEP_MOST];
    int tensors[STEP_MOST], bucket_of[STEP_MOST];
} lab_buckets;

typedef struct buckets_step {
    int count; /* number of gradients */
    lab_buckets assigned;
    int order[STEP_RANKS][STEP_MOST]; /* order in which each rank computes the gradients */
    double compute_s[STEP_MOST];      /* time of each gradient */
    double latency_s, bytes_per_s;    /* time of an all-reduce: latency + bytes / rate */
    /* Results: a bucket that was launched later than possible, and a bucket for which a rank waited before it
     * had computed its last gradient. BUCKET_NONE if there is none. */
    int late, waits_early;
    /* Results: longest time for which a student's rank waited for communication, and this time if all ranks
     * ran the reference. */
    double exposed_s, reference_s;
} buckets_step;

/* Assigns gradients to buckets by the rule of `plan`, such as DistributedDataParallel's. Takes the gradients
 * in the order of `bytes`. */
void buckets_assign(bucket_plan plan, const int64_t *bytes, int count, lab_buckets *out);
bucket_plan buckets_ddp(int64_t first_limit, int64_t limit);

/* Runs one step on STEP_STUDENTS processes that run the student's rule; the last rank is the reference. Fails
 * the test if a rank breaks a rule. */
status buckets_step_run(students *s, buckets_step *step);

/* ---- buckets_trace.c: exposed communication of traces in virtual time, and the questions about the cap ----
 */
status buckets_run_trace(grader *g, lab_test *t);
status buckets_run_why(grader *g, lab_test *t);

#endif
