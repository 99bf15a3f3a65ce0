/* The commands of the program: `harness COMMAND options`. Main finds the command and reads its command line.
 */
#ifndef HARNESS_COMMANDS_COMMANDS_H
#define HARNESS_COMMANDS_COMMANDS_H

#include "common/base/options.h"

typedef struct command_line {
    int argc;
    char **argv;   /* "harness", the command's name, and argc words of the user */
    void *options; /* the command's struct */
    option_binding *bindings;
    const char **words; /* [word_count] the user's words that are not options */
    int word_count;
    int exit_code; /* what the process ends with where the status is OK (128 + signal, 1, ...) */
} command_line;

/* As most_words: the command reads argv itself. */
enum { COMMAND_READS_ITSELF = -1, COMMAND_MOST_BINDINGS = 8 };

typedef struct command {
    const char *name;
    const char *usage;   /* what follows the name */
    const char *summary; /* one line */
    size_t options_size; /* of the command's struct, all zero at first */
    /* Binds the struct's fields to their tables; returns the number of bindings, at most
     * COMMAND_MOST_BINDINGS. NULL: no options. */
    size_t (*bind)(void *options, option_binding *bindings);
    int most_words; /* besides options */
    status (*run)(command_line *line);
    void (*effects)(
        text_buffer *out); /* --help=effects: what its options do where; NULL: there is no such table */
    void (*help)(bool all, text_buffer *out); /* instead of the options in `bind`; NULL: none */
} command;

extern const command command_run, command_verify, command_doctor, command_models, command_policies,
    command_buckets, command_bench, command_profiles, command_reproduce, command_whatif, command_calibrate,
    command_compare, command_report, command_sweep, command_memory, command_lab;

#endif
