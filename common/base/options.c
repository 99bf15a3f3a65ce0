#include "common/base/options.h"

#include "common/base/log.h"
#include "common/base/text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NAMES = 256 };

static void *field(const option_binding *binding, const option *o)
{
    return (char *)binding->storage + o->offset;
}

static size_t count_choices(const option *o)
{
    size_t count = 0;
    while (o->choices[count] && !strchr(o->choices[count], '=')) count++;
    return count;
}

const char *options_present_value(const char *what, const char *text, const char *renamed)
{
    size_t length = strcspn(renamed, "=");
    if (renamed[length] != '=' || strlen(text) != length || memcmp(text, renamed, length) != 0) return text;
    const char *now = renamed + length + 1;
    if (strstr(now, " --"))
        log_info("%s: '%s' is now %s %s", what, text, what, now);
    else
        log_info("%s: '%s' is now called '%s'", what, text, now);
    return renamed + length + 1;
}

/* Sets an option of type OPTION_CHOICE. If the list of choices contains "OLD=NEW --OTHER VALUE", the old
 * value sets this option to NEW and also sets the option OTHER. */
static status set_choice(option_binding *binding, const option *o, const char *what, const char *text)
{
    char value[64];
    for (size_t i = count_choices(o); o->choices[i]; i++)
        text = options_present_value(what, text, o->choices[i]);
    const char *other = strstr(text, " --");
    if (other) {
        char name[40];
        size_t length = strcspn(other + 3, " ");
        snprintf(name, sizeof name, "%.*s", (int)length, other + 3);
        TRY(options_set(binding, 1, name, other + 3 + length + 1));
        snprintf(value, sizeof value, "%.*s", (int)(other - text), text);
        text = value;
    }
    return text_parse_choice(what, text, o->choices, sizeof *o->choices, count_choices(o), field(binding, o));
}

static status set_period(const option *o, const char *what, const char *text, option_period *out)
{
    char *end;
    errno = 0;
    option_period p = {.count = strtoll(text, &end, 10), .epochs = strcmp(end, "ep") == 0};
    bool number = end > text && !isspace((unsigned char)*text) && errno == 0 && (p.epochs || *end == '\0');
    if (!number || p.count < (p.epochs ? 1 : (int64_t)o->low) || p.count > (int64_t)o->high)
        return fail(STATUS_USAGE, "%s: expected a number of steps, or of epochs such as 50ep, got '%s'", what,
                    text);
    *out = p;
    return STATUS_OK;
}

static status set_value(option_binding *binding, const option *o, const char *text)
{
    char what[80];
    snprintf(what, sizeof what, "--%s", o->name);
    void *at = field(binding, o);
    bool unbounded = o->low == 0 && o->high == 0;
    int index;
    switch (o->type) {
    case OPTION_FLAG:
        TRY(text_parse_choice(what, text, (const char *[]){"no", "yes"}, sizeof text, 2, &index));
        *(bool *)at = index;
        return STATUS_OK;
    case OPTION_INT:
        return text_parse_int(what, text, unbounded ? 0 : (int64_t)o->low,
                              unbounded || o->high >= 0x1p62 ? INT64_MAX : (int64_t)o->high, at);
    case OPTION_DOUBLE:
        return text_parse_double(what, text, o->low, unbounded ? INFINITY : o->high, at);
    case OPTION_TEXT:
        *(const char **)at = text;
        if (*text || !o->argument) return STATUS_OK;
        if (strncmp(o->argument, "FILE", 4) == 0 || strcmp(o->argument, "DIR") == 0)
            return fail(STATUS_USAGE, "%s: expected the name of a %s, got ''", what,
                        o->argument[0] == 'F' ? "file" : "folder");
        return STATUS_OK;
    case OPTION_CHOICE:
        return set_choice(binding, o, what, text);
    case OPTION_BYTES:
        return text_parse_bytes(what, text, at);
    case OPTION_MIB:
        if (!text[0] || strchr("0123456789.", text[strlen(text) - 1]))
            return text_parse_double(what, text, 0, INFINITY, at);
        return text_parse_in_unit(what, text, "MiB", at);
    case OPTION_PERIOD:
        return set_period(o, what, text, at);
    case OPTION_DURATION:
        TRY(text_parse_duration_ns(what, text, at));
        if (*(int64_t *)at >= (int64_t)o->low) return STATUS_OK;
        char least[32];
        return fail(STATUS_USAGE, "%s: expected at least %s, got '%s'", what,
                    text_format_duration(least, sizeof least, o->low), text);
    }
    return fail(STATUS_INTERNAL, "%s has no type", what);
}

