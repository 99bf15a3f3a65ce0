/* Fuzzes both IDX decoders. If a decoder accepts the data, they are read to the end. */
#include "common/data/decoders.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    volatile uint8_t last;
    idx_images images;
    idx_labels labels;
    error_clear();
    if (idx_decode_images("f", bytes, size, &images) == STATUS_OK)
        last = images.pixels[images.count * images.h * images.w - 1];
    if (idx_decode_labels("f", bytes, size, 10, &labels) == STATUS_OK) {
        last = labels.labels[labels.count - 1];
        if (last >= 10 || labels.highest >= 10) __builtin_trap();
    }
    return 0;
}
