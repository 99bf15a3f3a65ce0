/* Named ranges for Nsight (NVTX): an operation each. They cost next to nothing where no tool listens. */
#ifndef COMMON_DEVICE_CUDA_MODULE_RANGES_H
#define COMMON_DEVICE_CUDA_MODULE_RANGES_H

#if PSRING_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

static inline void cuda_range_push(const char *name)
{
#if PSRING_HAVE_NVTX
    nvtxRangePushA(name);
#else
    (void)name;
#endif
}

static inline void cuda_range_pop(void)
{
#if PSRING_HAVE_NVTX
    nvtxRangePop();
#endif
}

#endif
