/* 1x1 convolutions: y [n p q, k] = x [n p q, c] w [c, k] over the pixels at multiples of the stride. */
#include "common/device/cpu/conv2d.h"
#include "common/device/cpu/gemm.h"

#include <string.h>

typedef struct pixel_job {
    const conv2d_attributes *attributes;
    float *image;  /* [n, h, w, c] */
    float *packed; /* [n, p, q, c] */
} pixel_job;

static int64_t pixels(const conv2d_attributes *a)
{
    return a->n * a->p * a->q;
}

static float *image_row(const pixel_job *job, int64_t image, int64_t h)
{
    const conv2d_attributes *a = job->attributes;
    return job->image + (image * a->h + h) * a->w * a->c;
}

/* Output rows [first, end) of n * p. */
static void gather_part(const void *context, int part, int64_t first, int64_t end)
{
    const pixel_job *job = context;
    const conv2d_attributes *a = job->attributes;
    size_t bytes = (size_t)a->c * sizeof(float);
    for (int64_t row = first; row < end; row++) {
        const float *from = image_row(job, row / a->p, row % a->p * a->stride);
        float *to = job->packed + row * a->q * a->c;
        for (int64_t q = 0; q < a->q; q++) memcpy(to + q * a->c, from + q * a->stride * a->c, bytes);
    }
}

/* Image rows [first, end) of n * h; pixels without an output are zero. */
static void scatter_part(const void *context, int part, int64_t first, int64_t end)
{
    const pixel_job *job = context;
    const conv2d_attributes *a = job->attributes;
    size_t bytes = (size_t)a->c * sizeof(float);
    for (int64_t row = first; row < end; row++) {
        int64_t image = row / a->h, h = row % a->h, p = h / a->stride;
        float *to = image_row(job, image, h);
        memset(to, 0, (size_t)a->w * bytes);
        if (h % a->stride != 0) continue;
        const float *from = job->packed + (image * a->p + p) * a->q * a->c;
        for (int64_t q = 0; q < a->q; q++) memcpy(to + q * a->stride * a->c, from + q * a->c, bytes);
    }
}

static cpu_gemm_shape shape_of(const host_kernel *kernel)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    switch (conv2d_state_of(kernel)->pass) {
    case CONV2D_FORWARD:
        return cpu_gemm_dense(false, false, pixels(a), a->k, a->c);
    case CONV2D_BACKWARD_DATA:
        return cpu_gemm_dense(false, true, pixels(a), a->c, a->k);
    default:
        return cpu_gemm_dense(true, false, a->c, a->k, pixels(a));
    }
}

/* The packed pixels, a multiple of a cache line. */
static size_t packed_bytes(const conv2d_attributes *a)
{
    if (a->stride == 1) return 0;
    return ((size_t)(pixels(a) * a->c) * sizeof(float) + 63) / 64 * 64;
}

static size_t workspace_bytes(const host_kernel *kernel)
{
    cpu_gemm_shape shape = shape_of(kernel);
    return packed_bytes(&kernel->base.op.u.conv2d) + cpu_matmul_prepare(kernel, &shape);
}

static void run(const host_kernel *kernel, const conv2d_operands *o, void *workspace)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    conv2d_pass pass = conv2d_state_of(kernel)->pass;
    cpu_gemm_shape shape = shape_of(kernel);
    pixel_job job = {a, o->x, workspace};
    float *x = a->stride == 1 ? o->x : job.packed;
    if (a->stride != 1 && pass != CONV2D_BACKWARD_DATA)
        cpu_parallel(kernel->threads, a->n * a->p, cpu_row_grain(a->q * a->c), gather_part, &job);
    float *left = pass == CONV2D_BACKWARD_DATA ? o->y : x,
          *right = pass == CONV2D_BACKWARD_WEIGHTS ? o->y : o->w;
    float *to[] = {[CONV2D_FORWARD] = o->y, [CONV2D_BACKWARD_DATA] = x, [CONV2D_BACKWARD_WEIGHTS] = o->w};
    cpu_matmul(kernel, &shape, left, right, o->add, to[pass], &(cpu_epilogue){.bias = o->b},
               (char *)workspace + packed_bytes(a));
    if (a->stride != 1 && pass == CONV2D_BACKWARD_DATA)
        cpu_parallel(kernel->threads, a->n * a->h, cpu_row_grain(a->w * a->c), scatter_part, &job);
}

const conv2d_algorithm conv2d_gemm = {workspace_bytes, run};
