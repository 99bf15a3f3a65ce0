/* SHA-256 (FIPS 180-4), for the content security policy of a report. */
#ifndef HARNESS_REPORT_SHA256_H
#define HARNESS_REPORT_SHA256_H

#include <stddef.h>

/* Returns `out` with the digest of `bytes` bytes in base64, 44 characters, as it follows "sha256-" in a
 * policy. */
char *sha256_base64(const void *data, size_t bytes, char out[45]);

#endif
