/* The option --slow RANK:FACTOR,... makes ranks compute more slowly (device_stream_slow_down()). The option
 * shows how, under a policy, one slow machine affects all other machines. */
#ifndef COMMON_SYNC_STRAGGLER_H
#define COMMON_SYNC_STRAGGLER_H

#include "common/base/status.h"

/* Sets *factor to the factor of `rank`, which is from 1 to 1000. Sets *factor to 1 if `text` is NULL or
 * does not contain the rank. Returns STATUS_USAGE if the text is malformed, and STATUS_CONFIG if the text
 * names a rank outside of `world`. */
status straggler_factor(const char *text, int rank, int world, double *factor);

#endif
