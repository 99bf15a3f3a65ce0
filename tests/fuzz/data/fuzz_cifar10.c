/* Fuzzes the CIFAR-10 decoder. It writes to memory of exactly the size that it asked for. */
#include "common/data/decoders.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    int64_t count;
    error_clear();
    if (cifar10_count("f", size, &count) != STATUS_OK) return 0;
    uint8_t *pixels = malloc((size_t)count * CIFAR10_PIXELS), *labels = malloc((size_t)count);
    if (pixels && labels && cifar10_decode("f", bytes, count, pixels, labels) == STATUS_OK)
        for (int64_t i = 0; i < count; i++)
            if (labels[i] >= CIFAR10_CLASSES) __builtin_trap();
    free(pixels);
    free(labels);
    return 0;
}
