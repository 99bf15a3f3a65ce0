/* Input files: every file that a user names is opened here. */
#ifndef COMMON_BASE_INPUT_H
#define COMMON_BASE_INPUT_H

#include "common/base/text.h"

#include <jansson.h>

/* Opens a regular file of at most `largest` bytes for reading, without blocking. *fd is the caller's to
 * close, -1 after a failure; *bytes is the size of the file. STATUS_DATA for a missing or larger file and for
 * a folder, a FIFO, a socket or a device; the message begins with the path. */
status input_open(const char *path, int64_t largest, int *fd, int64_t *bytes);

/* Reads a whole file into `out`, which is empty before and after a failure. A byte of zero follows the
 * contents. Fails as input_open() does, with STATUS_IO, and with STATUS_SYSTEM. */
status input_read(const char *path, int64_t largest, text_buffer *out);

/* Reads an open descriptor, which may be a pipe, as input_read() reads a file. `name` stands for the path in
 * messages. */
status input_read_fd(int fd, const char *name, int64_t largest, text_buffer *out);

/* Parses JSON in which no object has a key twice. *out is a new reference, NULL after a failure. STATUS_DATA
 * with `name`, line and column. */
status input_json_decode(const char *name, const text_buffer *text, json_t **out);

/* input_read() and input_json_decode(). */
status input_json(const char *path, int64_t largest, json_t **out);

#endif
