#include "common/sync/shared_options.h"

#include <stddef.h>

static const char *const divide_choices[] = {"policy", "before", "after", NULL};

static const option options[] = {
    {.name = "divide",
     .type = OPTION_CHOICE,
     .offset = offsetof(sync_shared_options, divide),
     .initial = "policy",
     .choices = divide_choices,
     .help = "where the mean over ranks is taken: gradients are divided before or after their sum"},
};

const option_table sync_shared_option_table = {"Synchronisation", options,
                                               sizeof options / sizeof options[0]};
