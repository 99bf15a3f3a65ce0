/* Products with weights that have more rows than there are rows of x. */
#ifndef COMMON_DEVICE_CPU_GEMM_WIDE_H
#define COMMON_DEVICE_CPU_GEMM_WIDE_H

#include "common/device/cpu/gemm.h"

/* c = a b^T with no fewer rows of b than of a, on all threads of the kernel, where that is faster still. `scratch` has
 * cpu_wide_scratch() bytes, which also do for fewer rows m; 0 where it does not pay for them either. */
bool cpu_wide_pays(const host_kernel *kernel, const cpu_gemm_shape *shape);
size_t cpu_wide_scratch(const host_kernel *kernel, const cpu_gemm_shape *shape);
void cpu_wide_product(const host_kernel *kernel, const cpu_gemm_shape *shape, const float *a, const float *b, bool add,
                      float *c, const cpu_epilogue *epilogue, float *scratch);

#endif
