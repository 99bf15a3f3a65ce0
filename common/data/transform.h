/* Converts stored samples to the input of a model. In one pass over the output, an image is padded, cropped,
 * flipped and normalized, and a gray image is copied to several channels.
 *
 * Padding is black before normalization, as in torchvision if ToTensor and Normalize come last. After
 * normalization the value of padding is (0 - mean) / deviation. The arithmetic is float32 in torchvision's
 * order, (x / 255 - mean) / deviation, so the values are bit-identical. */
#ifndef COMMON_DATA_TRANSFORM_H
#define COMMON_DATA_TRANSFORM_H

#include "common/data/dataset.h"

#include <stdbool.h>

/* Augmentation of training images, as a set of bits. */
enum {
    /* Adds 4 black pixels on each side, and cuts a window of the size of the model's input at a random
     * position. */
    DATA_AUGMENT_CROP = 1,
    /* Mirrors the image with probability 1/2. */
    DATA_AUGMENT_FLIP = 2
};
enum { DATA_CROP_PADDING = 4 };

/* Parses "none", "crop", "flip" or "crop,flip". Returns STATUS_USAGE for any other text. */
status data_augment_parse(const char *text, unsigned *out);

/* The augmentation of one sample in one epoch. It depends only on (seed, epoch, sample). */
typedef struct augment_draw {
    int dy, dx; /* offset of the window from the image, -4 .. 4 */
    bool flip;
} augment_draw;
augment_draw data_augment_draw(unsigned augment, uint64_t seed, int64_t epoch, int64_t sample);

typedef struct data_transform {
    data_form from, to;
    int64_t padding;    /* number of black pixels on each side */
    bool channel_first; /* the image becomes a vector in PyTorch's order c, h, w */
    /* Normalized value of each pixel byte, by channel of the data set. */
    float values[DATA_MAX_CHANNELS][256];
} data_transform;

/* Plans the conversion of the samples of a data set to the input of a model. Possible conversions are:
 *
 *   images    of the same size; 28x28 gets a border of 2 if the model takes 32x32; gray is repeated if the
 *             model takes more channels
 *   features  of the same number; an image with as many elements becomes a vector
 *   tokens    of the same length
 *
 * The targets of both must be of the same kind, and the model must have at least as many classes and a
 * vocabulary that is at least as large. In all other cases, and if samples that are not images are to be
 * augmented, returns STATUS_CONFIG. The message contains both forms. */
status data_transform_plan(const data_description *set, const data_form *model, unsigned augment,
                           data_transform *out);

/* Writes the model's input: float32 (h, w, c), float32 (features) or int32 (sequence). `stored` is the result
 * of dataset_input(). `draw` is the augmentation of an image, or NULL if there is none. */
void data_transform_apply(const data_transform *t, const void *stored, const augment_draw *draw, void *out);

#endif
