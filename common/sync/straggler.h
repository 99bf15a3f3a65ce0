/* --slow RANK:FACTOR,...: ranks that compute slower than they could, so that a laptop shows what one slow
 * machine does to everybody else under a policy (device_stream_slow_down()). */
#ifndef COMMON_SYNC_STRAGGLER_H
#define COMMON_SYNC_STRAGGLER_H

#include "common/base/status.h"

/* Writes the factor of `rank`, from 1 to 1000, to *factor: 1 if `text` is NULL or names other ranks.
 * STATUS_USAGE quotes what is malformed; STATUS_CONFIG: there is no such rank in `world`. */
status straggler_factor(const char *text, int rank, int world, double *factor);

#endif
