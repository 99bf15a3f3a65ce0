/* SHA-256 (FIPS 180-4), for the content security policy of a report. */
#ifndef HARNESS_REPORT_SHA256_H
#define HARNESS_REPORT_SHA256_H

#include <stddef.h>

/* Writes the digest of `bytes` bytes in base64, as a policy has it after "sha256-": 44 characters and a NUL.
 * Returns `out`. */
char *sha256_base64(const void *data, size_t bytes, char out[45]);

#endif
