#include "common/device/host/host.h"

#include <stdlib.h>

status host_prepare(device *d, const op_desc *op, const device_layout *layout, const host_kernel_entry *table,
                    device_kernel **out)
{
    host_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel) return fail(STATUS_SYSTEM, "no memory for a kernel of %s", op_name(op->kind));
    kernel->base.device = d;
    kernel->base.op = *op;
    kernel->entry = &table[op->kind];
    kernel->threads = d->config.threads;
    if (kernel->entry->prepare) {
        status rc = kernel->entry->prepare(kernel, layout);
        if (rc != STATUS_OK) {
            error_context("%s", op_name(op->kind));
            host_release(&kernel->base);
            return rc;
        }
    }
    *out = &kernel->base;
    return STATUS_OK;
}

void host_release(device_kernel *base)
{
    host_kernel *kernel = (host_kernel *)base;
    if (kernel->entry->release) kernel->entry->release(kernel);
    free(kernel);
}

status host_launch(device_stream *s, device_kernel *base, void *const *operands, const op_scalars *scalars,
                   void *workspace)
{
    const host_kernel *kernel = (const host_kernel *)base;
    kernel->entry->run(kernel, operands, scalars, workspace);
    return STATUS_OK;
}