static void clear_value(const option_binding *binding, const option *o)
{
    static const size_t sizes[] = {
        [OPTION_FLAG] = sizeof(bool),           [OPTION_INT] = sizeof(int64_t),
        [OPTION_DOUBLE] = sizeof(double),       [OPTION_TEXT] = sizeof(char *),
        [OPTION_CHOICE] = sizeof(int),          [OPTION_BYTES] = sizeof(int64_t),
        [OPTION_MIB] = sizeof(double),          [OPTION_DURATION] = sizeof(int64_t),
        [OPTION_PERIOD] = sizeof(option_period)};
    memset(field(binding, o), 0, sizes[o->type]);
}

status options_defaults(option_binding *bindings, size_t count)
{
    for (size_t b = 0; b < count; b++) {
        bindings[b].given = bindings[b].moved = 0;
        for (size_t i = 0; i < bindings[b].table->count; i++) {
            const option *o = &bindings[b].table->options[i];
            clear_value(&bindings[b], o);
            if (o->initial) TRY(set_value(&bindings[b], o, o->initial));
        }
    }
    return STATUS_OK;
}

/* Returns true if `name` equals `known`. An underscore in `name` equals a dash: "nproc_per_node" equals
 * "nproc-per-node". */
static bool is_name(const char *known, const char *name, size_t length)
{
    if (!known || strlen(known) != length) return false;
    for (size_t i = 0; i < length; i++)
        if (known[i] != (name[i] == '_' ? '-' : name[i])) return false;
    return true;
}

/* Finds an option by its name, alias or old name. If `name` is NULL, finds the option by its letter. */
static const option *find(option_binding *bindings, size_t count, const char *name, size_t length,
                          char letter, option_binding **binding)
{
    for (size_t b = 0; b < count; b++)
        for (size_t i = 0; i < bindings[b].table->count; i++) {
            const option *o = &bindings[b].table->options[i];
            bool is_old = name && is_name(o->old_name, name, length);
            if (name ? !is_name(o->name, name, length) && !is_name(o->alias, name, length) && !is_old
                     : o->letter != letter)
                continue;
            if (is_old) log_info("--%s is now called --%s", o->old_name, o->name);
            *binding = &bindings[b];
            return o;
        }
    return NULL;
}

static status unknown_option(option_binding *bindings, size_t count, const char *name)
{
    const char *names[MOST_NAMES];
    size_t known = 0;
    for (size_t b = 0; b < count; b++)
        for (size_t i = 0; i < bindings[b].table->count && known < MOST_NAMES; i++)
            names[known++] = bindings[b].table->options[i].name;
    const char *nearest = text_nearest(name, names, known);
    if (nearest) return fail(STATUS_USAGE, "unknown option '--%s'; did you mean --%s?", name, nearest);
    return fail(STATUS_USAGE, "unknown option '--%s'; see --help", name);
}

static uint64_t bit_of(const option_binding *binding, const option *o)
{
    return UINT64_C(1) << (o - binding->table->options);
}

/* Finds the option that a word of the command line names: "-b", "--batch", "--batch=32". Sets *negated for
 * "--no-NAME". Returns NULL if no option has this name. */
static const option *find_word(option_binding *bindings, size_t count, const char *word, bool *negated,
                               option_binding **binding)
{
    size_t length = strcspn(word, "=");
    *negated = false;
    if (word[1] != '-') return word[2] ? NULL : find(bindings, count, NULL, 0, word[1], binding);
    const option *o = find(bindings, count, word + 2, length - 2, 0, binding);
    if (o || length <= 5 || memcmp(word, "--no-", 5) != 0) return o;
    *negated = true;
    o = find(bindings, count, word + 5, length - 5, 0, binding);
    return o && o->type == OPTION_FLAG ? o : NULL;
}

