/* Compares convolutions over integers with plain loops. Sums of integers are exact in float32 in any order,
 * so every bit must agree, whichever algorithm the device uses for a shape. Winograd filtering is the
 * exception, since it multiplies by fractions: its results must be close to the right integers. */
#include "tests/common/device/cpu/cpu_test.h"
#include "tests/common/device/op_runner.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const conv2d_attributes shapes[] = {
    /* n h w c k r s stride pad_h pad_w p q bias */
    {2, 9, 7, 16, 32, 1, 1, 1, 0, 0, 0, 0, false},     /* GEMM */
    {2, 9, 7, 5, 10, 1, 1, 2, 0, 0, 0, 0, true},       /* with pixels between */
    {3, 8, 8, 24, 120, 1, 1, 3, 0, 0, 0, 0, false},    /* pixels at the edge that no output meets */
    {40, 7, 7, 6, 84, 1, 1, 1, 0, 0, 0, 0, false},     /* */
    {2, 5, 5, 3, 4, 1, 1, 1, 1, 1, 0, 0, false},       /* a padded 1x1 kernel */
    {5, 1, 1, 32, 48, 3, 3, 1, 1, 1, 0, 0, false},     /* points: one tap of nine */
    {33, 2, 2, 64, 64, 3, 3, 1, 1, 1, 0, 0, false},    /* */
    {20, 2, 2, 160, 96, 3, 3, 1, 1, 1, 0, 0, false},   /* */
    {4, 2, 2, 16, 32, 3, 3, 2, 1, 1, 0, 0, true},      /* */
    {3, 4, 4, 10, 12, 3, 3, 1, 1, 1, 0, 0, false},     /* */
    {2, 4, 4, 16, 20, 3, 3, 2, 1, 1, 0, 0, false},     /* */
    {2, 8, 8, 8, 16, 3, 3, 2, 1, 1, 0, 0, true},       /* */
    {2, 3, 5, 3, 7, 2, 4, 1, 0, 0, 0, 0, false},       /* */
    {1, 5, 5, 4, 6, 5, 5, 1, 0, 0, 0, 0, false},       /* */
    {2, 2, 2, 3, 5, 3, 3, 3, 2, 2, 0, 0, true},        /* outputs that meet no pixel */
    {1, 6, 6, 3, 5, 2, 2, 4, 0, 0, 0, 0, false},       /* pixels that meet no tap */
    {2, 10, 9, 32, 48, 3, 3, 1, 1, 1, 0, 0, false},    /* oneDNN, channels in blocks */
    {1, 12, 12, 64, 16, 3, 3, 2, 1, 1, 0, 0, true},    /* */
    {2, 14, 14, 48, 64, 5, 5, 1, 2, 2, 0, 0, false},   /* */
    {2, 8, 7, 8, 24, 3, 3, 1, 1, 1, 0, 0, false},      /* blocks of 8, not of 16 */
    {2, 20, 18, 3, 64, 7, 7, 2, 3, 3, 0, 0, false},    /* oneDNN, odd channels */
    {2, 12, 12, 1, 6, 5, 5, 1, 2, 2, 0, 0, true},      /* */
    {1, 14, 14, 6, 16, 5, 5, 1, 0, 0, 0, 0, true},     /* */
    {1, 9, 9, 10, 84, 3, 3, 1, 1, 1, 0, 0, false},     /* */
    {1, 9, 11, 120, 3, 3, 1, 1, 1, 1, 0, 0, false},    /* */
    {2, 10, 9, 32, 64, 3, 3, 1, 1, 1, 0, 0, false},    /* filtered; tiles over the edge */
    {1, 8, 16, 64, 32, 3, 3, 1, 1, 1, 0, 0, true},     /* whole tiles */
    {5, 4, 4, 32, 64, 3, 3, 1, 1, 1, 0, 0, false},     /* */
    {2, 5, 5, 32, 32, 3, 3, 1, 1, 1, 0, 0, false},     /* too little of its tiles is used */
    {3, 7, 7, 96, 32, 3, 3, 1, 1, 1, 0, 0, false},     /* more channels than are summed at a time */
    {1, 10, 11, 32, 32, 3, 3, 1, 0, 0, 0, 0, true},    /* without padding */
    {2, 6, 5, 32, 96, 3, 3, 1, 2, 2, 0, 0, false},     /* with more */
    {3, 16, 16, 160, 32, 3, 3, 1, 1, 1, 0, 0, false},  /* several blocks of tiles */
    {3, 17, 9, 64, 32, 1, 7, 1, 0, 3, 0, 0, false},    /* rectangles: oneDNN */
    {2, 9, 17, 48, 64, 7, 1, 1, 3, 0, 0, 0, true},     /* */
    {2, 5, 5, 192, 192, 1, 7, 1, 0, 3, 0, 0, false},   /* a kernel wider than the image */
    {2, 5, 5, 192, 192, 7, 1, 1, 3, 0, 0, 0, false},   /* higher */
    {1, 17, 17, 128, 192, 1, 7, 1, 0, 3, 0, 0, false}, /* */
    {1, 17, 17, 192, 192, 7, 1, 1, 3, 0, 0, 0, false}, /* */
    {1, 8, 8, 384, 384, 1, 3, 1, 0, 1, 0, 0, false},   /* */
    {2, 8, 8, 32, 32, 3, 3, 1, 1, 0, 0, 0, false},     /* padded on two sides: not filtered */
    {4, 7, 6, 10, 6, 1, 3, 2, 0, 1, 0, 0, false},      /* */
    {6, 3, 3, 32, 48, 1, 7, 1, 0, 3, 0, 0, false},     /* points: most taps outside */
    {5, 2, 4, 16, 32, 7, 1, 1, 3, 0, 0, 0, true},      /* */
    {5, 2, 2, 24, 16, 3, 1, 1, 1, 0, 0, 0, false},     /* */
    {2, 5, 7, 16, 16, 1, 1, 1, 0, 1, 0, 0, false},     /* a 1x1 kernel with zeros left and right */
    {5, 17, 19, 40, 24, 3, 3, 2, 1, 1, 0, 0, true},    /* several blocks of gathered rows */
    {4, 27, 26, 3, 20, 7, 7, 2, 3, 3, 0, 0, true},     /* */
    {3, 23, 21, 64, 32, 1, 1, 2, 0, 0, 0, 0, false},   /* */
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], BOUND = 4 };

