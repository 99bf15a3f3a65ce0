/* Linear layers over whole numbers, whose sums are exact in float32 in any order, against plain loops: one
 * shape at least for each way of computing a product, and row counts below the prepared one. */
#include "tests/common/device/cpu/cpu_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct product_case {
    int64_t m, in, out, rows; /* rows 0: all m */
} product_case;

static const product_case cases[] = {
    {1, 1, 1, 0},      {32, 13, 64, 0},    {32, 64, 3, 0},    {7, 17, 33, 0},     {16, 16, 16, 0},
    {64, 64, 64, 0},   {5, 120, 84, 0},    {32, 400, 120, 0}, {32, 512, 10, 0},   {512, 256, 2, 0},
    {40, 300, 300, 0}, {130, 64, 128, 0},  {131, 67, 129, 0}, {200, 200, 200, 0}, {300, 100, 12, 0},
    {64, 64, 64, 3},   {200, 200, 200, 9}, {300, 100, 12, 1}, {512, 256, 2, 17},
};
enum { CASES = sizeof cases / sizeof cases[0], BOUND = 5 };

typedef struct product_test {
    product_case c;
    int threads;
    char name[96];
} product_test;

static void products_of_whole_numbers_are_exact(void **context)
{
    const product_test *test = *context;
    int64_t m = test->c.m, in = test->c.in, out = test->c.out, rows = test->c.rows ? test->c.rows : m;
    linear_attributes a = {.m = m, .in = in, .out = out, .bias = true};
    op_scalars scalars = {.rows = test->c.rows}, adding = {.rows = test->c.rows, .accumulate = true};
    device *d = cpu_test_open(test->threads);
    float *x = cpu_test_whole("x", m * in, BOUND), *w = cpu_test_whole("w", out * in, BOUND);
    float *b = cpu_test_whole("b", out, BOUND), *dy = cpu_test_whole("dy", m * out, BOUND);
    float *y = cpu_test_blank(m * out), *dx = cpu_test_blank(m * in), *dw = cpu_test_blank(out * in);
    float *db = cpu_test_blank(out), *expected_y = cpu_test_blank(m * out),
          *expected_dx = cpu_test_blank(m * in);
    float *expected_dw = calloc((size_t)(out * in), sizeof *w), *expected_db = calloc((size_t)out, sizeof *w);
    memset(expected_dx, 0, (size_t)(rows * in) * sizeof *x);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t o = 0; o < out; o++) {
            expected_y[i * out + o] = b[o];
            expected_db[o] += dy[i * out + o];
            for (int64_t j = 0; j < in; j++) {
                expected_y[i * out + o] += x[i * in + j] * w[o * in + j];
                expected_dx[i * in + j] += dy[i * out + o] * w[o * in + j];
                expected_dw[o * in + j] += dy[i * out + o] * x[i * in + j];
            }
        }
    op_desc op = {.kind = OP_linear_forward, .u.linear = a};
    cpu_test_run(d, op, NULL, (void *[OP_MAX_OPERANDS]){x, w, b, y}, &scalars);
    cpu_test_equal("y", y, expected_y, rows * out);
    op.kind = OP_linear_backward_data;
    cpu_test_run(d, op, NULL, (void *[OP_MAX_OPERANDS]){dy, w, dx}, &scalars);
    cpu_test_equal("dx", dx, expected_dx, rows * in);
    op.kind = OP_linear_backward_weights;
    cpu_test_run(d, op, NULL, (void *[OP_MAX_OPERANDS]){x, dy, dw, db}, &scalars);
    cpu_test_equal("dw", dw, expected_dw, out * in);
    cpu_test_equal("db", db, expected_db, out);
    cpu_test_run(d, op, NULL, (void *[OP_MAX_OPERANDS]){x, dy, dw, db}, &adding);
    for (int64_t i = 0; i < out * in; i++) expected_dw[i] *= 2;
    cpu_test_equal("dw, added to what was there,", dw, expected_dw, out * in);
    float *const arrays[] = {x, w, b, dy, y, dx, dw, db, expected_y, expected_dx, expected_dw, expected_db};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) free(arrays[i]);
    device_close(&d);
}

int main(void)
{
    static product_test contexts[2 * CASES];
    static struct CMUnitTest tests[2 * CASES];
    for (int i = 0; i < 2 * CASES; i++) {
        product_test *t = &contexts[i];
        t->c = cases[i / 2];
        t->threads = i % 2 + 1;
        snprintf(t->name, sizeof t->name, "%d threads: %lldx%lld to %lld, %lld rows", t->threads,
                 (long long)t->c.m, (long long)t->c.in, (long long)t->c.out,
                 (long long)(t->c.rows ? t->c.rows : t->c.m));
        tests[i] = (struct CMUnitTest){t->name, products_of_whole_numbers_are_exact, NULL, NULL, t};
    }
    return _cmocka_run_group_tests("products of whole numbers are exact", tests, 2 * CASES, NULL, NULL);
}
