/* Input files. Every file that a user names is opened here. */
#ifndef COMMON_BASE_INPUT_H
#define COMMON_BASE_INPUT_H

#include "common/base/text.h"

#include <jansson.h>

/* Opens a regular file of at most `largest` bytes for reading, without blocking. The caller closes *fd, which
 * is -1 after a failure. *bytes is the size of the file. Fails with STATUS_DATA if the file is missing, is
 * larger than `largest`, or is a folder, a FIFO, a socket or a device. The message begins with the path. */
status input_open(const char *path, int64_t largest, int *fd, int64_t *bytes);

/* Reads a whole file into `out`, which must be empty and is empty after a failure. A zero byte follows the
 * contents. Fails like input_open(). Returns STATUS_IO if reading fails, and STATUS_SYSTEM if memory runs
 * out. */
status input_read(const char *path, int64_t largest, text_buffer *out);

/* Does the same as input_read() for an open descriptor, which may be a pipe. `name` replaces the path in
 * messages. */
status input_read_fd(int fd, const char *name, int64_t largest, text_buffer *out);

/* Parses JSON. *out is a new reference, or NULL after a failure. Fails with STATUS_DATA. The message contains
 * `name`, the line and the column. A duplicate key in an object is an error. */
status input_json_decode(const char *name, const text_buffer *text, json_t **out);

/* Calls input_read(), then input_json_decode(). */
status input_json(const char *path, int64_t largest, json_t **out);

#endif
