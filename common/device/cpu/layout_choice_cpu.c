#include "common/device/cpu/layout_choice.h"

#include "common/device/cpu/conv2d.h"

#include <assert.h>
#include <string.h>

/* The block of channels that oneDNN's kernels want in both directions of a direct convolution. */
static int64_t preferred_block(const cpu_device *d)
{
    return d->isa == cpu_isas[CPU_ISA_COUNT - 1] ? 16 : 8;
}

static cpu_layout conv2d_layout(const cpu_device *d, const conv2d_attributes *a)
{
    cpu_layout layout = {CPU_LAYOUT_HWIO, a->k, a->c, a->r, a->s, 1};
    int64_t block = preferred_block(d);
    conv2d_way way = conv2d_choose(a, CONV2D_FORWARD);
    if ((way == CONV2D_DIRECT || way == CONV2D_WINOGRAD) && a->k % block == 0 && a->c % block == 0) {
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
