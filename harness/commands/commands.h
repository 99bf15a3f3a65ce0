/* The commands of the program: `harness COMMAND options`. */
#ifndef HARNESS_COMMANDS_COMMANDS_H
#define HARNESS_COMMANDS_COMMANDS_H

#include "common/base/status.h"
#include "common/base/text.h"

#include <stdbool.h>

typedef struct command {
    const char *name;
    const char *usage;   /* what follows the name */
    const char *summary; /* one line */
    /* `exit_code` is what the process ends with where the status is OK (128 + signal, 1, ...). */
    status (*run)(int argc, char *argv[], int *exit_code);
    void (*help)(bool all, text_buffer *out); /* the options, without `all` only those that people use; NULL: none */
} command;

extern const command command_run, command_verify, command_doctor, command_models, command_policies, command_buckets,
    command_bench, command_profiles, command_reproduce, command_whatif, command_calibrate,
    command_compare;

#endif
