#include "common/sync/shared_options.h"

#include <stddef.h>

static const char *const divide_names[] = {"policy", "before", "after", NULL};

static const option option_list[] = {
    {.name = "divide", .level = OPTION_RARE, .type = OPTION_CHOICE, .offset = offsetof(shared_options, divide), .initial = "policy",
     .choices = divide_names, .help = "gradients by the number of ranks, before or after they are summed"},
    {.name = "stall-timeout", .argument = "TIME", .type = OPTION_DURATION,
     .offset = offsetof(shared_options, stall_timeout_ns), .initial = "60s", .low = 1e6,
     .help = "how long ranks wait for one of them within a step"},
    {.name = "link", .argument = "RATE,LATENCY", .type = OPTION_TEXT, .offset = offsetof(shared_options, link),
     .help = "emulate a slower network between the ranks, as in 10Gbit/s,50us"},
    {.name = "slow", .argument = "RANK:FACTOR", .type = OPTION_TEXT, .offset = offsetof(shared_options, slow),
     .help = "stretch the computation of one rank"},
};
const option_table shared_option_table = {"Synchronization", option_list, sizeof option_list / sizeof option_list[0]};
