#include "common/data/dataset_impl.h"
#include "common/data/decoders.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FASHION_MNIST_FOLDER "/usr/share/datasets/fashion-mnist"
#define FASHION_MNIST_PACKAGE "Debian's package dataset-fashion-mnist installs them"

/* label 255 is not allowed, because it marks a missing label */
enum { MNIST_SIDE = 28, MNIST_CLASSES = 10, IDX_CLASSES = 255 };

/* Reads a file into memory of the set. Sets *path to the set's copy of the path. */
static status read_file(dataset *set, const char **path, text_buffer *file)
{
    TRY(dataset_add_file(set, *path, path));
    TRY(file_read(*path, file));
    dataset_own(set, file->data);
    return STATUS_OK;
}

/* Reads images and labels into `rows`, one label per image. If h is not 0, fails unless the images have the
 * size h x w. */
static status read_pair(dataset *set, const char *image_path, const char *label_path, int classes, int64_t h,
                        int64_t w, stored_part *rows, idx_images *images, idx_labels *labels)
{
    text_buffer file;
    TRY(read_file(set, &image_path, &file));
    TRY(idx_decode_images(image_path, (const uint8_t *)file.data, file.length, images));
    if (h && (images->h != h || images->w != w))
        return fail(STATUS_DATA,
                    "%s: offset 8: expected images of %" PRId64 "x%" PRId64 ", got %" PRId64 "x%" PRId64,
                    image_path, h, w, images->h, images->w);
    TRY(read_file(set, &label_path, &file));
    TRY(idx_decode_labels(label_path, (const uint8_t *)file.data, file.length, classes, labels));
    if (labels->count != images->count)
        return fail(STATUS_DATA,
                    "%s: offset 4: expected %" PRId64 " labels, one per image in %s, got %" PRId64,
                    label_path, images->count, image_path, labels->count);
    *rows = (stored_part){.pixels = images->pixels, .labels = labels->labels};
    return STATUS_OK;
}

static data_form image_form(const idx_images *images, int classes)
{
    return (data_form){DATA_IMAGE, DATA_TARGET_CLASS, images->h, images->w, 1, .classes = classes};
}

static status find_file(const dataset *set, const char *folder, const char *name, const char *hint,
                        char *path, size_t size)
{
    static const char *const endings[] = {"", ".gz"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, size, "%s/%s%s", folder, name, endings[i]);
        if (access(path, F_OK) == 0) return STATUS_OK;
    }
    return fail(STATUS_DATA, "data set %s: expected a file %s/%s or %s.gz, got neither%s%s", set->type->name,
                folder, name, name, *hint ? "; " : "", hint);
}

static status open_folder(dataset *set, const char *folder, const char *hint, float mean, float deviation)
{
    static const char *const image_names[] = {"train-images-idx3-ubyte", "t10k-images-idx3-ubyte"};
    static const char *const label_names[] = {"train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"};
    idx_images images;
    idx_labels labels;
    for (int part = 0; part < DATA_PARTS; part++) {
        char image_path[PATH_MAX], label_path[PATH_MAX];
        TRY(find_file(set, folder, image_names[part], hint, image_path, sizeof image_path));
        TRY(find_file(set, folder, label_names[part], hint, label_path, sizeof label_path));
        TRY(read_pair(set, image_path, label_path, MNIST_CLASSES, MNIST_SIDE, MNIST_SIDE, &set->stored[part],
                      &images, &labels));
        set->description.samples[part] = images.count;
    }
    set->description.form = image_form(&images, MNIST_CLASSES);
    set->description.mean[0] = mean;
    set->description.deviation[0] = deviation;
    return STATUS_OK;
}

static status open_fashion_mnist(dataset *set, const dataset_config *config, const char *argument)
{
    (void)config;
    return open_folder(set, argument ? argument : FASHION_MNIST_FOLDER, argument ? "" : FASHION_MNIST_PACKAGE,
                       0.2860f, 0.3530f);
}

static status open_mnist(dataset *set, const dataset_config *config, const char *argument)
{
    if (!argument) return fail(STATUS_USAGE, "--data: expected %s, got '%s'", set->type->usage, config->spec);
    return open_folder(set, argument, "", 0.1307f, 0.3081f);
}

/* Computes mean and deviation of x / 255 over the training part. The sums are integers and therefore
 * exact. */
static void measure(dataset *set)
{
    const stored_part *train = &set->stored[DATA_TRAIN];
    int64_t pixels = data_form_input_elements(&set->description.form),
            count = set->description.samples[DATA_TRAIN];
    uint64_t sum = 0, squares = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *image = train->pixels + train->picks[i] * pixels;
        for (int64_t p = 0; p < pixels; p++) {
            sum += image[p];
            squares += (uint64_t)image[p] * image[p];
        }
    }
    double elements = (double)count * (double)pixels, mean = (double)sum / elements;
    double variance = (double)squares / elements - mean * mean;
    set->description.mean[0] = (float)(mean / 255);
    set->description.deviation[0] = variance > 0 ? (float)(sqrt(variance) / 255) : 1;
}

static status open_pair(dataset *set, const dataset_config *config, const char *argument)
{
    const char *comma = argument ? strchr(argument, ',') : NULL;
    if (!comma || comma == argument || !comma[1])
        return fail(STATUS_USAGE, "--data: expected %s, got '%s'", set->type->usage, config->spec);
    char image_path[PATH_MAX];
    snprintf(image_path, sizeof image_path, "%.*s", (int)(comma - argument), argument);
    stored_part rows;
    idx_images images;
    idx_labels labels;
    TRY(read_pair(set, image_path, comma + 1, IDX_CLASSES, 0, 0, &rows, &images, &labels));
    TRY(dataset_split(set, &rows, images.count, config->seed));
    set->description.form = image_form(&images, labels.highest + 1);
    measure(set);
    return STATUS_OK;
}

const dataset_type dataset_fashion_mnist = {"fashion-mnist", "fashion-mnist[:DIR]", open_fashion_mnist};
const dataset_type dataset_mnist = {"mnist", "mnist:DIR", open_mnist};
const dataset_type dataset_idx = {"idx", "idx:IMAGES,LABELS", open_pair};
