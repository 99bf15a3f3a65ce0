/* The table of operations, and the code that all operations share to prepare and launch. */
#include "common/device/cuda/module/cuda_impl.h"

#include <stdlib.h>
#if PSRING_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#else
#define nvtxRangePushA(name)
#define nvtxRangePop()
#endif

#define TABLE_ENTRY(name, class) [OP_##name] = &cuda_##name,
static const cuda_kernel_entry *const entries[OP_COUNT] = {OP_LIST(TABLE_ENTRY)};
#undef TABLE_ENTRY

status cuda_prepare(device *d, const op_desc *op, const device_layout *layout, device_kernel **out)
{
    cuda_kernel *k = calloc(1, sizeof *k);
    if (!k) return fail(STATUS_SYSTEM, "no memory for a kernel");
    *k = (cuda_kernel){.base = {.device = d, .op = *op}, .entry = entries[op->kind]};
    *out = &k->base;
    TRY(cuda_use((cuda_device *)d));
    return k->entry->prepare ? k->entry->prepare(k) : STATUS_OK;
}

void cuda_release(device_kernel *base)
{
    cuda_kernel *k = (cuda_kernel *)base;
    if (k->entry->release) k->entry->release(k);
    free(k);
}

/* Launches within a named range for Nsight (NVTX). The range costs almost nothing if no profiler is
 * attached. */
status cuda_launch(device_stream *s, device_kernel *base, void *const *operands, const op_scalars *scalars,
                   void *workspace)
{
    const cuda_kernel *k = (const cuda_kernel *)base;
    cuda_device *d = (cuda_device *)base->device;
    TRY(cuda_use(d));
    nvtxRangePushA(op_name(base->op.kind));
    cuda_call call = {k, &base->op, ((cuda_stream *)s)->stream, operands, scalars, workspace};
    status rc = k->entry->run(&call);
    nvtxRangePop();
    if (rc != STATUS_OK) return rc;
    return cuda_check(d, cudaGetLastError(), op_name(base->op.kind));
}
