/* The reference back end computes in double precision with plain loops on one thread, and keeps parameters in
 * PyTorch's layout. It is simple and slow. Tests compare every other back end with it. */
#include "common/device/reference/reference_kernels.h"

static size_t workspace_of(const host_kernel *kernel)
{
    const op_desc *op = &kernel->base.op;
    const conv2d_attributes *conv = &op->u.conv2d;
    switch (op->kind) {
    case OP_conv2d_forward:
    case OP_conv2d_backward_data:
    case OP_conv2d_backward_weights:
        return (size_t)(conv->k * conv->c * conv->r * conv->s) * sizeof(double);
    case OP_linear_forward:
        return (size_t)(REFERENCE_PANEL * op->u.linear.in) * sizeof(double);
    case OP_batchnorm_inference:
    case OP_batchnorm_backward:
        return (size_t)(2 * op->u.batchnorm.c) * sizeof(double);
    case OP_layernorm_backward:
        return (size_t)(2 * op->u.layernorm.c) * sizeof(double);
    case OP_attention_forward:
        return (size_t)op->u.attention.sequence * sizeof(double);
    default:
        return 0;
    }
}

#define TABLE_ENTRY(name, class) [OP_##name] = {.run = reference_##name, .workspace = workspace_of},
static const host_kernel_entry table[OP_COUNT] = {OP_LIST(TABLE_ENTRY)};
#undef TABLE_ENTRY

static status reference_open(device *d)
{
    d->info = (device_info){.name = device_reference.name,
                            .description = "double precision, plain loops, 1 thread",
                            .compute_type = DTYPE_F64,
                            .host_addressable = true,
                            .real = true};
    return STATUS_OK;
}

static status reference_prepare(device *d, const op_desc *op, const device_layout *layout,
                                device_kernel **out)
{
    return host_prepare(d, op, layout, &table[op->kind], out);
}

const device_backend device_reference = {
    .name = "reference",
    HOST_BACKEND_SLOTS,
    .choose_layout = host_keep_layout,
    .device_bytes = sizeof(device),
    .open = reference_open,
    .prepare = reference_prepare,
    .launch = host_launch,
};
