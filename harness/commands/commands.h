/* The commands of the program: `harness COMMAND options`. main() finds the command and parses its command
 * line. */
#ifndef HARNESS_COMMANDS_COMMANDS_H
#define HARNESS_COMMANDS_COMMANDS_H

#include "common/base/options.h"

#include <string.h>

typedef struct command_line {
    int argc;
    /* "harness", the command's name, argc words of the user, and room for COMMAND_OWN_WORDS more words. */
    char **argv;
    void *options;
    option_binding *bindings;
    const char **words; /* [word_count]: words that are not options. */
    int word_count;
    text_buffer *out; /* Output, which is printed after the command if the status is OK. */
    int exit_code;    /* Exit code of the process if the status is OK, such as 128 + signal. */
} command_line;

/* Value of most_words for a command that reads argv itself. The fields of its `options` then only hold the
 * default values. */
enum { COMMAND_READS_ITSELF = -1, COMMAND_MOST_BINDINGS = 8, COMMAND_OWN_WORDS = 8 };

typedef struct command {
    const char *name;
    const char *usage; /* Text after the command's name in the usage line. */
    const char *summary;
    size_t options_size; /* Size of the struct `options`, which is zeroed. */
    /* Table of the options that are fields of the struct, which may be empty. The help prints `about` before
     * the tables and `notes` after them. */
    option_table table;
    const char *about, *notes;
    /* Binds fields of the struct to further tables. Returns the number of bindings, less than
     * COMMAND_MOST_BINDINGS. NULL if `table` is the only table. */
    size_t (*bind)(void *options, option_binding *bindings);
    int most_words;
    status (*run)(command_line *line);
    /* Prints the table of --help=effects. NULL if the command does not have this table. */
    void (*effects)(void *options, text_buffer *out);
    /* Prints the help on the options in place of the help that the tables contain. May be NULL. */
    void (*help)(void *options, bool all, text_buffer *out);
} command;

static inline bool command_is_stdout(const char *path)
{
    return path && strcmp(path, "-") == 0;
}

extern const command command_run, command_verify, command_doctor, command_models, command_policies,
    command_buckets, command_bench, command_profiles, command_reproduce, command_whatif, command_calibrate,
    command_compare, command_report, command_sweep, command_memory, command_lab, command_collectives,
    command_import, command_explain;

#endif
