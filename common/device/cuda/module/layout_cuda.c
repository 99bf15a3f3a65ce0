/* The order of a parameter's elements in the arenas: convolution weights k, r, s, c (cuDNN's filters in NHWC),
 * the weights after a flattened image out, h, w, c; everything else in PyTorch's order. */
#include "common/device/cuda/module/cuda_impl.h"

#include <assert.h>
#include <string.h>

/* PyTorch's (outer, c, inner) against ours (outer, inner, c). */
typedef struct cuda_layout {
    int64_t outer, c, inner;
} cuda_layout;

status cuda_choose_layout(device *d, const op_desc *op, int slot, shape parameter, device_layout *out)
{
    const conv2d_attributes *conv = &op->u.conv2d;
    const linear_attributes *linear = &op->u.linear;
    cuda_layout layout = {1, 1, shape_elements(parameter)};
    if (op->kind == OP_conv2d_forward && slot == CONV_FWD_W)
        layout = (cuda_layout){conv->k, conv->c, conv->r * conv->s};
    else if (op->kind == OP_linear_forward && slot == LINEAR_FWD_W && linear->flat_c > 0)
        layout = (cuda_layout){linear->out, linear->flat_c, linear->flat_h * linear->flat_w};
    *out = (device_layout){.elements = shape_elements(parameter),
                           .plain = layout.c == 1 || layout.inner == 1};
    assert(layout.outer * layout.c * layout.inner == out->elements);
    static_assert(sizeof layout <= sizeof out->opaque, "the layout's opaque part is too small");
    memcpy(out->opaque, &layout, sizeof layout);
    return STATUS_OK;
}

typedef enum layout_direction { LAYOUT_PACK, LAYOUT_UNPACK } layout_direction;

static void reorder(const device_layout *layout, layout_direction direction, const float *from, float *to)
{
    cuda_layout l;
    if (layout->plain) {
        memcpy(to, from, (size_t)layout->elements * sizeof *to);
        return;
    }
    memcpy(&l, layout->opaque, sizeof l);
    for (int64_t o = 0; o < l.outer; o++)
        for (int64_t c = 0; c < l.c; c++)
            for (int64_t i = 0; i < l.inner; i++) {
                int64_t plain = (o * l.c + c) * l.inner + i, packed = (o * l.inner + i) * l.c + c;
                if (direction == LAYOUT_PACK)
                    to[packed] = from[plain];
                else
                    to[plain] = from[packed];
            }
}

status cuda_layout_pack(device *d, const device_layout *layout, const void *plain, void *packed)
{
    reorder(layout, LAYOUT_PACK, plain, packed);
    return STATUS_OK;
}

status cuda_layout_unpack(device *d, const device_layout *layout, const void *packed, void *plain)
{
    reorder(layout, LAYOUT_UNPACK, packed, plain);
    return STATUS_OK;
}
