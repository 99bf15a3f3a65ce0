/* Writing a command's output. */
#ifndef HARNESS_COMMANDS_OUTPUT_H
#define HARNESS_COMMANDS_OUTPUT_H

#include "common/base/text.h"

#include <jansson.h>

/* To stdout, whole; frees the text. STATUS_CANNOT_CREATE where stdout is closed or full. */
status output_text(text_buffer *text);

/* To a file, whole or not at all, or to stdout for "-"; frees the text. */
status output_file(text_buffer *text, const char *path);

/* As indented JSON to stdout for "-", else to a file, whole or not at all; drops the reference. */
status output_json(json_t *value, const char *path);

#endif
