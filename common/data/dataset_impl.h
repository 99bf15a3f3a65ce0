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

extern const dataset_type dataset_wine, dataset_fashion_mnist, dataset_mnist, dataset_idx, dataset_cifar10,
    dataset_synthetic;

/* The set takes ownership of memory from malloc. */
void dataset_own(dataset *set, void *block);
status dataset_allocate(dataset *set, size_t bytes, void **out);

/* Notes a source file in the description. Returns the set's copy of the path in *out. */
status dataset_add_file(dataset *set, const char *path, const char **out);

/* Both parts are the same rows; a stratified fifth becomes the test part. */
status dataset_hold_back(dataset *set, const stored_part *rows, int64_t count, uint64_t seed);

const void *dataset_stored_input(const dataset *set, data_part part, int64_t index, void *scratch);
void dataset_stored_target(const dataset *set, data_part part, int64_t index, void *target);

#endif
