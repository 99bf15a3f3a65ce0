/* A batch source that reads a data set: sampler, transform and loader of one rank. */
#ifndef COMMON_DATA_BATCHES_H
#define COMMON_DATA_BATCHES_H

#include "common/base/options.h"
#include "common/data/loader.h"
#include "common/data/sampler.h"
#include "common/data/transform.h"

/* TRAIN permutes the samples in each epoch. Padding counts like any other sample, as in PyTorch.
 *
 * EVALUATE keeps the stored order, drops nothing and augments nothing. Padding does not count, so sums
 * over ranks equal the sums on one rank: targets of padding are LOSS_IGNORE, and in a regression the
 * caller leaves out the last batch.padding samples. */
typedef enum batches_purpose { BATCHES_TRAIN, BATCHES_EVALUATE } batches_purpose;

typedef struct batches_config {
    const dataset *set; /* borrowed */
    data_part part;
    batches_purpose purpose;
    data_form model; /* form of the model's input and targets */
    uint64_t seed;
    int rank, world;
    int64_t batch; /* samples per rank, per step */
    sampler_mode sampler;
    bool drop_last;
    /* True to get the batches of all ranks, in rank order, for a rank that loads for the others. Only with
     * TRAIN. */
    bool whole;
    unsigned augment; /* DATA_AUGMENT_... */
    int threads;
    int64_t first_step;
    const loader_memory *memory; /* NULL for memory of the C library */
} batches_config;

/* Returns STATUS_CONFIG if set, model, ranks, batch and augmentation do not fit together (sampler_init(),
 * data_transform_plan()). */
status batches_open(const batches_config *config, batch_source **out);

typedef struct data_options {
    const char *data; /* dataset.h */
    int64_t batch;    /* samples per rank, per step */
    int sampler;      /* sampler_mode */
    bool drop_last;
    const char *augment; /* data_augment_parse() */
    int64_t loader_threads;
} data_options;

extern const option_table data_option_table;

#endif
