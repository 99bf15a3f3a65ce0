/* Decoders of data files: IDX, CIFAR-10 and CSV.
 *
 * Decoders borrow the bytes of the file; only csv_decode() allocates memory. All decoders fail with
 * STATUS_DATA. The message contains `name`, the position in the (unpacked) file, the expected value and the
 * found value. */
#ifndef COMMON_DATA_DECODERS_H
#define COMMON_DATA_DECODERS_H

#include "common/base/status.h"

#include <stdint.h>

/* The IDX format of MNIST (LeCun, Cortes, Burges: "The MNIST database of handwritten digits"): a magic
 * number (two zero bytes, element type, number of dimensions), the dimensions as big-endian 32-bit
 * numbers, and the elements. The decoders read unsigned bytes: images (n, h, w) and labels (n). */
enum { IDX_MAX_SIDE = 4096 }; /* pixels */

typedef struct idx_images {
    int64_t count, h, w;
    const uint8_t *pixels; /* pixels (count, h, w) */
} idx_images;

typedef struct idx_labels {
    int64_t count;
    int highest;           /* highest label in the file */
    const uint8_t *labels; /* (count) */
} idx_labels;

status idx_decode_images(const char *name, const uint8_t *bytes, size_t size, idx_images *out);

/* Decodes labels. Every label must be below `classes`, which is at most 256. */
status idx_decode_labels(const char *name, const uint8_t *bytes, size_t size, int classes, idx_labels *out);

/* CIFAR-10's binary version (Krizhevsky: "Learning Multiple Layers of Features from Tiny Images", 2009). A
 * record is one label byte (0 to 9) and 3072 pixel bytes: the red, green and blue planes of a 32x32 image,
 * row by row. */
enum { CIFAR10_SIDE = 32, CIFAR10_CHANNELS = 3, CIFAR10_CLASSES = 10 };
enum { CIFAR10_PIXELS = CIFAR10_SIDE * CIFAR10_SIDE * CIFAR10_CHANNELS }; /* bytes per image */

/* Checks that `size` bytes consist of complete records, and of at least one. Sets *count to the number of
 * records. */
status cifar10_count(const char *name, size_t size, int64_t *count);

/* Unpacks `count` records to pixels (count, 32, 32, 3) and labels (count). */
status cifar10_decode(const char *name, const uint8_t *bytes, int64_t count, uint8_t *pixels,
                      uint8_t *labels);

/* Feature tables in scikit-learn's form of comma-separated values. The first line holds the number of
 * samples, the number of features and the names of the classes. Every other line holds one sample: its
 * features and then its class, counted from 0. A line ends with a line feed, which a carriage return may
 * precede. The last line may end with the file. */
enum { CSV_MAX_CLASSES = 256 };

typedef struct csv_table {
    int64_t samples, features;
    int classes;
    double *values;  /* (samples, features); every value is finite */
    uint8_t *labels; /* (samples); every label is below `classes` */
} csv_table;

/* Decodes a table. Even if the first line is wrong, allocates only memory in proportion to `size`. */
status csv_decode(const char *name, const uint8_t *bytes, size_t size, csv_table *out);
void csv_free(csv_table *table);

#endif
