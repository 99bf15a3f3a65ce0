#include "common/base/options.h"

#include "common/base/log.h"
#include "common/base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
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
    log_info("%s: '%s' is now called '%s'", what, text, renamed + length + 1);
    return renamed + length + 1;
}

static status set_value(const option_binding *binding, const option *o, const char *text)
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
        return STATUS_OK;
    case OPTION_CHOICE:
        for (size_t i = count_choices(o); o->choices[i]; i++) text = options_present_value(what, text, o->choices[i]);
        return text_parse_choice(what, text, o->choices, sizeof *o->choices, count_choices(o), at);
    case OPTION_BYTES:
        return text_parse_bytes(what, text, at);
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
        [OPTION_FLAG] = sizeof(bool),    [OPTION_INT] = sizeof(int64_t),      [OPTION_DOUBLE] = sizeof(double),
        [OPTION_TEXT] = sizeof(char *),  [OPTION_CHOICE] = sizeof(int),       [OPTION_BYTES] = sizeof(int64_t),
        [OPTION_DURATION] = sizeof(int64_t)};
    memset(field(binding, o), 0, sizes[o->type]);
}

status options_defaults(option_binding *bindings, size_t count)
{
    for (size_t b = 0; b < count; b++) {
        bindings[b].given = 0;
        for (size_t i = 0; i < bindings[b].table->count; i++) {
            const option *o = &bindings[b].table->options[i];
            clear_value(&bindings[b], o);
            if (o->initial) TRY(set_value(&bindings[b], o, o->initial));
        }
    }
    return STATUS_OK;
}

static const option *find(option_binding *bindings, size_t count, const char *name, size_t length,
                          option_binding **binding)
{
    for (size_t b = 0; b < count; b++) {
        for (size_t i = 0; i < bindings[b].table->count; i++) {
            const option *o = &bindings[b].table->options[i];
            if (strlen(o->name) == length && memcmp(o->name, name, length) == 0) {
                *binding = &bindings[b];
                return o;
            }
        }
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

static void mark_given(option_binding *binding, const option *o)
{
    binding->given |= UINT64_C(1) << (o - binding->table->options);
}

static status parse_word(option_binding *bindings, size_t count, const char *word, const char *next,
                         bool *took_next)
{
    const char *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    option_binding *binding = NULL;
    bool negated = false;
    const option *o = find(bindings, count, word, length, &binding);
    if (!o && length > 3 && memcmp(word, "no-", 3) == 0) {
        o = find(bindings, count, word + 3, length - 3, &binding);
        negated = o && o->type == OPTION_FLAG;
        if (!negated) o = NULL;
    }
    if (!o) {
        char name[80];
        snprintf(name, sizeof name, "%.*s", (int)length, word);
        return unknown_option(bindings, count, name);
    }
    mark_given(binding, o);
    if (o->type == OPTION_FLAG) {
        if (equals) return fail(STATUS_USAGE, "--%s: expected no value, got '%s'", o->name, equals + 1);
        return set_value(binding, o, negated ? "no" : "yes");
    }
    const char *value = equals ? equals + 1 : next;
    if (!value)
        return fail(STATUS_USAGE, "--%s: expected %s, got nothing", o->name, o->argument ? o->argument : "a value");
    *took_next = !equals;
    return set_value(binding, o, value);
}

status options_parse(option_binding *bindings, size_t count, int argc, char *const argv[],
                     const char **positional, int *positional_count)
{
    bool only_positional = false;
    *positional_count = 0;
    for (int i = 0; i < argc; i++) {
        if (!only_positional && strcmp(argv[i], "--") == 0) {
            only_positional = true;
        } else if (!only_positional && strncmp(argv[i], "--", 2) == 0) {
            bool took_next = false;
            TRY(parse_word(bindings, count, argv[i] + 2, i + 1 < argc ? argv[i + 1] : NULL, &took_next));
            i += took_next;
        } else if (!only_positional && argv[i][0] == '-' && argv[i][1]) {
            return fail(STATUS_USAGE, "unknown option '%s'; options start with two dashes", argv[i]);
        } else {
            positional[(*positional_count)++] = argv[i];
        }
    }
    return STATUS_OK;
}

status options_set(option_binding *bindings, size_t count, const char *name, const char *text)
{
    option_binding *binding = NULL;
    const option *o = find(bindings, count, name, strlen(name), &binding);
    if (!o) return unknown_option(bindings, count, name);
    mark_given(binding, o);
    return set_value(binding, o, text);
}

status options_check(const option_binding *binding)
{
    for (size_t i = 0; i < binding->table->count; i++) {
        const option *o = &binding->table->options[i];
        char value[40];
        if (o->type == OPTION_INT || o->type == OPTION_DOUBLE)
            TRY(set_value(binding, o, options_format(binding, i, value, sizeof value)));
    }
    return STATUS_OK;
}

bool options_given(const option_binding *binding, const char *name)
{
    for (size_t i = 0; i < binding->table->count; i++)
        if (strcmp(binding->table->options[i].name, name) == 0) return binding->given >> i & 1;
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
    case OPTION_DOUBLE:
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

void options_help(const option_binding *bindings, size_t count, text_buffer *out)
{
    for (size_t b = 0; b < count; b++) {
        text_append(out, "\n%s:\n", bindings[b].table->title);
        for (size_t i = 0; i < bindings[b].table->count; i++) {
            const option *o = &bindings[b].table->options[i];
            char left[128], choices[192];
            const char *argument = o->argument;
            if (o->type == OPTION_CHOICE && !argument) {
                size_t used = 0;
                for (size_t c = 0; c < count_choices(o) && used < sizeof choices; c++)
                    used += (size_t)snprintf(choices + used, sizeof choices - used, "%s%s", c ? "|" : "",
                                             o->choices[c]);
                argument = choices;
            }
            snprintf(left, sizeof left, "--%s%s%s", o->name, argument ? " " : "", argument ? argument : "");
            if (strlen(left) > 30) text_append(out, "  %s\n%34s", left, "");
            else text_append(out, "  %-30s  ", left);
            text_append(out, "%s", o->help);
            if (o->initial && o->type != OPTION_FLAG) text_append(out, " [%s]", o->initial);
            text_append(out, "\n");
        }
    }
}