/* Allowed distance of a filtered result from the integer. Errors of 1e-5 of sums below 1000 stay far below
 * it. */
static const float CLOSE = 1.0f / 16;

static bool is_filtered(const conv2d_attributes *a)
{
    return a->r == 3 && a->s == 3 && a->stride == 1 && a->pad_h == a->pad_w && a->c % 32 == 0 &&
           a->k % 32 == 0;
}

static void check_result(const conv2d_attributes *a, const char *what, float *found, const float *expected,
                         int64_t count)
{
    for (int64_t i = 0; is_filtered(a) && i < count; i++) {
        float whole = rintf(found[i]);
        if (!(fabsf(found[i] - whole) <= CLOSE))
            fail_msg("%s[%lld] is %.9g, should be nearly %.9g", what, (long long)i, found[i], expected[i]);
        found[i] = whole;
    }
    cpu_test_equal(what, found, expected, count);
}

typedef struct conv_test {
    conv2d_attributes a;
    int threads;
    char name[128];
} conv_test;

/* Tensors in PyTorch's order of weights, images NHWC. */
typedef struct tensors {
    int64_t x_count, w_count, y_count;
    float *x, *w, *b, *dy;
} tensors;

static tensors tensors_of(const conv2d_attributes *a)
{
    tensors t = {.x_count = a->n * a->h * a->w * a->c,
                 .w_count = a->k * a->c * a->r * a->s,
                 .y_count = a->n * a->p * a->q * a->k};
    t.x = cpu_test_whole("x", t.x_count, BOUND);
    t.w = cpu_test_whole("w", t.w_count, BOUND);
    t.b = cpu_test_whole("b", a->k, BOUND);
    t.dy = cpu_test_whole("dy", t.y_count, BOUND);
    return t;
}

static void free_tensors(tensors *t)
{
    float *const arrays[] = {t->x, t->w, t->b, t->dy};
    for (int i = 0; i < 4; i++) free(arrays[i]);
}

