#include "common/device/cpu/layout.h"

#include "common/device/cpu/conv2d.h"

#include <assert.h>
#include <string.h>

cpu_layout cpu_layout_of(const device_layout *layout)
{
    cpu_layout l = {CPU_LAYOUT_PLAIN, 0, 0, 0, 0, 0};
    if (layout) memcpy(&l, layout->opaque, sizeof l);
    return l;
}

/* The block of channels in oneDNN's kernels for both directions of a direct convolution. */
static int64_t preferred_block(const cpu_device *d)
{
    return d->isa == cpu_isas[CPU_ISA_COUNT - 1] ? 16 : 8;
}

static cpu_layout conv2d_layout(const cpu_device *d, const conv2d_attributes *a)
{
    cpu_layout layout = {CPU_LAYOUT_HWIO, a->k, a->c, a->r, a->s, 1};
    int64_t block = preferred_block(d);
    conv2d_algorithm algorithm = conv2d_choose(a, CONV2D_FORWARD);
    if ((algorithm == CONV2D_DIRECT || algorithm == CONV2D_WINOGRAD) && a->k % block == 0 && a->c % block == 0) {
        layout.kind = CPU_LAYOUT_BLOCKED;
        layout.block = block;
    }
    return layout;
}

status cpu_choose_layout(device *base, const op_desc *op, int slot, shape parameter, device_layout *out)
{
    const linear_attributes *l = &op->u.linear;
    cpu_layout layout = {CPU_LAYOUT_PLAIN, 0, 0, 0, 0, 0};
    if (op->kind == OP_conv2d_forward && slot == CONV_FWD_W)
        layout = conv2d_layout((cpu_device *)base, &op->u.conv2d);
    else if (op->kind == OP_linear_forward && slot == LINEAR_FWD_W && l->flat_c > 0)
        layout = (cpu_layout){CPU_LAYOUT_FLAT, l->out, l->flat_c, l->flat_h, l->flat_w, 1};
    *out = (device_layout){.elements = shape_elements(parameter), .plain = layout.kind == CPU_LAYOUT_PLAIN};
    assert(out->plain || layout.k * layout.c * layout.r * layout.s == out->elements);
    static_assert(sizeof layout <= sizeof out->opaque, "the layout's opaque part is too small");
    memcpy(out->opaque, &layout, sizeof layout);
    return STATUS_OK;
}

/* The index of element (k, c, r, s). */
static int64_t place(const cpu_layout *l, int64_t k, int64_t c, int64_t r, int64_t s)
{
    int64_t b = l->block;
    switch (l->kind) {
    case CPU_LAYOUT_HWIO:
        return ((r * l->s + s) * l->c + c) * l->k + k;
    case CPU_LAYOUT_BLOCKED:
        return ((((k / b * (l->c / b) + c / b) * l->r + r) * l->s + s) * b + c % b) * b + k % b;
    case CPU_LAYOUT_FLAT:
        return ((k * l->r + r) * l->s + s) * l->c + c;
    default:
        return ((k * l->c + c) * l->r + r) * l->s + s;
    }
}

typedef enum layout_direction { LAYOUT_PACK, LAYOUT_UNPACK } layout_direction;

static void reorder(const device_layout *layout, layout_direction direction, const float *from, float *to)
{
    if (layout->plain) {
        memcpy(to, from, (size_t)layout->elements * sizeof *to);
        return;
    }
    cpu_layout l = cpu_layout_of(layout);
    int64_t plain = 0;
    for (int64_t k = 0; k < l.k; k++)
        for (int64_t c = 0; c < l.c; c++)
            for (int64_t r = 0; r < l.r; r++)
                for (int64_t s = 0; s < l.s; s++, plain++) {
                    int64_t packed = place(&l, k, c, r, s);
                    if (direction == LAYOUT_PACK)
                        to[packed] = from[plain];
                    else
                        to[plain] = from[packed];
                }
}

status cpu_layout_pack(device *d, const device_layout *layout, const void *plain, void *packed)
{
    reorder(layout, LAYOUT_PACK, plain, packed);
    return STATUS_OK;
}

status cpu_layout_unpack(device *d, const device_layout *layout, const void *packed, void *plain)
{
    reorder(layout, LAYOUT_UNPACK, packed, plain);
    return STATUS_OK;
}
