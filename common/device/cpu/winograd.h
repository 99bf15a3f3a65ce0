/* What the files of Winograd's filtering share: tiles of 4x4 outputs, numbered image by image, row by row. */
#ifndef COMMON_DEVICE_CPU_WINOGRAD_H
#define COMMON_DEVICE_CPU_WINOGRAD_H

#include "common/device/cpu/conv2d.h"

typedef struct winograd_tiles {
    int64_t down, across, count; /* of an image; of all */
} winograd_tiles;

static inline int64_t winograd_ceiling(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline int64_t winograd_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline winograd_tiles winograd_tiles_of(int64_t images, int64_t p, int64_t q)
{
    int64_t down = winograd_ceiling(p, WINOGRAD_TILE), across = winograd_ceiling(q, WINOGRAD_TILE);
    return (winograd_tiles){down, across, images * down * across};
}

/* The square of `size` pixels of images [n, height, width, channels] that starts at a tile's first output,
 * `pad` pixels further up and left. */
static inline cpu_patch winograd_patch(const winograd_tiles *t, int64_t tile, int64_t height, int64_t width,
                                       int64_t channels, int64_t pad, int size)
{
    int64_t image = tile / (t->down * t->across);
    int64_t top = tile / t->across % t->down * WINOGRAD_TILE - pad,
            left = tile % t->across * WINOGRAD_TILE - pad;
    return (cpu_patch){.origin = ((image * height + top) * width + left) * channels,
                       .row_stride = width * channels,
                       .pixel_stride = channels,
                       .top = top < 0 ? (int)-top : 0,
                       .bottom = (int)winograd_least(size, height - top),
                       .left = left < 0 ? (int)-left : 0,
                       .right = (int)winograd_least(size, width - left)};
}

/* The arena's blocks of weights [3][3][block c][block k]: that of blocks `c` and `k` of channels. */
static inline int64_t winograd_block(const conv2d_attributes *a, int64_t block, int64_t c, int64_t k)
{
    return (k * (a->c / block) + c) * 9 * block * block;
}

#endif
