/* Options that every engine understands alike. */
#ifndef COMMON_SYNC_SHARED_OPTIONS_H
#define COMMON_SYNC_SHARED_OPTIONS_H

#include "common/base/options.h"

/* Where the mean over the ranks is taken: a true division by their number. */
typedef enum shared_divide {
    SHARED_DIVIDE_POLICY, /* as the policy has it */
    SHARED_DIVIDE_BEFORE, /* each rank's gradient, before the sum */
    SHARED_DIVIDE_AFTER   /* the sum */
} shared_divide;

typedef struct shared_options {
    int divide; /* shared_divide */
    int64_t stall_timeout_ns;
    const char *link; /* net_link_parse(), or NULL */
    const char *slow; /* straggler.h: "RANK:FACTOR", or NULL */
} shared_options;

extern const option_table shared_option_table;

#endif
