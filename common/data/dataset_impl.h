/* The interface that each data set implements. Only this folder includes this header. */
#ifndef COMMON_DATA_DATASET_IMPL_H
#define COMMON_DATA_DATASET_IMPL_H

#include "common/base/text.h"
#include "common/data/dataset.h"

enum { DATASET_MAX_BLOCKS = 24 };

typedef struct dataset_type {
    const char *name;
    const char *usage; /* "mnist:DIR" */
    /* Fills in the description of the set except its name, and either the stored parts or the synthetic
     * parts. `argument` is the text after the colon that follows the name, or NULL. After a failure
     * dataset_close() frees the memory of the set. */
    status (*open)(dataset *set, const dataset_config *config, const char *argument);
} dataset_type;

/* A part whose samples are in memory. */
typedef struct stored_part {
    const uint8_t *pixels; /* (rows, h, w, c), used for images */
    const float *features; /* (rows, features), used for feature vectors */
    const uint8_t *labels; /* (rows) */
    const int32_t *picks;  /* [samples] row of each sample; NULL if sample i is row i */
} stored_part;

/* The starts of the random streams from which the samples of a synthetic part are computed. */
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

enum { FILE_LIMIT_MIB = 4096 }; /* largest size of a file after decompression */

/* Reads the file `path`, which may be compressed with gzip. Returns STATUS_DATA if the file cannot be read,
 * if the compressed data are damaged or truncated, if other bytes follow the compressed data, or if the file
 * is larger than FILE_LIMIT_MIB. The error message contains the name of the file. */
status file_read(const char *path, text_buffer *out);

/* ---- data sets ---------------------------------------------------------------------------------- */

extern const dataset_type dataset_wine, dataset_fashion_mnist, dataset_mnist, dataset_idx, dataset_cifar10,
    dataset_synthetic;

void dataset_own(dataset *set, void *block);
status dataset_allocate(dataset *set, size_t bytes, void **out);

/* Adds a source file to the description. Sets *out to the set's copy of the path. */
status dataset_add_file(dataset *set, const char *path, const char **out);

/* Splits rows into the training part and the test part. The test part is a stratified fifth of the rows. The
 * training part and the test part share the memory of the rows. */
status dataset_split(dataset *set, const stored_part *rows, int64_t count, uint64_t seed);

/* ---- synthetic data ----------------------------------------------------------------------------- */

/* Synthetic data are noise that has the form of real data. They serve for measurements, because a model can
 * learn nothing from noise. Values are not stored. Each value is a random number that depends only on (seed,
 * stream, index). The functions random_...(index) of the table are those of random.h. The streams are
 * "data.PART.input", "data.PART.target" and "data.PART.mask", where PART is train or test.
 *
 *   Pixel i of sample n, in the order h, w, c, is byte i % 8 of random_bits(n * ceil(pixels / 8) + i / 8).
 *   Feature i of sample n is random_signed(n * features + i), which is uniform in [-1, 1).
 *   Token i of sample n is random_below(n * sequence + i), which is smaller than the vocabulary.
 *   The class of sample n is random_below(n), which is smaller than the number of classes.
 *   In a regression, target i of sample n is random_signed(n * classes + i).
 *   If the target is the next token, sample n has sequence + 1 tokens. Token i is then
 *   random_below(n * (sequence + 1) + i), and the target of position i is token i + 1.
 *   If tokens are masked, position i has a target if random_uniform(n * sequence + i) of the stream "mask" is
 *   below 0.15. If no position of a sample is masked, one position is drawn. The target is a token,
 *   random_below(n * sequence + i) of the stream "target".
 *
 * The input of a masked position is independent of its target, like BERT's masking with a random token
 * (Devlin et al., 2019). */
#define SYNTHETIC_MASKED 0.15

/* Determines the form of the data from `argument` and `model`. `argument` is the text after "synthetic:", for
 * example "3x32x32:10", "13:3" or "128". `argument` and `model` may be NULL. If the shape is a single number,
 * it is the number of tokens if the model takes tokens, else the number of features. A third part is the
 * number of training samples ("13:3:90"), and sets *samples, which is 0 without this part. Returns
 * STATUS_USAGE or STATUS_CONFIG. */
status synthetic_form(const char *argument, const data_form *model, data_form *out, int64_t *samples);

/* Compute the input and the target of a sample, as dataset_input() and dataset_target() do. */
void synthetic_input(const dataset *set, data_part part, int64_t index, void *out);
void synthetic_target(const dataset *set, data_part part, int64_t index, void *target);

#endif
