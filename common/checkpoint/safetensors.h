/* The safetensors format. A file consists of three parts. The first 8 bytes are the length N of the header,
 * in little endian. Then follow the header, which is N bytes of JSON, and the bytes of the tensors, without
 * gaps.
 *
 *   {"__metadata__": {"key": "text", ...},
 *    "fc.weight": {"dtype": "F32", "shape": [10, 512], "data_offsets": [0, 20480]}, ...}
 *
 * Offsets count from the first byte after the header. The rules come from the description and the reference
 * implementation of the format (github.com/huggingface/safetensors): the header has at most 100 MB, no name
 * occurs twice, and the tensors cover the data exactly. The decoder is safe for arbitrary bytes. */
#ifndef COMMON_CHECKPOINT_SAFETENSORS_H
#define COMMON_CHECKPOINT_SAFETENSORS_H

#include "common/base/status.h"
#include "common/ops/tensor.h"

#include <stdbool.h>
#include <stdint.h>

enum { SAFETENSORS_PREFIX = 8, SAFETENSORS_MAX_HEADER = 100000000, SAFETENSORS_MAX_RANK = 8 };

typedef struct safetensors_dtype {
    const char *name; /* name in the file, e.g. "F32" */
    int bytes;        /* bytes per element */
    dtype type;       /* the program's type, or DTYPE_COUNT if the program does not support the type */
} safetensors_dtype;

typedef struct safetensors_tensor {
    const char *name;
    const safetensors_dtype *dtype;
    int rank; /* number of dimensions, 0 for a scalar */
    int64_t dims[SAFETENSORS_MAX_RANK];
    int64_t elements;
    int64_t begin, end; /* offsets in bytes from the start of the data */
} safetensors_tensor;

typedef struct safetensors_header {
    const char *file; /* name of the file in messages; borrowed */
    const char *text; /* JSON text of the header; borrowed */
    int64_t text_bytes;
    int64_t data_bytes;
    safetensors_tensor *tensors; /* sorted by name */
    int count;
    struct json_t *json; /* parsed header, which owns the names */
} safetensors_header;

static inline int64_t safetensors_data_offset(const safetensors_header *h)
{
    return SAFETENSORS_PREFIX + h->text_bytes;
}

/* Computes the length of the header from the first `size` bytes of a file of `file_bytes` bytes. `size` is 8,
 * or file_bytes if the file is shorter. Fails with STATUS_DATA if the file is not a safetensors file, or if
 * the header is longer than the file or than the limit. */
status safetensors_measure(const char *file, const uint8_t *bytes, size_t size, int64_t file_bytes,
                           int64_t *out);

/* Decodes the header text[text_bytes] of a file of `file_bytes` bytes. Borrows `file` and `text`. Fails with
 * STATUS_DATA if the header is not valid. The error message contains the position and the value that was
 * found. */
status safetensors_decode(const char *file, const char *text, int64_t text_bytes, int64_t file_bytes,
                          safetensors_header *out);
void safetensors_free(safetensors_header *h);

/* Return the tensor `name`, or the text of `key` in the metadata. Return NULL if there is none. */
const safetensors_tensor *safetensors_find(const safetensors_header *h, const char *name);
const char *safetensors_metadata(const safetensors_header *h, const char *key);

/* Returns true if a key of the metadata begins with `prefix`. */
bool safetensors_has_metadata(const safetensors_header *h, const char *prefix);

/* Returns the offset of the key `name` in the file, or of the header's first byte if the key is not found. */
int64_t safetensors_offset_of(const safetensors_header *h, const char *name);

/* Returns "F32" for DTYPE_F32. Every dtype has a name. */
const char *safetensors_dtype_name(dtype type);

/* Formats a shape, for example "64x3x7x7" or "scalar". Returns `buffer`. */
char *safetensors_format_shape(char *buffer, size_t size, int rank, const int64_t *dims);

/* Fails with STATUS_DATA. The error message begins with "FILE: at offset N: ". */
status safetensors_refuse(const char *file, int64_t offset, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
