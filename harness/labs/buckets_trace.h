/* Lab 5: exposed communication of traces in virtual time, and the questions about the cap. */
#ifndef HARNESS_LABS_BUCKETS_TRACE_H
#define HARNESS_LABS_BUCKETS_TRACE_H

#include "harness/labs/grader.h"

status buckets_run_trace(grader *g, lab_test *t);
status buckets_run_why(grader *g, lab_test *t);

#endif
