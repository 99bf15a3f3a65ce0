/* A batch source that reads a data set. It combines the sampler, the transform and the loader of one rank. */
#ifndef COMMON_DATA_BATCHES_H
#define COMMON_DATA_BATCHES_H

#include "common/base/options.h"
#include "common/data/loader.h"
#include "common/data/sampler.h"
#include "common/data/transform.h"

/* BATCHES_TRAIN permutes the samples in each epoch. Samples that are padding count in the loss like other
 * samples, as in PyTorch.
 *
 * BATCHES_EVALUATE keeps the stored order, and neither drops nor augments samples. Samples that are
 * padding do not count, so sums over all ranks equal the sums on one rank. If targets are integers, the
 * targets of padding are LOSS_IGNORE. If targets are values, the caller must ignore the last
 * batch_view.padding samples. */
typedef enum batches_purpose { BATCHES_TRAIN, BATCHES_EVALUATE } batches_purpose;

typedef struct batches_config {
    const dataset *set; /* borrowed */
    data_part part;
    batches_purpose purpose;
    data_form model; /* form of the model's input and targets, to which samples are converted */
    uint64_t seed;
    int rank, world;
    int64_t batch; /* number of samples per rank and step */
    sampler_mode sampler;
    bool drop_last;
    /* True if this rank loads the batches of all ranks, in rank order. Allowed only with BATCHES_TRAIN. */
    bool whole;
    unsigned augment; /* DATA_AUGMENT_... */
    int threads;
    int64_t first_step;
    const loader_memory *memory; /* allocator of the buffers, or NULL for the C library */
} batches_config;

/* Opens the source. Returns STATUS_CONFIG if sampler_init() or data_transform_plan() rejects the combination
 * of data set, model, number of ranks, batch and augmentation. */
status batches_open(const batches_config *config, batch_source **out);

typedef struct data_options {
    const char *data; /* specification of the data set (dataset.h) */
    int64_t batch;    /* number of samples per rank and step */
    int sampler;      /* sampler_mode */
    bool drop_last;
    const char *augment; /* text for data_augment_parse() */
    int64_t loader_threads;
} data_options;

extern const option_table data_option_table;

#endif
