/* Functions that the files of this folder share. */
#ifndef HARNESS_WORKLOAD_WORKLOAD_IMPL_H
#define HARNESS_WORKLOAD_WORKLOAD_IMPL_H

#include "harness/workload/workload.h"

/* Creates a model with a recording of at most `segments` segments and without parameters. */
status workload_begin(workload *w, const char *name, int64_t batch, int segments);

/* Adds a parameter of `bytes` bytes. `unit` is an index or NN_NONE. */
status workload_add_param(workload *w, const char *name, shape s, int64_t bytes, int unit);

/* Adds a segment and returns it, with room for `uses` and `ready` parameters. Returns NULL if out of memory.
 */
nn_segment *workload_add_segment(workload *w, int uses, int ready);

/* Adds the input layer and the form of the output. Call after all parameters are added. */
status workload_finish(workload *w);

/* Reads "params=350M,units=24,step=412ms,peak=31GiB". */
status workload_from_numbers(const char *text, workload *out);

#endif
