/* bfloat16 in products: parameters, gradients, activations and sums stay float32; a product's two factors are
 * rounded to bfloat16, to nearest and even on ties, each time it is computed. Linear layers and convolutions
 * take part, but for convolutions of few output points (conv2d.h), attention and normalization do not. */
#ifndef COMMON_DEVICE_CPU_BF16_H
#define COMMON_DEVICE_CPU_BF16_H

#include "common/device/cpu/gemm.h"

/* The processor multiplies bfloat16, and oneDNN may use that. */
bool cpu_has_bf16(void);

/* On all threads of the kernel. */
void cpu_to_bf16(const host_kernel *kernel, const float *from, uint16_t *to, int64_t count);

/* Of `count` values, a multiple of a cache line. */
size_t cpu_bf16_bytes(int64_t count);

/* cpu_gemm() with rounded factors, on all threads of the kernel, for a and b without gaps between their rows. `scratch`
 * has cpu_bf16_scratch() bytes, which also do for fewer rows (m, or k where a is transposed). */
size_t cpu_bf16_scratch(const cpu_gemm_shape *shape);
void cpu_bf16_product(const host_kernel *kernel, const cpu_gemm_shape *shape, const float *a, const float *b, bool add,
                      float *c, void *scratch);

#endif
