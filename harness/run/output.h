/* Writing what a command has to say: a file is written whole or not at all, "-" is stdout.
 * STATUS_CANNOT_CREATE, STATUS_IO. */
#ifndef HARNESS_RUN_OUTPUT_H
#define HARNESS_RUN_OUTPUT_H

#include "common/base/text.h"

#include <jansson.h>

/* Whether the file could be written: checked before what takes long. */
status output_probe(const char *path);

/* A report to stdout, in lines of at most 80 columns; on a terminal in color (not with NO_COLOR), and in
 * $PAGER, else less, where it is longer than that. Frees the text. */
status output_text(text_buffer *text);
/* To a file, control characters but line feeds replaced; frees the text. */
status output_file(text_buffer *text, const char *path);
/* As indented JSON to a file; drops the reference. */
status output_json(json_t *value, const char *path);
/* Writes a result for result_read(): output_json() with a checksum. */
status output_result(json_t *result, const char *path);

#endif
