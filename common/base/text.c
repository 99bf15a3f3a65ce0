#include "common/base/text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

status text_parse_int(const char *what, const char *text, int64_t low, int64_t high, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end != text && !*end && !isspace((unsigned char)text[0]) && !errno && value >= low && value <= high) {
        *out = value;
        return STATUS_OK;
    }
    if (high == INT64_MAX)
        return fail(STATUS_USAGE, "%s: expected an integer of at least %" PRId64 ", got '%s'", what, low,
                    text);
    return fail(STATUS_USAGE, "%s: expected an integer from %" PRId64 " to %" PRId64 ", got '%s'", what, low,
                high, text);
}

/* Reads the number at the beginning of `text`. Sets *end to the text after the number. */
static bool read_number(const char *text, char **end, double *out)
{
    *out = strtod(text, end);
    return *end != text && !isspace((unsigned char)text[0]) && isfinite(*out);
}

status text_parse_double(const char *what, const char *text, double low, double high, double *out)
{
    char *end;
    double value;
    if (read_number(text, &end, &value) && !*end && value >= low && value <= high) {
        *out = value;
        return STATUS_OK;
    }
    if (isinf(high))
        return fail(STATUS_USAGE, "%s: expected a number of at least %g, got '%s'", what, low, text);
    return fail(STATUS_USAGE, "%s: expected a number from %g to %g, got '%s'", what, low, high, text);
}

/* ---- units ------------------------------------------------------------------------------------ */

enum { NO_PREFIX = 1, DECIMAL = 2, BINARY = 4, SHORT = 8 };
static const struct {
    const char *name;
    double factor;
    int sets;
} prefixes[] = {{"", 1, NO_PREFIX | DECIMAL | BINARY | SHORT},
                {"k", 1e3, DECIMAL},
                {"K", 1e3, DECIMAL},
                {"M", 1e6, DECIMAL},
                {"G", 1e9, DECIMAL},
                {"T", 1e12, DECIMAL},
                {"Ki", 0x1p10, BINARY},
                {"Mi", 0x1p20, BINARY},
                {"Gi", 0x1p30, BINARY},
                {"Ti", 0x1p40, BINARY},
                {"K", 0x1p10, SHORT},
                {"M", 0x1p20, SHORT},
                {"G", 0x1p30, SHORT},
                {"T", 0x1p40, SHORT}};

typedef enum unit_kind { SIZE, TIME, RATE, UNIT_KINDS } unit_kind;
static const struct {
    unit_kind kind;
    const char *name;
    double factor; /* factor that converts to bytes, nanoseconds or bytes per second */
    int sets;
    const char *meaning;
} units[] = {{SIZE, "B", 1, DECIMAL | BINARY, "bytes"},
             {SIZE, "", 1, SHORT, "bytes, with powers of 1024"},
             {TIME, "ns", 1, NO_PREFIX, "nanoseconds"},
             {TIME, "us", 1e3, NO_PREFIX, "microseconds"},
             {TIME, "ms", 1e6, NO_PREFIX, "milliseconds"},
             {TIME, "s", 1e9, NO_PREFIX, "seconds"},
             {TIME, "min", 60e9, NO_PREFIX, "minutes"},
             {RATE, "B/s", 1, DECIMAL | BINARY, "bytes per second"},
             {RATE, "bit/s", 0.125, DECIMAL | BINARY, "bits per second"},
             {RATE, "b/s", 0.125, DECIMAL | BINARY, "bits per second"},
             {RATE, "bps", 0.125, DECIMAL | BINARY, "bits per second"}};

static const struct {
    const char *title;
    double least, most;
    const char *expected;
} kinds[UNIT_KINDS] = {
    [SIZE] = {"Sizes", 0, 0x1p50, "a size of at most 1 PiB such as 4096, 4K, 25MiB or 1GB"},
    [TIME] = {"Times", 0, 1000 * 86400e9,
              "a duration of at most 1000 days with its unit such as 50us, 2ms or 60s"},
    [RATE] = {"Rates", 1, 9e18, "a rate such as 10Gbit/s or 1.25GB/s (b: bits, B: bytes)"}};

/* In rates, the case of a letter distinguishes bits from bytes. In sizes and times the case does not matter,
 * except that "Mb" is rejected as a size because it usually means megabits. */
