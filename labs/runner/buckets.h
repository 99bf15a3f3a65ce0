/* Messages of lab 5 between the grader and a rank, within a call of student_backward(). */
#ifndef LABS_RUNNER_BUCKETS_H
#define LABS_RUNNER_BUCKETS_H

#include "labs/runner/runner.h"

enum { BUCKETS_ASSIGN, BUCKETS_BACKWARD, BUCKETS_EXPOSED }; /* the function numbers of call.h */
enum {
    BUCKETS_NEXT = RUNNER_FIRST_OF_LAB, /* answered with a code, and the gradient in n */
    BUCKETS_LAUNCH,                     /* n is the bucket; answered with a code */
    BUCKETS_WAIT,                       /* n is the bucket; answered with a code when it is reduced */
};

#endif
