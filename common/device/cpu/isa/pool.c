#include "common/device/cpu/isa/vector.h"

#include <math.h>

typedef struct range {
    int64_t first, end;
} range;

/* Returns the range of positions in the window of output `o` that are inside the input. The window has
 * `kernel` positions, and the input has `size`. */
static range window(int64_t o, int64_t stride, int64_t pad, int64_t kernel, int64_t size)
{
    int64_t start = o * stride - pad;
    return (range){start < 0 ? -start : 0, start + kernel > size ? size - start : kernel};
}

/* Returns the range of outputs, out of `outputs`, whose windows of size `kernel` contain input `i`. */
static range windows_over(int64_t i, int64_t stride, int64_t pad, int64_t kernel, int64_t outputs)
{
    int64_t above = i + pad - kernel, last = (i + pad) / stride;
    return (range){above < 0 ? 0 : above / stride + 1, last < outputs ? last + 1 : outputs};
}

/* ---- maximum ---------------------------------------------------------------------------------- */

/* Computes the maximum of each of `count` channels at one output pixel. `corner` is the input at the
 * window's position (0, 0), which may be outside the image. */
ALWAYS_INLINE void max_pixel(const pool_attributes *a, const float *corner, range rows, range columns,
                             float *y, uint8_t *index, int64_t count)
{
    vf most = vf_set(-INFINITY);
    vi where = vi_set((int32_t)(rows.first * a->s + columns.first));
    for (int64_t r = rows.first; r < rows.end; r++)
        for (int64_t s = columns.first; s < columns.end; s++) {
            vf x = vf_load_some(corner + (r * a->w + s) * a->c, count);
            vmask larger = vf_greater(x, most) | vf_not_a_number(x);
            most = vf_select(larger, x, most);
            where = vi_select(larger, vi_set((int32_t)(r * a->s + s)), where);
        }
    vf_store_some(y, most, count);
    vi_store_some_bytes(index, where, count);
}

static void max_forward(const pool_attributes *a, void *const *operands, int64_t first, int64_t end)
{
    const float *x = operands[MAXPOOL_FWD_X];
    float *y = operands[MAXPOOL_FWD_Y];
    uint8_t *index = operands[MAXPOOL_FWD_INDEX];
    for (int64_t row = first; row < end; row++) {
        int64_t image = row / a->p, p = row % a->p, c = a->c;
        range rows = window(p, a->stride, a->pad, a->r, a->h);
        for (int64_t q = 0; q < a->q; q++) {
            range columns = window(q, a->stride, a->pad, a->s, a->w);
            int64_t corner = ((image * a->h + p * a->stride - a->pad) * a->w + q * a->stride - a->pad) * c;
            int64_t out = (row * a->q + q) * c, j = 0;
            for (; j + VF <= c; j += VF)
                max_pixel(a, x + corner + j, rows, columns, y + out + j, index + out + j, VF);
            if (j < c) max_pixel(a, x + corner + j, rows, columns, y + out + j, index + out + j, c - j);
        }
    }
}

/* A window that contains a given input pixel: the offset of the window's output, and the position of the
 * pixel in the window. */
typedef struct covering {
    int64_t offset;
    int32_t position;
} covering;

enum { MAX_COVERING = 256 }; /* a pixel is in at most r*s windows, and r*s <= 256 */

static int list_windows(const pool_attributes *a, range ps, range qs, int64_t h, int64_t w, covering *out)
{
    int count = 0;
    for (int64_t p = ps.first; p < ps.end; p++)
        for (int64_t q = qs.first; q < qs.end; q++) {
            int64_t r = h + a->pad - p * a->stride, s = w + a->pad - q * a->stride;
            out[count++] = (covering){(p * a->q + q) * a->c, (int32_t)(r * a->s + s)};
        }
    return count;
}

/* Returns the sum of the gradients of the windows whose maximum is the pixel. */
ALWAYS_INLINE vf max_gradient(const float *dy, const uint8_t *index, const covering *windows,
                              int windows_count, int64_t count)
{
    vf sum = vf_set(0);
    for (int i = 0; i < windows_count; i++) {
        vmask chosen =
            vi_equal(vi_load_some_bytes(index + windows[i].offset, count), vi_set(windows[i].position));
        sum += vf_select(chosen, vf_load_some(dy + windows[i].offset, count), vf_set(0));
    }
    return sum;
}

