/* Command-line options as data. A component declares each of its options once, in a const table; the table
 * yields parsing, defaults, --help, the configuration block of a report, and JSON. Unknown options and values
 * are errors. Abbreviations are not accepted, unlike getopt_long's: a new option must not change the meaning
 * of an old command. */
#ifndef COMMON_BASE_OPTIONS_H
#define COMMON_BASE_OPTIONS_H

#include "common/base/status.h"
#include "common/base/text.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum option_type {
    OPTION_FLAG,     /* bool; --name and --no-name, or --name=yes and --name=no */
    OPTION_INT,      /* int64_t within [low, high] */
    OPTION_DOUBLE,   /* double within [low, high] */
    OPTION_TEXT,     /* const char *, borrowed from argv or from the table */
    OPTION_CHOICE,   /* int, index into `choices` */
    OPTION_BYTES,    /* int64_t, "25MiB" */
    OPTION_MIB,      /* double, a size in MiB: "25", or with its unit "25MiB" */
    OPTION_DURATION, /* int64_t nanoseconds, "50us" */
} option_type;

typedef enum option_level {
    OPTION_COMMON, /* what people use: --help shows it */
    OPTION_RARE,   /* only --help=all does */
    OPTION_KEY, /* a key of a policy, "--policy ring=ddp:order=ready"; "--order ready" works, with a notice */
} option_level;

/* A row of a table: {"bucket-cap-mb", OPTION_INT, offsetof(options, bucket_cap), .argument = "MIB", .help =
 * "..."}. */
typedef struct option {
    const char *name; /* without the dashes: "bucket-cap-mb" */
    option_type type;
    size_t offset;        /* of the field in the component's struct */
    const char *argument; /* how --help names the value: "MIB"; NULL for a flag */
    const char *initial;  /* default, as on the command line; NULL: zero, false, no text */
    double low, high;     /* for INT and DOUBLE; both 0: any value from 0 */
    const char *const
        *choices; /* for CHOICE; NULL-terminated; last, and not shown: "OLD=NEW" for a renamed value,
                   * "OLD=NEW --OTHER VALUE" where another option of the table holds a part of it */
    const char *help;
    option_level level;
    const char *alias;    /* a name that people know from other programs, or NULL */
    const char *old_name; /* that it had; works with a notice; or NULL */
    char letter;          /* as in -b, or 0 */
} option;

typedef struct option_table {
    const char *title; /* heading in --help */
    const option *options;
    size_t count;
} option_table;

/* A table bound to the struct that it fills. At most 64 options per table. */
typedef struct option_binding {
    const option_table *table;
    void *storage;
    uint64_t given; /* bit i: the user gave option i */
    uint64_t moved; /* bit i: the user gave the key i of a policy as an option */
} option_binding;

/* Sets every field to its default. */
status options_defaults(option_binding *bindings, size_t count);

/* Parses argv[0..argc), without the names of program and command. In the name of an option an underscore is a
 * dash. Words that do not start with a dash are stored, in order, in positional[0..*positional_count), which
 * needs room for argc of them. "--" ends the options. Errors: STATUS_USAGE. */
status options_parse(option_binding *bindings, size_t count, int argc, char *const argv[],
                     const char **positional, int *positional_count);

/* As options_parse(), for a command in front of another one: words that are no option of these bindings are
 * the other command's, and go in order to rest[0..*rest_count), which needs room for argc of them. */
status options_take(option_binding *bindings, size_t count, int argc, char *const argv[], char *rest[],
                    int *rest_count);

/* Sets one option from text, as if given on the command line. STATUS_USAGE if no table has it. */
status options_set(option_binding *bindings, size_t count, const char *name, const char *text);

/* Sets the keys of a policy, "order=ready:launch=when-ready", in its engine's options. */
status options_set_keys(option_binding *binding, const char *policy, const char *keys);

/* One notice on stderr for each key of a policy that was given as an option. */
void options_notices(const option_binding *bindings, size_t count);

/* Checks numbers that were not set from text, as those of a file, against the bounds of their options. */
status options_check(const option_binding *binding);

bool options_given(const option_binding *binding, const char *name);

/* Its value is the one that it has when it is not given. */
bool options_is_default(const option_binding *binding, const char *name);

/* The current value, as on the command line. Returns `buffer`. */
char *options_format(const option_binding *binding, size_t index, char *buffer, size_t size);

/* NEW, with a notice on stderr that names `what`, if `renamed` is "OLD=NEW" and `text` is OLD; else `text`.
 */
const char *options_present_value(const char *what, const char *text, const char *renamed);

/* Appends the options part of --help, at most 80 columns wide; without `all` only what people use. */
void options_help(const option_binding *bindings, size_t count, bool all, text_buffer *out);

#endif
