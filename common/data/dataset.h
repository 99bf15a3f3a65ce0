/* Data sets. Each is opened once per process and is then immutable: all ranks of the process, and all their
 * loader threads, read it concurrently. Storage is compact (images stay bytes); batches.h converts samples to
 * a model's input.
 *
 * From a file to a step:
 *
 *     form.h       shapes of samples and targets           sampler.h       samples per rank and step
 *     decoders.h   the bytes of a file to samples          transform.h     augmentation, normalization
 *     dataset.h    all samples of a set                    batches.h       puts sampler, transform and loader
 * together dataset_impl.h, dataset_NAME.c  one set each         loader.h        threads that fill buffers
 * ahead of time batch_source.h  what the train loop sees
 *
 *   wine[:FILE]               178 samples, 13 features, 3 classes; a stratified fifth is held out
 *   fashion-mnist[:DIR]       60,000 + 10,000 images of 1x28x28, 10 classes (Xiao, Rasul, Vollgraf, 2017)
 *   mnist:DIR                 the same shapes (LeCun, Cortes, Burges)
 *   idx:IMAGES,LABELS         one pair of IDX files; a stratified fifth is held out
 *   cifar10:DIR               data_batch_1.bin ... data_batch_5.bin, test_batch.bin (Krizhevsky, 2009)
 *   synthetic[:SHAPE[:CLASSES]]  noise; SHAPE is CxHxW (3x32x32), features (13) or tokens (128)
 *
 * Pixels x are normalized to (x / 255 - mean) / deviation with
 *   mnist          mean 0.1307                   deviation 0.3081
 *   fashion-mnist  mean 0.2860                   deviation 0.3530    (of the 60,000 training images)
 *   cifar10        mean 0.4914 0.4822 0.4465     deviation 0.2470 0.2435 0.2616
 *   idx            mean and deviation of its training part
 *   synthetic      mean 0.5                      deviation 0.5
 * Wine's features are standardized with mean and biased deviation of the training part (1 for a feature
 * that is constant). */
#ifndef COMMON_DATA_DATASET_H
#define COMMON_DATA_DATASET_H

#include "common/base/status.h"
#include "common/data/form.h"

typedef struct dataset dataset;

typedef enum data_part { DATA_TRAIN, DATA_TEST } data_part;
enum { DATA_PARTS = 2, DATA_MAX_FILES = 6 };

typedef struct dataset_config {
    const char *spec; /* as above */
    uint64_t seed;    /* of the held-out part, and of synthetic data */
    /* What the model takes: synthetic data have its form where the specification leaves it open. NULL
     * where not known. */
    const data_form *model;
    int64_t synthetic_samples[DATA_PARTS]; /* 0: 50,000 and 1,000 */
} dataset_config;

typedef struct data_description {
    const char *name; /* "fashion-mnist" */
    data_form form;
    int64_t samples[DATA_PARTS];
    const char *files[DATA_MAX_FILES]; /* that were read */
    int file_count;
    int64_t stored_bytes;                                        /* of samples and labels in memory */
    float mean[DATA_MAX_CHANNELS], deviation[DATA_MAX_CHANNELS]; /* images: of x / 255, by channel */
} data_description;

/* STATUS_USAGE: the specification cannot be understood. STATUS_DATA: a file is missing, truncated, of the
 * wrong kind, or holds an invalid value; the message names the file and the place.
 * STATUS_CONFIG: neither specification nor model gives the form of synthetic data. */
status dataset_open(const dataset_config *config, dataset **out);
void dataset_close(dataset **set);

const data_description *dataset_describe(const dataset *set);

/* XXH3 (64 bit) of samples and targets as stored. Parts that are cut from the same samples have one hash. 0
 * if nothing is stored (synthetic). */
uint64_t dataset_hash(const dataset *set, data_part part);

/* Bytes of one sample's input as stored. */
size_t dataset_input_bytes(const dataset *set);

/* Sample `index` of a part as stored: uint8 (h, w, c), float32 (features) or int32 (sequence). Returns
 * where it lies: in the set, or in `scratch`, which has dataset_input_bytes() and is the caller's. */
const void *dataset_input(const dataset *set, data_part part, int64_t index, void *scratch);

/* Writes its target: int32 or float32, data_form_target_elements() of them. */
void dataset_target(const dataset *set, data_part part, int64_t index, void *target);

#endif
