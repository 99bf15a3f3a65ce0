/* For the data sets themselves. */
#ifndef COMMON_DATA_DATASET_IMPL_H
#define COMMON_DATA_DATASET_IMPL_H

#include "common/data/dataset.h"

enum { DATASET_MAX_BLOCKS = 24 };

typedef struct dataset_type {
    const char *name;
    const char *usage; /* "mnist:DIR" */
    /* Fills the set: description (but its name), parts or streams. `argument` is what follows the name's
     * colon, NULL without one. What it allocated is freed by dataset_close() even if it fails. */
    status (*open)(dataset *set, const dataset_config *config, const char *argument);
    const void *(*input)(const dataset *set, data_part part, int64_t index, void *scratch);
    void (*target)(const dataset *set, data_part part, int64_t index, void *target);
} dataset_type;

/* A part whose samples are in memory. */
typedef struct stored_part {
    const uint8_t *pixels; /* images: (rows, h, w, c) */
    const float *features; /* features: (rows, features) */
    const uint8_t *labels; /* (rows) */
    const int32_t *picks;  /* [samples] the row of each sample; NULL: its index */
} stored_part;

/* A part that is computed: starts of its random streams. */
typedef struct synthetic_part {
    uint64_t input, target, mask;
} synthetic_part;

struct dataset {
    const dataset_type *type;
    data_description description;
    stored_part stored[DATA_PARTS];
    synthetic_part synthetic[DATA_PARTS];
    void *blocks[DATASET_MAX_BLOCKS]; /* freed by dataset_close() */
    int block_count;
};

/* ---- files -------------------------------------------------------------------------------------- */

typedef struct file_bytes {
    uint8_t *data; /* from malloc */
    size_t size;
} file_bytes;

enum { FILE_LIMIT_MIB = 4096 }; /* more than this, unpacked, is no file of ours */

/* Reads `path`, plain or compressed with gzip. STATUS_DATA names the file: it cannot be opened or read,
 * its compressed data are damaged, end early or before the file, or it is larger than FILE_LIMIT_MIB. */
status file_read(const char *path, file_bytes *out);
void file_free(file_bytes *bytes);

/* ---- data sets ---------------------------------------------------------------------------------- */

extern const dataset_type dataset_wine, dataset_fashion_mnist, dataset_mnist, dataset_idx, dataset_cifar10,
    dataset_synthetic;

/* The set takes ownership of memory from malloc. */
void dataset_own(dataset *set, void *block);
status dataset_allocate(dataset *set, size_t bytes, void **out);

/* Notes a source file in the description. Returns the set's copy of the path in *out. */
status dataset_add_file(dataset *set, const char *path, const char **out);

/* Both parts are the same rows; a stratified fifth becomes the test part. */
status dataset_split(dataset *set, const stored_part *rows, int64_t count, uint64_t seed);

const void *dataset_stored_input(const dataset *set, data_part part, int64_t index, void *scratch);
void dataset_stored_target(const dataset *set, data_part part, int64_t index, void *target);

/* ---- synthetic data ----------------------------------------------------------------------------- */

/* Noise with the form of real data, for measurements: nothing can be learned from it, and nothing is
 * stored. Every value is a function of (seed, stream, index) as random.h draws it; the streams are
 * "data.PART.input", "data.PART.target" and "data.PART.mask" with PART train or test.
 *
 *   pixel i (in h, w, c order) of sample n   byte i % 8 of the bits at n * ceil(pixels / 8) + i / 8
 *   feature i of sample n                    r(n * features + i), uniform in [-1, 1)
 *   token i of sample n                      below the vocabulary, at n * sequence + i
 *   class of sample n                        below the classes, at n
 *   value i of sample n (regression)         r(n * classes + i)
 *   next-token targets                       tokens are drawn at n * (sequence + 1) + i, for one position
 *                                            more; the target of position i is token i + 1
 *   masked targets                           position i has a target where u(n * sequence + i) of the mask
 *                                            is below 0.15, or, where that leaves the sample without one,
 *                                            at one position; it is a token drawn at n * sequence + i, of
 *                                            which the input shows nothing: as BERT's masking would leave
 *                                            it with a random token in its place (Devlin et al., 2019) */
#define SYNTHETIC_MASKED 0.15

/* What follows "synthetic:" ("3x32x32:10", "13:3", "128"; NULL for nothing) together with the model's form
 * (NULL where not known) gives the form of the data. A single number is a number of tokens where the model
 * takes tokens, else of features. STATUS_USAGE, STATUS_CONFIG. */
status synthetic_form(const char *argument, const data_form *model, data_form *out);

#endif