static bool is_unit(unit_kind kind, const char *text, const char *prefix, const char *name)
{
    size_t length = strlen(prefix);
    if (kind == RATE) return strncmp(text, prefix, length) == 0 && strcmp(text + length, name) == 0;
    if (strncasecmp(text, prefix, length) != 0 || strcasecmp(text + length, name) != 0) return false;
    return length != 1 || text[1] != 'b' || text[0] != prefix[0] || prefix[0] == 'k';
}

/* Finds the factor of a unit such as "GiB", "us" or "Gbit/s". Returns false if the unit is unknown. */
static bool find_unit(unit_kind kind, const char *text, double *factor)
{
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++)
        for (size_t p = 0; units[u].kind == kind && p < sizeof prefixes / sizeof prefixes[0]; p++) {
            if (!(prefixes[p].sets & units[u].sets) || !is_unit(kind, text, prefixes[p].name, units[u].name))
                continue;
            *factor = prefixes[p].factor * units[u].factor;
            return true;
        }
    return false;
}

static status parse_unit(unit_kind kind, const char *what, const char *text, int64_t *out)
{
    char *end;
    double value, factor;
    if (read_number(text, &end, &value) && value >= 0 && find_unit(kind, end, &factor) &&
        value * factor >= kinds[kind].least && value * factor <= kinds[kind].most) {
        *out = (int64_t)llround(value * factor);
        return STATUS_OK;
    }
    return fail(STATUS_USAGE, "%s: expected %s, got '%s'", what, kinds[kind].expected, text);
}

status text_parse_bytes(const char *what, const char *text, int64_t *out)
{
    return parse_unit(SIZE, what, text, out);
}

status text_parse_duration_ns(const char *what, const char *text, int64_t *out)
{
    return parse_unit(TIME, what, text, out);
}

status text_parse_rate(const char *what, const char *text, int64_t *out)
{
    return parse_unit(RATE, what, text, out);
}

status text_parse_in_unit(const char *what, const char *text, const char *unit, double *out)
{
    double factor;
    for (int kind = 0; kind < UNIT_KINDS; kind++) {
        int64_t value = 0;
        if (!unit[0] || !find_unit((unit_kind)kind, unit, &factor)) continue;
        TRY(parse_unit((unit_kind)kind, what, text, &value));
        *out = (double)value / factor;
        return STATUS_OK;
    }
    return fail(STATUS_USAGE, "%s: expected a number, got '%s'", what, text);
}

void text_units_help(text_buffer *out)
{
    enum { WIDTH = 32 }; /* largest width of a list of units; a longer list gets a separate line */
    text_append(out, "A number and its unit, without a blank.\n");
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        int used = 0;
        char line[160] = "";
        if (u == 0 || units[u].kind != units[u - 1].kind)
            text_append(out, "\n%s:\n", kinds[units[u].kind].title);
        for (size_t p = 0; p < sizeof prefixes / sizeof prefixes[0]; p++)
            if (prefixes[p].sets & units[u].sets)
                used += snprintf(line + used, sizeof line - (size_t)used, "%s%s%s", used ? " " : "",
                                 prefixes[p].name,
                                 prefixes[p].name[0] || units[u].name[0] ? units[u].name : "100");
        if (used > WIDTH) text_append(out, "  %s\n", line);
        text_append(out, "  %-*s  %s\n", WIDTH, used > WIDTH ? "" : line, units[u].meaning);
    }
    text_append(out, "\nk, K, M, G and T are powers of 1000, Ki, Mi, Gi and Ti of 1024; alone, as in\n"
                     "4K, K, M, G and T are powers of 1024. b is a bit and B a byte:\n10Gb/s is 1.25GB/s.\n");
}

/* Divides *value by `base` until *value is below `base`, but at most count - 1 times. Returns the number of
 * divisions. */
static size_t scale(double *value, double base, size_t count)
{
    size_t i = 0;
    for (; fabs(*value) >= base && i + 1 < count; i++) *value /= base;
    return i;
}

char *text_format_bytes(char *buffer, size_t size, double bytes)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t i = scale(&bytes, 1024, sizeof names / sizeof names[0]);
    snprintf(buffer, size, i == 0 ? "%.0f %s" : "%.1f %s", bytes, names[i]);
    return buffer;
}

