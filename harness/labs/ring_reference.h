/* Reference of lab 3's speed part: a ring all-reduce between processes, over the same shared memory as a
 * student's. */
#ifndef HARNESS_LABS_RING_REFERENCE_H
#define HARNESS_LABS_RING_REFERENCE_H

#include "common/base/status.h"

#include <stdint.h>

/* Creates anonymous shared memory with a link per rank, for `count` elements each. The caller closes *fd. */
status ring_reference_links(int ranks, int64_t count, int *fd);

/* Measures one all-reduce along its critical path, as labs/runner/ring_direct.h counts it. */
status ring_reference_time(int ranks, int64_t count, int64_t *ns);

#endif
