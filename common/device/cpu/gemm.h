/* Matrix multiplication in float32, c = op(a) op(b). cpu_matmul() picks the fastest for a shape:
 *
 *   cpu_gemm          one thread: oneDNN's sgemm, or a kernel of ours where packing does not pay
 *   transposed_gemm   gradients of weights: c^T = b^T a, then a transposition
 *   copied_gemm       small results with AVX2: copies of b, and of a where it is transposed
 *   bf16_gemm         --bf16: factors rounded to bfloat16
 *
 * docs/kernels-cpu.md has the measurements behind the choice. */
#ifndef COMMON_DEVICE_CPU_GEMM_H
#define COMMON_DEVICE_CPU_GEMM_H

#include "common/device/cpu/kernel.h"

/* c [m,n] = (or += where `add`) op(a) op(b), row-major; op(a) is [m,k], op(b) [k,n]. A stride is the distance
 * between rows in memory. A function's `scratch` has the bytes that its *_prepare() returns, which also
 * suffice for fewer rows (m, or k where a is transposed). oneDNN writes the machine code of its products at
 * the first one, in some 40 ms: *_prepare() has it do so where the shape needs it, so that no step waits for
 * that. */
typedef struct cpu_gemm_shape {
    bool transpose_a, transpose_b;
    int64_t m, n, k, a_stride, b_stride, c_stride;
} cpu_gemm_shape;

/* Of matrices without gaps between their rows. */
static inline cpu_gemm_shape cpu_gemm_dense(bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                                            int64_t k)
{
    return (cpu_gemm_shape){transpose_a, transpose_b, m, n, k, transpose_a ? m : k, transpose_b ? k : n, n};
}

/* What follows a multiplication: y = act(c + bias), slope = act'(c + bias). bias [n] and slope [m, n], in c's
 * stride, may be NULL. */
typedef struct cpu_epilogue {
    activation act;
    const float *bias;
    float *slope;
} cpu_epilogue;

/* In the device's precision, on all threads of the kernel, for a and b without gaps between their rows; then
 * the epilogue, which may be NULL. */
size_t cpu_matmul_prepare(const host_kernel *kernel, const cpu_gemm_shape *shape);
void cpu_matmul(const host_kernel *kernel, const cpu_gemm_shape *shape, const float *a, const float *b,
                bool add, float *c, const cpu_epilogue *epilogue, void *scratch);

/* On the calling thread, which may be one of a job's. */
size_t cpu_gemm_prepare(const cpu_gemm_shape *shape);
void cpu_gemm(const cpu_isa *isa, const cpu_gemm_shape *shape, const float *a, const float *b, bool add,
              float *c, float *scratch);

/* ---- bfloat16 ---------------------------------------------------------------------------------
 * Parameters, gradients, activations and sums stay float32; the two factors of a multiplication are rounded
 * to bfloat16, to nearest and even on ties, each time it is computed. Linear layers and convolutions take
 * part, except convolutions with few output pixels (conv2d.h); attention and normalization do not. */

/* The processor multiplies bfloat16, and oneDNN may use that. */
bool cpu_has_bf16(void);

/* On all threads of the kernel. */
void cpu_to_bf16(const host_kernel *kernel, const float *from, uint16_t *to, int64_t count);

/* Of `count` values, rounded up to a cache line. */
size_t cpu_bf16_bytes(int64_t count);

#endif
