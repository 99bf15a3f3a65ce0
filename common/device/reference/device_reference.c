/* The reference back end: double precision, plain loops, one thread, parameters in PyTorch's layout.
 * Simple and slow: every other back end is compared with it. */
#include "common/device/reference/reference_kernels.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_ENTRY(name, class) [OP_##name] = &reference_##name,
static const host_kernel_entry *const entries[OP_COUNT] = {OP_LIST(TABLE_ENTRY)};
#undef TABLE_ENTRY

typedef struct reference_device {
    device base;
    host_kernel_entry table[OP_COUNT];
} reference_device;

/* Weights [out, in] after a flattened image: PyTorch's columns run c, h, w, ours h, w, c. */
typedef struct flattened_weights {
    int64_t out, c, h, w;
} flattened_weights;

static status reference_open(const device_config *config, device **out)
{
    reference_device *d = calloc(1, sizeof *d);
    if (!d) return fail(STATUS_SYSTEM, "no memory for the reference device");
    d->base.backend = &device_reference;
    d->base.config = *config;
    d->base.info = (device_info){
        .name = device_reference.name, .compute_type = DTYPE_F64, .host_addressable = true, .real = true};
    snprintf(d->base.info.description, sizeof d->base.info.description,
             "double precision, plain loops, 1 thread");
    for (int i = 0; i < OP_COUNT; i++) d->table[i] = *entries[i];
    *out = &d->base;
    return STATUS_OK;
}

static void reference_close(device *d)
{
    free(d);
}

static status reference_choose_layout(device *d, const op_desc *op, int slot, shape parameter,
                                      device_layout *out)
{
    *out = (device_layout){.elements = shape_elements(parameter), .plain = true};
    if (op->kind != OP_linear_forward || slot != LINEAR_FWD_W || op->u.linear.flat_c == 0) return STATUS_OK;
    const linear_attributes *a = &op->u.linear;
    assert(a->flat_c * a->flat_h * a->flat_w == a->in && a->in * a->out == out->elements);
    out->plain = false;
    flattened_weights weights = {a->out, a->flat_c, a->flat_h, a->flat_w};
    static_assert(sizeof weights <= sizeof out->opaque, "the layout's opaque part is too small");
    memcpy(out->opaque, &weights, sizeof weights);
    return STATUS_OK;
}

typedef enum layout_direction { LAYOUT_PACK, LAYOUT_UNPACK } layout_direction;

static void reorder(const device_layout *layout, layout_direction direction, const double *from, double *to)
{
    if (layout->plain) {
        memcpy(to, from, (size_t)layout->elements * sizeof *to);
        return;
    }
    flattened_weights a;
    memcpy(&a, layout->opaque, sizeof a);
    for (int64_t o = 0; o < a.out; o++)
        for (int64_t c = 0; c < a.c; c++)
            for (int64_t i = 0; i < a.h * a.w; i++) {
                int64_t plain = (o * a.c + c) * a.h * a.w + i, packed = (o * a.h * a.w + i) * a.c + c;
                if (direction == LAYOUT_PACK)
                    to[packed] = from[plain];
                else
                    to[plain] = from[packed];
            }
}

static status reference_layout_pack(device *d, const device_layout *layout, const void *plain, void *packed)
{
    reorder(layout, LAYOUT_PACK, plain, packed);
    return STATUS_OK;
}

static status reference_layout_unpack(device *d, const device_layout *layout, const void *packed, void *plain)
{
    reorder(layout, LAYOUT_UNPACK, packed, plain);
    return STATUS_OK;
}

static status reference_prepare(device *d, const op_desc *op, const device_layout *layout,
                                device_kernel **out)
{
    if (op->type != DTYPE_F64)
        return fail(STATUS_INTERNAL, "device reference: %s: expected %s, got %s", op_name(op->kind),
                    dtype_name(DTYPE_F64), dtype_name(op->type));
    return host_prepare(d, op, layout, ((reference_device *)d)->table, out);
}

const device_backend device_reference = {
    .name = "reference",
    HOST_BACKEND_SLOTS,
    .open = reference_open,
    .close = reference_close,
    .choose_layout = reference_choose_layout,
    .layout_pack = reference_layout_pack,
    .layout_unpack = reference_layout_unpack,
    .prepare = reference_prepare,
    .launch = host_launch,
};
