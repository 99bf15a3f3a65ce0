/* Messages of lab 6 besides those of reducer.h. */
#ifndef LABS_RUNNER_STRAGGLERS_H
#define LABS_RUNNER_STRAGGLERS_H

#include "labs/runner/reducer.h"

enum { STRAGGLERS_SERVE, STRAGGLERS_MAY_BEGIN }; /* code of RUNNER_CASE: the function */

/* In front of the data of STRAGGLERS_SERVE: a checkpoint of `saved` bytes, or, where that is 0, the
 * parameters; and of STRAGGLERS_MAY_BEGIN: int64_t clock[ranks]. */
typedef struct stragglers_case {
    int64_t ranks, rank, staleness, n, saved;
    double lr, momentum;
} stragglers_case;

#endif
