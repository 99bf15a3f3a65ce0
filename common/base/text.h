/* Strict parsing and formatting of numbers and units, and "did you mean". */
#ifndef COMMON_BASE_TEXT_H
#define COMMON_BASE_TEXT_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each reads the whole string or fails with STATUS_USAGE and "WHAT: expected ..., got 'TEXT'", the form of
 * every error message: WHAT is the option or the file. */
status text_parse_int(const char *what, const char *text, int64_t low, int64_t high, int64_t *out);
status text_parse_double(const char *what, const char *text, double low, double high, double *out);

/* One parser of sizes, times and rates, with one table of units (text_units_help()). Sizes and durations are
 * small enough to be added up. 4K, 25MiB, 1GB, 100: powers of 1024 for K, M, G, T and KiB, MiB, GiB, TiB; of
 * 1000 for KB, MB, GB, TB. */
status text_parse_bytes(const char *what, const char *text, int64_t *out);
/* 50us, 2ms, 1s, 10ns, 1min. */
status text_parse_duration_ns(const char *what, const char *text, int64_t *out);
/* 10Gbit/s, 10Gb/s, 10Gbps, 1.25GB/s, 1GiB/s, in bytes per second, above 0. Upper and lower case differ: b is
 * a bit, B a byte; G a power of 1000, Gi of 1024. */
status text_parse_rate(const char *what, const char *text, int64_t *out);

/* Any of these, in `unit`, which is one of the table's: "10Gbit/s" in "GB/s" is 1.25. STATUS_USAGE also for
 * another `unit`. */
status text_parse_in_unit(const char *what, const char *text, const char *unit, double *out);

/* The index of `text` among `count` words. `first` is the first word, `stride` the bytes from one word to the
 * next, so that a table of structs needs no list of its names. The message lists the words and the nearest
 * one. */
status text_parse_choice(const char *what, const char *text, const char *const *first, size_t stride,
                         size_t count, int *out);

/* "44.7 MiB", "512 B"; "1.25 ms", "37 us"; "10 Gbit/s (1.25 GB/s)". `size` of 48 is enough. Returns `buffer`.
 */
char *text_format_bytes(char *buffer, size_t size, double bytes);
char *text_format_duration(char *buffer, size_t size, double ns);
char *text_format_rate(char *buffer, size_t size, double bytes_per_second);

/* With three significant digits, without an exponent: "0.0123", "4.10", "1730". `size` of 32 is enough for
 * what is below 1e28. Returns `buffer`. */
char *text_three_digits(char *buffer, size_t size, double value);

/* The word nearest to `word` by edit distance, or NULL if none is near. */
const char *text_nearest(const char *word, const char *const *words, size_t count);

/* "a, b, c" of the words, cut to `size`. Returns `buffer`. */
char *text_join(char *buffer, size_t size, const char *const *words, size_t count);

/* Replaces control characters (C0, DEL, C1), which may command a terminal, with '?', but not line feeds if
 * `keeps_lines`. Returns `text`. */
char *text_printable(char *text, bool keeps_lines);

/* A growing string for tables and messages outside the steady step. */
typedef struct text_buffer {
    char *data; /* NUL-terminated, NULL while empty */
    size_t length, capacity;
    bool out_of_memory;
} text_buffer;
void text_append(text_buffer *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_free(text_buffer *buffer);

/* Appends a word of a command as a shell reads it: in quotes unless it is plain. */
void text_append_shell_word(text_buffer *buffer, const char *word);

/* Breaks lines longer than `columns` between words. What follows is indented to the line's second column,
 * which begins after two blanks or more, else by two blanks more than the line. No line ends with blanks. */
void text_wrap(text_buffer *buffer, int columns);

/* Appends the table of units, as `harness help units` prints it. */
void text_units_help(text_buffer *out);

#endif
