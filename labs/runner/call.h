/* Calls functions that take and return numbers. The grader sends the function's number and doubles, and
 * receives doubles. Integers below 2^53 are exact. */
#ifndef LABS_RUNNER_CALL_H
#define LABS_RUNNER_CALL_H

#include "labs/runner/runner.h"

#include <stdlib.h>

enum { CALL_MOST_NUMBERS = 16384, CALL_HAS_ANSWERED = INT32_MIN };

/* Calls function `which` with in[0..n). Stores its results in out[] and returns their number, at most
 * CALL_MOST_NUMBERS, or a LAB_E... code, or CALL_HAS_ANSWERED if it has sent RUNNER_RESULT itself. Each lab
 * defines call_function(). */
int call_function(int which, const double *in, int n, double *out);

void runner_case(runner_message m, void *data)
{
    double *out = runner_memory(CALL_MOST_NUMBERS * sizeof *out);
    int n = call_function(m.code, data, (int)m.n, out);
    if (n != CALL_HAS_ANSWERED)
        runner_write((runner_message){RUNNER_RESULT, n, n, n > 0 ? n * (int64_t)sizeof *out : 0}, out);
    free(out);
}

#endif
