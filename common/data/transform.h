/* From a stored sample to what a model takes: an image is padded, cropped, flipped, its gray value
 * repeated, and normalized, in one pass over the output.
 *
 * Black borders come before the normalization, as in torchvision where ToTensor and Normalize stand
 * last: a padded pixel has the value of a black one, (0 - mean) / deviation. The arithmetic is float32 in
 * torchvision's order, (x / 255 - mean) / deviation, so the values are bit-identical. */
#ifndef COMMON_DATA_TRANSFORM_H
#define COMMON_DATA_TRANSFORM_H

#include "common/data/dataset.h"

#include <stdbool.h>

/* Augmentation of training images, a set of bits. */
enum {
    DATA_AUGMENT_CROP =
        1, /* 4 black pixels around the model's image, then a window of its size from anywhere */
    DATA_AUGMENT_FLIP = 2 /* left and right exchanged, every second time */
};
enum { DATA_CROP_PADDING = 4 };

/* "none", "crop", "flip" or "crop,flip". STATUS_USAGE. */
status data_augment_parse(const char *text, unsigned *out);

/* How one sample is augmented in one epoch; a function of (seed, epoch, sample) alone. */
typedef struct augment_draw {
    int dy, dx; /* of the window against the image, -4 .. 4 */
    bool flip;
} augment_draw;
augment_draw data_augment_draw(unsigned augment, uint64_t seed, int64_t epoch, int64_t sample);

typedef struct data_transform {
    data_form from, to;
    int64_t padding;                      /* black pixels on each side */
    bool channel_first;                   /* the image becomes a vector in PyTorch's order c, h, w */
    float values[DATA_MAX_CHANNELS][256]; /* of a pixel byte in each of the set's channels */
} data_transform;

/* Plans the way from a data set's samples to a model's input.
 *   images    of the same size; 28x28 in a border of 2 where the model takes 32x32; gray repeated where
 *             it takes more channels
 *   features  of the same number; an image whose elements are as many becomes a vector
 *   tokens    of the same length
 * with targets of the same kind, and classes and vocabulary within the model's. Anything else is
 * STATUS_CONFIG and names both forms; so is augmentation of anything but images. */
status data_transform_plan(const data_description *set, const data_form *model, unsigned augment,
                           data_transform *out);

/* Writes the model's input: float32 (h, w, c) or (features), int32 (sequence). `stored` is what
 * dataset_input() returned; `draw` holds for images, NULL for no augmentation. */
void data_transform_apply(const data_transform *t, const void *stored, const augment_draw *draw, void *out);

#endif
