/* The order of a parameter's elements in the arenas. No layout has padding. */
#ifndef COMMON_DEVICE_CPU_LAYOUT_H
#define COMMON_DEVICE_CPU_LAYOUT_H

#include "common/device/device_impl.h"

typedef enum cpu_layout_kind {
    CPU_LAYOUT_PLAIN,
    CPU_LAYOUT_HWIO,    /* convolution weights [r, s, c, k] */
    CPU_LAYOUT_BLOCKED, /* convolution weights [k/b, c/b, r, s, b of c, b of k], b dividing both */
    CPU_LAYOUT_FLAT     /* linear weights [out, h, w, c] after an image; PyTorch's are [out, c, h, w] */
} cpu_layout_kind;

typedef struct cpu_layout {
    cpu_layout_kind kind;
    int64_t k, c, r, s, block; /* FLAT: out, c, h, w */
} cpu_layout;

/* The best layout for the kernels of an operation with the parameter in `slot`. */
status cpu_choose_layout(device *d, const op_desc *op, int slot, shape parameter, device_layout *out);

/* What choose_layout wrote; CPU_LAYOUT_PLAIN for NULL. */
cpu_layout cpu_layout_of(const device_layout *layout);

status cpu_layout_pack(device *d, const device_layout *layout, const void *plain, void *packed);
status cpu_layout_unpack(device *d, const device_layout *layout, const void *packed, void *plain);

#endif
