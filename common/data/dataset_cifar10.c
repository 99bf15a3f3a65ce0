#include "common/data/dataset_impl.h"
#include "common/data/decoders.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { TRAIN_FILES = 5, FILES = TRAIN_FILES + 1 };

static const char *const names[FILES] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                         "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"};

static status load_part(dataset *set, data_part part, const char *folder, text_buffer *files, int first,
                        int end)
{
    const char *paths[FILES];
    int64_t counts[FILES], total = 0;
    for (int i = first; i < end; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        TRY(dataset_add_file(set, path, &paths[i]));
        TRY(file_read(paths[i], &files[i]));
        TRY(cifar10_count(paths[i], files[i].length, &counts[i]));
        total += counts[i];
    }
    void *pixels, *labels;
    TRY(dataset_allocate(set, (size_t)total * CIFAR10_PIXELS, &pixels));
    TRY(dataset_allocate(set, (size_t)total, &labels));
    int64_t done = 0;
    for (int i = first; i < end; i++) {
        TRY(cifar10_decode(paths[i], (const uint8_t *)files[i].data, counts[i],
                           (uint8_t *)pixels + done * CIFAR10_PIXELS, (uint8_t *)labels + done));
        done += counts[i];
        text_free(&files[i]);
    }
    set->stored[part] = (stored_part){.pixels = pixels, .labels = labels};
    set->description.samples[part] = total;
    return STATUS_OK;
}

static status open_cifar10(dataset *set, const dataset_config *config, const char *argument)
{
    static const float mean[] = {0.4914f, 0.4822f, 0.4465f}, deviation[] = {0.2470f, 0.2435f, 0.2616f};
    if (!argument)
        return fail(STATUS_USAGE,
                    "--data: expected %s, the folder with data_batch_1.bin to test_batch.bin of "
                    "cifar-10-binary.tar.gz, got '%s'",
                    set->type->usage, config->spec);
    text_buffer files[FILES] = {{0}};
    status result = load_part(set, DATA_TRAIN, argument, files, 0, TRAIN_FILES);
    if (result == STATUS_OK) result = load_part(set, DATA_TEST, argument, files, TRAIN_FILES, FILES);
    for (int i = 0; i < FILES; i++) text_free(&files[i]);
    set->description.form = (data_form){DATA_IMAGE,   DATA_TARGET_CLASS, CIFAR10_SIDE,
                                        CIFAR10_SIDE, CIFAR10_CHANNELS,  .classes = CIFAR10_CLASSES};
    memcpy(set->description.mean, mean, sizeof mean);
    memcpy(set->description.deviation, deviation, sizeof deviation);
    return result;
}

const dataset_type dataset_cifar10 = {"cifar10", "cifar10:DIR", open_cifar10};
