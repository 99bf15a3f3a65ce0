/* Convolutions with few output pixels, where most taps of a padded kernel are outside the image.
 *
 * Every output pixel (p, q) has a rectangle of taps inside the image. In row r of the rectangle the pixels of
 * x and the weights [s, c, k] are contiguous. Row r is therefore computed by one matrix multiplication over
 * all images:
 *
 *   y[:, p, q, :] += x[:, h, first s.., :] [n, taps c]  w[r, first s.., :, :] [taps c, k]
 *
 * Each image has one row in the matrices x and y, so in memory the rows are an image apart. The gradient with
 * respect to x needs one multiplication for each pair of an output pixel and a tap. The gradient of a tap's
 * weights gathers all output pixels of the tap and multiplies once. */
#include "common/device/cpu/conv2d.h"
#include "common/device/cpu/gemm.h"

#include <string.h>

/* A range [first, end) along one axis: the taps of a kernel that are inside the image, or output
 * positions. */
typedef struct taps {
    int64_t first, end;
} taps;

static taps taps_at(int64_t o, int64_t stride, int64_t pad, int64_t kernel, int64_t size)
{
    int64_t start = o * stride - pad;
    taps t = {start < 0 ? -start : 0, start + kernel > size ? size - start : kernel};
    if (t.end < t.first) t.end = t.first;
    return t;
}

/* Returns the range of output positions, out of `outputs`, at which tap t is inside the image along one
 * axis. */
static taps outputs_at(int64_t t, int64_t stride, int64_t pad, int64_t size, int64_t outputs)
{
    int64_t above = pad - t, first = above > 0 ? (above + stride - 1) / stride : 0;
    int64_t last = size - 1 + pad - t;
    int64_t end = last < 0 ? 0 : last / stride + 1;
    if (end > outputs) end = outputs;
    return (taps){first, end < first ? first : end};
}

/* ---- forward ---------------------------------------------------------------------------------- */

static void start_pixel(const conv2d_attributes *a, const float *bias, float *y)
{
    for (int64_t i = 0; i < a->n; i++, y += a->p * a->q * a->k) {
        if (bias)
            memcpy(y, bias, (size_t)a->k * sizeof *y);
        else
            memset(y, 0, (size_t)a->k * sizeof *y);
    }
}

static void forward(const cpu_isa *isa, const conv2d_attributes *a, const conv2d_operands *o, float *scratch)
{
    for (int64_t point = 0; point < a->p * a->q; point++) {
        int64_t p = point / a->q, q = point % a->q;
        taps rows = taps_at(p, a->stride, a->pad_h, a->r, a->h),
             columns = taps_at(q, a->stride, a->pad_w, a->s, a->w);
        float *y = o->y + point * a->k;
        bool meets = rows.first < rows.end && columns.first < columns.end, add = o->b || !meets;
        if (add) start_pixel(a, o->b, y);
        for (int64_t r = rows.first; meets && r < rows.end; r++) {
            int64_t h = p * a->stride - a->pad_h + r, w = q * a->stride - a->pad_w + columns.first;
            cpu_gemm_shape shape =
                cpu_gemm_dense(false, false, a->n, a->k, (columns.end - columns.first) * a->c);
            shape.a_stride = a->h * a->w * a->c;
            shape.c_stride = a->p * a->q * a->k;
            cpu_gemm(isa, &shape, o->x + (h * a->w + w) * a->c,
                     o->w + (r * a->s + columns.first) * a->c * a->k, add, y, NULL);
            add = true;
        }
    }
}

/* ---- gradient with respect to x --------------------------------------------------------------- */

static cpu_gemm_shape data_shape(const conv2d_attributes *a)
{
    cpu_gemm_shape shape = cpu_gemm_dense(false, true, a->n, a->c, a->k);
    shape.a_stride = a->p * a->q * a->k;
    shape.c_stride = a->h * a->w * a->c;
    return shape;
}

static void backward_data(const cpu_isa *isa, const conv2d_attributes *a, const conv2d_operands *o,
                          float *scratch)
{
    cpu_gemm_shape shape = data_shape(a);
    for (int64_t pixel = 0; pixel < a->h * a->w; pixel++) {
        int64_t h = pixel / a->w, w = pixel % a->w;
        float *dx = o->x + pixel * a->c;
        bool add = false;
        for (int64_t tap = 0; tap < a->r * a->s; tap++) {
            int64_t above = h + a->pad_h - tap / a->s, left = w + a->pad_w - tap % a->s;
            if (above < 0 || left < 0 || above % a->stride || left % a->stride) continue;
            int64_t p = above / a->stride, q = left / a->stride;
            if (p >= a->p || q >= a->q) continue;
            cpu_gemm(isa, &shape, o->y + (p * a->q + q) * a->k, o->w + tap * a->c * a->k, add, dx, scratch);
            add = true;
        }
        if (add) continue;
        for (int64_t i = 0; i < a->n; i++) memset(dx + i * a->h * a->w * a->c, 0, (size_t)a->c * sizeof *dx);
    }
}

