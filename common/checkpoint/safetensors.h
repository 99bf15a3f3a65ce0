/* The safetensors format: 8 bytes with the length N of the header, little endian; N bytes of JSON; the
 * tensors' bytes, without holes.
 *
 *   {"__metadata__": {"key": "text", ...},
 *    "fc.weight": {"dtype": "F32", "shape": [10, 512], "data_offsets": [0, 20480]}, ...}
 *
 * Offsets count from the first byte after the header. Rules are those of the format's own description
 * and reference implementation (github.com/huggingface/safetensors): at most 100 MB of header, no name
 * twice, tensors that cover the data exactly. The decoder reads memory, whatever its content. */
#ifndef COMMON_CHECKPOINT_SAFETENSORS_H
#define COMMON_CHECKPOINT_SAFETENSORS_H

#include "common/base/status.h"
#include "common/ops/tensor.h"

#include <stdbool.h>
#include <stdint.h>

enum { SAFETENSORS_PREFIX = 8, SAFETENSORS_MAX_HEADER = 100000000, SAFETENSORS_MAX_RANK = 8 };

typedef struct safetensors_dtype {
    const char *name; /* in the file: "F32" */
    int bytes;        /* of an element */
    dtype type;       /* DTYPE_COUNT where this program has none */
} safetensors_dtype;

typedef struct safetensors_tensor {
    const struct safetensors_header *in; /* of its file */
    const char *name;
    const safetensors_dtype *dtype;
    int rank; /* 0: a scalar */
    int64_t dims[SAFETENSORS_MAX_RANK];
    int64_t elements;
    int64_t begin, end; /* bytes from the start of the data */
} safetensors_tensor;

typedef struct safetensors_header {
    const char *file; /* borrowed: what messages call it */
    const char *text; /* borrowed: the JSON */
    int64_t text_bytes;
    int64_t data_bytes;
    safetensors_tensor *tensors; /* in the order of their names */
    int count;
    struct json_t *json; /* owns the names */
} safetensors_header;

static inline int64_t safetensors_data_offset(const safetensors_header *h)
{
    return SAFETENSORS_PREFIX + h->text_bytes;
}

/* The length of the header of a file of `file_bytes` bytes that starts with the `size` bytes at `bytes` (8,
 * or the whole file where it is shorter). STATUS_DATA: it is no safetensors file, or its header does not
 * fit. */
status safetensors_measure(const char *file, const uint8_t *bytes, size_t size, int64_t file_bytes,
                           int64_t *out);

/* Decodes the header at `text`, of `text_bytes` bytes, of a file of `file_bytes` bytes. `file` and `text` are
 * borrowed. STATUS_DATA names the place and what was found. */
status safetensors_decode(const char *file, const char *text, int64_t text_bytes, int64_t file_bytes,
                          safetensors_header *out);
void safetensors_free(safetensors_header *h);

/* NULL if there is none. */
const safetensors_tensor *safetensors_find(const safetensors_header *h, const char *name);
const char *safetensors_metadata(const safetensors_header *h, const char *key);

/* Whether some key of the metadata begins with `prefix`. */
bool safetensors_has_metadata(const safetensors_header *h, const char *prefix);

/* Where in the file the key `name` stands, or the header's first byte if it cannot be told. */
int64_t safetensors_offset_of(const safetensors_header *h, const char *name);

/* "F32" of DTYPE_F32; every dtype has one. */
const char *safetensors_dtype_name(dtype type);

/* "64x3x7x7", "scalar". Returns `buffer`. */
char *safetensors_format_shape(char *buffer, size_t size, int rank, const int64_t *dims);

/* STATUS_DATA, "FILE: at offset N: ...", with control characters of names replaced. */
status safetensors_refuse(const char *file, int64_t offset, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
