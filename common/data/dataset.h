/* Data sets. A data set is opened once per process and then never changes, so all ranks and their loader
 * threads may read it at the same time. Samples are stored in compact form, for example with one byte per
 * pixel. A batch source (batches.h) converts samples to the input of a model.
 *
 * From a file to a step:
 *
 *     decoders.h                       converts the bytes of a file to samples
 *     dataset_impl.h, dataset_NAME.c   each file implements one data set
 *     dataset.h                        all samples of a set
 *     form.h                           shapes of samples and targets
 *     sampler.h                        chooses the samples for each rank and step
 *     transform.h                      augmentation and normalization
 *     loader.h                         threads that fill buffers ahead of time
 *     batches.h                        combines sampler, transform and loader
 *     batch_source.h                   the interface that the training loop uses
 *
 * The sets:
 *
 *   wine[:FILE]               178 samples, 13 features, 3 classes; a stratified fifth is held out
 *   fashion-mnist[:DIR]       60,000 + 10,000 images of 1x28x28, 10 classes (Xiao, Rasul, Vollgraf, 2017)
 *   mnist:DIR                 the same shapes (LeCun, Cortes, Burges)
 *   idx:IMAGES,LABELS         one pair of IDX files; a stratified fifth is held out
 *   cifar10:DIR               data_batch_1.bin ... data_batch_5.bin, test_batch.bin (Krizhevsky, 2009)
 *   synthetic[:SHAPE[:CLASSES[:SAMPLES]]]  noise; SHAPE is CxHxW (3x32x32), features (13) or tokens (128)
 *
 * Pixels x are normalized to (x / 255 - mean) / deviation with
 *
 *   mnist          mean 0.1307                   deviation 0.3081
 *   fashion-mnist  mean 0.2860                   deviation 0.3530    (of the 60,000 training images)
 *   cifar10        mean 0.4914 0.4822 0.4465     deviation 0.2470 0.2435 0.2616
 *   idx            mean and deviation of the training part
 *   synthetic      mean 0.5                      deviation 0.5
 *
 * Wine's features are standardized with the mean and the biased deviation of the training part. For a
 * constant feature, 1 is used instead of the deviation 0. */
#ifndef COMMON_DATA_DATASET_H
#define COMMON_DATA_DATASET_H

#include "common/base/status.h"
#include "common/data/form.h"

typedef struct dataset dataset;

typedef enum data_part { DATA_TRAIN, DATA_TEST } data_part;
enum { DATA_PARTS = 2, DATA_MAX_FILES = 6 };

typedef struct dataset_config {
    const char *spec; /* specification of a data set, as listed above */
    uint64_t seed;    /* seed of synthetic data, and of the split into training part and test part */
    /* The form of the model's input and targets, or NULL if it is not known. It supplies the properties of
     * synthetic data that `spec` does not contain. */
    const data_form *model;
    /* Number of synthetic samples in the training part and in the test part. 0 means the default, which is
     * 50,000 for training and 1,000 for testing. */
    int64_t synthetic_samples[DATA_PARTS];
} dataset_config;

typedef struct data_description {
    const char *name; /* "fashion-mnist" */
    data_form form;
    int64_t samples[DATA_PARTS];
    const char *files[DATA_MAX_FILES];
    int file_count;
    /* Mean and deviation of x / 255 in each channel. Used only for images. */
    float mean[DATA_MAX_CHANNELS], deviation[DATA_MAX_CHANNELS];
} data_description;

/* Opens a data set. Returns STATUS_USAGE if the specification is not valid. Returns STATUS_DATA if a file is
 * missing, is truncated, is of the wrong kind, or contains an invalid value. The error message names the file
 * and the position. Returns STATUS_CONFIG if neither the specification nor the model determines the form of
 * synthetic data. */
status dataset_open(const dataset_config *config, dataset **out);
void dataset_close(dataset **set);

const data_description *dataset_describe(const dataset *set);

/* Returns XXH3 (64 bit) of the stored samples and targets, or 0 if the data are synthetic and therefore not
 * stored. If the two parts are a split of the same rows, both parts have the same hash. */
uint64_t dataset_hash(const dataset *set, data_part part);

/* Returns the size of one stored sample in bytes. */
size_t dataset_input_bytes(const dataset *set);

/* Returns sample `index` of a part as stored: uint8 (h, w, c), float32 (features) or int32 (sequence). The
 * result points to memory of the set or to `scratch`. `scratch` must have room for dataset_input_bytes()
 * bytes. */
const void *dataset_input(const dataset *set, data_part part, int64_t index, void *scratch);

/* Writes the target of a sample, which has data_form_target_elements() values of int32 or float32. */
void dataset_target(const dataset *set, data_part part, int64_t index, void *target);

#endif
