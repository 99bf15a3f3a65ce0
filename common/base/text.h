/* Parses and formats numbers and units strictly, and finds the nearest word. */
#ifndef COMMON_BASE_TEXT_H
#define COMMON_BASE_TEXT_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parse the whole string, or fail with STATUS_USAGE and "WHAT: expected ..., got 'TEXT'". `what` is the
 * option or the file. All parsers of this header have error messages of this form. */
status text_parse_int(const char *what, const char *text, int64_t low, int64_t high, int64_t *out);
status text_parse_double(const char *what, const char *text, double low, double high, double *out);

/* Parses a size such as 4K, 25MiB, 1GB or 100. K, M, G, T and KiB, MiB, GiB, TiB are powers of 1024; KB, MB,
 * GB, TB are powers of 1000. text_units_help() prints the table of units that all parsers share. The largest
 * valid size and the largest valid duration are so small that sums of a few of them do not overflow. */
status text_parse_bytes(const char *what, const char *text, int64_t *out);
/* Parses a duration such as 50us, 2ms, 1s, 10ns or 1min. */
status text_parse_duration_ns(const char *what, const char *text, int64_t *out);
/* Parses a rate above 0, such as 10Gbit/s, 10Gb/s, 10Gbps, 1.25GB/s or 1GiB/s, into bytes per second. Upper
 * and lower case differ: b means bit and B means byte. Prefixes such as G are powers of 1000, and prefixes
 * such as Gi are powers of 1024. */
status text_parse_rate(const char *what, const char *text, int64_t *out);

/* Parses a size, a duration or a rate and converts it to `unit`, which must be one of the units that
 * text_units_help() lists: "10Gbit/s" in "GB/s" is 1.25. */
status text_parse_in_unit(const char *what, const char *text, const char *unit, double *out);

/* Sets *out to the index of `text` among `count` words. `first` points to the first word, and `stride` is the
 * number of bytes from one word to the next, so the words may be a field of an array of structs. The error
 * message lists the words and the nearest one. */
status text_parse_choice(const char *what, const char *text, const char *const *first, size_t stride,
                         size_t count, int *out);

/* Format a size ("44.7 MiB", "512 B"), a duration ("1.25 ms", "37 us") or a rate ("10 Gbit/s (1.25 GB/s)"). A
 * `size` of 48 is enough. Return `buffer`. */
char *text_format_bytes(char *buffer, size_t size, double bytes);
char *text_format_duration(char *buffer, size_t size, double ns);
char *text_format_rate(char *buffer, size_t size, double bytes_per_second);

/* Formats three significant digits without an exponent: "0.0123", "4.10", "1730". A `size` of 32 is enough
 * for values below 1e28. Returns `buffer`. */
char *text_three_digits(char *buffer, size_t size, double value);

/* Copies the word at *text, which ends at `separator` or at the end of the text, to `word`, and truncates it
 * to `size` bytes. Moves *text past the separator. Returns `word`. */
char *text_next_word(const char **text, char separator, char *word, size_t size);

/* Returns true if `text` ends with `end`. */
bool text_ends_with(const char *text, const char *end);

/* Returns the word with the smallest edit distance to `word`. If no word is similar, returns the first that
 * contains `word`, or NULL. */
const char *text_nearest(const char *word, const char *const *words, size_t count);

/* Joins the words as in "a, b, c", and truncates the result to `size` bytes. Returns `buffer`. */
char *text_join(char *buffer, size_t size, const char *const *words, size_t count);

/* Replaces control characters (C0, DEL, C1), which may reconfigure a terminal, with '?'. Keeps line feeds if
 * `keeps_lines`. Returns `text`. */
char *text_printable(char *text, bool keeps_lines);

/* A growing string for tables and messages. Training steps do not use text buffers, because text buffers
 * allocate memory. */
typedef struct text_buffer {
    char *data; /* the text, NUL-terminated, or NULL while it is empty */
    size_t length, capacity;
    bool out_of_memory;
} text_buffer;
void text_append(text_buffer *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_free(text_buffer *buffer);

/* Appends a word of a command, quoted for the shell if necessary. */
void text_append_shell_word(text_buffer *buffer, const char *word);

/* Appends the line that begins at `line`. Breaks it between words into lines of at most `columns` columns.
 * All lines except the first begin with `indent` blanks. */
void text_append_wrapped(text_buffer *out, const char *line, int indent, int columns);

/* Breaks lines longer than `columns` between words. If a line has a second column of text, which begins after
 * two or more blanks, the text after a break is indented to this column. If the line has no second column of
 * text, the text after a break is indented two blanks more than the line. No line ends with blanks. */
void text_wrap(text_buffer *buffer, int columns);

/* Appends the table of units, as `harness help units` prints it. */
void text_units_help(text_buffer *out);

#endif
