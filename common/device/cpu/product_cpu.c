/* Which of the products computes a shape: docs/kernels-cpu.md has the measurements. */
#include "common/device/cpu/product.h"

#include "common/device/cpu/bf16.h"
#include "common/device/cpu/gemm_blocked.h"
#include "common/device/cpu/gemm_wide.h"
#include "common/device/cpu/parallel.h"

size_t cpu_product_scratch(const host_kernel *kernel, const cpu_gemm_shape *s)
{
    if (cpu_device_of(kernel)->bf16) return cpu_bf16_scratch(s);
    size_t small = cpu_gemm_scratch(s), large = 0;
    if (cpu_blocked_pays(kernel, s))
        large = cpu_blocked_scratch(kernel->threads, s);
    else if (cpu_turned_pays(s))
        large = cpu_turned_scratch(s);
    size_t wide = cpu_wide_scratch(kernel, s);
    if (wide > large) large = wide;
    return small > large ? small : large;
}

typedef struct epilogue_job {
    const cpu_elementwise *kernels;
    const cpu_gemm_shape *shape;
    const cpu_epilogue *epilogue;
    float *c;
} epilogue_job;

/* Rows [first, end) of c. */
static void epilogue_part(const void *context, int part, int64_t first, int64_t end)
{
    (void)part;
    const epilogue_job *job = context;
    const cpu_epilogue *e = job->epilogue;
    int64_t at = first * job->shape->c_stride;
    job->kernels->bias_activate[e->act](job->c + at, e->slope ? e->slope + at : NULL, e->bias, job->shape->c_stride,
                                        end - first, job->shape->n);
}

static void multiply(const host_kernel *kernel, const cpu_gemm_shape *s, const float *a, const float *b, bool add,
                     float *c, void *scratch)
{
    if (cpu_device_of(kernel)->bf16)
        cpu_bf16_product(kernel, s, a, b, add, c, scratch);
    else if (cpu_turned_pays(s))
        cpu_turned_product(kernel, s, a, b, add, c, scratch);
    else
        cpu_gemm(cpu_isa_of(kernel), s, a, b, add, c, scratch);
}

void cpu_product(const host_kernel *kernel, const cpu_gemm_shape *s, const float *a, const float *b, bool add, float *c,
                 const cpu_epilogue *epilogue, void *scratch)
{
    bool bf16 = cpu_device_of(kernel)->bf16;
    if (!bf16 && cpu_wide_pays(kernel, s)) {
        cpu_wide_product(kernel, s, a, b, add, c, epilogue, scratch);
    } else if (!bf16 && cpu_blocked_pays(kernel, s)) {
        cpu_blocked_product(kernel, s, a, b, add, c, epilogue, scratch);
    } else {
        multiply(kernel, s, a, b, add, c, scratch);
        epilogue_job job = {cpu_isa_of(kernel)->elementwise, s, epilogue, c};
        if (cpu_epilogue_works(epilogue))
            cpu_parallel(kernel->threads, s->m, cpu_row_grain(s->n), epilogue_part, &job);
    }
}
