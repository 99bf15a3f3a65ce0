/* Matrix multiplication in float32, c = op(a) op(b). cpu_matmul() picks the fastest algorithm for a shape:
 *
 *   cpu_gemm          oneDNN's sgemm, or isa/matrix.c for small products, for which packing takes too long
 *   transposed_gemm   gradients of weights: c^T = b^T a, then a transposition
 *   copied_gemm       small results with AVX2: copies b, and also a if it is transposed
 *   bf16_gemm         with --bf16: rounds the factors to bfloat16
 *
 * docs/kernels-cpu.md has the measurements behind the choice. */
#ifndef COMMON_DEVICE_CPU_GEMM_H
#define COMMON_DEVICE_CPU_GEMM_H

#include "common/device/cpu/kernel.h"

/* The shape of c [m,n] = op(a) op(b), or of c += op(a) op(b) if `add`. Matrices are row-major; op(a) is
 * [m,k], op(b) is [k,n]. A stride is the distance between rows in memory.
 *
 * Each *_prepare() returns the bytes of `scratch` that its function needs. The same number is enough for
 * fewer rows (m, or k if a is transposed). oneDNN generates machine code at the first multiplication, which
 * takes about 40 ms. If the shape needs oneDNN, *_prepare() makes oneDNN generate this code, so that no step
 * waits for it. */
typedef struct cpu_gemm_shape {
    bool transpose_a, transpose_b;
    int64_t m, n, k, a_stride, b_stride, c_stride;
} cpu_gemm_shape;

/* The shape of matrices without gaps between their rows. */
static inline cpu_gemm_shape cpu_gemm_dense(bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                                            int64_t k)
{
    return (cpu_gemm_shape){transpose_a, transpose_b, m, n, k, transpose_a ? m : k, transpose_b ? k : n, n};
}

/* The epilogue of a multiplication: y = act(c + bias), slope = act'(c + bias). bias [n] and slope [m, n] may
 * be NULL; slope has c's stride. */
typedef struct cpu_epilogue {
    activation act;
    const float *bias;
    float *slope;
} cpu_epilogue;

/* Multiplies in the device's precision on all threads of the kernel, then applies the epilogue, which may be
 * NULL. The rows of a and b must have no gaps between them. */
size_t cpu_matmul_prepare(const host_kernel *kernel, const cpu_gemm_shape *shape);
void cpu_matmul(const host_kernel *kernel, const cpu_gemm_shape *shape, const float *a, const float *b,
                bool add, float *c, const cpu_epilogue *epilogue, void *scratch);

/* Multiplies with sgemm, or with isa/matrix.c on the calling thread. Inside a job of cpu_parallel(), sgemm
 * also uses only the calling thread. */
size_t cpu_gemm_prepare(const cpu_gemm_shape *shape);
void cpu_gemm(const cpu_isa *isa, const cpu_gemm_shape *shape, const float *a, const float *b, bool add,
              float *c, float *scratch);

/* ---- bfloat16 ---------------------------------------------------------------------------------
 *
 * Parameters, gradients, activations and sums stay float32. The two factors of a multiplication are rounded
 * to bfloat16 before each multiplication, to nearest and to even on ties. Factors are rounded in linear
 * layers and in convolutions, except for convolutions with few output pixels (conv2d.h). Attention and
 * normalization stay in float32. */

bool cpu_has_bf16(void);

void cpu_to_bf16(const host_kernel *kernel, const float *from, uint16_t *to, int64_t count);

/* Returns the bytes of `count` bfloat16 values, rounded up to a cache line. */
size_t cpu_bf16_bytes(int64_t count);

#endif
