/* One workload under several policies, one run after the other. */
#ifndef HARNESS_COMMANDS_COMPARE_POLICIES_H
#define HARNESS_COMMANDS_COMPARE_POLICIES_H

#include "harness/commands/commands.h"

/* The command line is "--policies P,P,..." and options of run. */
status compare_policies(command_line *line);

#endif
