#include "common/data/cifar10.h"

#include <inttypes.h>

enum { RECORD = 1 + CIFAR10_PIXELS, PLANE = CIFAR10_SIDE * CIFAR10_SIDE };

status cifar10_count(const char *name, size_t size, int64_t *count)
{
    if (size == 0 || size % RECORD != 0)
        return fail(
            STATUS_DATA,
            "%s: ends at offset %zu, inside record %zu, allowed is a multiple of %d (1 label byte and %d "
            "pixel bytes a record)",
            name, size, size / RECORD, (int)RECORD, (int)CIFAR10_PIXELS);
    *count = (int64_t)(size / RECORD);
    return STATUS_OK;
}

status cifar10_decode(const char *name, const uint8_t *bytes, int64_t count, uint8_t *pixels, uint8_t *labels)
{
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *record = bytes + i * RECORD;
        if (record[0] >= CIFAR10_CLASSES)
            return fail(STATUS_DATA, "%s: offset %" PRId64 ": found label %d, allowed is 0 to %d", name,
                        i * RECORD, record[0], CIFAR10_CLASSES - 1);
        labels[i] = record[0];
        for (int p = 0; p < PLANE; p++)
            for (int c = 0; c < CIFAR10_CHANNELS; c++)
                pixels[i * CIFAR10_PIXELS + p * CIFAR10_CHANNELS + c] = record[1 + c * PLANE + p];
    }
    return STATUS_OK;
}
