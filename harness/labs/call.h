/* Calls student functions that take and return numbers (labs/runner/call.h). */
#ifndef HARNESS_LABS_CALL_H
#define HARNESS_LABS_CALL_H

#include "harness/labs/students.h"

enum { CALL_MOST_RESULTS = 16384 };

typedef struct student_calls {
    students s;
    int count; /* number of results of the last call, or a LAB_E... code */
    double result[CALL_MOST_RESULTS];
} student_calls;

/* Opens one process, whose calls follow one another. calls_close() must be called even after an error. */
status calls_open(grader *g, student_calls **out);
/* Calls function `which` with in[0..n). The results are in c->result. Fails `t` if the function crashes,
 * hangs or has not been written yet. */
status calls_make(student_calls *c, lab_test *t, int which, const double *in, int n);
void calls_close(student_calls **c, lab_test *t);

/* Runs `harness WORD...` and reads the JSON that it prints. *out is a new reference. */
status program_json(const char *const words[], json_t **out);

#endif
