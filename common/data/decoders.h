/* Decoders of data files: IDX, CIFAR-10 and CSV.
 *
 * Decoders borrow the bytes of the file. Only csv_decode() allocates memory. All decoders fail with
 * STATUS_DATA. The error message contains `name`, the position in the file after decompression, the expected
 * value and the found value. */
#ifndef COMMON_DATA_DECODERS_H
#define COMMON_DATA_DECODERS_H

#include "common/base/status.h"

#include <stdint.h>

/* The IDX format of MNIST (LeCun, Cortes, Burges: "The MNIST database of handwritten digits"). A file
 * contains a magic number, the dimensions and the elements. The magic number consists of two zero bytes, the
 * element type and the number of dimensions. The dimensions are big-endian 32-bit numbers. The decoders
 * accept only unsigned bytes as elements, in images (n, h, w) and labels (n). */
enum { IDX_MAX_SIDE = 4096 }; /* largest height and width of an image, in pixels */

typedef struct idx_images {
    int64_t count, h, w;
    const uint8_t *pixels; /* pixels (count, h, w) */
} idx_images;

typedef struct idx_labels {
    int64_t count;
    int highest;           /* highest label in the file */
    const uint8_t *labels; /* labels (count) */
} idx_labels;

status idx_decode_images(const char *name, const uint8_t *bytes, size_t size, idx_images *out);

/* Decodes labels. Every label must be below `classes`, which is at most 256. */
status idx_decode_labels(const char *name, const uint8_t *bytes, size_t size, int classes, idx_labels *out);

/* CIFAR-10's binary version (Krizhevsky: "Learning Multiple Layers of Features from Tiny Images", 2009). A
 * record consists of one label byte (0 to 9) and 3072 pixel bytes. The pixel bytes are the red, the green and
 * the blue plane of a 32x32 image, each row by row. */
enum { CIFAR10_SIDE = 32, CIFAR10_CHANNELS = 3, CIFAR10_CLASSES = 10 };
enum { CIFAR10_PIXELS = CIFAR10_SIDE * CIFAR10_SIDE * CIFAR10_CHANNELS }; /* bytes per image */

/* Checks that a file of `size` bytes consists of one or more complete records. Sets *count to the number of
 * records. */
status cifar10_count(const char *name, size_t size, int64_t *count);

/* Unpacks `count` records to pixels (count, 32, 32, 3) and labels (count). */
status cifar10_decode(const char *name, const uint8_t *bytes, int64_t count, uint8_t *pixels,
                      uint8_t *labels);

/* Tables of features as comma-separated values, in the form that scikit-learn uses. The first line holds the
 * number of samples, the number of features and the names of the classes. Every other line holds one sample:
 * its features and then its class, counted from 0. A line ends with a line feed, or with a carriage return
 * and a line feed. The last line may end without a line feed. */
enum { CSV_MAX_CLASSES = 256 };

typedef struct csv_table {
    int64_t samples, features;
    int classes;
    double *values;  /* (samples, features); every value is finite */
    uint8_t *labels; /* (samples); every label is below `classes` */
} csv_table;

/* Decodes a table. The allocated memory is proportional to `size` even if the first line contains wrong
 * numbers. */
status csv_decode(const char *name, const uint8_t *bytes, size_t size, csv_table *out);
void csv_free(csv_table *table);

#endif
