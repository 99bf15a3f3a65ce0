/* Command-line options as data. A component declares each option once, in a const table. The table yields
 * parsing, defaults, --help, the configuration block of a report, and JSON. Unknown options and values are
 * errors. Abbreviations are errors too, so a new option cannot change the meaning of an old command. */
#ifndef COMMON_BASE_OPTIONS_H
#define COMMON_BASE_OPTIONS_H

#include "common/base/status.h"
#include "common/base/text.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum option_type {
    OPTION_FLAG,     /* bool, set by --name and --no-name, or by --name=yes and --name=no */
    OPTION_INT,      /* int64_t, from low to high */
    OPTION_DOUBLE,   /* double, from low to high */
    OPTION_TEXT,     /* const char *, borrowed from argv or from the table */
    OPTION_CHOICE,   /* int, index into `choices` */
    OPTION_BYTES,    /* int64_t, a size such as "25MiB" */
    OPTION_MIB,      /* double, a size in MiB: "25", or "25MiB" with the unit */
    OPTION_DURATION, /* int64_t, nanoseconds, written as "50us" */
    OPTION_PERIOD,   /* option_period, steps such as "100" or epochs such as "50ep" */
} option_type;

typedef struct option_period {
    int64_t count;
    bool epochs; /* `count` is a number of epochs, not of steps */
} option_period;

typedef enum option_level {
    OPTION_COMMON, /* shown by --help */
    OPTION_RARE,   /* shown only by --help=all */
    /* a key of a policy, as in "--policy ring=ddp:order=ready"; the option "--order ready" also works, but
     * prints a notice */
    OPTION_KEY,
} option_level;

/* A row of a table, for instance {"bucket-cap-mb", OPTION_INT, offsetof(options, bucket_cap), .argument =
 * "MIB", .help = "..."}. */
typedef struct option {
    const char *name; /* name without the dashes: "bucket-cap-mb" */
    option_type type;
    size_t offset;        /* offset of the field in the component's struct */
    const char *argument; /* name of the value in --help, such as "MIB", or NULL for a flag */
    const char *initial;  /* default in the form of the command line; NULL means zero, false or no text */
    double low, high; /* bounds of an INT, DOUBLE or PERIOD; if both are 0, the only bound is value >= 0 */
    /* Values of a CHOICE, NULL-terminated. Entries for renamed values come last, and --help omits them. An
     * entry for a renamed value is "OLD=NEW", or "OLD=NEW --OTHER VALUE" if the old value now also sets
     * another option of the table. */
    const char *const *choices;
    const char *help;
    option_level level;
    const char *alias;    /* name of the option in other programs, or NULL */
    const char *old_name; /* former name, which still works but prints a notice, or NULL */
    char letter;          /* letter for the short form, as in -b, or 0 */
} option;

typedef struct option_table {
    const char *title;
    const option *options;
    size_t count;
} option_table;

/* A table bound to the struct that it fills. A table has at most 64 options. */
typedef struct option_binding {
    const option_table *table;
    void *storage;
    uint64_t given; /* bit i is set if the user gave option i */
    uint64_t moved; /* bit i is set if the user gave key i of a policy as an option */
} option_binding;

status options_defaults(option_binding *bindings, size_t count);

/* Parses argv[0..argc), which excludes the names of the program and the command. An underscore in the name of
 * an option counts as a dash. Words that do not start with a dash are stored in order in
 * positional[0..*positional_count). `positional` needs room for argc words. "--" ends the options. Fails with
 * STATUS_USAGE. */
status options_parse(option_binding *bindings, size_t count, int argc, char *const argv[],
                     const char **positional, int *positional_count);

/* Parses like options_parse(), for a command that is followed by another command. Words that are not options
 * of these bindings are stored in order in rest[0..*rest_count). `rest` needs room for argc words. */
status options_take(option_binding *bindings, size_t count, int argc, char *const argv[], char *rest[],
                    int *rest_count);

/* Sets one option from text, as if given on the command line. Fails with STATUS_USAGE if no table has the
 * option. */
status options_set(option_binding *bindings, size_t count, const char *name, const char *text);

/* Sets keys of a policy, such as "order=ready:launch=when-ready", in the options of the policy's engine. */
status options_set_keys(option_binding *binding, const char *policy, const char *keys);

/* Writes a notice to stderr for each key of a policy that was given as an option. */
void options_notices(const option_binding *bindings, size_t count);

/* Checks that the numbers in the bound struct are within the bounds of their options. Needed only for numbers
 * that were not parsed from text, for instance numbers from a file. */
status options_check(const option_binding *binding);

bool options_given(const option_binding *binding, const char *name);

/* Returns true if the option has its default value. */
bool options_is_default(const option_binding *binding, const char *name);

/* Formats the current value in the form of the command line. Returns `buffer`. */
char *options_format(const option_binding *binding, size_t index, char *buffer, size_t size);

/* Replaces an old value. If `renamed` is "OLD=NEW" and `text` is OLD, returns NEW and writes a notice to
 * stderr that names `what`. Otherwise returns `text`. */
const char *options_present_value(const char *what, const char *text, const char *renamed);

/* Appends the options of --help, at most 80 columns wide. Omits rare options and keys of policies unless
 * `all` is true. */
void options_help(const option_binding *bindings, size_t count, bool all, text_buffer *out);

#endif