/* Parses argv[*at], and moves *at if the next word is the value. */
static status parse_option(option_binding *bindings, size_t count, int argc, char *const argv[], int *at)
{
    const char *word = argv[*at], *equals = word[1] == '-' ? strchr(word, '=') : NULL;
    option_binding *binding = NULL;
    bool negated;
    const option *o = find_word(bindings, count, word, &negated, &binding);
    if (!o && word[1] != '-')
        return fail(STATUS_USAGE, "unknown option '%s'; options start with two dashes", word);
    if (!o) {
        char name[80];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 2, "="), word + 2);
        return unknown_option(bindings, count, name);
    }
    binding->given |= bit_of(binding, o);
    if (o->level == OPTION_KEY) binding->moved |= bit_of(binding, o);
    if (o->type == OPTION_FLAG) {
        if (equals && negated)
            return fail(STATUS_USAGE, "--no-%s: expected no value, got '%s'", o->name, equals + 1);
        return set_value(binding, o, equals ? equals + 1 : negated ? "no" : "yes");
    }
    const char *value = equals ? equals + 1 : *at + 1 < argc ? argv[++*at] : NULL;
    if (value) return set_value(binding, o, value);
    return fail(STATUS_USAGE, "--%s: expected %s, got nothing", o->name,
                o->argument ? o->argument : "a value");
}

status options_parse(option_binding *bindings, size_t count, int argc, char *const argv[],
                     const char **positional, int *positional_count)
{
    bool only_positional = false;
    *positional_count = 0;
    for (int i = 0; i < argc; i++) {
        if (only_positional || argv[i][0] != '-' || !argv[i][1])
            positional[(*positional_count)++] = argv[i];
        else if (strcmp(argv[i], "--") == 0)
            only_positional = true;
        else
            TRY(parse_option(bindings, count, argc, argv, &i));
    }
    return STATUS_OK;
}

status options_take(option_binding *bindings, size_t count, int argc, char *const argv[], char *rest[],
                    int *rest_count)
{
    option_binding *binding;
    bool negated;
    *rest_count = 0;
    for (int i = 0; i < argc; i++)
        if (argv[i][0] == '-' && argv[i][1] && find_word(bindings, count, argv[i], &negated, &binding))
            TRY(parse_option(bindings, count, argc, argv, &i));
        else
            rest[(*rest_count)++] = argv[i];
    return STATUS_OK;
}

status options_set(option_binding *bindings, size_t count, const char *name, const char *text)
{
    option_binding *binding = NULL;
    const option *o = find(bindings, count, name, strlen(name), 0, &binding);
    if (!o) return unknown_option(bindings, count, name);
    binding->given |= bit_of(binding, o);
    return set_value(binding, o, text);
}

status options_set_keys(option_binding *binding, const char *policy, const char *keys)
{
    const option_table *t = binding->table;
    const char *names[MOST_NAMES];
    size_t known = 0;
    for (size_t i = 0; i < t->count; i++)
        if (t->options[i].level == OPTION_KEY) names[known++] = t->options[i].name;
    for (const char *at = keys; *at; at += *at == ':') {
        char what[80], key[40], value[64];
        size_t length = strcspn(at, ":"), name = strcspn(at, "=:");
        int index;
        snprintf(what, sizeof what, "--policy %s", policy);
        snprintf(key, sizeof key, "%.*s", (int)name, at);
        if (known == 0) return fail(STATUS_USAGE, "%s: expected no keys, got '%s'", what, key);
        TRY(text_parse_choice(what, key, names, sizeof *names, known, &index));
        if (name == length || length - name > sizeof value)
            return fail(STATUS_USAGE, "%s: expected %s=VALUE, got '%.*s'", what, key, (int)length, at);
        snprintf(value, sizeof value, "%.*s", (int)(length - name - 1), at + name + 1);
        TRY(options_set(binding, 1, names[index], value));
        at += length;
    }
    return STATUS_OK;
}

void options_notices(const option_binding *bindings, size_t count)
{
    for (size_t b = 0; b < count; b++)
        for (size_t i = 0; i < bindings[b].table->count; i++)
            if (bindings[b].moved >> i & 1) {
                char value[64];
                const char *name = bindings[b].table->options[i].name;
                log_info("--%s is now a key of the policy: --policy NAME:%s=%s", name, name,
                         options_format(&bindings[b], i, value, sizeof value));
            }
}

status options_check(const option_binding *binding)
{
    option_binding set = *binding;
    for (size_t i = 0; i < binding->table->count; i++) {
        const option *o = &binding->table->options[i];
        char value[40];
        if (o->type == OPTION_INT || o->type == OPTION_DOUBLE)
            TRY(set_value(&set, o, options_format(binding, i, value, sizeof value)));
    }
    return STATUS_OK;
}