/* ---- gradient with respect to w --------------------------------------------------------------- */

/* Copies the pixels at ps x qs of images [n, height, width] to rows of `columns` floats. The first pixel is
 * (h, w); pixels are `step` apart in both directions. Returns the end of the rows. */
static float *gather_pixels(const float *images, int64_t n, int64_t height, int64_t width, int64_t columns,
                            taps ps, taps qs, int64_t h, int64_t w, int64_t step, float *to)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t p = 0; p < ps.end - ps.first; p++)
            for (int64_t q = 0; q < qs.end - qs.first; q++, to += columns)
                memcpy(to, images + ((i * height + h + p * step) * width + w + q * step) * columns,
                       (size_t)columns * sizeof *to);
    return to;
}

static void tap_gradient(const cpu_isa *isa, const conv2d_attributes *a, const conv2d_operands *o, int64_t r,
                         int64_t s, taps ps, taps qs, float *scratch)
{
    int64_t points = (ps.end - ps.first) * (qs.end - qs.first);
    int64_t h = ps.first * a->stride - a->pad_h + r, w = qs.first * a->stride - a->pad_w + s;
    float *dw = o->w + (r * a->s + s) * a->c * a->k;
    cpu_gemm_shape shape = cpu_gemm_dense(true, false, a->c, a->k, a->n * points);
    if (points == 1) {
        shape.a_stride = a->h * a->w * a->c;
        shape.b_stride = a->p * a->q * a->k;
        cpu_gemm(isa, &shape, o->x + (h * a->w + w) * a->c, o->y + (ps.first * a->q + qs.first) * a->k,
                 o->add, dw, NULL);
        return;
    }
    const float *x = o->x, *y = o->y;
    float *next = scratch;
    if (a->stride > 1 || points < a->h * a->w) {
        x = next;
        next = gather_pixels(o->x, a->n, a->h, a->w, a->c, ps, qs, h, w, a->stride, next);
    }
    if (points < a->p * a->q) {
        y = next;
        gather_pixels(o->y, a->n, a->p, a->q, a->k, ps, qs, ps.first, qs.first, 1, next);
    }
    cpu_gemm(isa, &shape, x, y, o->add, dw, NULL);
}

static void backward_weights(const cpu_isa *isa, const conv2d_attributes *a, const conv2d_operands *o,
                             float *scratch)
{
    for (int64_t tap = 0; tap < a->r * a->s; tap++) {
        int64_t r = tap / a->s, s = tap % a->s;
        taps ps = outputs_at(r, a->stride, a->pad_h, a->h, a->p),
             qs = outputs_at(s, a->stride, a->pad_w, a->w, a->q);
        if (ps.first < ps.end && qs.first < qs.end)
            tap_gradient(isa, a, o, r, s, ps, qs, scratch);
        else if (!o->add)
            isa->elementwise->clear(o->w + tap * a->c * a->k, a->c * a->k);
    }
}

/* ----------------------------------------------------------------------------------------------- */

static size_t workspace_bytes(const host_kernel *kernel)
{
    const conv2d_attributes *a = &kernel->base.op.u.conv2d;
    conv2d_pass pass = conv2d_state_of(kernel)->pass;
    if (pass == CONV2D_BACKWARD_WEIGHTS) return (size_t)(a->n * a->p * a->q * (a->c + a->k)) * sizeof(float);
    cpu_gemm_shape shape = data_shape(a);
    return pass == CONV2D_BACKWARD_DATA ? cpu_gemm_prepare(&shape) : 0;
}

static void run(const host_kernel *kernel, const conv2d_operands *o, void *workspace)
{
    static void (*const passes[])(const cpu_isa *, const conv2d_attributes *, const conv2d_operands *,
                                  float *) = {forward, backward_data, backward_weights};
    passes[conv2d_state_of(kernel)->pass](cpu_isa_of(kernel), &kernel->base.op.u.conv2d, o, workspace);
}

const conv2d_algorithm conv2d_per_pixel = {workspace_bytes, run};