char *text_three_digits(char *buffer, size_t size, double value)
{
    char digits[16];
    snprintf(digits, sizeof digits, "%.2e", value); /* Rounds first, so that 9.996 becomes 1.00e+01. */
    int after = 2 - atoi(strchr(digits, 'e') ? strchr(digits, 'e') + 1 : "0");
    snprintf(buffer, size, "%.*f", value == 0 || after < 0 ? 0 : after, strtod(digits, NULL));
    return buffer;
}

char *text_format_duration(char *buffer, size_t size, double ns)
{
    static const char *const names[] = {"ns", "us", "ms", "s"};
    size_t i = scale(&ns, 1000, sizeof names / sizeof names[0]);
    int decimals = i == 0 || fabs(ns) >= 100 ? 0 : fabs(ns) >= 10 ? 1 : 2;
    snprintf(buffer, size, "%.*f %s", decimals, ns, names[i]);
    return buffer;
}

char *text_format_rate(char *buffer, size_t size, double bytes_per_second)
{
    static const char *const prefixes[] = {"", "k", "M", "G", "T"};
    enum { COUNT = sizeof prefixes / sizeof prefixes[0] };
    double bits = 8 * bytes_per_second, bytes = bytes_per_second;
    const char *of_bits = prefixes[scale(&bits, 1000, COUNT)],
               *of_bytes = prefixes[scale(&bytes, 1000, COUNT)];
    snprintf(buffer, size, "%.4g %sbit/s (%.4g %sB/s)", bits, of_bits, bytes, of_bytes);
    return buffer;
}

char *text_next_word(const char **text, char separator, char *word, size_t size)
{
    const char *end = strchrnul(*text, separator);
    snprintf(word, size, "%.*s", (int)(end - *text), *text);
    *text = end + (*end == separator);
    return word;
}

bool text_ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Returns the Levenshtein distance, or SIZE_MAX if a word is longer than 63 bytes. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t m = strlen(a), n = strlen(b);
    if (m > 63 || n > 63) return SIZE_MAX;
    size_t row[64];
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 1; i <= m; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            size_t best = row[j] + 1 < row[j - 1] + 1 ? row[j] + 1 : row[j - 1] + 1;
            row[j] = change < best ? change : best;
        }
    }
    return row[n];
}

const char *text_nearest(const char *word, const char *const *words, size_t count)
{
    const char *best = NULL;
    size_t best_distance = strlen(word) / 3 + 2;
    for (size_t i = 0; i < count; i++) {
        size_t distance = edit_distance(word, words[i]);
        if (distance < best_distance) {
            best_distance = distance;
            best = words[i];
        }
    }
    for (size_t i = 0; !best && strlen(word) >= 3 && i < count; i++)
        if (strstr(words[i], word)) best = words[i];
    return best;
}

char *text_join(char *buffer, size_t size, const char *const *words, size_t count)
{
    size_t used = 0;
    buffer[0] = '\0';
    for (size_t i = 0; i < count && used < size; i++) {
        int more = snprintf(buffer + used, size - used, "%s%s", i ? ", " : "", words[i]);
        used += more > 0 ? (size_t)more : 0;
    }
    return buffer;
}

status text_parse_choice(const char *what, const char *text, const char *const *first, size_t stride,
                         size_t count, int *out)
{
    enum { MOST_WORDS = 64 };
    const char *words[MOST_WORDS] = {0};
    for (size_t i = 0; i < count; i++) {
        const char *word = *(const char *const *)((const char *)first + i * stride);
        if (strcmp(text, word) == 0) {
            *out = (int)i;
            return STATUS_OK;
        }
        if (i < MOST_WORDS) words[i] = word;
    }
    if (count > MOST_WORDS) count = MOST_WORDS;
    char list[512];
    const char *near = text_nearest(text, words, count);
    return fail(STATUS_USAGE, "%s: expected %s%s, got '%s'%s%s%s", what, count > 1 ? "one of " : "",
                text_join(list, sizeof list, words, count), text, near ? "; did you mean '" : "",
                near ? near : "", near ? "'?" : "");
}

char *text_printable(char *text, bool keeps_lines)
{
    for (unsigned char *at = (unsigned char *)text; at && *at; at++)
        if (at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0) /* a C1 control character in UTF-8 */
            at[0] = at[1] = '?';
        else if ((*at < ' ' || *at == 0x7f) && !(keeps_lines && *at == '\n'))
            *at = '?';
    return text;
}
