/* Reorders the elements of parameters. */
#include "common/device/device.h"
#include "common/device/device_impl.h"

#include <assert.h>
#include <string.h>

status device_choose_layout(device *d, const op_desc *op, int slot, shape parameter, device_layout *out)
{
    const linear_attributes *linear = &op->u.linear;
    *out = (device_layout){.elements = shape_elements(parameter)};
    if (op->kind == OP_conv2d_forward && slot == CONV_FWD_W)
        d->backend->choose_layout(d, &op->u.conv2d, out);
    else if (op->kind == OP_linear_forward && slot == LINEAR_FWD_W && linear->flat_c > 0 &&
             !d->info.simulated)
        *out = (device_layout){out->elements,  linear->out, linear->flat_c,    linear->flat_h,
                               linear->flat_w, 1,           DEVICE_ORDER_KRSC, false};
    bool one_column = out->order == DEVICE_ORDER_KRSC && (out->c == 1 || out->r * out->s == 1);
    out->plain = out->order == DEVICE_ORDER_PLAIN || one_column;
    assert(out->order == DEVICE_ORDER_PLAIN || out->k * out->c * out->r * out->s == out->elements);
    return STATUS_OK;
}

/* Returns the index in the layout of the element that is [k, c, r, s] in PyTorch's order. */
static int64_t packed_index(const device_layout *l, int64_t k, int64_t c, int64_t r, int64_t s)
{
    int64_t b = l->block;
    switch (l->order) {
    case DEVICE_ORDER_KRSC:
        return ((k * l->r + r) * l->s + s) * l->c + c;
    case DEVICE_ORDER_RSCK:
        return ((r * l->s + s) * l->c + c) * l->k + k;
    case DEVICE_ORDER_BLOCKED:
        return ((((k / b * (l->c / b) + c / b) * l->r + r) * l->s + s) * b + c % b) * b + k % b;
    default:
        return ((k * l->c + c) * l->r + r) * l->s + s;
    }
}

static void copy_element(char *to, int64_t to_index, const char *from, int64_t from_index, int size)
{
    if (size == sizeof(float))
        memcpy(to + to_index * size, from + from_index * size, sizeof(float));
    else
        memcpy(to + to_index * size, from + from_index * size, sizeof(double));
}

static status reorder(const device *d, const device_layout *l, bool pack, const void *from, void *to)
{
    int size = dtype_size(d->info.compute_type);
    int64_t plain = 0;
    if (l->plain) {
        memcpy(to, from, (size_t)(l->elements * size));
        return STATUS_OK;
    }
    for (int64_t k = 0; k < l->k; k++)
        for (int64_t c = 0; c < l->c; c++)
            for (int64_t r = 0; r < l->r; r++)
                for (int64_t s = 0; s < l->s; s++, plain++) {
                    int64_t packed = packed_index(l, k, c, r, s);
                    copy_element(to, pack ? packed : plain, from, pack ? plain : packed, size);
                }
    return STATUS_OK;
}

status device_layout_pack(device *d, const device_layout *layout, const void *plain, void *packed)
{
    return reorder(d, layout, true, plain, packed);
}

status device_layout_unpack(device *d, const device_layout *layout, const void *packed, void *plain)
{
    return reorder(d, layout, false, packed, plain);
}
