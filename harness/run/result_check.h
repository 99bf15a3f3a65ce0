/* Reading results, and what shows that one was changed after it was written: docs/results.md, "Checks". */
#ifndef HARNESS_RUN_RESULT_CHECK_H
#define HARNESS_RUN_RESULT_CHECK_H

#include <jansson.h>
#include <stdbool.h>

#include "common/base/status.h"

enum { RESULT_MOST_BYTES = 1 << 30 }; /* of a file */

/* Adds "checksum": XXH3 of the result without "options", "provenance" and "checksum". STATUS_SYSTEM. */
status result_seal(json_t *result);

/* Checks the JSON of a run, a plan, `memory`, a sweep's table or a reproduction: version, checksum, schema,
 * and the figures that follow from others. The first file of an older version is announced on stderr and not
 * checked. Replaces control characters in strings outside "options". STATUS_DATA with `path`, the place
 * in the file, the expected and the found value. */
status result_check(const char *path, json_t *result);

/* Reads a file, stdin if `path` is "-" and allows_stdin, and checks it. *out is a new reference, NULL after a
 * failure. STATUS_DATA, STATUS_IO, STATUS_SYSTEM. */
status result_read(const char *path, bool allows_stdin, json_t **out);

#endif
