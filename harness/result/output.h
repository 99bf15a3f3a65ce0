/* Writes the output of a command. A file is written whole or not at all, and "-" is stdout. On failure the
 * functions return STATUS_CANNOT_CREATE, STATUS_IO or STATUS_SYSTEM. */
#ifndef HARNESS_RESULT_OUTPUT_H
#define HARNESS_RESULT_OUTPUT_H

#include "common/base/text.h"

#include <jansson.h>

/* An option that names an output, and its value or NULL. */
typedef struct output_name {
    const char *option, *path;
} output_name;
/* Checks that no output replaces another output, or one of the inputs (NULL for none). Returns STATUS_USAGE.
 */
status output_check(const output_name *outputs, int count, const char *const *inputs, int input_count);

/* Checks before a long computation that the file can be written. */
status output_probe(const char *path);

/* Writes a report to stdout in lines of at most 80 columns, and frees the text. On a terminal the report
 * has colors, unless NO_COLOR is set. A report longer than the terminal is shown in $PAGER, by default
 * less. */
status output_text(text_buffer *text);
/* Writes a text to a file, and frees the text. Replaces control characters except line feeds. */
status output_file(text_buffer *text, const char *path);
/* Writes indented JSON to a file unless `path` is NULL, and drops the reference. */
status output_json(json_t *value, const char *path);
/* Writes a result with a checksum, for result_read(), unless `path` is NULL, and drops the reference. */
status output_result(json_t *result, const char *path);

#endif
