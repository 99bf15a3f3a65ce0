/* Calls of student functions that take and return numbers: see labs/runner/call.h. */
#ifndef HARNESS_LABS_CALL_H
#define HARNESS_LABS_CALL_H

#include "harness/labs/students.h"

enum { CALL_MOST_RESULTS = 16384 };

typedef struct student_calls {
    students s;
    int count; /* of the last call's results, or a LAB_E... code */
    double result[CALL_MOST_RESULTS];
} student_calls;

/* One process, whose calls follow one another; calls_close() also after an error. */
status calls_open(grader *g, student_calls **out);
/* Calls function `which` with in[0..n); the results are in c->result. Where it crashes, hangs or has not been
 * written yet, fails `t`. */
status calls_make(student_calls *c, lab_test *t, int which, const double *in, int n);
void calls_close(student_calls **c, lab_test *t);

/* Runs `harness WORD...` and reads the JSON that it prints; the caller's to free. */
status program_json(const char *const words[], json_t **out);

#endif
