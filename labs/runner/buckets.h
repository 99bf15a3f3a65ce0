/* Messages of lab 5 between the grader and a rank, within a call of student_backward(). */
#ifndef LABS_RUNNER_BUCKETS_H
#define LABS_RUNNER_BUCKETS_H

#include "labs/runner/runner.h"

enum { BUCKETS_ASSIGN, BUCKETS_BACKWARD, BUCKETS_EXPOSED }; /* functions, as call.h numbers them */
enum {
    BUCKETS_NEXT = RUNNER_FIRST_OF_LAB, /* answered with a code, and the gradient in n */
    BUCKETS_LAUNCH,                     /* n: the bucket; answered with a code */
    BUCKETS_WAIT,                       /* the same, once it is reduced */
};

#endif
