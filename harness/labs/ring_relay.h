/* Lab 3: the relay between the student's ranks. The relay holds one message per link, and counts bytes and
 * messages. Results are sums of integers, so they are exact, and a wrong result shows the rank whose share is
 * missing or counted twice. */
#ifndef HARNESS_LABS_RING_RELAY_H
#define HARNESS_LABS_RING_RELAY_H

#include "harness/labs/students.h"

/* Traffic of one all-reduce, as the maximum over the ranks. */
typedef struct ring_traffic {
    int64_t sent_bytes, messages;
    int64_t memory_bytes; /* largest allocation */
} ring_traffic;

/* Runs n all-reduces, of counts[0], ..., counts[n - 1] elements, among the same `size` processes, until a
 * result is wrong. `most` receives the traffic of the last all-reduce, or is NULL. */
status ring_relay_run(grader *g, lab_test *t, int size, const int64_t *counts, int n, ring_traffic *most);

/* Gives every rank of `s` its share of `count` elements. */
status ring_relay_send_input(students *s, int64_t count);
/* Returns element i of the shares' sum. */
float ring_relay_sum(int size, int64_t i);

/* ---- ring_reference.c: the reference, an all-reduce between processes. Lab 3 compares the time of the
 * student's function with the time of the reference. Both send data through the same kind of shared memory.
 * ---- */
/* Creates anonymous shared memory with a link per rank, for `count` elements each. The caller closes *fd. */
status ring_reference_links(int ranks, int64_t count, int *fd);

/* Measures the critical path of one all-reduce, as defined in labs/runner/ring_direct.h. */
status ring_reference_time(int ranks, int64_t count, int64_t *ns);

#endif