bool options_given(const option_binding *binding, const char *name)
{
    for (size_t i = 0; i < binding->table->count; i++)
        if (strcmp(binding->table->options[i].name, name) == 0) return binding->given >> i & 1;
    return false;
}

bool options_is_default(const option_binding *binding, const char *name)
{
    for (size_t i = 0; i < binding->table->count; i++) {
        const option *o = &binding->table->options[i];
        char now[256], initial[256];
        union {
            int64_t integer;
            double real;
            const char *text;
            option_period period;
        } value = {0};
        option alone = *o;
        option_table table = {.options = &alone, .count = 1};
        option_binding scratch = {.table = &table, .storage = &value};
        if (strcmp(o->name, name) != 0) continue;
        alone.offset = 0;
        if (options_defaults(&scratch, 1) != STATUS_OK) error_clear();
        return strcmp(options_format(binding, i, now, sizeof now),
                      options_format(&scratch, 0, initial, sizeof initial)) == 0;
    }
    return false;
}

char *options_format(const option_binding *binding, size_t index, char *buffer, size_t size)
{
    const option *o = &binding->table->options[index];
    const void *at = field(binding, o);
    switch (o->type) {
    case OPTION_FLAG:
        snprintf(buffer, size, "%s", *(const bool *)at ? "yes" : "no");
        break;
    case OPTION_INT:
    case OPTION_BYTES:
        snprintf(buffer, size, "%" PRId64, *(const int64_t *)at);
        break;
    case OPTION_DURATION:
        snprintf(buffer, size, "%" PRId64 "ns", *(const int64_t *)at);
        break;
    case OPTION_PERIOD:
        snprintf(buffer, size, "%" PRId64 "%s", ((const option_period *)at)->count,
                 ((const option_period *)at)->epochs ? "ep" : "");
        break;
    case OPTION_DOUBLE:
    case OPTION_MIB:
        snprintf(buffer, size, "%.17g", *(const double *)at);
        break;
    case OPTION_TEXT:
        snprintf(buffer, size, "%s", *(const char *const *)at ? *(const char *const *)at : "");
        break;
    case OPTION_CHOICE:
        snprintf(buffer, size, "%s", o->choices[*(const int *)at]);
        break;
    }
    return buffer;
}

/* Formats "--gpus N", "--mode none|ps|ring|both" or ":order=policy|reverse|...". */
static void format_usage(const option *o, char *out, size_t size)
{
    bool is_key = o->level == OPTION_KEY;
    int used = o->letter ? snprintf(out, size, "-%c, ", o->letter) : 0;
    used += snprintf(out + used, size - (size_t)used, "%s%s%s", is_key ? ":" : "--", o->name,
                     is_key                   ? "="
                     : o->type == OPTION_FLAG ? ""
                                              : " ");
    if (o->argument) snprintf(out + used, size - (size_t)used, "%s", o->argument);
    for (size_t i = 0;
         o->type == OPTION_CHOICE && !o->argument && i < count_choices(o) && (size_t)used < size; i++)
        used += snprintf(out + used, size - (size_t)used, "%s%s", i ? "|" : "", o->choices[i]);
}

void options_help(const option_binding *bindings, size_t count, bool all, text_buffer *out)
{
    enum { USAGE_WIDTH = 22, INDENT = USAGE_WIDTH + 4, COLUMNS = 80 };
    for (size_t b = 0; b < count; b++) {
        bool has_title = false;
        for (size_t i = 0; i < bindings[b].table->count; i++) {
            const option *o = &bindings[b].table->options[i];
            char usage[192], line[768];
            if (o->level != OPTION_COMMON && !all) continue;
            if (!has_title) text_append(out, "\n%s:\n", bindings[b].table->title);
            has_title = true;
            format_usage(o, usage, sizeof usage);
            bool has_default = o->initial && o->type != OPTION_FLAG;
            bool is_long = strlen(usage) > USAGE_WIDTH; /* if true, the help text begins on the next line */
            if (is_long) text_append(out, "  %s\n", usage);
            snprintf(line, sizeof line, "  %-*s  %s%s%s%s", USAGE_WIDTH, is_long ? "" : usage, o->help,
                     has_default ? " [" : "", has_default ? o->initial : "", has_default ? "]" : "");
            text_append_wrapped(out, line, INDENT, COLUMNS);
        }
    }
}
