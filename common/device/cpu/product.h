/* Matrix products in the device's precision, the fastest way that this processor and shape have. */
#ifndef COMMON_DEVICE_CPU_PRODUCT_H
#define COMMON_DEVICE_CPU_PRODUCT_H

#include "common/device/cpu/gemm.h"

/* cpu_gemm() on all threads of the kernel, for a and b without gaps between their rows; then the epilogue, which may be
 * NULL. `scratch` has cpu_product_scratch() bytes, which also do for fewer rows (m, or k where a is transposed). */
size_t cpu_product_scratch(const host_kernel *kernel, const cpu_gemm_shape *shape);
void cpu_product(const host_kernel *kernel, const cpu_gemm_shape *shape, const float *a, const float *b, bool add,
                 float *c, const cpu_epilogue *epilogue, void *scratch);

#endif
