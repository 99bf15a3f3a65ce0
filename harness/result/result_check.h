/* Reads results, and detects results that were changed after they were written (docs/results.md,
 * "Checks"). */
#ifndef HARNESS_RESULT_RESULT_CHECK_H
#define HARNESS_RESULT_RESULT_CHECK_H

#include <jansson.h>
#include <stdbool.h>

#include "common/base/status.h"

enum { RESULT_MOST_BYTES = 1 << 30 }; /* largest size of a file */

/* Adds "checksum": XXH3 of the result without "options", "provenance" and "checksum". */
void result_seal(json_t *result);

/* Checks the JSON of a run, a plan, `harness memory`, a sweep's table or a reproduction: version, checksum,
 * schema, and the figures that follow from other figures. A file of an older version is checked only for its
 * objects and arrays, and the first old file is announced on stderr. Replaces control characters in strings
 * outside "options". Returns STATUS_DATA if a check fails; the message contains `path`, the place in the
 * file, the expected and the found value. */
status result_check(const char *path, json_t *result);

/* Reads and checks a file, or stdin if `path` is "-" and allows_stdin. *out is a new reference, or NULL
 * after a failure. Returns STATUS_DATA, STATUS_IO or STATUS_SYSTEM. */
status result_read(const char *path, bool allows_stdin, json_t **out);

#endif
