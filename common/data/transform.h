/* Converts stored samples to the input of a model. In one pass over the output, an image is padded, cropped,
 * flipped and normalized, and a gray image is copied to several channels.
 *
 * Padding is black before normalization, as in torchvision if ToTensor and Normalize are the last
 * transforms. Therefore normalized padding has the value (0 - mean) / deviation. The arithmetic is float32
 * in torchvision's order, (x / 255 - mean) / deviation, so the values are bit-identical to torchvision's
 * values. */
#ifndef COMMON_DATA_TRANSFORM_H
#define COMMON_DATA_TRANSFORM_H

#include "common/data/dataset.h"

#include <stdbool.h>

/* Bits that select the augmentation of training images. */
enum {
    /* Adds 4 black pixels on each side, and crops the image at a random position to the size of the model's
     * input. */
    DATA_AUGMENT_CROP = 1,
    /* Mirrors the image with probability 1/2. */
    DATA_AUGMENT_FLIP = 2
};
enum { DATA_CROP_PADDING = 4 };

/* Parses "none", "crop", "flip" or "crop,flip". Returns STATUS_USAGE for any other text. */
status data_augment_parse(const char *text, unsigned *out);

/* The augmentation of one sample in one epoch. It depends only on (seed, epoch, sample). */
typedef struct augment_draw {
    int dy, dx; /* offset of the cropped window relative to the image, -4 .. 4 */
    bool flip;
} augment_draw;
augment_draw data_augment_draw(unsigned augment, uint64_t seed, int64_t epoch, int64_t sample);

typedef struct data_transform {
    data_form from, to;
    int64_t padding;    /* number of black pixels on each side */
    bool channel_first; /* true if the image becomes a vector in PyTorch's order c, h, w */
    /* Normalized value of each pixel byte, for each channel of the data set. */
    float values[DATA_MAX_CHANNELS][256];
} data_transform;

/* Plans the conversion of the samples of a data set to the input of a model. Possible conversions are:
 *
 *   images    of the same size. An image of 28x28 gets a border of 2 pixels if the model takes 32x32. A gray
 *             image is repeated if the model takes more channels.
 *   features  of the same number. An image with the same number of elements becomes a vector.
 *   tokens    of the same length
 *
 * The data set and the model must have the same kind of targets. The model must have at least as many classes
 * as the data set, and a vocabulary that is at least as large. If one of these conditions is not met, returns
 * STATUS_CONFIG with an error message that contains both forms. Returns STATUS_CONFIG, too, if `augment` is
 * not 0 and the model does not take images. */
status data_transform_plan(const data_description *set, const data_form *model, unsigned augment,
                           data_transform *out);

/* Writes the model's input: float32 (h, w, c), float32 (features) or int32 (sequence). `stored` is the result
 * of dataset_input(). `draw` is the augmentation of an image, or NULL if there is none. */
void data_transform_apply(const data_transform *t, const void *stored, const augment_draw *draw, void *out);

#endif
