/* Messages of lab 3 between the grader and a rank. */
#ifndef LABS_RUNNER_RING_H
#define LABS_RUNNER_RING_H

#include "labs/runner/runner.h"

enum {
    RING_SEND = RUNNER_FIRST_OF_LAB, /* n elements for the right neighbor; answered with a code when the link
                                      * has room */
    RING_RECEIVE,                    /* answered with a code and n elements */
    RING_READY,                      /* timed runs: sent before the call */
};

#endif
