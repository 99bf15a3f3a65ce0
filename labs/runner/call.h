/* Calls functions that take and return numbers. The grader sends the function's number and doubles, and
 * receives doubles. Integers below 2^53 are exact. */
#ifndef LABS_RUNNER_CALL_H
#define LABS_RUNNER_CALL_H

#include "labs/runner/runner.h"

#include <stdlib.h>

enum { CALL_MOST_NUMBERS = 16384 };

/* Calls function `which` with in[0..n). Stores its results in out[] and returns their number, at most
 * CALL_MOST_NUMBERS, or a LAB_E... code. Each lab defines it. */
int call_function(int which, const double *in, int n, double *out);

void runner_run(char **words, void (*set_up)(void))
{
    (void)words;
    set_up();
    for (;;) {
        runner_message m = runner_read();
        double *in = malloc((size_t)m.bytes + 1), *out = malloc(CALL_MOST_NUMBERS * sizeof *out);
        if (!in || !out) abort();
        runner_read_data(in, m.bytes);
        int n = call_function(m.code, in, (int)m.n, out);
        runner_write((runner_message){RUNNER_RESULT, n, n, n > 0 ? n * (int64_t)sizeof *out : 0}, out);
        free(in);
        free(out);
    }
}

#endif
