/* Convolutions as matrix multiplications: y [n p q, k] = rows [n p q, r s c] w [r s c, k].
 *
 * Each output pixel has a row of inputs: the input pixels under the kernel's taps, with zeros outside the
 * image. If the kernel is 1x1 and the stride is 1, the rows are x itself. For other kernels the rows are
 * gathered first. The gradient with respect to x supports only 1x1 kernels. */
#include "common/base/least.h"
#include "common/device/cpu/conv2d.h"
#include "common/device/cpu/gemm.h"

#include <string.h>

/* Limits of a block of gathered rows with AVX2. A block fits in the L2 cache and has enough rows for an
 * efficient multiplication. */
enum { BLOCK_FLOATS = 1 << 16, BLOCK_ROWS = 256 };

typedef struct pixel_job {
    const conv2d_attributes *attributes;
    float *image; /* [n, h, w, c] */
    float *rows;
    int64_t at; /* index of the output pixel to which the first row belongs */
} pixel_job;

static int64_t pixels(const conv2d_attributes *a)
{
    return a->n * a->p * a->q;
}

static int64_t row_floats(const conv2d_attributes *a)
{
    return a->r * a->s * a->c;
}

static float *image_row(const pixel_job *job, int64_t image, int64_t h)
{
    const conv2d_attributes *a = job->attributes;
    return job->image + (image * a->h + h) * a->w * a->c;
}

/* ---- gathering -------------------------------------------------------------------------------- */

/* Gathers one row of taps: columns [left, left + s) of the image row `from`, which is NULL outside the
 * image. */
static void gather_taps(const conv2d_attributes *a, const float *from, int64_t left, float *to)
{
    int64_t first = left < 0 ? least(-left, a->s) : 0, end = least(a->s, a->w - left);
    if (!from || end < first) first = end = 0;
    if (end - first < a->s) memset(to, 0, (size_t)(a->s * a->c) * sizeof *to);
    if (end > first)
        memcpy(to + first * a->c, from + (left + first) * a->c, (size_t)((end - first) * a->c) * sizeof *to);
}

static void gather_part(const void *context, int part, int64_t first, int64_t end)
{
    const pixel_job *job = context;
    const conv2d_attributes *a = job->attributes;
    float *to = job->rows + first * row_floats(a);
    for (int64_t pixel = job->at + first; pixel < job->at + end; pixel++) {
        int64_t image = pixel / (a->p * a->q), top = pixel / a->q % a->p * a->stride - a->pad_h,
                left = pixel % a->q * a->stride - a->pad_w;
        for (int64_t h = top; h < top + a->r; h++, to += a->s * a->c)
            gather_taps(a, h < 0 || h >= a->h ? NULL : image_row(job, image, h), left, to);
    }
}

/* Writes rows [first, end) of the n * h image rows of dx. Copies the gradients of the pixels that an output
 * pixel depends on, and sets all other pixels to zero. */
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
        const float *from = job->rows + (image * a->p + p) * a->q * a->c;
        for (int64_t q = 0; q < a->q; q++) memcpy(to + q * a->stride * a->c, from + q * a->c, bytes);
    }
}

/* ---- passes ----------------------------------------------------------------------------------- */

static cpu_gemm_shape shape_of(const host_kernel *kernel, int64_t rows)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    switch (conv2d_state_of(kernel)->pass) {
    case CONV2D_FORWARD:
        return cpu_gemm_dense(false, false, rows, a->k, row_floats(a));
    case CONV2D_BACKWARD_DATA:
        return cpu_gemm_dense(false, true, rows, a->c, a->k);
    default:
        return cpu_gemm_dense(true, false, row_floats(a), a->k, rows);
    }
}

static bool in_place(const conv2d_attributes *a)
{
    return a->stride == 1 && a->r == 1 && a->s == 1;
}

/* Returns the number of pixels multiplied at a time. The kernels for AVX-512 multiply all pixels at once,
 * because multiplications with few rows are slower, and because with bfloat16 every block would convert the
 * weights again. */
static int64_t block_pixels(const host_kernel *kernel)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    bool all = in_place(a) || conv2d_state_of(kernel)->pass == CONV2D_BACKWARD_DATA;
    if (all || !cpu_is_avx2(cpu_isa_of(kernel))) return pixels(a);
    int64_t rows = BLOCK_FLOATS / row_floats(a);
    return least(pixels(a), rows < BLOCK_ROWS ? BLOCK_ROWS : rows);
}

static size_t rows_bytes(const host_kernel *kernel)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    if (in_place(a)) return 0;
    return ((size_t)(block_pixels(kernel) * row_floats(a)) * sizeof(float) + 63) / 64 * 64;
}

static size_t workspace_bytes(const host_kernel *kernel)
{
    cpu_gemm_shape shape = shape_of(kernel, block_pixels(kernel));
    return rows_bytes(kernel) + cpu_matmul_prepare(kernel, &shape);
}

static void run(const host_kernel *kernel, const conv2d_operands *o, void *workspace)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    conv2d_pass pass = conv2d_state_of(kernel)->pass;
    bool gathers = !in_place(a), gradient = pass == CONV2D_BACKWARD_WEIGHTS;
    void *scratch = (char *)workspace + rows_bytes(kernel);
    int64_t block = block_pixels(kernel);
    if (pass == CONV2D_BACKWARD_DATA) {
        pixel_job job = {a, o->x, gathers ? workspace : o->x, 0};
        cpu_gemm_shape shape = shape_of(kernel, block);
        cpu_matmul(kernel, &shape, o->y, o->w, false, job.rows, NULL, scratch);
        if (gathers)
            cpu_parallel(kernel->threads, a->n * a->h, cpu_row_grain(a->w * a->c), scatter_part, &job);
        return;
    }
    for (int64_t at = 0; at < pixels(a); at += block) {
        int64_t rows = least(block, pixels(a) - at);
        pixel_job job = {a, o->x, gathers ? workspace : o->x, at};
        cpu_gemm_shape shape = shape_of(kernel, rows);
        float *y = o->y + at * a->k;
        if (gathers) cpu_parallel(kernel->threads, rows, cpu_row_grain(row_floats(a)), gather_part, &job);
        cpu_matmul(kernel, &shape, job.rows, gradient ? y : o->w, gradient && (o->add || at > 0),
                   gradient ? o->w : y, &(cpu_epilogue){.bias = o->b}, scratch);
    }
}

const conv2d_algorithm conv2d_gemm = {workspace_bytes, run};
