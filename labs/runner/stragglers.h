/* Messages of lab 6, in addition to reducer.h. */
#ifndef LABS_RUNNER_STRAGGLERS_H
#define LABS_RUNNER_STRAGGLERS_H

#include "labs/runner/reducer.h"

/* code of RUNNER_CASE. STRAGGLERS_MAY_BEGIN calls student_may_begin() as in call.h with the rank, the
 * staleness and the clocks. */
enum { STRAGGLERS_SERVE, STRAGGLERS_MAY_BEGIN };

/* Precedes the data of STRAGGLERS_SERVE: a checkpoint of `saved` bytes, or the parameters if `saved` is 0. */
typedef struct stragglers_case {
    int64_t ranks, staleness, n, saved;
    double lr, momentum;
} stragglers_case;

#endif
