/* A whole file in memory. */
#ifndef COMMON_DATA_FILE_H
#define COMMON_DATA_FILE_H

#include "common/base/status.h"

#include <stdint.h>

typedef struct file_bytes {
    uint8_t *data; /* from malloc */
    size_t size;
} file_bytes;

enum { FILE_LIMIT_MIB = 4096 }; /* more than this, unpacked, is no file of ours */

/* Reads `path`, plain or compressed with gzip. STATUS_DATA names the file: it cannot be opened or read,
 * its compressed data are damaged or end early, or it is larger than FILE_LIMIT_MIB. */
status file_read(const char *path, file_bytes *out);
void file_free(file_bytes *bytes);

#endif
