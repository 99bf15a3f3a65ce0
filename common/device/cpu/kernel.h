/* A kernel of the CPU device, and the device that it runs on. */
#ifndef COMMON_DEVICE_CPU_KERNEL_H
#define COMMON_DEVICE_CPU_KERNEL_H

#include "common/device/cpu/isa/isa.h"
#include "common/device/host/host.h"

#include <oneapi/dnnl/dnnl.h>

typedef struct cpu_device {
    device base;
    const cpu_isa *isa;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    bool bf16; /* products round their factors: bf16.h */
    host_kernel_entry table[OP_COUNT];
} cpu_device;

static inline cpu_device *cpu_device_of(const host_kernel *kernel)
{
    return (cpu_device *)kernel->base.device;
}

static inline const cpu_isa *cpu_isa_of(const host_kernel *kernel)
{
    return cpu_device_of(kernel)->isa;
}

/* Are a parameter's gradients added to what is there? */
static inline bool cpu_accumulates(const host_kernel *kernel, const op_scalars *scalars)
{
    return kernel->base.op.accumulate || (scalars && scalars->accumulate);
}

/* The rows in use of `all`. */
static inline int64_t cpu_rows_used(int64_t all, const op_scalars *scalars)
{
    return scalars && scalars->rows > 0 ? scalars->rows : all;
}

#endif
