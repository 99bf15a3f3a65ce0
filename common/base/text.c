#include "common/base/text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
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
        return fail(STATUS_USAGE, "%s: expected an integer of at least %" PRId64 ", got '%s'", what, low, text);
    return fail(STATUS_USAGE, "%s: expected an integer from %" PRId64 " to %" PRId64 ", got '%s'", what, low, high,
                text);
}

status text_parse_double(const char *what, const char *text, double low, double high, double *out)
{
    char *end;
    double value = strtod(text, &end);
    if (end != text && !*end && !isspace((unsigned char)text[0]) && isfinite(value) && value >= low && value <= high) {
        *out = value;
        return STATUS_OK;
    }
    if (isinf(high)) return fail(STATUS_USAGE, "%s: expected a number of at least %g, got '%s'", what, low, text);
    return fail(STATUS_USAGE, "%s: expected a number from %g to %g, got '%s'", what, low, high, text);
}

typedef struct unit {
    const char *name;
    double factor;
} unit;

static status parse_with_unit(const char *what, const char *text, const unit *units, size_t count, double most,
                              const char *expected, int64_t *out)
{
    char *end;
    double value = strtod(text, &end);
    if (end != text && !isspace((unsigned char)text[0]) && isfinite(value) && value >= 0) {
        for (size_t i = 0; i < count; i++) {
            if (strcasecmp(end, units[i].name) != 0) continue;
            double scaled = value * units[i].factor;
            if (scaled > most) break;
            *out = (int64_t)llround(scaled);
            return STATUS_OK;
        }
    }
    return fail(STATUS_USAGE, "%s: expected %s, got '%s'", what, expected, text);
}

status text_parse_bytes(const char *what, const char *text, int64_t *out)
{
    static const unit units[] = {{"", 1},           {"B", 1},           {"K", 1024},       {"KiB", 1024},
                                 {"KB", 1e3},       {"M", 1048576},     {"MiB", 1048576},  {"MB", 1e6},
                                 {"G", 1073741824}, {"GiB", 1073741824}, {"GB", 1e9}};
    return parse_with_unit(what, text, units, sizeof units / sizeof units[0], 0x1p50,
                           "a size of at most 1 PiB such as 4096, 4K, 25MiB or 1GB", out);
}

status text_parse_duration_ns(const char *what, const char *text, int64_t *out)
{
    static const unit units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"min", 60e9}};
    return parse_with_unit(what, text, units, sizeof units / sizeof units[0], 1000 * 86400e9,
                           "a duration of at most 1000 days with its unit such as 50us, 2ms or 60s", out);
}

status text_parse_rate(const char *what, const char *text, int64_t *out)
{
    static const unit prefixes[] = {{"", 1},    {"k", 1e3},     {"K", 1e3},     {"M", 1e6},        {"G", 1e9},
                                    {"T", 1e12}, {"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}, {"Ti", 0x1p40}};
    static const unit suffixes[] = {{"B/s", 1}, {"bit/s", 0.125}, {"b/s", 0.125}, {"bps", 0.125}};
    char *end;
    double value = strtod(text, &end);
    bool is_number = end != text && !isspace((unsigned char)text[0]) && isfinite(value);
    for (size_t p = 0; is_number && p < sizeof prefixes / sizeof prefixes[0]; p++) {
        size_t length = strlen(prefixes[p].name);
        if (strncmp(end, prefixes[p].name, length) != 0) continue;
        for (size_t s = 0; s < sizeof suffixes / sizeof suffixes[0]; s++) {
            double rate = value * prefixes[p].factor * suffixes[s].factor;
            if (strcmp(end + length, suffixes[s].name) != 0 || !(rate >= 1 && rate < 9e18)) continue;
            *out = (int64_t)llround(rate);
            return STATUS_OK;
        }
    }
    return fail(STATUS_USAGE, "%s: expected a rate such as 10Gbit/s or 1.25GB/s (b: bits, B: bytes), got '%s'", what,
                text);
}

/* Divides by `base` until the number is below it; returns how often, at most count - 1 times. */
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

/* Levenshtein's distance, two rows; words longer than 63 are far from all. */
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

status text_parse_choice(const char *what, const char *text, const char *const *first, size_t stride, size_t count,
                         int *out)
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
                text_join(list, sizeof list, words, count), text, near ? "; did you mean '" : "", near ? near : "",
                near ? "'?" : "");
}

void text_append(text_buffer *buffer, const char *format, ...)
{
    while (!buffer->out_of_memory) {
        size_t room = buffer->capacity - buffer->length;
        va_list args;
        va_start(args, format);
        int more = vsnprintf(room ? buffer->data + buffer->length : NULL, room, format, args);
        va_end(args);
        if (more >= 0 && (size_t)more >= room) {
            size_t capacity = 2 * (buffer->length + (size_t)more + 1);
            char *data = realloc(buffer->data, capacity);
            if (data) {
                buffer->data = data;
                buffer->capacity = capacity;
                continue;
            }
            buffer->out_of_memory = true;
            if (room) buffer->data[buffer->length] = '\0';
        } else if (more > 0) {
            buffer->length += (size_t)more;
        }
        return;
    }
}

void text_free(text_buffer *buffer)
{
    free(buffer->data);
    *buffer = (text_buffer){0};
}
