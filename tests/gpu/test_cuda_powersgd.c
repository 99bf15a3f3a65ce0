/* Compares PowerSGD's kernels with those of the CPU over several steps, including the error that remains
 * after each step. Runs on a GPU and on the emulator. */
#include "common/base/random.h"
#include "ring/hooks/powersgd_module.h"
#include "tests/common/device/op_devices.h"
#include "tests/common/device/op_runner.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const device_setting cuda = {"cuda", 1, 0};

/* Weights of a convolution as a matrix of k rows and c r s columns. For 1 by 1 kernels they are in PyTorch's
 * order. */
typedef struct matrix_case {
    int64_t k, c, r;
    int rank;
} matrix_case;

static const matrix_case cases[] = {
    {60, 100, 1, 1}, {60, 100, 1, 5}, {33, 7, 3, 2}, {300, 2, 7, 4}, {24, 40, 5, 9}};

typedef struct sides {
    device *d;
    device_stream *s;
    device_layout layout;
    device_memory memory;
    int64_t rows, cols, elements;
    powersgd_matrix host, gpu;
    float *plain, *packed;
} sides;

static float *numbers(int64_t count)
{
    float *out = calloc((size_t)count, sizeof *out);
    assert_non_null(out);
    return out;
}

static void open_sides(const matrix_case *c, sides *x)
{
    op_desc op = {.kind = OP_conv2d_forward,
                  .type = DTYPE_F32,
                  .u.conv2d = {.n = 1,
                               .h = c->r,
                               .w = c->r,
                               .c = c->c,
                               .k = c->k,
                               .r = c->r,
                               .s = c->r,
                               .stride = 1,
                               .p = 1,
                               .q = 1}};
    *x = (sides){.d = device_setting_open(cuda), .rows = c->k, .cols = c->c * c->r * c->r};
    x->elements = x->rows * x->cols;
    must(device_stream_open(x->d, DEVICE_STREAM_COMPUTE, &x->s));
    must(device_choose_layout(x->d, &op, CONV_FWD_W, (shape){.rank = 4, .dims = {c->k, c->c, c->r, c->r}},
                              &x->layout));
    int64_t p = x->rows * c->rank, q = x->cols * c->rank;
    must(device_allocate(x->d, DEVICE_MEMORY_PRIVATE, (size_t)(2 * x->elements + p + q) * sizeof(float),
                         &x->memory));
    float *at = x->memory.data;
    x->gpu = (powersgd_matrix){
        x->rows, x->cols, at, at + x->elements, at + 2 * x->elements, at + 2 * x->elements + p};
    x->host = (powersgd_matrix){x->rows,    x->cols,   numbers(x->elements), numbers(x->elements),
                                numbers(p), numbers(q)};
    x->plain = numbers(x->elements);
    x->packed = numbers(x->elements);
    float *scratch = numbers(3 * x->elements);
    powersgd_start(&x->host, c->rank, "layer.weight");
    must(powersgd_start_on_device(x->d, x->s, &x->gpu, c->rank, "layer.weight", &x->layout, scratch));
    free(scratch);
}

static void close_sides(sides *x)
{
    device_free(x->d, &x->memory);
    device_stream_close(&x->s);
    device_close(&x->d);
    float *all[] = {x->host.m, x->host.error, x->host.p, x->host.q, x->plain, x->packed};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* Sets the same gradient on both sides: a matrix of low rank plus noise. */
static void set_gradients(sides *x, int step)
{
    for (int64_t i = 0; i < x->elements; i++) {
        double row = (double)(i / x->cols), column = (double)(i % x->cols);
        x->host.m[i] = (float)(sin(0.7 * row + step) * cos(0.9 * column) +
                               0.3 * cos(0.2 * row) * sin(0.4 * column + step) +
                               0.05 * random_normal(17, (uint64_t)(i + step * x->elements)));
    }
    must(device_layout_pack(x->d, &x->layout, x->host.m, x->packed));
    must(device_upload(x->s, x->gpu.m, x->packed, DTYPE_F32, DTYPE_F32, x->elements));
}

static void compare(sides *x, const char *what, const float *expected, const float *on_gpu)
{
    double difference = 0, size = 0;
    must(device_download(x->s, x->packed, on_gpu, DTYPE_F32, DTYPE_F32, x->elements));
    must(device_stream_synchronize(x->s));
    must(device_layout_unpack(x->d, &x->layout, x->packed, x->plain));
    for (int64_t i = 0; i < x->elements; i++) {
        difference += pow((double)x->plain[i] - expected[i], 2);
        size += pow(x->host.m[i], 2);
    }
    /* The columns after the leading ones consist of noise, which amplifies the difference between sums in
     * different orders. It grows from step to step, since the warm start turns all columns towards the
     * leading ones. */
    if (!(sqrt(difference) <= 1e-3 * sqrt(size)))
        fail_msg(
            "%s of %lld x %lld: found a difference of %g, expected at most 1e-3 of the gradient's norm of %g",
            what, (long long)x->rows, (long long)x->cols, sqrt(difference), sqrt(size));
}

static void gradients_and_errors_are_those_of_the_cpu(void **state)
{
    (void)state;
    enum { STEPS = 3 };
    const powersgd_module *module;
    must(powersgd_module_open(&module));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sides x;
        open_sides(&cases[i], &x);
        for (int step = 0; step < STEPS; step++) {
            set_gradients(&x, step);
            powersgd_project(&x.host, cases[i].rank);
            powersgd_back_project(&x.host, cases[i].rank);
            powersgd_restore(&x.host, cases[i].rank);
            must(module->project(x.s, &x.gpu, cases[i].rank));
            must(module->back_project(x.s, &x.gpu, cases[i].rank));
            must(module->restore(x.s, &x.gpu, cases[i].rank));
            compare(&x, "the gradient", x.host.m, x.gpu.m);
            compare(&x, "the error", x.host.error, x.gpu.error);
        }
        close_sides(&x);
    }
}

static void columns_that_depend_on_others_become_zero(void **state)
{
    (void)state;
    enum { ROWS = 40, RANK = 3 };
    const powersgd_module *module;
    matrix_case c = {ROWS, 50, 1, RANK};
    sides x;
    float p[ROWS * RANK];
    must(powersgd_module_open(&module));
    open_sides(&c, &x);
    for (int64_t i = 0; i < x.elements; i++)
        x.host.m[i] = (float)((i / x.cols + 1) * (i % x.cols - 20)); /* Makes a matrix of rank 1. */
    must(device_upload(x.s, x.gpu.m, x.host.m, DTYPE_F32, DTYPE_F32, x.elements));
    must(module->project(x.s, &x.gpu, RANK));
    must(module->back_project(x.s, &x.gpu, RANK));
    must(device_download(x.s, p, x.gpu.p, DTYPE_F32, DTYPE_F32, ROWS * RANK));
    must(device_stream_synchronize(x.s));
    double norms[RANK] = {0};
    for (int k = 0; k < RANK; k++)
        for (int i = 0; i < ROWS; i++) norms[k] += (double)p[k * ROWS + i] * p[k * ROWS + i];
    assert_true(fabs(norms[0] - 1) < 1e-5);
    for (int k = 1; k < RANK; k++) assert_true(norms[k] == 0 || fabs(norms[k] - 1) < 1e-5);
    close_sides(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_and_errors_are_those_of_the_cpu),
        cmocka_unit_test(columns_that_depend_on_others_become_zero),
    };
    return cmocka_run_group_tests_name("PowerSGD on the cuda device", tests, NULL, NULL);
}
