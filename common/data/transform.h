/* Converts stored samples to a model's input. An image is padded, cropped, flipped and normalized, and its
 * gray value is repeated, in one pass over the output.
 *
 * Padding is black before normalization, as in torchvision if ToTensor and Normalize come last: its value
 * is (0 - mean) / deviation. The arithmetic is float32 in torchvision's order, (x / 255 - mean) /
 * deviation, so the values are bit-identical. */
#ifndef COMMON_DATA_TRANSFORM_H
#define COMMON_DATA_TRANSFORM_H

#include "common/data/dataset.h"

#include <stdbool.h>

/* Augmentation of training images, as a set of bits. */
enum {
    /* Adds 4 black pixels on each side and cuts a window of the model's size at a drawn place. */
    DATA_AUGMENT_CROP = 1,
    /* Mirrors the image with probability 1/2. */
    DATA_AUGMENT_FLIP = 2
};
enum { DATA_CROP_PADDING = 4 };

/* Parses "none", "crop", "flip" or "crop,flip". Returns STATUS_USAGE for any other text. */
status data_augment_parse(const char *text, unsigned *out);

/* Augmentation of one sample in one epoch, a function of (seed, epoch, sample). */
typedef struct augment_draw {
    int dy, dx; /* offset of the window from the image, -4 .. 4 */
    bool flip;
} augment_draw;
augment_draw data_augment_draw(unsigned augment, uint64_t seed, int64_t epoch, int64_t sample);

typedef struct data_transform {
    data_form from, to;
    int64_t padding;    /* black pixels on each side */
    bool channel_first; /* the image becomes a vector in PyTorch's order c, h, w */
    /* Normalized value of each pixel byte, by channel of the data set. */
    float values[DATA_MAX_CHANNELS][256];
} data_transform;

/* Plans the conversion of a data set's samples to a model's input.
 *
 *   images    of the same size; 28x28 gets a border of 2 if the model takes 32x32; gray is repeated if the
 *             model takes more channels
 *   features  of the same number; an image with as many elements becomes a vector
 *   tokens    of the same length
 *
 * Targets must be of the same kind, with classes and vocabulary within the model's. For anything else, and
 * for augmentation of anything but images, returns STATUS_CONFIG with both forms in the message. */
status data_transform_plan(const data_description *set, const data_form *model, unsigned augment,
                           data_transform *out);

/* Writes the model's input: float32 (h, w, c), float32 (features) or int32 (sequence). `stored` is the
 * result of dataset_input(). `draw` applies to images; NULL means no augmentation. */
void data_transform_apply(const data_transform *t, const void *stored, const augment_draw *draw, void *out);

#endif
