/* Options that mean the same to every engine; bound once, beside the engine's own. */
#ifndef COMMON_SYNC_SHARED_OPTIONS_H
#define COMMON_SYNC_SHARED_OPTIONS_H

#include "common/base/options.h"

/* Where the mean over the ranks is taken: a true division by their number, before or after the sum. */
typedef enum sync_divide { SYNC_DIVIDE_POLICY, SYNC_DIVIDE_BEFORE, SYNC_DIVIDE_AFTER } sync_divide;

typedef struct sync_shared_options {
    int divide; /* sync_divide; POLICY: as the policy does */
} sync_shared_options;

extern const option_table sync_shared_option_table;

#endif
