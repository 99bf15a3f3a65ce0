/* Products whose factors are rounded to bfloat16 and whose sums are float32. */
#include "common/device/cpu/bf16.h"

#include "common/device/cpu/parallel.h"

#include <assert.h>

/* Of libdnnl beside dnnl_sgemm, and like it row by row; its headers do not declare it. */
dnnl_status_t dnnl_gemm_bf16bf16f32(char transa, char transb, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, float alpha,
                                    const uint16_t *a, dnnl_dim_t lda, const uint16_t *b, dnnl_dim_t ldb, float beta,
                                    float *c, dnnl_dim_t ldc);

bool cpu_has_bf16(void)
{
    return __builtin_cpu_supports("avx512bf16") &&
           (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}

typedef struct convert_job {
    const cpu_elementwise *kernels;
    const float *from;
    uint16_t *to;
} convert_job;

static void convert_part(const void *context, int part, int64_t first, int64_t end)
{
    (void)part;
    const convert_job *job = context;
    job->kernels->to_bf16(job->from + first, job->to + first, end - first);
}

void cpu_to_bf16(const host_kernel *kernel, const float *from, uint16_t *to, int64_t count)
{
    convert_job job = {cpu_isa_of(kernel)->elementwise, from, to};
    cpu_parallel(kernel->threads, count, CPU_GRAIN, convert_part, &job);
}

size_t cpu_bf16_bytes(int64_t count)
{
    return ((size_t)count * sizeof(uint16_t) + 63) / 64 * 64;
}

size_t cpu_bf16_scratch(const cpu_gemm_shape *s)
{
    return cpu_bf16_bytes(s->m * s->k) + cpu_bf16_bytes(s->k * s->n);
}

void cpu_bf16_product(const host_kernel *kernel, const cpu_gemm_shape *s, const float *a, const float *b, bool add,
                      float *c, void *scratch)
{
    assert(s->a_stride == (s->transpose_a ? s->m : s->k) && s->b_stride == (s->transpose_b ? s->k : s->n));
    uint16_t *narrow_a = scratch, *narrow_b = (uint16_t *)((char *)scratch + cpu_bf16_bytes(s->m * s->k));
    cpu_to_bf16(kernel, a, narrow_a, s->m * s->k);
    cpu_to_bf16(kernel, b, narrow_b, s->k * s->n);
    dnnl_status_t rc = dnnl_gemm_bf16bf16f32(s->transpose_a ? 'T' : 'N', s->transpose_b ? 'T' : 'N', s->m, s->n, s->k,
                                             1.0f, narrow_a, s->a_stride, narrow_b, s->b_stride, add ? 1.0f : 0.0f, c,
                                             s->c_stride);
    assert(rc == dnnl_success);
    (void)rc;
}
