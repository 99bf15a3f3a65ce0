/* CIFAR-10's binary version (Krizhevsky: "Learning Multiple Layers of Features from Tiny Images", 2009):
 * records of one label byte (0 to 9) and 3072 pixel bytes, the red, green and blue planes of a 32x32
 * image, each row by row.
 *
 * Errors are STATUS_DATA with `name`, the offset, what was found and what is allowed. */
#ifndef COMMON_DATA_CIFAR10_H
#define COMMON_DATA_CIFAR10_H

#include "common/base/status.h"

#include <stdint.h>

enum { CIFAR10_SIDE = 32, CIFAR10_CHANNELS = 3, CIFAR10_CLASSES = 10 };
enum { CIFAR10_PIXELS = CIFAR10_SIDE * CIFAR10_SIDE * CIFAR10_CHANNELS }; /* bytes of an image */

/* Checks that `size` bytes are whole records, at least one, and counts them. */
status cifar10_count(const char *name, size_t size, int64_t *count);

/* Unpacks `count` records: pixels (count, 32, 32, 3), labels (count). */
status cifar10_decode(const char *name, const uint8_t *bytes, int64_t count, uint8_t *pixels,
                      uint8_t *labels);

#endif