static void max_backward(const pool_attributes *attributes, void *const *operands, int64_t first, int64_t end)
{
    /* The compiler must assume that stores to dx change *attributes, but not a local copy. */
    const pool_attributes copy = *attributes, *a = &copy;
    const float *dy = operands[MAXPOOL_BWD_DY];
    const uint8_t *index = operands[MAXPOOL_BWD_INDEX];
    float *dx = operands[MAXPOOL_BWD_DX];
    covering windows[MAX_COVERING];
    for (int64_t row = first; row < end; row++) {
        int64_t h = row % a->h, c = a->c, image = row / a->h * a->p * a->q * c;
        range ps = windows_over(h, a->stride, a->pad, a->r, a->p);
        for (int64_t w = 0; w < a->w; w++) {
            int count = list_windows(a, ps, windows_over(w, a->stride, a->pad, a->s, a->q), h, w, windows);
            float *out = dx + (row * a->w + w) * c;
            int64_t j = 0;
            for (; j + VF <= c; j += VF)
                vf_store(out + j, max_gradient(dy + image + j, index + image + j, windows, count, VF));
            if (j == c) continue;
            vf_store_part(out + j, max_gradient(dy + image + j, index + image + j, windows, count, c - j),
                          c - j);
        }
    }
}

/* ---- average ---------------------------------------------------------------------------------- */

/* The padding counts as zeros, so every sum of a window is divided by r*s. */

/* Returns the sum of a rectangle of pixels of c channels. Rows are `stride` apart. */
ALWAYS_INLINE vf pixel_sum(const float *x, int64_t rows, int64_t columns, int64_t stride, int64_t c,
                           int64_t count)
{
    vf sum = vf_set(0);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t s = 0; s < columns; s++) sum += vf_load_some(x + r * stride + s * c, count);
    return sum;
}

static void average_forward(const pool_attributes *a, void *const *operands, int64_t first, int64_t end)
{
    const float *x = operands[AVGPOOL_FWD_X];
    float *y = operands[AVGPOOL_FWD_Y];
    float divisor = (float)(a->r * a->s);
    for (int64_t row = first; row < end; row++) {
        int64_t image = row / a->p, p = row % a->p, c = a->c;
        range rows = window(p, a->stride, a->pad, a->r, a->h);
        int64_t top = image * a->h + p * a->stride - a->pad + rows.first;
        for (int64_t q = 0; q < a->q; q++) {
            range columns = window(q, a->stride, a->pad, a->s, a->w);
            const float *corner = x + (top * a->w + q * a->stride - a->pad + columns.first) * c;
            float *out = y + (row * a->q + q) * c;
            for (int64_t j = 0; j < c; j += VF) {
                vf sum = pixel_sum(corner + j, rows.end - rows.first, columns.end - columns.first, a->w * c,
                                   c, c - j);
                vf_store_some(out + j, sum / divisor, c - j);
            }
        }
    }
}

static void average_backward(const pool_attributes *a, void *const *operands, int64_t first, int64_t end)
{
    const float *dy = operands[AVGPOOL_BWD_DY];
    float *dx = operands[AVGPOOL_BWD_DX];
    float divisor = (float)(a->r * a->s);
    for (int64_t row = first; row < end; row++) {
        int64_t image = row / a->h, h = row % a->h, c = a->c;
        range ps = windows_over(h, a->stride, a->pad, a->r, a->p);
        for (int64_t w = 0; w < a->w; w++) {
            range qs = windows_over(w, a->stride, a->pad, a->s, a->q);
            const float *corner = dy + ((image * a->p + ps.first) * a->q + qs.first) * c;
            float *out = dx + (row * a->w + w) * c;
            for (int64_t j = 0; j < c; j += VF) {
                vf sum = pixel_sum(corner + j, ps.end - ps.first, qs.end - qs.first, a->q * c, c, c - j);
                vf_store_some(out + j, sum / divisor, c - j);
            }
        }
    }
}

const cpu_pool KERNEL(cpu_pool) = {.run = {max_forward, max_backward, average_forward, average_backward}};
