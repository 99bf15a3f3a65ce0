/* Messages of lab 6, in addition to reducer.h. */
#ifndef LABS_RUNNER_STRAGGLERS_H
#define LABS_RUNNER_STRAGGLERS_H

#include "labs/runner/reducer.h"

enum { STRAGGLERS_SERVE, STRAGGLERS_MAY_BEGIN }; /* code of RUNNER_CASE: the function */

/* Precedes the data of a case. Data of STRAGGLERS_SERVE: a checkpoint of `saved` bytes, or the parameters if
 * `saved` is 0. Data of STRAGGLERS_MAY_BEGIN: int64_t clock[ranks]. */
typedef struct stragglers_case {
    int64_t ranks, rank, staleness, n, saved;
    double lr, momentum;
} stragglers_case;

#endif
