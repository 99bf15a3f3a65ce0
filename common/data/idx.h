/* The IDX format of MNIST (LeCun, Cortes, Burges: "The MNIST database of handwritten digits"): a magic
 * number (two zero bytes, element type, number of dimensions), the dimensions as big-endian 32-bit
 * numbers, the elements. Here: unsigned bytes, images (n, h, w) and labels (n).
 *
 * Decoders borrow the file's bytes and allocate nothing. Their errors are STATUS_DATA with `name`, the
 * offset (behind decompression), what was found and what is allowed. */
#ifndef COMMON_DATA_IDX_H
#define COMMON_DATA_IDX_H

#include "common/base/status.h"

#include <stdint.h>

enum { IDX_MAX_SIDE = 4096 }; /* pixels */

typedef struct idx_images {
    int64_t count, h, w;
    const uint8_t *pixels; /* (count, h, w) */
} idx_images;

typedef struct idx_labels {
    int64_t count;
    int highest;           /* label that occurs */
    const uint8_t *labels; /* (count) */
} idx_labels;

status idx_decode_images(const char *name, const uint8_t *bytes, size_t size, idx_images *out);

/* Labels must be below `classes` (at most 256). */
status idx_decode_labels(const char *name, const uint8_t *bytes, size_t size, int classes, idx_labels *out);

#endif
