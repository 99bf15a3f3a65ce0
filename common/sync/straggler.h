/* Option --slow RANK:FACTOR,... makes ranks compute more slowly, to show how one slow machine affects all
 * others under a policy (device_stream_slow_down()). */
#ifndef COMMON_SYNC_STRAGGLER_H
#define COMMON_SYNC_STRAGGLER_H

#include "common/base/status.h"

/* Sets *factor to the factor of `rank`, from 1 to 1000, or to 1 if `text` is NULL or does not name the rank.
 * Returns STATUS_USAGE if the text is malformed, and STATUS_CONFIG if the text names a rank outside of
 * `world`. */
status straggler_factor(const char *text, int rank, int world, double *factor);

#endif