/* Sums of products of a pixel with a tap: one sum for each output, for each pixel and for each weight. The
 * order of the additions does not matter. */
typedef struct sums {
    float *y, *dx, *dw;
} sums;

static void add_products(const conv2d_attributes *a, const tensors *t, sums *s)
{
    int64_t taps = a->r * a->s;
    for (int64_t i = 0; i < a->n * a->p * a->q * taps; i++) {
        int64_t point = i / taps, tap = i % taps, n = point / (a->p * a->q), p = point / a->q % a->p,
                q = point % a->q;
        int64_t h = p * a->stride - a->pad_h + tap / a->s, w = q * a->stride - a->pad_w + tap % a->s;
        if (h < 0 || h >= a->h || w < 0 || w >= a->w) continue;
        const float *x = t->x + ((n * a->h + h) * a->w + w) * a->c;
        float *dx = s->dx + (x - t->x);
        for (int64_t k = 0; k < a->k; k++) {
            const float *weights = t->w + k * a->c * taps + tap, dy = t->dy[point * a->k + k];
            float *dw = s->dw + k * a->c * taps + tap, y = 0;
            for (int64_t c = 0; c < a->c; c++) {
                y += x[c] * weights[c * taps];
                dx[c] += dy * weights[c * taps];
                dw[c * taps] += dy * x[c];
            }
            s->y[point * a->k + k] += y;
        }
    }
}

static float *zeros(int64_t count)
{
    return memset(cpu_test_blank(count), 0, (size_t)count * sizeof(float));
}

/* Returns the sums of a shape. The first test that needs them computes them. */
static const sums *sums_of(const conv2d_attributes *a, const tensors *t)
{
    static conv2d_attributes shape;
    static sums found;
    if (memcmp(&shape, a, sizeof shape) == 0) return &found;
    free(found.y);
    free(found.dx);
    free(found.dw);
    found = (sums){zeros(t->y_count), zeros(t->x_count), zeros(t->w_count)};
    add_products(a, t, &found);
    shape = *a;
    return &found;
}

static void check_forward(device *d, const conv2d_attributes *a, const tensors *t,
                          const device_layout *layout, float *packed)
{
    op_desc op = {.kind = OP_conv2d_forward, .u.conv2d = *a};
    float *y = cpu_test_blank(t->y_count), *expected = cpu_test_copy(sums_of(a, t)->y, t->y_count);
    for (int64_t i = 0; i < t->y_count; i++) expected[i] += a->bias ? t->b[i % a->k] : 0;
    cpu_test_run(d, op, layout, (void *[OP_MAX_OPERANDS]){t->x, packed, a->bias ? t->b : NULL, y}, NULL);
    check_result(a, "y", y, expected, t->y_count);
    free(y);
    free(expected);
}

static void check_backward_data(device *d, const conv2d_attributes *a, const tensors *t,
                                const device_layout *layout, float *packed)
{
    op_desc op = {.kind = OP_conv2d_backward_data, .u.conv2d = *a};
    float *dx = cpu_test_blank(t->x_count);
    cpu_test_run(d, op, layout, (void *[OP_MAX_OPERANDS]){t->dy, packed, dx}, NULL);
    check_result(a, "dx", dx, sums_of(a, t)->dx, t->x_count);
    free(dx);
}

static void check_backward_weights(device *d, const conv2d_attributes *a, const tensors *t,
                                   const device_layout *layout, bool add)
{
    op_desc op = {.kind = OP_conv2d_backward_weights, .accumulate = add, .u.conv2d = *a};
    float *before = add ? cpu_test_whole("dw", t->w_count, BOUND) : cpu_test_blank(t->w_count);
    float *expected = cpu_test_copy(sums_of(a, t)->dw, t->w_count), *dw = cpu_test_blank(t->w_count);
    float *expected_db = cpu_test_whole("db", a->k, BOUND), *db = cpu_test_copy(expected_db, a->k);
    for (int64_t i = 0; i < t->w_count && add; i++) expected[i] += before[i];
    for (int64_t k = 0; k < a->k && !add; k++) expected_db[k] = 0;
    for (int64_t i = 0; i < t->y_count; i++) expected_db[i % a->k] += t->dy[i];
    must(device_layout_pack(d, layout, before, dw));
    cpu_test_run(d, op, layout, (void *[OP_MAX_OPERANDS]){t->x, t->dy, dw, a->bias ? db : NULL}, NULL);
    must(device_layout_unpack(d, layout, dw, before));
    check_result(a, add ? "dw, added to what was there," : "dw", before, expected, t->w_count);
    if (a->bias) cpu_test_equal("db", db, expected_db, a->k);
    float *const arrays[] = {before, expected, dw, expected_db, db};
    for (int i = 0; i < 5; i++) free(arrays[i]);
}

