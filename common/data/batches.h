/* Batches of a data set: sampler, transform and loader put together for one rank. */
#ifndef COMMON_DATA_BATCHES_H
#define COMMON_DATA_BATCHES_H

#include "common/base/options.h"
#include "common/data/loader.h"
#include "common/data/sampler.h"
#include "common/data/transform.h"

/* TRAIN: the order is a permutation of each epoch; padding counts as any other sample does, as in PyTorch.
 * EVALUATE: the samples as they lie, nothing dropped, nothing augmented; targets of padding are
 * LOSS_IGNORE (regression: the caller leaves out the last batch.padding samples), so that sums over the
 * ranks are those of one rank. */
typedef enum batches_purpose { BATCHES_TRAIN, BATCHES_EVALUATE } batches_purpose;

typedef struct batches_config {
    const dataset *set; /* borrowed */
    data_part part;
    batches_purpose purpose;
    data_form model; /* what the model takes */
    uint64_t seed;
    int rank, world;
    int64_t batch; /* samples per rank and step */
    sampler_mode sampler;
    bool drop_last;
    bool whole; /* TRAIN: the batches of all ranks, in rank order: for a rank that loads for the others */
    unsigned augment; /* DATA_AUGMENT_... */
    int threads;      /* of the loader */
    int64_t first_step;
    const loader_memory *memory; /* NULL: plain */
} batches_config;

/* STATUS_CONFIG: set, model, ranks, batch and augmentation do not fit together (sampler_init(),
 * data_transform_plan()). Inputs are float32 or int32, targets int32 or float32: form.h. */
status batches_open(const batches_config *config, batch_source **out);

/* The data options of a run, as every program that trains declares them. */
typedef struct data_options {
    const char *data; /* dataset.h */
    int64_t batch;    /* samples per rank and step */
    int sampler;      /* sampler_mode */
    bool drop_last;
    const char *augment; /* data_augment_parse() */
    int64_t loader_threads;
} data_options;

extern const option_table data_option_table;

#endif
