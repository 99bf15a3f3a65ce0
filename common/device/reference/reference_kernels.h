/* What the reference kernels share. For this folder only. */
#ifndef COMMON_DEVICE_REFERENCE_REFERENCE_KERNELS_H
#define COMMON_DEVICE_REFERENCE_REFERENCE_KERNELS_H

#include "common/device/host/host.h"

/* One entry per operation, in OP_LIST's order in the table: reference_conv2d_forward, ... */
#define REFERENCE_ENTRY(name, class) extern const host_kernel_entry reference_##name;
OP_LIST(REFERENCE_ENTRY)
#undef REFERENCE_ENTRY

/* Whether gradients of parameters are added to what is there. */
static inline bool reference_accumulates(const op_desc *op, const op_scalars *scalars)
{
    return op->accumulate || (scalars && scalars->accumulate);
}

/* The rows in use of `most`. */
static inline int64_t reference_rows(const op_scalars *scalars, int64_t most)
{
    return scalars && scalars->rows > 0 ? scalars->rows : most;
}

#endif
