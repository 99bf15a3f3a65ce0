/* Matrix products in float32 on one thread, and what all products share. product.h chooses among them. */
#ifndef COMMON_DEVICE_CPU_GEMM_H
#define COMMON_DEVICE_CPU_GEMM_H

#include "common/device/cpu/kernel.h"

/* c [m,n] = (or += where `add`) op(a) op(b), row-major; op(a) is [m,k], op(b) [k,n]; the strides are of the
 * rows as they lie in memory. `scratch` has cpu_gemm_scratch() bytes, which also do for fewer rows m. May be
 * called on a part's thread. */
typedef struct cpu_gemm_shape {
    bool transpose_a, transpose_b;
    int64_t m, n, k, a_stride, b_stride, c_stride;
} cpu_gemm_shape;

size_t cpu_gemm_scratch(const cpu_gemm_shape *shape);
void cpu_gemm(const cpu_isa *isa, const cpu_gemm_shape *shape, const float *a, const float *b, bool add,
              float *c, float *scratch);

/* What ends a product: y = act(c + bias), slope = act'(the same). bias [n] and slope [m, n], in c's stride, may be
 * NULL. NULL for all of it, or no activation and no bias: nothing. */
typedef struct cpu_epilogue {
    activation act;
    const float *bias;
    float *slope;
} cpu_epilogue;

static inline bool cpu_epilogue_works(const cpu_epilogue *e)
{
    return e && (e->bias || e->act != ACTIVATION_NONE);
}

/* c = a^T b as the transpose of b^T a, on all threads of the kernel, where oneDNN is so much slower at more rows than
 * columns that this pays. `scratch` has cpu_turned_scratch() bytes, which also do for fewer rows k. */
bool cpu_turned_pays(const cpu_gemm_shape *shape);
size_t cpu_turned_scratch(const cpu_gemm_shape *shape);
void cpu_turned_product(const host_kernel *kernel, const cpu_gemm_shape *shape, const float *a, const float *b,
                        bool add, float *c, float *scratch);

#endif
