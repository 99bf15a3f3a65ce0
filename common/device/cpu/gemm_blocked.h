/* Products of many rows. */
#ifndef COMMON_DEVICE_CPU_GEMM_BLOCKED_H
#define COMMON_DEVICE_CPU_GEMM_BLOCKED_H

#include "common/device/cpu/gemm.h"

/* On all threads of the kernel, for shapes on which it is faster than cpu_gemm(); a is not transposed. The epilogue
 * follows block by block, in the L2 cache. `scratch` has cpu_blocked_scratch() bytes, which also do for fewer rows m. */
bool cpu_blocked_pays(const host_kernel *kernel, const cpu_gemm_shape *shape);
size_t cpu_blocked_scratch(int threads, const cpu_gemm_shape *shape);
void cpu_blocked_product(const host_kernel *kernel, const cpu_gemm_shape *shape, const float *a, const float *b,
                         bool add, float *c, const cpu_epilogue *epilogue, float *scratch);

#endif