static void convolutions_of_whole_numbers_are_exact(void **context)
{
    const conv_test *test = *context;
    const conv2d_attributes *a = &test->a;
    device *d = cpu_test_open(test->threads);
    tensors t = tensors_of(a);
    op_desc op = {.kind = OP_conv2d_forward, .u.conv2d = *a};
    device_layout layout = cpu_test_layout(d, &op, CONV_FWD_W, shape_4d(a->k, a->c, a->r, a->s));
    float *packed = cpu_test_blank(t.w_count);
    must(device_layout_pack(d, &layout, t.w, packed));
    check_forward(d, a, &t, &layout, packed);
    check_backward_data(d, a, &t, &layout, packed);
    check_backward_weights(d, a, &t, &layout, false);
    check_backward_weights(d, a, &t, &layout, true);
    free(packed);
    free_tensors(&t);
    device_close(&d);
}

/* The last batch of an epoch, evaluation, and ranks with unequal batches all use the arenas of a training
 * batch. */
static void a_layout_serves_every_batch_size(void **context)
{
    (void)context;
    device *d = cpu_test_open(1);
    for (int i = 0; i < SHAPES; i++) {
        device_layout layouts[3];
        for (int j = 0; j < 3; j++) {
            op_desc op = {.kind = OP_conv2d_forward, .u.conv2d = shapes[i]};
            conv2d_attributes *a = &op.u.conv2d;
            a->n = j == 0 ? 1 : j == 1 ? 7 : 256;
            a->p = (a->h + 2 * a->pad_h - a->r) / a->stride + 1;
            a->q = (a->w + 2 * a->pad_w - a->s) / a->stride + 1;
            layouts[j] = cpu_test_layout(d, &op, CONV_FWD_W, shape_4d(a->k, a->c, a->r, a->s));
        }
        assert_memory_equal(&layouts[0], &layouts[1], sizeof layouts[0]);
        assert_memory_equal(&layouts[0], &layouts[2], sizeof layouts[0]);
    }
    device_close(&d);
}

int main(void)
{
    static conv_test contexts[2 * SHAPES];
    static struct CMUnitTest tests[2 * SHAPES + 1];
    for (int i = 0; i < 2 * SHAPES; i++) {
        conv_test *t = &contexts[i];
        t->a = shapes[i / 2];
        t->a.p = (t->a.h + 2 * t->a.pad_h - t->a.r) / t->a.stride + 1;
        t->a.q = (t->a.w + 2 * t->a.pad_w - t->a.s) / t->a.stride + 1;
        t->threads = i % 2 + 1;
        snprintf(t->name, sizeof t->name,
                 "a convolution of integers is exact with %d threads: %lldx%lldx%lldx%lld to %lld, kernel "
                 "%lldx%lld, stride %lld, pad %lldx%lld",
                 t->threads, (long long)t->a.n, (long long)t->a.h, (long long)t->a.w, (long long)t->a.c,
                 (long long)t->a.k, (long long)t->a.r, (long long)t->a.s, (long long)t->a.stride,
                 (long long)t->a.pad_h, (long long)t->a.pad_w);
        tests[i] = (struct CMUnitTest){t->name, convolutions_of_whole_numbers_are_exact, NULL, NULL, t};
    }
    tests[2 * SHAPES] = (struct CMUnitTest)cmocka_unit_test(a_layout_serves_every_batch_size);
    return _cmocka_run_group_tests("convolutions", tests, 2 * SHAPES + 1, NULL, NULL);
}
