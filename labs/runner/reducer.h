/* Messages of labs 2 and 6 between the grader and the student's server. */
#ifndef LABS_RUNNER_REDUCER_H
#define LABS_RUNNER_REDUCER_H

#include "labs/runner/runner.h"

enum {
    REDUCER_RECEIVE = RUNNER_FIRST_OF_LAB, /* answered with REDUCER_PUSH, REDUCER_SAVE, or a code */
    REDUCER_PUSH,                          /* reducer_push, then the gradients */
    REDUCER_REPLY,                         /* n is the rank; followed by the parameters; answered with a
                                            * code */
    REDUCER_SAVE,  /* lab 6: answered with REDUCER_SAVED, then the process asks again */
    REDUCER_SAVED, /* the checkpoint */
};

/* Precedes the gradients of REDUCER_PUSH. */
typedef struct reducer_push {
    int64_t rank, step, samples;
} reducer_push;

/* Precedes the parameters of RUNNER_CASE. */
typedef struct reducer_case {
    int64_t ranks, n;
    double lr;
} reducer_case;

#endif
